"""The doctor beside a run: looks now and then while it goes on, and tells a finding once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outdo.doctor.finding import Finding
from outdo.doctor.history import from_rows
from outdo.doctor.rules import diagnose
from outdo.runs.reader import read_rows

EVERY = 5  # steps between two looks, or …
SHARE = 20  # … this part of the run so far, so that looking costs next to nothing


class Watch:
    """What was seen of a run so far. A finding is told when two looks in a row had it: one may be chance."""

    def __init__(self, folder: Path, recipe: Mapping[str, Any]) -> None:
        """Goes on where the folder is: its rows are known, and its findings are told."""
        self.folder, self.recipe = folder, recipe
        self.rows = list(read_rows(folder / "metrics.jsonl", []))
        told = read_rows(folder / "findings.jsonl", [])
        self.told = {row["code"]: int(row["seen"]) for row in told}  # code -> the step at which it was told last
        self.suspected: set[str] = set()
        self.due = _after(len(self.rows))

    def step(self, row: Mapping[str, Any]) -> list[Finding]:
        """New findings after one more row of metrics."""
        self.rows.append(dict(row))
        if len(self.rows) < self.due:
            return []
        self.due = _after(len(self.rows))
        evals = list(read_rows(self.folder / "evals.jsonl", []))
        found = [one for one in diagnose(from_rows(self.rows, evals, self.recipe)) if one.severity != "info"]
        sure = [one for one in found if one.code in self.suspected]
        self.suspected = {one.code for one in found}
        new = [one for one in sure if one.step > self.told.get(one.code, -1)]
        now = int(row["step"])
        self.told |= {one.code: now for one in new}
        return new


def _after(rows: int) -> int:
    """How many rows there are to be at the next look."""
    return (rows // EVERY + 1) * EVERY if rows < EVERY * SHARE else rows + rows // SHARE
