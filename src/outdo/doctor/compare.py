"""Runs side by side: the keys in which they differ, and whether their held-out success or reward differs beyond noise.

Where there are several seeds, the seed is the unit, since answers of one run are not independent. An interval is never
narrower than the held-out problems allow: three seeds may agree by chance.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outdo.doctor.run_row import SPLIT_FIELDS, RunRow, view_run_row
from outdo.doctor.split_results import problem_values
from outdo.doctor.summary import RunSummary
from outdo.metrics.estimate import (
    Difference,
    mean_interval,
    paired_difference,
    paired_rewards,
    reward_interval,
    t_interval,
)
from outdo.metrics.headline import Metric, deciding_metric
from outdo.runs.run_reader import RunReader
from outdo.runs.values import PartialRecord, Record, json_safe

IGNORED_KEYS = ("output_dir", "resume")  # differ between any two runs
REWARD_KEYS = (
    "reward_funcs",
    "reward_weights",
    "reward_gate",
    "reward_args",
    "kl_in_reward",
    "dataset_name",
)  # a reward's scale
NO_KL = "KL not measured"
VALUES: dict[Metric, tuple[str, str, str]] = {  # of a run's row: the value and its interval
    "success": ("success_rate", "low", "high"),
    "reward": ("reward", "reward_low", "reward_high"),
}


@dataclass(frozen=True)
class Side:
    name: str
    recipe: dict[str, Any]
    row: RunRow
    trainer: str = ""  # of a run of another trainer: a key that its recipe does not have is not known


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
    """The keys in which they differ, with the value of each run. One that is not known differs from nothing."""
    keys = dict.fromkeys(key for side in sides for key in side.recipe if key not in IGNORED_KEYS)
    out: dict[str, list[Any]] = {}
    for key in keys:
        known = [side.recipe.get(key) for side in sides if not side.trainer or key in side.recipe]
        if any(value != known[0] for value in known):
            out[key] = [side.recipe.get(key) for side in sides]
    return out


def split_names(sides: Sequence[Side]) -> list[str]:
    """The splits that any of these runs was evaluated on after training."""
    names = dict.fromkeys(name for side in sides for name in side.row["splits"])
    return [name for name in names if any(_split(side, name)["success_rate"] is not None for side in sides)]


def _split(side: Side, name: str) -> Mapping[str, Any]:
    return side.row["splits"].get(name) or dict.fromkeys(SPLIT_FIELDS)


def metric_of(sides: Sequence[Side]) -> Metric:
    """The number that decides between these runs, by the first run's `eval_metric`."""
    return metric_of_rows(str(sides[0].recipe.get("eval_metric") or "auto"), [side.row for side in sides])


def metric_of_rows(eval_metric: str, rows: Iterable[Mapping[str, Any]]) -> Metric:
    """The same of rows of runs, whose `reward_mean` is that of the training answers."""
    known = [row for row in rows if row.get("success_rate") is not None]
    values = [
        {"success_rate": row["success_rate"], "reward_mean": row.get("reward")}
        | {name: ends.get("value") for name, ends in (row.get("passes") or {}).items()}
        for row in known
    ]
    return deciding_metric(eval_metric, values)


def against(side: Side, first: Side, split: str = "", metric: Metric = "success") -> Difference | None:
    """The difference in held-out success or mean reward, of the first split or another; None where one has none, or
    they cannot be compared."""
    new, old = ((_split(each, split) if split else each.row) for each in (side, first))
    needed = [row[name] for row in (new, old) for name in VALUES[metric]]
    if None in needed or why_not(side, first, split, metric):
        return None
    return between([new], [old], metric=metric)


def why_not(side: Side, first: Side, split: str = "", metric: Metric = "success") -> str:
    """Why two runs that were both evaluated cannot be compared on a split; empty where they can."""
    new, old = ((_split(each, split) if split else each.row) for each in (side, first))
    if new["success_rate"] is None or old["success_rate"] is None:
        return ""
    if new["split"] != old["split"] or (new["problems"] and old["problems"] and new["problems"] != old["problems"]):
        tasks = [str(each.recipe.get("dataset_name") or "") for each in (side, first)]
        return f"different tasks ({tasks[0]}, {tasks[1]})" if tasks[0] != tasks[1] else "different problems"
    return judged_apart([new, old], metric)


def judged_apart(rows: Sequence[Mapping[str, Any]], metric: Metric = "success") -> str:
    """Says that answers of these rows count as right by different rewards or thresholds; empty where they do not. Rows
    of older versions do not say by which: they pass."""
    judges = list(dict.fromkeys(str(row["judge"]) for row in rows if row.get("judge")))
    if len(judges) > 1:
        return f"different rewards ({', '.join(judges)})"
    bars = list(dict.fromkeys(1.0 if row.get("pass_threshold") is None else row["pass_threshold"] for row in rows))
    if metric == "success" and len(bars) > 1:
        return f"different thresholds (pass_threshold {', '.join(f'{bar:g}' for bar in bars)})"
    return ""


def is_paired(side: Side, first: Side, split: str = "", metric: Metric = "success") -> bool:
    rows = [_split(each, split) if split else each.row for each in (side, first)]
    return by_problem(rows, metric) is not None


def rewards_differ(sides: Sequence[Side]) -> bool:
    """Whether the rewards that were trained on are not on one scale."""
    own = [side for side in sides if not side.trainer]
    unknown = len(own) < len(sides) > 1 and not all("reward_funcs" in side.recipe for side in sides)
    return unknown or any(key in differing(sides) for key in REWARD_KEYS)


def describe_sides(sides: Sequence[Side]) -> list[str]:
    """What the table does not show: how the runs ended, and how the difference was computed."""
    lines = []
    for side in sides:
        row = side.row
        notes = [row["why"]] if row["status"] in ("halted", "failed", "stopped") else []
        notes += [trouble for trouble in row["troubles"] if trouble != row["status"]]
        notes += [split["fell"] for split in row["splits"].values() if split["fell"]]
        notes += [NO_KL] if row["steps"] and row["kl_mean"] is None else []
        minor = [code for code in row["findings"] if not any(code in trouble for trouble in row["troubles"])]
        notes += [f"the doctor says {', '.join(minor)}"] if minor else []
        if notes:
            lines.append(f"{side.name}: {'; '.join(filter(None, notes))}")
        if row["success_rate"] is None:
            lines.append(f"{side.name} has no held-out evaluation after training, so its success cannot be compared")
    for side in sides[1:]:
        for split in split_names([side, sides[0]]):
            reason = why_not(side, sides[0], split)
            if reason:
                lines.append(f"{split} of {side.name} and of {sides[0].name}: not comparable, {reason}")
            elif against(side, sides[0], split) and not is_paired(side, sides[0], split):
                lines.append(f"{side.name}: the difference is not paired, because one run has no verdicts by problem")
    if rewards_differ(sides):
        lines.append("the runs were trained on different rewards: their training rewards are not comparable")
    if len({side.recipe.get("seed") for side in sides}) > 1:
        lines.append("the difference is between single runs: another seed may give another")
    return list(dict.fromkeys(lines))


def difference_rows(sides: Sequence[Side]) -> list[dict[str, Any]]:
    """Each run's difference from the first, by split and measure, where they can be compared; the number that decides
    comes first."""
    first, decides = sides[0], metric_of(sides)
    splits = split_names(sides)
    partial = any(_split(side, split)["partial"] for side in sides for split in splits)
    metrics: list[Metric] = sorted(VALUES if partial else ("success",), key=lambda metric: metric != decides)
    return [
        {"run": side.name, "against": first.name, "split": split, "measure": metric}
        | {"difference": gap.value, "low": gap.low, "high": gap.high}
        | {"noise": gap.is_noise, "paired": is_paired(side, first, split, metric)}
        for side in sides[1:]
        for split in splits
        for metric in metrics
        if (gap := against(side, first, split, metric))
    ]


def compare_runs(runs: Sequence[tuple[RunReader, RunSummary]]) -> Comparison:
    """The rows of `outdo compare`; differences are from the first run. What a run does not have is null."""
    sides, problems = [], list[str]()
    for reader, summary in runs:
        row, unread = view_run_row(reader, summary)
        sides.append(Side(summary.id, reader.recipe, row, summary.trainer))
        problems += [f"{summary.id}: {line}" for line in unread]
    return Comparison(
        runs=[side.name for side in sides],
        keys=[DifferingKey(key=key, values=json_safe(values)) for key, values in differing(sides).items()],
        rows=[{"run": side.name, **json_safe(side.row)} for side in sides],
        differences=difference_rows(sides),
        notes=describe_sides(sides),
        trouble=problems,
    )


def value_interval(rows: Sequence[Mapping[str, Any]], metric: Metric = "success") -> tuple[float, float]:
    """Of the mean of these runs: over seeds; of one seed, over its problems."""
    value, below, above = VALUES[metric]
    low, high = min(row[below] for row in rows), max(row[above] for row in rows)  # where problems are unknown
    if values := by_problem(rows, metric):
        low, high = (mean_interval if metric == "success" else reward_interval)(values)
    if len(rows) > 1:
        down, up = t_interval([row[value] for row in rows])
        low, high = min(low, down), max(high, up)
    return (max(0.0, low), min(1.0, high)) if metric == "success" else (low, high)


def by_problem(rows: Sequence[Mapping[str, Any]], metric: Metric = "success") -> list[float] | None:
    """For each held-out problem, the share of these runs that solved it, or their mean reward; None where their
    problems differ."""
    sets = {row.get("problems") for row in rows}
    values = [problem_values(row, metric) for row in rows]
    known = [each for each in values if each]
    if len(sets) != 1 or None in sets or len(known) < len(rows) or len({len(each) for each in known}) != 1:
        return None
    return [statistics.fmean(each) for each in zip(*known, strict=True)]


def between(
    new: Sequence[Mapping[str, Any]],
    old: Sequence[Mapping[str, Any]],
    paired: bool = False,
    metric: Metric = "success",
) -> Difference:
    """Mean success or reward of `new` minus that of `old`, over problems and, where runs are `paired` by seed, over
    seeds."""
    value = VALUES[metric][0]
    a, b = (statistics.fmean(row[value] for row in rows) for rows in (new, old))
    shares = by_problem([*new, *old], metric) and (by_problem(new, metric), by_problem(old, metric))
    if shares:
        gap = (paired_difference if metric == "success" else paired_rewards)(shares[0] or [], shares[1] or [])
        low, high = gap.low, gap.high
    else:
        (low_a, high_a), (low_b, high_b) = value_interval(new, metric), value_interval(old, metric)
        low, high = a - b - math.hypot(a - low_a, high_b - b), a - b + math.hypot(high_a - a, b - low_b)
    if paired and len(new) > 1:
        down, up = t_interval([x[value] - y[value] for x, y in zip(new, old, strict=True)])
        low, high = min(low, down), max(high, up)
    if metric == "success":
        low, high = max(-1.0, low), min(1.0, high)
    return Difference(len(new), a - b, low, high)
