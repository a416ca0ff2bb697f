"""Rows of numbers as columns: N rows, downsampled to P points. A column is NaN where a row has no number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outdo.runs.values import MAX_EXACT_INT, as_float, as_int

Column = NDArray[np.float64]
Steps = NDArray[np.int64]

MAX_CELLS = 8_000_000  # of one table: 64 MB
MAX_COLUMNS = 256
DIGITS = 6  # as the writer has them


@dataclass(frozen=True)
class Frame:
    """A table at one moment."""

    steps: Steps
    columns: Mapping[str, Column]

    def __len__(self) -> int:
        return len(self.steps)

    def head(self, count: int) -> Frame:
        return Frame(self.steps[:count], {name: column[:count] for name, column in self.columns.items()})

    def get(self, name: str) -> Column:
        column = self.columns.get(name)
        return np.full(len(self.steps), np.nan) if column is None else column

    def between(self, first: int | None, last: int | None) -> Frame:
        if first is None and last is None:
            return self
        low, high = -MAX_EXACT_INT if first is None else first, MAX_EXACT_INT if last is None else last
        inside = np.flatnonzero((self.steps >= low) & (self.steps <= high))
        return Frame(self.steps[inside], {name: column[inside] for name, column in self.columns.items()})

    def rows(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Some of the rows; None where a value is missing."""
        return [
            {"step": int(self.steps[i])}
            | {name: None if np.isnan(column[i]) else float(column[i]) for name, column in self.columns.items()}
            for i in indices
        ]


class Table:
    """Columns that rows are added to. Rows past the limits are counted and dropped."""

    def __init__(self) -> None:
        self.count, self.dropped, self.invalid = 0, 0, 0
        self._steps: Steps = np.zeros(0, dtype=np.int64)
        self._columns: dict[str, Column] = {}

    def frame(self) -> Frame:
        """Views: rows that are added later do not change it."""
        return Frame(self._steps[: self.count], {name: each[: self.count] for name, each in self._columns.items()})

    @property
    def cells(self) -> int:
        return self._steps.size * (1 + len(self._columns))

    def add(self, rows: Sequence[Mapping[str, Any]]) -> None:
        steps = [as_int(row.get("step", self.count + i + 1)) for i, row in enumerate(rows)]
        if None in steps:
            rows = [row for row, step in zip(rows, steps, strict=True) if step is not None]
            self.invalid += len(steps) - len(rows)
        room = max(0, MAX_CELLS // (1 + max(len(self._columns), 1)) - self.count)
        self.dropped += max(0, len(rows) - room)
        rows = rows[:room]
        if not rows:
            return
        columns = columns_of(rows)
        columns.pop("step", None)
        self._reserve(len(rows), [name for name in columns if isinstance(name, str)])
        end = self.count + len(rows)
        self._steps[self.count : end] = [step for step in steps if step is not None][:room]
        for name, column in self._columns.items():
            if name in columns:
                column[self.count : end] = numbers(columns[name])
        self.count = end

    def _reserve(self, more: int, names: Sequence[str]) -> None:
        needed = self.count + more
        if needed > self._steps.size:
            size = max(needed, min(2 * self._steps.size, self._steps.size + 100_000), 64)
            self._steps = _grown(self._steps, size)
            self._columns = {name: _grown(column, size) for name, column in self._columns.items()}
        for name in names:
            if name not in self._columns and len(self._columns) < MAX_COLUMNS:
                self._columns[name] = np.full(self._steps.size, np.nan)


def _grown(column: Any, size: int) -> Any:
    out = np.full(size, np.nan) if column.dtype == np.float64 else np.zeros(size, dtype=column.dtype)
    out[: column.size] = column
    return out


def columns_of(rows: Sequence[Mapping[str, Any]]) -> dict[Any, Sequence[Any]]:
    """Rows transposed. Those of a run mostly have the same names in the same order, which is fast."""
    if len(set(map(tuple, rows))) == 1:
        return dict(zip(rows[0], zip(*(row.values() for row in rows), strict=True), strict=True))
    names = dict.fromkeys(chain.from_iterable(rows))
    return {name: [row.get(name) for row in rows] for name in names}


def numbers(values: Sequence[Any]) -> Column:
    """NaN for whatever is not a finite number."""
    if set(map(type, values)) <= {float, int, type(None)}:
        with suppress(OverflowError):  # an integer of hundreds of digits
            return _finite(np.array(values, dtype=np.float64))
    return _finite(np.array([np.nan if (x := as_float(value)) is None else x for value in values], dtype=np.float64))


def _finite(values: Column) -> Column:
    values[~np.isfinite(values)] = np.nan
    return values


def rounded(values: Column) -> Column:
    """To `DIGITS` significant digits."""
    with np.errstate(all="ignore"):
        size = np.floor(np.log10(np.abs(values)))
        scale = np.power(10.0, DIGITS - 1 - size)
        out = np.round(values * scale) / scale
    return np.where(np.isfinite(out), out, values)


@dataclass(frozen=True)
class Points:
    """P points of a curve. Where a point is the mean of several rows, `low` and `high` are their extremes."""

    mean: Column
    low: Column | None = None
    high: Column | None = None


def bin_starts(n: int, points: int) -> NDArray[np.int64] | None:
    """Where each of `points` equal bins of n rows starts; None where every row is a point of its own."""
    return None if n <= points else (np.arange(points, dtype=np.int64) * n) // points


def downsample(column: Column, starts: NDArray[np.int64] | None) -> Points:
    """A point per bin. NaN is ignored."""
    if starts is None:
        return Points(rounded(column))
    finite = np.isfinite(column)
    count = np.add.reduceat(finite.astype(np.float64), starts)
    with np.errstate(over="ignore"):
        total = np.add.reduceat(np.where(finite, column, 0.0), starts)
    low = np.minimum.reduceat(np.where(finite, column, np.inf), starts)
    high = np.maximum.reduceat(np.where(finite, column, -np.inf), starts)
    empty = count == 0
    mean = np.where(empty, np.nan, total / np.maximum(count, 1))
    return Points(rounded(mean), rounded(np.where(empty, np.nan, low)), rounded(np.where(empty, np.nan, high)))


def last_of_bins(column: NDArray[Any], starts: NDArray[np.int64] | None) -> NDArray[Any]:
    return column if starts is None else column[np.append(starts[1:], len(column)) - 1]


def column_sum(frame: Frame, name: str) -> float:
    """The sum of a column; 0 where that is not finite."""
    column = frame.get(name)
    with np.errstate(all="ignore"):
        total = float(np.nansum(column)) if len(column) else 0.0
    return total if np.isfinite(total) and abs(total) < MAX_EXACT_INT else 0.0


def running_total(column: Column) -> Column:
    with np.errstate(over="ignore"):  # an infinite sum is written as null
        return np.cumsum(np.where(np.isfinite(column), column, 0.0))
