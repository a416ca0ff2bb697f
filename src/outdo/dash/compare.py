"""Runs side by side, as `outdo compare` has them."""

from __future__ import annotations

from collections.abc import Sequence

from outdo.dash.models import Comparison, DifferingKey
from outdo.doctor.run_row import view_run_row
from outdo.doctor.summary import RunSummary
from outdo.runs.run_reader import RunReader
from outdo.runs.values import json_safe
from outdo.sweeps.compare import Side, against, describe_sides, differing, is_paired


def compare_runs(runs: Sequence[tuple[RunReader, RunSummary]]) -> Comparison:
    """The rows of `outdo compare`; differences are from the first run. What a run does not have is null."""
    sides, problems = [], list[str]()
    for reader, summary in runs:
        row, unread = view_run_row(reader, summary)
        sides.append(Side(summary.id, reader.recipe, row))
        problems += [f"{summary.id}: {line}" for line in unread]
    first = sides[0]
    differences = [(side, difference) for side in sides[1:] if (difference := against(side, first))]
    return Comparison(
        runs=[side.name for side in sides],
        keys=[DifferingKey(key=key, values=json_safe(values)) for key, values in differing(sides).items()],
        rows=[{"run": side.name, **json_safe(side.row)} for side in sides],
        differences=[
            {"run": side.name, "against": first.name, "difference": gap.value, "low": gap.low, "high": gap.high}
            | {"noise": gap.is_noise, "paired": is_paired(side, first)}
            for side, gap in differences
        ],
        notes=describe_sides(sides),
        trouble=problems,
    )
