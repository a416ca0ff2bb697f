"""The section of a report with held-out answers before and after training: what was gained, and what was lost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from outdo.evals.changes import KINDS, ChangeRecord, Changes, Kind, SideRecord, changes_between, evaluations
from outdo.report import turns
from outdo.report.html import Raw, el, table
from outdo.runs.held_out import with_mark
from outdo.runs.run_reader import RunReader
from outdo.runs.turns import describe_turns

MAX_SPLITS = 20
SHOWN: dict[Kind, int] = {"gained": 4, "lost": 4, "neither": 2, "both": 1}  # problems of each, in this order
MAX_CHARS = 1200  # of a text
VERDICTS = ("right", "wrong")


def find_changes(folders: Sequence[Path], root: Path) -> list[Changes]:
    """The first evaluation of each split against its last, where both kept their answers; over the stages of a run,
    from the first that has it to the last."""
    points: dict[str, list[tuple[Path, int]]] = {}
    root = root.resolve()
    for folder in map(Path.resolve, folders):
        for split, steps in evaluations(folder, RunReader(root, folder).evals.all()).items():
            points.setdefault(split, []).extend((folder, step) for step in steps)
    ends = {split: (each[0], each[-1]) for split, each in points.items() if len(each) > 1}
    return [
        changes_between([first, last], [first.name, last.name], (start, end), split, [root] * 2)
        for split, ((first, start), (last, end)) in list(ends.items())[:MAX_SPLITS]
    ]


def held_out_answers(changes: list[Changes]) -> Raw | None:
    if not any(one.n for one in changes):
        return None
    kinds: list[Kind] = [kind for kind in KINDS if kind != "unjudged" or any(one.counts[kind] for one in changes)]
    rows = [
        [one.split, _steps(one), *(f"{one.counts[kind]:,}" for kind in kinds), one.describe_test()] for one in changes
    ]
    counts = table(["held out", "steps", *(KINDS[kind] for kind in kinds), "gained against lost"], rows)
    note = (
        "The greedy answer to each held-out problem, before training and after. Right is what the verifier says, "
        "whatever partial credit the reward gives. p is McNemar's: how likely so uneven a split into gained and lost "
        "is by chance."
    )
    notes = dict.fromkeys(line for one in changes for line in [*one.notes, *one.trouble])
    shown = [_examples(one, several=len(changes) > 1) for one in changes]
    extra = [el("p", line, class_="why") for line in notes]
    if any(side.turns for one in changes for each in one.changes for side in (each.before, each.after)):
        extra.append(turns.legend())
    title = el("h2", "Held-out answers, before and after")
    return el("section", title, counts, el("p", note, class_="dim"), extra, shown, id="held-out")


def _steps(changes: Changes) -> str:
    return f"{changes.before.step} → {changes.after.step}"


def _examples(changes: Changes, several: bool) -> list[Raw]:
    parts = []
    for kind, limit in SHOWN.items():
        chosen = changes.of(kind)
        if not chosen:
            continue
        split = f" ({changes.split})" if several else ""
        count = f"{min(limit, len(chosen))} of {len(chosen):,}" if len(chosen) > limit else f"{len(chosen)}"
        title = f"{KINDS[kind].capitalize()}{split}"
        body = [_example(change, changes) for change in chosen[:limit]]
        if kind in ("gained", "lost"):
            parts.append(el("div", el("h3", title, " ", el("small", count)), body))
        else:
            parts.append(el("details", el("summary", f"{title}: {count}"), body))
    return parts


def _example(change: ChangeRecord, changes: Changes) -> Raw:
    expected = "" if change.answer in (None, "") else f"expected: {_cut(str(change.answer), 200)}"
    steps = [
        f"after step {point.step}" if point.step else "before training" for point in (changes.before, changes.after)
    ]
    return el(
        "article",
        el("pre", _cut(change.prompt), class_="prompt", dir="auto"),
        el("p", expected, class_="dim") if expected else None,
        el("div", _side(change.before, steps[0]), _side(change.after, steps[1]), class_="sides"),
        class_="example",
    )


def _side(side: SideRecord, title: str) -> Raw:
    reward = "–" if side.reward is None else f"{side.reward:.3g}"
    sampled = f" · {side.right} of {side.sampled} sampled right" if side.sampled else ""
    length = " · cut at the length limit" if side.finish == "length" else ""
    described = describe_turns(side, side.num_tokens)
    line = f" · reward {reward}{sampled}{length}" + (f" · {described}" if described else "")
    text = el("pre", _cut(with_mark(side.text, (side.cut_at, side.cut))), dir="auto")
    kind = side.verdict if side.verdict in VERDICTS else "broken"
    return el(
        "div",
        el("h4", title),
        el(
            "div",
            el("p", el("b", side.verdict or "no verdict"), line, class_="verdict-line"),
            turns.turns(side) if side.turns else text,
            el("p", side.reason, class_="dim") if side.reason else None,
            class_=f"answer {kind}",
        ),
    )


def _cut(text: str, limit: int = MAX_CHARS) -> str:
    """The start and the end of a long text: an answer often ends with its result."""
    if len(text) <= limit:
        return text
    head = limit * 2 // 3
    return f"{text[:head]} … ({len(text) - limit:,} characters left out) … {text[len(text) - (limit - head) :]}"
