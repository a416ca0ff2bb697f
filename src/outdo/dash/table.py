"""Rows of numbers as columns: N rows, P points of them. A column has NaN where a row has no number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outdo.dash.files import WHOLE, as_float

Column = NDArray[np.float64]
Steps = NDArray[np.int64]

CELLS = 8_000_000  # of one table: 64 MB
NAMES = 256  # columns of one table
DIGITS = 6  # as run.py writes them


@dataclass(frozen=True)
class Frame:
    """A table as it was at one moment."""

    steps: Steps
    columns: Mapping[str, Column]

    def __len__(self) -> int:
        return len(self.steps)

    def head(self, count: int) -> Frame:
        """The first so many rows."""
        return Frame(self.steps[:count], {name: column[:count] for name, column in self.columns.items()})

    def get(self, name: str) -> Column:
        found = self.columns.get(name)
        return np.full(len(self.steps), np.nan) if found is None else found

    def between(self, first: int | None, last: int | None) -> Frame:
        """The rows of those steps."""
        if first is None and last is None:
            return self
        low, high = -WHOLE if first is None else first, WHOLE if last is None else last
        kept = np.flatnonzero((self.steps >= low) & (self.steps <= high))
        return Frame(self.steps[kept], {name: column[kept] for name, column in self.columns.items()})

    def rows(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Some of the rows as they were, None where there is no number."""
        return [
            {"step": int(self.steps[i])}
            | {name: None if np.isnan(column[i]) else float(column[i]) for name, column in self.columns.items()}
            for i in indices
        ]


class Table:
    """Columns that rows are added to. What is past the limits is counted and left out."""

    def __init__(self) -> None:
        self.count, self.left_out, self.broken = 0, 0, 0
        self._steps: Steps = np.zeros(0, dtype=np.int64)
        self._columns: dict[str, Column] = {}

    def frame(self) -> Frame:
        """Views: rows that are added later do not change it."""
        return Frame(self._steps[: self.count], {name: each[: self.count] for name, each in self._columns.items()})

    @property
    def cells(self) -> int:
        return self._steps.size * (1 + len(self._columns))

    def add(self, rows: Sequence[Mapping[str, Any]]) -> None:
        steps = [_step(row, self.count + i) for i, row in enumerate(rows)]
        if None in steps:
            rows = [row for row, step in zip(rows, steps, strict=True) if step is not None]
            self.broken += len(steps) - len(rows)
        room = max(0, CELLS // (1 + max(len(self._columns), 1)) - self.count)
        self.left_out += max(0, len(rows) - room)
        rows = rows[:room]
        if not rows:
            return
        found = columns_of(rows)
        found.pop("step", None)
        self._make_room(len(rows), [name for name in found if isinstance(name, str)])
        end = self.count + len(rows)
        self._steps[self.count : end] = [step for step in steps if step is not None][:room]
        for name, column in self._columns.items():
            if name in found:
                column[self.count : end] = numbers(found[name])
        self.count = end

    def _make_room(self, more: int, names: Sequence[str]) -> None:
        need = self.count + more
        if need > self._steps.size:
            size = max(need, min(2 * self._steps.size, self._steps.size + 100_000), 64)
            self._steps = _grown(self._steps, size)
            self._columns = {name: _grown(column, size) for name, column in self._columns.items()}
        for name in names:
            if name not in self._columns and len(self._columns) < NAMES:
                self._columns[name] = np.full(self._steps.size, np.nan)


def _grown(column: Any, size: int) -> Any:
    out = np.full(size, np.nan) if column.dtype == np.float64 else np.zeros(size, dtype=column.dtype)
    out[: column.size] = column
    return out


def _step(row: Mapping[str, Any], default: int) -> int | None:
    number = as_float(row.get("step", default))
    return int(number) if number is not None and abs(number) <= WHOLE else None


def columns_of(rows: Sequence[Mapping[str, Any]]) -> dict[Any, Sequence[Any]]:
    """Rows turned on their side. Those of a run have the same names in the same order, which is quickly done."""
    if len(set(map(tuple, rows))) == 1:
        return dict(zip(rows[0], zip(*(row.values() for row in rows), strict=True), strict=True))
    names = dict.fromkeys(chain.from_iterable(rows))
    return {name: [row.get(name) for row in rows] for name in names}


def numbers(values: Sequence[Any]) -> Column:
    """NaN for whatever is no finite number."""
    if set(map(type, values)) <= {float, int, type(None)}:
        with suppress(OverflowError):  # an integer of hundreds of digits
            return _finite(np.array(values, dtype=np.float64))
    return _finite(np.array([np.nan if (x := as_float(value)) is None else x for value in values], dtype=np.float64))


def _finite(values: Column) -> Column:
    values[~np.isfinite(values)] = np.nan
    return values


def rounded(values: Column) -> Column:
    """To the digits that are worth sending."""
    with np.errstate(all="ignore"):
        size = np.floor(np.log10(np.abs(values)))
        scale = np.power(10.0, DIGITS - 1 - size)
        out = np.round(values * scale) / scale
    return np.where(np.isfinite(out), out, values)


@dataclass(frozen=True)
class Points:
    """P points of a curve. Where each stands for several rows, `low` and `high` are the least and most of them."""

    mean: Column
    low: Column | None = None
    high: Column | None = None


def starts(n: int, points: int) -> NDArray[np.int64] | None:
    """Where each of so many even stretches begins; None where every row is a point of its own."""
    return None if n <= points else (np.arange(points, dtype=np.int64) * n) // points


def shrunk(column: Column, begin: NDArray[np.int64] | None) -> Points:
    """A curve in as many points as there are stretches. What is NaN counts nowhere."""
    if begin is None:
        return Points(rounded(column))
    known = np.isfinite(column)
    count = np.add.reduceat(known.astype(np.float64), begin)
    with np.errstate(over="ignore"):
        total = np.add.reduceat(np.where(known, column, 0.0), begin)
    low = np.minimum.reduceat(np.where(known, column, np.inf), begin)
    high = np.maximum.reduceat(np.where(known, column, -np.inf), begin)
    none = count == 0
    mean = np.where(none, np.nan, total / np.maximum(count, 1))
    return Points(rounded(mean), rounded(np.where(none, np.nan, low)), rounded(np.where(none, np.nan, high)))


def last_of(column: NDArray[Any], begin: NDArray[np.int64] | None) -> NDArray[Any]:
    """The last row of each stretch."""
    if begin is None:
        return column
    return column[np.append(begin[1:], len(column)) - 1]


def running_total(column: Column) -> Column:
    with np.errstate(over="ignore"):  # what is past all numbers goes out as null
        return np.cumsum(np.where(np.isfinite(column), column, 0.0))
