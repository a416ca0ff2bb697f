"""The doctor during training: it diagnoses every few steps, and reports a finding once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outdo.doctor.finding import Finding
from outdo.doctor.history import from_rows
from outdo.doctor.rules import diagnose
from outdo.runs.reader import read_evals, read_findings, read_metrics

EVERY = 5  # steps between two diagnoses, or …
FRACTION = 20  # … a twentieth of the run so far, so that they cost next to nothing


class Watch:
    """A finding is reported when two diagnoses in a row have it: one may be chance. It is reported again when it has
    become unrecoverable."""

    def __init__(self, folder: Path, recipe: Mapping[str, Any]) -> None:
        """Continues from the folder: findings that were reported before the run was resumed are not repeated."""
        self.folder, self.recipe = folder, recipe
        self.rows = list(read_metrics(folder, []))
        self.reported = {row["code"]: int(row["seen"]) for row in read_findings(folder, [])}  # code -> last step
        self.final = {row["code"] for row in read_findings(folder, []) if row.get("unrecoverable")}
        self.suspected: set[str] = set()
        self.due = _next_due(len(self.rows))

    def step(self, row: Mapping[str, Any]) -> list[Finding]:
        """New findings after one more row of metrics."""
        self.rows.append(dict(row))
        if len(self.rows) < self.due:
            return []
        self.due = _next_due(len(self.rows))
        evals = list(read_evals(self.folder, []))
        findings = [f for f in diagnose(from_rows(self.rows, evals, self.recipe)) if f.severity != "info"]
        confirmed = [f for f in findings if f.code in self.suspected]
        self.suspected = {f.code for f in findings}
        new = [f for f in confirmed if f.step > self.reported.get(f.code, -1) or self._ends(f)]
        self.reported |= {f.code: int(row["step"]) for f in new}
        self.final |= {f.code for f in new if f.unrecoverable}
        return new

    def _ends(self, finding: Finding) -> bool:
        return finding.unrecoverable and finding.code not in self.final


def _next_due(rows: int) -> int:
    return (rows // EVERY + 1) * EVERY if rows < EVERY * FRACTION else rows + rows // FRACTION
