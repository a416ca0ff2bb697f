"""Runs side by side: the keys in which they differ, and whether their held-out success differs by more than noise.

Where there are several seeds, the seed is the unit, since answers of one run are not independent. An interval is never
narrower than the held-out problems allow: three seeds may agree by chance.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outdo.doctor.run_row import RunRow, view_run_row
from outdo.doctor.summary import RunSummary
from outdo.metrics.estimate import Difference, mean_interval, paired_difference, t_interval
from outdo.runs.run_reader import RunReader
from outdo.runs.values import PartialRecord, Record, json_safe

IGNORED_KEYS = ("output_dir", "resume")  # differ between any two runs


@dataclass(frozen=True)
class Side:
    name: str
    recipe: dict[str, Any]
    row: RunRow


class DifferingKey(Record):
    """A recipe key in which runs differ, with its value in each, in the order of the query."""

    key: str
    values: list[Any]


class Comparison(PartialRecord):
    runs: list[str]
    keys: list[DifferingKey]
    rows: list[dict[str, Any]]
    differences: list[dict[str, Any]]
    notes: list[str]


def differing(sides: Sequence[Side]) -> dict[str, list[Any]]:
    """The keys in which they differ, with the value of each run."""
    keys = dict.fromkeys(key for side in sides for key in side.recipe if key not in IGNORED_KEYS)
    values = {key: [side.recipe.get(key) for side in sides] for key in keys}
    return {key: each for key, each in values.items() if any(value != each[0] for value in each)}


def against(side: Side, first: Side) -> Difference | None:
    """The difference in held-out success; None where one has none, or they were evaluated on different problems."""
    new, old = side.row, first.row
    if new["success_rate"] is None or old["success_rate"] is None or new["split"] != old["split"]:
        return None
    if new["problems"] and old["problems"] and new["problems"] != old["problems"]:
        return None
    return between([new], [old])


def is_paired(side: Side, first: Side) -> bool:
    return by_problem([side.row, first.row]) is not None


def describe_sides(sides: Sequence[Side]) -> list[str]:
    """What the table does not show: how the runs ended, and how the difference was computed."""
    lines = []
    for side in sides:
        row = side.row
        notes = [row["why"]] if row["status"] in ("halted", "failed", "stopped") else []
        notes += [trouble for trouble in row["troubles"] if trouble != row["status"]]
        minor = [code for code in row["findings"] if not any(code in trouble for trouble in row["troubles"])]
        notes += [f"the doctor says {', '.join(minor)}"] if minor else []
        if notes:
            lines.append(f"{side.name}: {'; '.join(filter(None, notes))}")
        if row["success_rate"] is None:
            lines.append(f"{side.name} has no held-out evaluation after training, so its success cannot be compared")
    for side in sides[1:]:
        gap = against(side, sides[0])
        if gap and not is_paired(side, sides[0]):
            lines.append(f"{side.name}: the difference is not paired, because one run has no verdicts by problem")
        elif gap is None and None not in (side.row["success_rate"], sides[0].row["success_rate"]):
            lines.append(f"{side.name} and {sides[0].name} were evaluated on different problems: no comparison")
    if len({side.recipe.get("seed") for side in sides}) == 1:
        return lines
    return [*lines, "the difference is between single runs: another seed may give another"]


def difference_rows(sides: Sequence[Side]) -> list[dict[str, Any]]:
    """Each run's difference from the first, where they can be compared."""
    first = sides[0]
    return [
        {"run": side.name, "against": first.name, "difference": gap.value, "low": gap.low, "high": gap.high}
        | {"noise": gap.is_noise, "paired": is_paired(side, first)}
        for side in sides[1:]
        if (gap := against(side, first))
    ]


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


def success_interval(rows: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """Over seeds; of one seed, over its problems."""
    low, high = min(row["low"] for row in rows), max(row["high"] for row in rows)  # where verdicts are unknown
    if shares := by_problem(rows):
        low, high = mean_interval(shares)
    if len(rows) > 1:
        down, up = t_interval([row["success_rate"] for row in rows])
        low, high = min(low, down), max(high, up)
    return max(0.0, low), min(1.0, high)


def by_problem(rows: Sequence[Mapping[str, Any]]) -> list[float] | None:
    """For each held-out problem, the share of these runs that solved it; None where their problems differ."""
    sets = {row.get("problems") for row in rows}
    verdicts = [str(row.get("verdicts") or "") for row in rows]
    are_known = len({len(v) for v in verdicts}) == 1 and all(v and set(v) <= set("01") for v in verdicts)
    if len(sets) != 1 or None in sets or not are_known:
        return None
    return [statistics.fmean(int(v) for v in each) for each in zip(*verdicts, strict=True)]


def between(new: Sequence[Mapping[str, Any]], old: Sequence[Mapping[str, Any]], paired: bool = False) -> Difference:
    """Mean success of `new` minus that of `old`, over problems and, where runs are `paired` by seed, over seeds."""
    a, b = (statistics.fmean(row["success_rate"] for row in rows) for rows in (new, old))
    shares = by_problem([*new, *old]) and (by_problem(new), by_problem(old))
    if shares:
        gap = paired_difference(shares[0] or [], shares[1] or [])
        low, high = gap.low, gap.high
    else:
        (low_a, high_a), (low_b, high_b) = success_interval(new), success_interval(old)
        low, high = a - b - math.hypot(a - low_a, high_b - b), a - b + math.hypot(high_a - a, b - low_b)
    if paired and len(new) > 1:
        down, up = t_interval([x["success_rate"] - y["success_rate"] for x, y in zip(new, old, strict=True)])
        low, high = min(low, down), max(high, up)
    return Difference(len(new), a - b, max(-1.0, low), min(1.0, high))
