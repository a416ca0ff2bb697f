"""`outdo compare --answers`: the held-out answers that changed between two runs, or within one, as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from outdo.errors import RunError
from outdo.evals.changes import KINDS, ChangeRecord, Changes, Kind, SideRecord, compare_answers, evaluations
from outdo.report.html import visible
from outdo.runs.find import shown_name
from outdo.runs.held_out import with_mark
from outdo.runs.reader import read_evals
from outdo.runs.turns import describe_turns

SHOWN: tuple[Kind, ...] = ("gained", "lost")
MAX_CHARS = 600  # of an answer
MAX_PROMPT_CHARS = 300


def all_changes(folders: Sequence[Path]) -> tuple[list[Changes], list[str]]:
    """Every run against the first, or one run's last evaluation against its first, by split; and why some are missing.
    Only splits that both have are compared."""
    first = folders[0]
    others: Sequence[Path | None] = folders[1:] or [None]
    splits = evaluations(first, list(read_evals(first, [])))
    found, missing = list[Changes](), list[str]()
    if not splits:
        why = "it was not evaluated, or by an older version of outdo, or it is of another trainer"
        return [], [f"{shown_name(first)} has no held-out answers: {why}"]
    for other in others:
        theirs = evaluations(other or first, list(read_evals(other or first, [])))
        shared = [split for split in splits if split in theirs and (other or len(splits[split]) > 1)]
        if not shared:
            reason = "has no held-out answers of the same splits" if other else "was evaluated only once"
            missing.append(f"{shown_name(other or first)} {reason}")
        for split in shared:
            try:
                found.append(compare_answers(first, other, split))
            except RunError as error:
                missing.append(str(error))
    return found, missing


def lines(changes: Changes, examples: int) -> Iterator[str]:
    """The counts, and a few problems that were gained and lost."""
    before, after = changes.before, changes.after
    points = f"{before.run} after step {before.step} → {after.run} after step {after.step}"
    if before.run == after.run:
        points = f"{before.run}, {_point(before.step)} → {_point(after.step)}"
    yield f"held-out answers ({changes.split}, {changes.n:,} problems): {points}"
    yield f"  {changes.describe()}"
    if changes.only_one:
        yield f"  {changes.only_one:,} problems are in one of the two only, and are not counted"
    yield from (f"  {note}" for note in [*changes.notes, *changes.trouble])
    for kind in SHOWN if examples else ():
        chosen = changes.of(kind)
        for change in chosen[:examples]:
            yield from _example(change, changes)
        if len(chosen) > examples:
            yield f"  … and {len(chosen) - examples:,} more {KINDS[kind]}"


def _point(step: int) -> str:
    return f"after step {step}" if step else "before training"


def _example(change: ChangeRecord, changes: Changes) -> Iterator[str]:
    gold = "" if change.answer in (None, "") else f"   expected {_short(str(change.answer), 100)}"
    yield ""
    yield f"  {KINDS[change.kind]}   {_short(change.prompt, MAX_PROMPT_CHARS)}{gold}"
    names = ("before", "after") if changes.before.run == changes.after.run else ("first", "second")
    for name, side in zip(names, (change.before, change.after), strict=True):
        yield from _side(name, side)


def _side(name: str, side: SideRecord) -> Iterator[str]:
    reward = "–" if side.reward is None else f"{side.reward:.3g}"
    sampled = f", {side.right} of {side.sampled} sampled right" if side.sampled else ""
    cut = ", cut at the length limit" if side.finish == "length" else ""
    described = describe_turns(side, side.num_tokens)
    turns = f", {described}" if described else ""
    yield f"    {name:<7} {side.verdict}, reward {reward}{sampled}{cut}{turns}"
    yield f"            {_short(with_mark(side.text, (side.cut_at, side.cut)), MAX_CHARS)}"


def _short(text: str, limit: int) -> str:
    """One line that no terminal takes for a command; the start and the end where it is long."""
    text = visible(" ".join(text.split(" ")).replace("\r\n", "\n")).strip().replace("\n", "\n            ")
    return text if len(text) <= limit else f"{text[: limit * 3 // 4]} … {text[-limit // 4 :]}"


def as_json(changes: Sequence[Changes], examples: int) -> list[dict[str, Any]]:
    """The counts of each, with so many problems of every kind."""
    rows = []
    for one in changes:
        chosen = [change for kind in KINDS for change in one.of(kind)[:examples]]
        row = one.model_dump(mode="json", exclude={"changes", "trouble"})
        rows.append(row | ({"changes": [change.model_dump(mode="json") for change in chosen]} if examples else {}))
    return rows
