"""Curves of a run, as viewers draw them: all rows or fewer points, new rows, and evaluations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from outdo.runs.reader import JsonRow
from outdo.runs.run_reader import MetricsFile
from outdo.runs.table import Column, Frame, bin_starts, downsample, last_of_bins, rounded, running_total
from outdo.runs.values import PartialRecord, Record, as_float, as_int, as_text


class Series(Record):
    """One signal. `low` and `high` are the minimum and maximum of the rows behind a point; null where it is one row."""

    mean: list[float | None]
    low: list[float | None] | None = None
    high: list[float | None] | None = None


class Curves(Record):
    """`time` is seconds of training by the end of each step, `tokens` those sampled by then."""

    steps: list[int]
    time: list[float | None]
    tokens: list[float | None]
    series: dict[str, Series]


class Metrics(Curves, PartialRecord):
    """`total` rows; `exact` where each is a point of its own."""

    total: int
    exact: bool


class EvalRecord(Record):
    step: int
    split: str
    n: int | None
    success: float | None
    low: float | None
    high: float | None
    pass_at: dict[str, float]
    reward: float | None = None  # the mean of greedy answers, with its interval
    reward_low: float | None = None
    reward_high: float | None = None


def load_curves(
    file: MetricsFile, points: int, first: int | None = None, last: int | None = None, names: Sequence[str] = ()
) -> Metrics:
    """At most `points` points of every signal, or of those named, between two steps."""
    frame = file.frame()
    clocks = {" time": _time(frame), " tokens": _tokens(frame)}
    shown = Frame(frame.steps, {**frame.columns, **clocks}).between(first, last)
    starts = bin_starts(len(shown), points)
    return Metrics(
        steps=last_of_bins(shown.steps, starts).tolist(),
        time=rounded(last_of_bins(shown.get(" time"), starts)).tolist(),
        tokens=last_of_bins(shown.get(" tokens"), starts).tolist(),
        series={name: _series(shown.get(name), starts) for name in frame.columns if not names or name in names},
        total=len(shown),
        exact=starts is None,
        trouble=file.problems(),
    )


def _time(frame: Frame) -> Column:
    """Seconds of training; NaN where rows have no time, as in a warm-up."""
    return _total(frame, "time/step")


def _tokens(frame: Frame) -> Column:
    """Tokens sampled; NaN where rows have none, as those of other trainers."""
    return _total(frame, "tokens")


def _total(frame: Frame, name: str) -> Column:
    column = frame.get(name)
    return running_total(column) if np.isfinite(column).any() else np.full(len(frame), np.nan)


def _series(column: Column, starts: np.ndarray[tuple[int], np.dtype[np.int64]] | None) -> Series:
    points = downsample(column, starts)
    low, high = (None if bound is None else bound.tolist() for bound in (points.low, points.high))
    return Series(mean=points.mean.tolist(), low=low, high=high)


def curves_since(frame: Frame, start: int) -> Curves:
    """The rows from `start` on."""
    return Curves(
        steps=frame.steps[start:].tolist(),
        time=rounded(_time(frame)[start:]).tolist(),
        tokens=_tokens(frame)[start:].tolist(),
        series={name: Series(mean=rounded(column[start:]).tolist()) for name, column in frame.columns.items()},
    )


def eval_records(rows: Sequence[JsonRow]) -> list[EvalRecord]:
    """Rows of evaluations; those without a step or a split are skipped."""
    return [
        EvalRecord(
            step=step,
            split=as_text(row["split"], 200),
            n=as_int(row.get("n")),
            success=as_float(row.get("success_rate")),
            low=as_float(row.get("low")),
            high=as_float(row.get("high")),
            pass_at={
                key[5:]: value
                for key in row
                if key.startswith("pass@") and key[5:].isdecimal() and (value := as_float(row[key])) is not None
            },
            reward=as_float(row.get("reward_mean")),
            reward_low=as_float(row.get("reward_low")),
            reward_high=as_float(row.get("reward_high")),
        )
        for row in rows
        if (step := as_int(row.get("step"))) is not None and isinstance(row.get("split"), str)
    ]
