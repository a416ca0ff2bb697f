"""What the doctor says of a run now, and what it noted on the way that no longer holds."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from outdo.dash.blocks import Place, Reader
from outdo.dash.book import Book
from outdo.dash.files import Row, as_float, as_int, plain, text_of
from outdo.dash.shapes import Change, Expect, Finding, Findings
from outdo.doctor import finding as said
from outdo.doctor.answers import MAX_FILES, MAX_GROUPS, summarize_answers
from outdo.doctor.history import Answers, History, from_rows
from outdo.doctor.playbook import PLAYBOOK
from outdo.doctor.rules import diagnose

LOOKED_AT = 24 << 20  # bytes of answers that are read for it


def findings_of(book: Book) -> Findings:
    """Worked out again when there is more to go by."""
    frame, evals, noted = book.metrics.frame(), book.evals.all(), book.findings.all()
    manifest, _ = book.manifest()
    state = (len(frame), book.metrics.times, len(evals), len(noted), manifest.get("status"))
    kept = book.kept.get("findings")
    if kept is None or kept[0] != state:
        kept = (state, _worked_out(book, manifest, noted))
        book.kept["findings"] = kept
    return kept[1]


def _worked_out(book: Book, manifest: Row, noted: list[Row]) -> Findings:
    trouble = [*book.findings.trouble()]
    now: list[said.Finding] = []
    try:
        if len(book.metrics.frame()) and manifest.get("kind", "grpo") == "grpo":
            history = history_of(book, manifest, trouble)
            now = diagnose(history)
            if any(one.code == "reward_hacking" for one in now):  # what the answers that gained have in common
                now = diagnose(replace(history, answers=_answers(book, trouble, gained=True)))
    except Exception as error:  # numbers that nobody foresaw: the page still shows the curves
        trouble.append(f"the doctor could not look: {type(error).__name__}: {error}"[:300])
    seen = {str(row.get("code")): as_int(row.get("seen")) for row in noted}
    found = [_of_row(one.row(), seen.get(one.code)) for one in now]
    codes = {one.code for one in now}
    past = {str(row["code"]): row for row in noted if isinstance(row.get("code"), str) and row["code"] not in codes}
    found += [_of_row(row, as_int(row.get("seen")), past=True) for row in past.values()]
    return Findings(findings=found[:40], trouble=trouble)


def history_of(book: Book, manifest: Row, trouble: list[str]) -> History:
    """Our own names need no turning: the columns are the table's."""
    frame = book.metrics.frame()
    recipe = manifest.get("recipe")
    held = from_rows([], _sound(book.evals.all())).held
    columns = {name: column for name, column in frame.columns.items() if np.isfinite(column).any()}
    answers = _answers(book, trouble, gained=False)
    return History(tuple(frame.steps.tolist()), columns, held, recipe if isinstance(recipe, dict) else {}, answers)


def _sound(evals: list[Row]) -> list[Row]:
    whole = [row for row in evals if as_int(row.get("step")) is not None]
    return [row for row in whole if as_float(row.get("success_rate")) is not None]


def _answers(book: Book, trouble: list[str], gained: bool) -> Answers:
    """Groups of the first and the last files, as `outdo doctor` looks at them; a bounded number of bytes."""
    files = book.index.files()
    firsts = list(files)
    chosen = list(dict.fromkeys([*firsts[:1], *firsts[-MAX_FILES + 1 :]]))
    places: list[Place] = []
    for first in chosen:
        found = book.index.block(first, files[first]).places()
        half = MAX_GROUPS // 2
        places += found if len(found) <= MAX_GROUPS else [*found[:half], *found[-half:]]
    rows, spent = [], 0
    with Reader(book.root) as reader:
        for place in places:
            spent += place.length
            if spent > LOOKED_AT:
                break
            with suppress(OSError, ValueError):
                rows.append(reader.row(place))
    try:
        return summarize_answers(rows, gained)
    except Exception as error:  # rows that are not as run.py writes them
        trouble.append(f"the answers were not looked at: {type(error).__name__}: {error}"[:300])
        return Answers()


def _of_row(row: Row, seen: int | None, past: bool = False) -> Finding:
    """A finding as findings.jsonl has it; that of a foreign file may lack anything."""
    code = text_of(row.get("code"))[:60]
    told = row.get("evidence")
    signs = [sign for sign in told if isinstance(sign, dict)] if isinstance(told, list) else []
    numbers = {
        text_of(sign.get("signal"))[:80]: {end: as_float(sign.get(end)) for end in ("before", "after", "slope")}
        for sign in signs
    }
    words = [text_of(sign.get("words") or sign.get("signal"))[:2000] for sign in signs]
    entry = PLAYBOOK.get(code)
    return Finding(
        code=code,
        severity=text_of(row.get("severity"))[:20],
        step=as_int(row.get("step")) or 0,
        evidence="\n".join(words),
        numbers=numbers,
        signals=[name for name in numbers if name],
        change=_change(row.get("change")),
        expect=_expect(row.get("expect")),
        page=text_of(row.get("page"))[:200],
        what=entry.what if entry else "",
        why=entry.why if entry else "",
        do=entry.do if entry else "",
        seen=seen,
        past=past,
    )


def _change(row: Any) -> Change | None:
    if not isinstance(row, Mapping) or not isinstance(row.get("key"), str):
        return None
    made = said.Change(text_of(row["key"])[:80], plain(row.get("from")), plain(row.get("to")))
    told = {"key": made.key, "from": made.old, "to": made.new, "words": made.describe(), "override": made.pair()}
    return Change.model_validate(told)


def _expect(row: Any) -> Expect | None:
    if not isinstance(row, Mapping) or row.get("direction") not in ("up", "down", "steady"):
        return None
    steps = as_int(row.get("steps"))
    made = said.Expect(text_of(row.get("signal"))[:80], row["direction"], steps or 0)
    return Expect(signal=made.signal, direction=made.direction, steps=steps, words=made.describe())
