"""Rows to settings: means over seeds with 95% intervals, and whether two settings differ."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from outdo.doctor.compare import VALUES, between, metric_of_rows, value_interval
from outdo.metrics.estimate import Difference
from outdo.metrics.headline import Metric

CellRow = Mapping[str, Any]
Ends = tuple[float, float, float]  # a mean and its interval


@dataclass(frozen=True)
class Setting:
    """The results of one setting over its seeds. `value` is its held-out success, or its mean reward where that decides
    (`metric`); None until one of the seeds is evaluated."""

    name: str
    keys: Mapping[str, Any]  # without the seed
    rows: tuple[CellRow, ...]
    value: float | None = None
    low: float | None = None
    high: float | None = None
    troubles: tuple[str, ...] = field(default=())
    metric: Metric = "success"

    @property
    def evaluated(self) -> list[CellRow]:
        return [row for row in self.rows if row.get("success_rate") is not None]

    @property
    def success(self) -> float | None:
        return mean([row["success_rate"] for row in self.evaluated])

    @property
    def is_sane(self) -> bool:
        return not self.troubles and self.value is not None

    @property
    def has_kl(self) -> bool:
        """Whether KL was measured in every seed that was evaluated."""
        return all(row.get("kl_mean") is not None for row in self.evaluated)

    @property
    def is_only_past_kl(self) -> bool:
        """Whether KL is the one thing that speaks against it."""
        return bool(self.troubles) and all(trouble.startswith("KL ") for trouble in self.troubles)

    @property
    def falls(self) -> tuple[str, ...]:
        """Splits beside the first one that are lower than before training, beyond noise."""
        others = [split for row in self.evaluated for split in list((row.get("splits") or {}).values())[1:]]
        return tuple(dict.fromkeys(split["fell"] for split in others if split.get("fell")))

    def mean(self, name: str) -> float | None:
        return mean([_value(row, name) for row in self.rows])

    def interval(self, metric: Metric, split: str = "") -> Ends | None:
        """Of success or reward, of the first split or another; None where no seed measured it."""
        rows = [(row.get("splits") or {}).get(split) or {} if split else row for row in self.evaluated]
        measured = [row for row in rows if all(row.get(name) is not None for name in VALUES[metric])]
        if not measured:
            return None
        return statistics.fmean(row[VALUES[metric][0]] for row in measured), *value_interval(measured, metric)

    @property
    def gain(self) -> float | None:
        value, before = VALUES[self.metric][0], "before" if self.metric == "success" else "reward_before"
        return mean(
            [r[value] - r[before] for r in self.evaluated if r.get(before) is not None and r[value] is not None]
        )

    @property
    def pass_name(self) -> str:
        """pass@k for the largest k."""
        names = {name for row in self.rows for name in row.get("passes") or {}}
        return max(names, key=lambda name: int(name.partition("@")[2]), default="")


def settings_of(rows: Sequence[CellRow], eval_metric: str = "auto") -> list[Setting]:
    """The cells grouped by setting, in their order. One metric decides between all of them."""
    names = list(dict.fromkeys(row["setting"] for row in rows))
    metric = metric_of_rows(eval_metric, rows)
    return [_setting(name, [row for row in rows if row["setting"] == name], metric) for name in names]


def _setting(name: str, rows: list[CellRow], metric: Metric) -> Setting:
    keys = {key: value for key, value in rows[0]["keys"].items() if key != "seed"}
    setting = Setting(name, keys, tuple(rows), troubles=_troubles(rows), metric=metric)
    ends = setting.interval(metric)
    return Setting(name, keys, tuple(rows), *ends, setting.troubles, metric) if ends else setting


def other_splits(settings: Sequence[Setting]) -> list[str]:
    """The splits that were evaluated beside the first one."""
    found = [list(row.get("splits") or {})[1:] for setting in settings for row in setting.evaluated]
    return list(dict.fromkeys(split for splits in found for split in splits))


def has_partial_credit(settings: Sequence[Setting]) -> bool:
    return any(row.get("partial") for setting in settings for row in setting.evaluated)


def difference(new: Setting, old: Setting) -> Difference:
    """Success or reward of `new` minus that of `old`, paired by seed and by problem where both have them."""
    new_rows, old_rows = ({row["keys"].get("seed"): row for row in s.evaluated} for s in (new, old))
    seeds = [seed for seed in new_rows if seed in old_rows]
    if not seeds:
        return between(new.evaluated, old.evaluated, metric=new.metric)
    pairs = [new_rows[seed] for seed in seeds], [old_rows[seed] for seed in seeds]
    return between(*pairs, paired=True, metric=new.metric)


def mean(values: Sequence[float | None]) -> float | None:
    measured = [value for value in values if value is not None]
    return statistics.fmean(measured) if measured else None


def _value(row: CellRow, name: str) -> float | None:
    if name.startswith("pass@"):
        return (row.get("passes") or {}).get(name, {}).get("value")
    return row.get(name)


def _troubles(rows: Sequence[CellRow]) -> tuple[str, ...]:
    """Each trouble once, with its seeds where not all have it."""
    seeds: dict[str, list[str]] = {}
    for row in rows:
        for trouble in row.get("troubles") or ():
            seeds.setdefault(trouble, []).append(str(row["keys"].get("seed", "")))
    return tuple(text if len(s) == len(rows) else f"{text} (seed {', '.join(s)})" for text, s in seeds.items())
