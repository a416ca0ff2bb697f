"""What the answers show: one answer with two verdicts, why graders broke, and what the reward came to pay for."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from outdo.doctor.history import Answers
from outdo.errors import RunError
from outdo.runs.layout import group_files
from outdo.runs.reader import JsonRow, read_rows

MAX_GROUPS = 400  # read from each file
MAX_FILES = 3  # the first and the last ones
MAX_PHRASE_WORDS = 4
MAX_TEXT_CHARS = 90  # of an answer that is shown

AnswerKey = tuple[str, str, int, str, str]  # prompt, text, number of tokens, finish, turns: what makes two the same
PaidAnswer = tuple[str, str, float, str]  # prompt, text, reward, verdict


def read_answers(folder: Path, skipped: list[str]) -> Answers:
    """A run's answers, from its first and its last files. Raises RunError where the rows are not a run's.

    Lines that are not JSON rows are added to `skipped`.
    """
    files = [path for path in group_files(folder) if path.is_file()]
    if not files:
        return Answers()
    chosen = list(dict.fromkeys([files[0], *files[-MAX_FILES + 1 :]]))
    rows = [row for path in chosen for row in _read_ends(path, skipped)]
    try:
        return summarize_answers(rows)
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        raise RunError(f"{files[0].parent}: rows are not as a run writes them ({error!r:.80})") from None


def _read_ends(path: Path, skipped: list[str]) -> Iterator[JsonRow]:
    """Rows from the start and the end of a file; all where they are few."""
    with path.open("rb") as file:
        count = sum(1 for _ in file)
    half = MAX_GROUPS // 2
    for index, row in enumerate(read_rows(path, skipped)):
        if count <= MAX_GROUPS or index < half or count - half <= index < count:
            yield row


def summarize_answers(rows: Sequence[JsonRow], gained: bool = True) -> Answers:
    """Rows of groups, in the order of their steps. `gained` takes the longest to compute."""
    repeated, differing, example = _disagreement(rows)
    reasons = Counter(a.get("reason", "") for r in rows for a in r["completions"] if a["verdict"] == "broken")
    broken = reasons.most_common(1)[0][0] if reasons else ""
    errors = Counter(_errors(rows)).most_common(1)
    error = _cut(errors[0][0]) if errors else ""
    return Answers(repeated, differing, example, _cut(broken), error, _gained(rows) if gained else ())


def _errors(rows: Sequence[JsonRow]) -> Iterator[str]:
    """What failed calls were answered."""
    for answer in (answer for row in rows for answer in row["completions"]):
        yield from (str(turn.get("content")) for turn in answer.get("turns") or () if turn.get("failed"))


def _disagreement(rows: Sequence[JsonRow]) -> tuple[int, int, str]:
    """The number of answers given more than once, the number of them with different verdicts, and an example.

    Across groups only verdicts are compared, within a group also rewards: a reward may depend on the siblings.
    """
    by_answer: dict[AnswerKey, dict[int, list[JsonRow]]] = defaultdict(lambda: defaultdict(list))
    for index, row in enumerate(rows):
        for answer in row["completions"]:
            if answer["verdict"] != "broken":
                turns = repr([(turn.get("content"), turn.get("tool_calls")) for turn in answer.get("turns") or ()])
                key = (row["prompt_id"], answer["text"], answer["num_tokens"], answer["finish"], turns)
                by_answer[key][index].append(answer)
    repeated = {key: groups for key, groups in by_answer.items() if sum(map(len, groups.values())) > 1}
    differing = {key: counts for key, groups in repeated.items() if (counts := _differing(list(groups.values())))}
    example = ""
    if differing:
        key = max(differing, key=lambda key: sum(differing[key].values()))
        verdicts = ", ".join(f"{verdict} {count} times" for verdict, count in differing[key].most_common(3))
        example = f"{_cut(key[1])!r} was {verdicts}"
    return len(repeated), len(differing), example


def _differing(groups: Sequence[Sequence[JsonRow]]) -> Counter[str]:
    """The counts of each verdict of one answer, in the groups that have it; empty where there is only one verdict."""
    verdicts = Counter(answer["verdict"] for group in groups for answer in group)
    rewards = [Counter(_graded(answer) for answer in group) for group in groups]
    return next((counts for counts in (verdicts, *rewards) if len(counts) > 1), Counter())


def _graded(answer: JsonRow) -> str:
    """Verdict and reward, which answers of other trainers may not have."""
    return str(answer["verdict"]) if answer["reward"] is None else f"{answer['verdict']} ({answer['reward']:g})"


def _gained(rows: Sequence[JsonRow]) -> tuple[str, ...]:
    """What the best-paid answers of the last groups have in common that those of the first did not."""
    third = len(rows) // 3
    early, late = _best_paid(rows[:third]), _best_paid(rows[len(rows) - third :])
    if not early or not late:
        return ()
    prompts = {row["prompt_id"]: row["messages"][-1]["content"] for row in rows}
    examples = [f"to {_cut(prompts[i], 40)!r}: {_cut(t)!r} got reward {r:g}, and is {v}" for i, t, r, v in late[:3]]
    return (*_phrase(early, late), *_form(early, late), *_length(early, late), *examples)


def _best_paid(rows: Sequence[JsonRow]) -> list[PaidAnswer]:
    """The better-paid half of the answers, best first; with the same reward, those that are not right come first."""
    paid = [(row["prompt_id"], a) for row in rows for a in row["completions"] if a["reward"] is not None]
    flat = [(prompt_id, a["text"], float(a["reward"]), a["verdict"]) for prompt_id, a in paid]
    flat.sort(key=lambda a: (-a[2], a[3] == "right"))
    return flat[: max(1, len(flat) // 2)]


def _phrase(early: Sequence[PaidAnswer], late: Sequence[PaidAnswer]) -> list[str]:
    before, after = (_phrases([text for _, text, *_ in part]) for part in (early, late))
    rise = {phrase: share - before.get(phrase, 0.0) for phrase, share in after.items()}
    best = max(rise, key=lambda phrase: (round(rise[phrase], 2), len(phrase)), default="")
    if not best or rise[best] < 0.3:
        return []
    return [f"{best!r} is in {after[best]:.0%} of the best-paid late answers, up from {before.get(best, 0.0):.0%}"]


def _phrases(texts: Sequence[str]) -> dict[str, float]:
    """The share of the texts that contain each phrase."""
    counts: Counter[str] = Counter()
    for text in texts[:MAX_GROUPS]:
        words = text.split()[:200]
        sizes = range(1, MAX_PHRASE_WORDS + 1)
        counts.update({" ".join(words[i : i + n]) for n in sizes for i in range(len(words) - n + 1)})
    return {phrase: count / max(1, min(len(texts), MAX_GROUPS)) for phrase, count in counts.most_common(2000)}


def _form(early: Sequence[PaidAnswer], late: Sequence[PaidAnswer]) -> list[str]:
    lines = []
    for mark in ("<think>", "<answer>", "\\boxed", "####", "```", "\n"):
        before, after = (sum(text.count(mark) for _, text, *_ in part) / len(part) for part in (early, late))
        if after > 1.5 * before + 0.5:
            lines.append(f"{mark!r} appears {after:.1f} times per answer, up from {before:.1f}")
    return lines


def _length(early: Sequence[PaidAnswer], late: Sequence[PaidAnswer]) -> list[str]:
    before, after = (sum(len(text) for _, text, *_ in part) / len(part) for part in (early, late))
    if 0.67 < after / max(before, 1) < 1.5:
        return []
    return [f"the best-paid answers have {after:.0f} characters, and had {before:.0f}"]


def _cut(text: str, size: int = MAX_TEXT_CHARS) -> str:
    return text if len(text) <= size else f"{text[: size - 1]}…"
