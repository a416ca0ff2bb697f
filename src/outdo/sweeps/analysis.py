"""Rows to settings: means over seeds with 95% intervals, and whether two settings differ.

Where there are several seeds, the seed is the unit, since answers of one run are not independent. An interval is never
narrower than the held-out problems allow: three seeds may agree by chance.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from outdo.evals.estimate import Difference, mean_interval, paired_difference

CellRow = Mapping[str, Any]
Interval = tuple[float, float]

# Student's t at 97.5%, by degrees of freedom.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)


def t_quantile(freedom: int) -> float:
    """97.5% of Student's t; beyond the table by its expansion around the normal's, exact to three digits there."""
    if freedom <= len(_T):
        return _T[freedom - 1]
    z = 1.959964
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def t_interval(values: Sequence[float]) -> Interval:
    """Of the mean of a few values. One value has no variance: its interval is unbounded."""
    if len(values) < 2:
        return -math.inf, math.inf
    half = t_quantile(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return statistics.fmean(values) - half, statistics.fmean(values) + half


@dataclass(frozen=True)
class Setting:
    """The results of one setting over its seeds. `success` is None until one of them is evaluated."""

    name: str
    keys: Mapping[str, Any]  # without the seed
    rows: tuple[CellRow, ...]
    success: float | None = None
    low: float | None = None
    high: float | None = None
    troubles: tuple[str, ...] = field(default=())

    @property
    def evaluated(self) -> list[CellRow]:
        return [row for row in self.rows if row.get("success_rate") is not None]

    @property
    def is_sane(self) -> bool:
        return not self.troubles and self.success is not None

    def mean(self, name: str) -> float | None:
        return mean([_value(row, name) for row in self.rows])

    @property
    def gain(self) -> float | None:
        return mean([r["success_rate"] - r["before"] for r in self.evaluated if r.get("before") is not None])

    @property
    def pass_name(self) -> str:
        """pass@k for the largest k."""
        names = {name for row in self.rows for name in row.get("passes") or {}}
        return max(names, key=lambda name: int(name.partition("@")[2]), default="")


def settings_of(rows: Sequence[CellRow]) -> list[Setting]:
    """The cells grouped by setting, in their order."""
    names = list(dict.fromkeys(row["setting"] for row in rows))
    return [_setting(name, [row for row in rows if row["setting"] == name]) for name in names]


def _setting(name: str, rows: list[CellRow]) -> Setting:
    keys = {key: value for key, value in rows[0]["keys"].items() if key != "seed"}
    setting = Setting(name, keys, tuple(rows), troubles=_troubles(rows))
    evaluated = setting.evaluated
    if not evaluated:
        return setting
    success = statistics.fmean(row["success_rate"] for row in evaluated)
    return Setting(name, keys, tuple(rows), success, *success_interval(evaluated), setting.troubles)


def success_interval(rows: Sequence[CellRow]) -> Interval:
    """Over seeds; of one seed, over its problems."""
    low, high = min(row["low"] for row in rows), max(row["high"] for row in rows)  # where verdicts are unknown
    shares = by_problem(rows)
    if shares:
        low, high = mean_interval(shares)
    if len(rows) > 1:
        down, up = t_interval([row["success_rate"] for row in rows])
        low, high = min(low, down), max(high, up)
    return max(0.0, low), min(1.0, high)


def by_problem(rows: Sequence[CellRow]) -> list[float] | None:
    """For each held-out problem, the share of these runs that solved it; None where their problems differ."""
    sets = {row.get("problems") for row in rows}
    verdicts = [str(row.get("verdicts") or "") for row in rows]
    if len(sets) != 1 or None in sets or len({len(v) for v in verdicts}) != 1 or not verdicts[0]:
        return None
    if any(set(v) - set("01") for v in verdicts):
        return None
    return [statistics.fmean(int(v) for v in each) for each in zip(*verdicts, strict=True)]


def difference(new: Setting, old: Setting) -> Difference:
    """Success of `new` minus that of `old`, paired by seed and by problem where both have them."""
    new_rows, old_rows = ({row["keys"].get("seed"): row for row in s.evaluated} for s in (new, old))
    seeds = [seed for seed in new_rows if seed in old_rows]
    if not seeds:
        return between(new.evaluated, old.evaluated)
    return between([new_rows[seed] for seed in seeds], [old_rows[seed] for seed in seeds], paired=True)


def between(new: Sequence[CellRow], old: Sequence[CellRow], paired: bool = False) -> Difference:
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
        deltas = [x["success_rate"] - y["success_rate"] for x, y in zip(new, old, strict=True)]
        down, up = t_interval(deltas)
        low, high = min(low, down), max(high, up)
    return Difference(len(new), a - b, max(-1.0, low), min(1.0, high))


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
