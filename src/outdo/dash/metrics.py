"""Curves as they are sent: all rows or fewer points of them, and the rows that are new."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from outdo.dash.book import Numbers
from outdo.dash.files import Row, as_float, as_int, text_of
from outdo.dash.shapes import Eval, Metrics, NewRows, Series
from outdo.dash.table import Frame, Points, last_of, rounded, running_total, shrunk, starts


def metrics_of(
    numbers: Numbers, points: int, first: int | None = None, last: int | None = None, names: Sequence[str] = ()
) -> Metrics:
    """At most so many points of every signal, or of those named; between two steps."""
    whole = numbers.frame()
    timed = Frame(whole.steps, {**whole.columns, " time": _time(whole), " tokens": running_total(whole.get("tokens"))})
    frame = timed.between(first, last)
    begin = starts(len(frame), points)
    chosen = [name for name in whole.columns if not names or name in names]
    return Metrics(
        steps=last_of(frame.steps, begin).tolist(),
        time=rounded(last_of(frame.get(" time"), begin)).tolist(),
        tokens=last_of(frame.get(" tokens"), begin).tolist(),
        series={name: _series(shrunk(frame.get(name), begin)) for name in chosen},
        total=len(frame),
        exact=begin is None,
        trouble=numbers.trouble(),
    )


def _time(frame: Frame) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Seconds of training; rows without a clock, as those of a warm-up, have none."""
    column = frame.get("time/step")
    return running_total(column) if np.isfinite(column).any() else np.full(len(frame), np.nan)


def _series(points: Points) -> Series:
    low, high = (None if end is None else end.tolist() for end in (points.low, points.high))
    return Series(mean=points.mean.tolist(), low=low, high=high)


def new_rows(run: str, frame: Frame, had: int) -> NewRows:
    """The rows after the first so many."""
    time, tokens = _time(frame), running_total(frame.get("tokens"))
    return NewRows(
        run=run,
        steps=frame.steps[had:].tolist(),
        time=rounded(time[had:]).tolist(),
        tokens=tokens[had:].tolist(),
        series={name: Series(mean=rounded(column[had:]).tolist()) for name, column in frame.columns.items()},
    )


def evals_of(rows: Sequence[Row]) -> list[Eval]:
    """Rows of evals.jsonl; those without a step or a split are none."""
    found = []
    for row in rows:
        step = as_int(row.get("step"))
        if step is None or not isinstance(row.get("split"), str):
            continue
        passes = {
            key[5:]: value
            for key in row
            if key.startswith("pass@") and key[5:].isdecimal() and (value := as_float(row[key])) is not None
        }
        found.append(
            Eval(
                step=step,
                split=text_of(row["split"])[:200],
                n=as_int(row.get("n")),
                success=as_float(row.get("success_rate")),
                low=as_float(row.get("low")),
                high=as_float(row.get("high")),
                pass_at=passes,
            )
        )
    return found
