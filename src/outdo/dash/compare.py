"""Runs side by side, as `outdo compare` has them."""

from __future__ import annotations

from collections.abc import Sequence

from outdo.dash.models import Comparison, DifferingKey
from outdo.doctor.compare import Side, describe_sides, difference_rows, differing
from outdo.doctor.run_row import view_run_row
from outdo.doctor.summary import RunSummary
from outdo.runs.run_reader import RunReader
from outdo.runs.values import json_safe


def compare_runs(runs: Sequence[tuple[RunReader, RunSummary]]) -> Comparison:
    """The rows of `outdo compare`; differences are from the first run. What a run does not have is null."""
    sides, problems = [], list[str]()
    for reader, summary in runs:
        row, unread = view_run_row(reader, summary)
        sides.append(Side(summary.id, reader.recipe, row))
        problems += [f"{summary.id}: {line}" for line in unread]
    return Comparison(
        runs=[side.name for side in sides],
        keys=[DifferingKey(key=key, values=json_safe(values)) for key, values in differing(sides).items()],
        rows=[{"run": side.name, **json_safe(side.row)} for side in sides],
        differences=difference_rows(sides),
        notes=describe_sides(sides),
        trouble=problems,
    )
