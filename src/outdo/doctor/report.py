"""The findings of a run for viewers: what the rules find now, and earlier findings that no longer hold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from pydantic import Field

from outdo.doctor.answers import MAX_FILES, MAX_GROUPS, summarize_answers
from outdo.doctor.finding import Change, Expect, Finding
from outdo.doctor.history import Answers, History, from_rows
from outdo.doctor.playbook import PLAYBOOK
from outdo.doctor.rules import diagnose
from outdo.runs.index import Location, read_locations
from outdo.runs.reader import JsonRow
from outdo.runs.run_reader import RunReader
from outdo.runs.values import PartialRecord, Record, as_dict, as_float, as_int, as_text, dicts_in, json_safe

MAX_ANSWER_BYTES = 24 << 20  # of groups that the rules read
MAX_FINDINGS = 40


class ChangeRecord(Record):
    """One key to set; `override` is its form on the command line."""

    key: str
    old: Any = Field(alias="from", default=None)
    new: Any = Field(alias="to", default=None)
    words: str = ""
    override: str = ""


class ExpectRecord(Record):
    signal: str
    direction: str
    steps: int | None
    words: str = ""


class FindingRecord(Record):
    """One finding. `past`: it was reported during the run and no longer holds."""

    code: str
    severity: str
    step: int
    evidence: str
    numbers: dict[str, dict[str, float | None]]
    signals: list[str]
    change: ChangeRecord | None = None
    expect: ExpectRecord | None = None
    page: str = ""
    what: str = ""
    why: str = ""
    do: str = ""
    seen: int | None = None
    past: bool = False
    also: list[str] = Field(default_factory=list)  # codes of what else was seen, and is explained by it
    unrecoverable: bool = False
    unjudged: list[str] = Field(default_factory=list)  # rules that lack their signals


class Findings(PartialRecord):
    findings: list[FindingRecord]


def findings_of(reader: RunReader) -> Findings:
    """Computed again when the run has more rows."""
    frame, evals, reported = reader.metrics.frame(), reader.evals.all(), reader.findings.all()
    status = reader.manifest()[0].get("status")
    state = (len(frame), reader.metrics.restarts, len(evals), len(reported), status)
    cached = reader.derived.get("findings")
    if cached is None or cached[0] != state:
        cached = reader.derived["findings"] = (state, _compute(reader, reported))
    findings: Findings = cached[1]
    return findings


def _compute(reader: RunReader, reported: list[JsonRow]) -> Findings:
    problems, current = reader.findings.problems(), list[Finding]()
    try:
        if len(reader.metrics.frame()) and reader.manifest()[0].get("kind", "grpo") == "grpo":
            history = history_of(reader, problems)
            current = diagnose(history)
            if any(finding.code == "reward_hacking" for finding in current):  # what the answers that gained share
                current = diagnose(replace(history, answers=_answers(reader, problems, gained=True)))
    except Exception as error:  # numbers that no rule foresaw: viewers still show the curves
        problems.append(f"the doctor failed: {type(error).__name__}: {error}"[:300])
    seen = {str(row.get("code")): as_int(row.get("seen")) for row in reported}
    codes = {finding.code for finding in current}
    past = {row["code"]: row for row in reported if isinstance(row.get("code"), str) and row["code"] not in codes}
    records = [_record(finding.row(), seen.get(finding.code)) for finding in current]
    records += [_record(row, as_int(row.get("seen")), past=True) for row in past.values()]
    return Findings(findings=records[:MAX_FINDINGS], trouble=problems)


def history_of(reader: RunReader, problems: list[str]) -> History:
    """The run as the rules see it. The table's columns have the rules' own names."""
    frame = reader.metrics.frame()
    given = ((row, as_int(row.get("step")), as_float(row.get("success_rate"))) for row in reader.evals.all())
    evals = [row for row, *numbers in given if None not in numbers]
    columns = {name: column for name, column in frame.columns.items() if np.isfinite(column).any()}
    measured = from_rows([], evals)
    answers = _answers(reader, problems, gained=False)
    steps = tuple(frame.steps.tolist())
    return History(steps, columns, measured.held, reader.recipe, answers, splits=measured.splits)


def _answers(reader: RunReader, problems: list[str], gained: bool) -> Answers:
    """Groups of the first and the last files, as `outdo doctor` reads them, of a bounded number of bytes."""
    paths, half = list(reader.groups.paths().items()), MAX_GROUPS // 2
    locations: list[Location] = []
    for first, path in dict([*paths[:1], *paths[-MAX_FILES + 1 :]]).items():
        groups = reader.groups.file(first, path).locations()
        locations += groups if len(groups) <= MAX_GROUPS else [*groups[:half], *groups[-half:]]
    try:
        return summarize_answers(list(read_locations(reader.root, locations, MAX_ANSWER_BYTES)), gained)
    except Exception as error:  # rows that no run writes
        problems.append(f"the answers were not analysed: {type(error).__name__}: {error}"[:300])
        return Answers()


def _record(row: JsonRow, seen: int | None, past: bool = False) -> FindingRecord:
    """A finding as a run writes it. That of a foreign file may lack anything."""
    code = as_text(row.get("code"), 60)
    signs, ends = dicts_in(row.get("evidence")), ("before", "after", "slope")
    numbers = {as_text(sign.get("signal"), 80): {name: as_float(sign.get(name)) for name in ends} for sign in signs}
    entry = PLAYBOOK.get(code)
    return FindingRecord(
        code=code,
        severity=as_text(row.get("severity"), 20),
        step=as_int(row.get("step")) or 0,
        evidence="\n".join(as_text(sign.get("words") or sign.get("signal"), 2000) for sign in signs),
        numbers=numbers,
        signals=[name for name in numbers if name],
        change=_change(as_dict(row.get("change"))),
        expect=_expect(as_dict(row.get("expect"))),
        page=as_text(row.get("page"), 200),
        **({"what": entry.what, "why": entry.why, "do": entry.do} if entry else {}),
        seen=seen,
        past=past,
        also=texts_in(row.get("also")),
        unrecoverable=row.get("unrecoverable") is True,
        unjudged=texts_in(row.get("unjudged")),
    )


def texts_in(value: Any) -> list[str]:
    return [as_text(item, 200) for item in value[:MAX_FINDINGS]] if isinstance(value, list) else []


def _change(row: JsonRow) -> ChangeRecord | None:
    if not isinstance(row.get("key"), str):
        return None
    change = Change(as_text(row["key"], 80), json_safe(row.get("from")), json_safe(row.get("to")))
    return ChangeRecord.model_validate({**change.row(), "override": change.pair()})


def _expect(row: JsonRow) -> ExpectRecord | None:
    if row.get("direction") not in ("up", "down", "steady"):
        return None
    steps = as_int(row.get("steps"))
    expect = Expect(as_text(row.get("signal"), 80), row["direction"], steps or 0)
    return ExpectRecord(signal=expect.signal, direction=expect.direction, steps=steps, words=expect.describe())
