"""What the answers themselves say: the same one judged both ways, why graders broke, and what came to pay."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from outdo.doctor.history import Answers
from outdo.errors import RunError
from outdo.runs.reader import read_rows

GROUPS = 400  # that are looked at of a file, at most; early and late files only
FILES = 3
WORDS = 4  # of a phrase
SHOWN = 90  # characters of an answer

Row = Mapping[str, Any]
Key = tuple[str, str, int, str]  # what makes two answers the same


def read_answers(folder: Path, passed: list[str]) -> Answers:
    """Of a run's groups/, from its first and its last files. Raises RunError where they are not a run's.

    Lines that are no rows are told in `passed`.
    """
    files = sorted(path for path in (folder / "groups").glob("steps-*.jsonl") if path.is_file())
    if not files:
        return Answers()
    chosen = list(dict.fromkeys([files[0], *files[-FILES + 1 :]]))
    rows = [row for path in chosen for row in _some(path, passed)]
    try:
        return look(rows)
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        raise RunError(f"{folder / 'groups'}: rows are not as a run writes them ({error!r:.80})") from None


def _some(path: Path, passed: list[str]) -> Iterator[Row]:
    """Rows from the start and the end of a file; all where they are few."""
    with path.open("rb") as file:
        count = sum(1 for _ in file)
    if count <= GROUPS:
        yield from read_rows(path, passed)
        return
    half = GROUPS // 2
    for index, row in enumerate(islice(read_rows(path, passed), count)):
        if index < half or index >= count - half:
            yield row


def look(rows: Sequence[Row], gained: bool = True) -> Answers:
    """What rows of groups/ say, in the order of their steps. What came to pay is the longest to find out."""
    repeated, differing, example = _disagreement(rows)
    reasons = Counter(a.get("reason", "") for r in rows for a in r["completions"] if a["verdict"] == "broken")
    broken = reasons.most_common(1)[0][0] if reasons else ""
    return Answers(repeated, differing, example, _cut(broken), _gained(rows) if gained else ())


def _disagreement(rows: Sequence[Row]) -> tuple[int, int, str]:
    """Answers with the same text, length and end to the same prompt, and those of them that were judged both ways.

    Of several groups the verdicts are compared, within one also what was paid: a reward may depend on the siblings.
    """
    sets: dict[Key, dict[int, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for index, row in enumerate(rows):
        for answer in row["completions"]:
            if answer["verdict"] != "broken":
                key = (row["prompt_id"], answer["text"], answer["num_tokens"], answer["finish"])
                sets[key][index].append(answer)
    several = {key: groups for key, groups in sets.items() if sum(map(len, groups.values())) > 1}
    torn = {key: judged for key, groups in several.items() if (judged := _torn(list(groups.values())))}
    example = ""
    if torn:
        key = max(torn, key=lambda key: sum(torn[key].values()))
        ways = ", ".join(f"{way} {count} times" for way, count in torn[key].most_common(3))
        example = f"{_cut(key[1])!r} was {ways}"
    return len(several), len(torn), example


def _torn(groups: Sequence[Sequence[Row]]) -> Counter[str]:
    """How often the same answer was judged in which way, by the groups that it is in; empty where that is one way."""
    verdicts = Counter(answer["verdict"] for group in groups for answer in group)
    paid = [Counter(f"{answer['verdict']} ({answer['reward']:g})" for answer in group) for group in groups]
    return next((ways for ways in (verdicts, *paid) if len(ways) > 1), Counter())


def _gained(rows: Sequence[Row]) -> tuple[str, ...]:
    """What the best-paid answers of the last groups have in common that those of the first had not."""
    third = len(rows) // 3
    if not third:
        return ()
    early, late = _paid(rows[:third]), _paid(rows[-third:])
    if not early or not late:
        return ()
    found = [*_phrase(early, late), *_form(early, late), *_length(early, late)]
    prompts = {row["prompt_id"]: row["messages"][-1]["content"] for row in rows}
    shown = [f"to {_cut(prompts[i], 40)!r}: {_cut(t)!r} was paid {r:g}, and {v}" for i, t, r, v in late[:3]]
    return (*found, *shown)


def _paid(rows: Sequence[Row]) -> list[tuple[str, str, float, str]]:
    """The better-paid half of the answers, best first, those that are not right before the others."""
    flat = [
        (row["prompt_id"], a["text"], float(a["reward"]), a["verdict"])
        for row in rows
        for a in row["completions"]
        if a["reward"] is not None
    ]
    flat.sort(key=lambda a: (-a[2], a[3] == "right"))
    return flat[: max(1, len(flat) // 2)]


def _phrase(early: Sequence[tuple[str, str, float, str]], late: Sequence[tuple[str, str, float, str]]) -> list[str]:
    """A run of words that many late answers have and few early ones had."""
    before, after = (_phrases([text for _, text, *_ in part]) for part in (early, late))
    rise = {phrase: share - before.get(phrase, 0.0) for phrase, share in after.items()}
    best = max(rise, key=lambda phrase: (round(rise[phrase], 2), len(phrase)), default="")
    if not best or rise[best] < 0.3:
        return []
    return [f"{best!r} is in {after[best]:.0%} of the best-paid late answers, and was in {before.get(best, 0.0):.0%}"]


def _phrases(texts: Sequence[str]) -> dict[str, float]:
    """The share of the texts that have each run of one to a few words."""
    counts: Counter[str] = Counter()
    for text in texts[:GROUPS]:
        words = text.split()[:200]
        counts.update({" ".join(words[i : i + n]) for n in range(1, WORDS + 1) for i in range(len(words) - n + 1)})
    return {phrase: count / max(1, min(len(texts), GROUPS)) for phrase, count in counts.most_common(2000)}


def _form(early: Sequence[tuple[str, str, float, str]], late: Sequence[tuple[str, str, float, str]]) -> list[str]:
    """A mark that came to be written, or written many times over."""
    found = []
    for mark in ("<think>", "<answer>", "\\boxed", "####", "```", "\n"):
        before, after = (sum(text.count(mark) for _, text, *_ in part) / len(part) for part in (early, late))
        if after > 1.5 * before + 0.5:
            found.append(f"{mark!r} is written {after:.1f} times an answer, and was {before:.1f} times")
    return found


def _length(early: Sequence[tuple[str, str, float, str]], late: Sequence[tuple[str, str, float, str]]) -> list[str]:
    before, after = (sum(len(text) for _, text, *_ in part) / len(part) for part in (early, late))
    if 0.67 < after / max(before, 1) < 1.5:
        return []
    return [f"the best-paid answers have {after:.0f} characters, and had {before:.0f}"]


def _cut(text: str, size: int = SHOWN) -> str:
    return text if len(text) <= size else f"{text[: size - 1]}…"
