"""Rows to settings: means over seeds with 95% intervals, and whether two settings differ."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from outdo.doctor.compare import between, success_interval
from outdo.metrics.estimate import Difference

CellRow = Mapping[str, Any]


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


def difference(new: Setting, old: Setting) -> Difference:
    """Success of `new` minus that of `old`, paired by seed and by problem where both have them."""
    new_rows, old_rows = ({row["keys"].get("seed"): row for row in s.evaluated} for s in (new, old))
    seeds = [seed for seed in new_rows if seed in old_rows]
    if not seeds:
        return between(new.evaluated, old.evaluated)
    return between([new_rows[seed] for seed in seeds], [old_rows[seed] for seed in seeds], paired=True)


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
