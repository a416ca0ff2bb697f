"""Rows to settings: means over seeds with intervals, and whether two settings differ.

A seed is the unit where there are several, since answers of one run share its luck. An interval is never narrower than
what the held-out problems allow: three seeds that agree by chance do not make a certainty. All are 95%.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from outdo.evals.estimate import Difference, mean_interval, paired_difference

Row = Mapping[str, Any]
Interval = tuple[float, float]

# Student's t at 97.5%, by degrees of freedom.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)


def t_quantile(freedom: int) -> float:
    """97.5% of Student's t; past the table by its expansion around the normal's, right to three digits there."""
    if freedom <= len(_T):
        return _T[freedom - 1]
    z = 1.959964
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def t_interval(values: Sequence[float]) -> Interval:
    """For the mean of a few values that scatter alike. One value says nothing about scatter: no bounds."""
    if len(values) < 2:
        return -math.inf, math.inf
    half = t_quantile(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return statistics.fmean(values) - half, statistics.fmean(values) + half


@dataclass(frozen=True)
class Setting:
    """What several seeds of one setting came to. `success` is None until one of them is evaluated."""

    name: str
    keys: Mapping[str, Any]  # without the seed
    rows: tuple[Row, ...]
    success: float | None = None
    low: float | None = None
    high: float | None = None
    troubles: tuple[str, ...] = field(default=())

    @property
    def evaluated(self) -> list[Row]:
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
        """The largest k there is."""
        names = {name for row in self.rows for name in row.get("passes") or {}}
        return max(names, key=lambda name: int(name.partition("@")[2]), default="")


def settings_of(rows: Sequence[Row]) -> list[Setting]:
    """The cells by setting, in their order."""
    names = list(dict.fromkeys(row["setting"] for row in rows))
    return [_setting(name, [row for row in rows if row["setting"] == name]) for name in names]


def _setting(name: str, rows: list[Row]) -> Setting:
    keys = {key: value for key, value in rows[0]["keys"].items() if key != "seed"}
    made = Setting(name, keys, tuple(rows), troubles=_troubles(rows))
    found = made.evaluated
    if not found:
        return made
    value = statistics.fmean(row["success_rate"] for row in found)
    return Setting(name, keys, tuple(rows), value, *success_interval(found), made.troubles)


def success_interval(found: Sequence[Row]) -> Interval:
    """Over seeds; with one, over its problems."""
    low, high = min(row["low"] for row in found), max(row["high"] for row in found)  # where verdicts are not known
    shares = by_problem(found)
    if shares:
        low, high = mean_interval(shares)
    if len(found) > 1:
        down, up = t_interval([row["success_rate"] for row in found])
        low, high = min(low, down), max(high, up)
    return max(0.0, low), min(1.0, high)


def by_problem(rows: Sequence[Row]) -> list[float] | None:
    """For each held-out problem, the share of these runs that got it right; None where they had not the same ones."""
    sets = {row.get("problems") for row in rows}
    verdicts = [str(row.get("verdicts") or "") for row in rows]
    if len(sets) != 1 or None in sets or len({len(v) for v in verdicts}) != 1 or not verdicts[0]:
        return None
    if any(set(v) - set("01") for v in verdicts):
        return None
    return [statistics.fmean(int(v) for v in each) for each in zip(*verdicts, strict=True)]


def difference(new: Setting, old: Setting) -> Difference:
    """How much more success `new` has: the same seeds and the same problems beside each other where both have them."""
    ours, theirs = ({row["keys"].get("seed"): row for row in s.evaluated} for s in (new, old))
    seeds = [seed for seed in ours if seed in theirs]
    if not seeds:
        return between(new.evaluated, old.evaluated)
    return between([ours[seed] for seed in seeds], [theirs[seed] for seed in seeds], paired=True)


def between(new: Sequence[Row], old: Sequence[Row], paired: bool = False) -> Difference:
    """Mean success of some runs less that of others, by problems and, where runs are `paired` by seed, by seeds."""
    a, b = (statistics.fmean(row["success_rate"] for row in rows) for rows in (new, old))
    shares = by_problem([*new, *old]) and (by_problem(new), by_problem(old))
    if shares:
        found = paired_difference(shares[0] or [], shares[1] or [])
        low, high = found.low, found.high
    else:
        (low_a, high_a), (low_b, high_b) = success_interval(new), success_interval(old)
        low, high = a - b - math.hypot(a - low_a, high_b - b), a - b + math.hypot(high_a - a, b - low_b)
    if paired and len(new) > 1:
        deltas = [x["success_rate"] - y["success_rate"] for x, y in zip(new, old, strict=True)]
        down, up = t_interval(deltas)
        low, high = min(low, down), max(high, up)
    return Difference(len(new), a - b, max(-1.0, low), min(1.0, high))


def mean(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return statistics.fmean(there) if there else None


def _value(row: Row, name: str) -> float | None:
    if name.startswith("pass@"):
        return (row.get("passes") or {}).get(name, {}).get("value")
    return row.get(name)


def _troubles(rows: Sequence[Row]) -> tuple[str, ...]:
    """All of them, with the seeds that had each where not all did."""
    had: dict[str, list[str]] = {}
    for row in rows:
        for words in row.get("troubles") or ():
            had.setdefault(words, []).append(str(row["keys"].get("seed", "")))
    return tuple(
        words if len(seeds) == len(rows) else f"{words} (seed {', '.join(seeds)})" for words, seeds in had.items()
    )
