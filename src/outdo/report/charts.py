"""The charts of a report: the catalogue's signals that were measured, as plain values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from outdo.metrics.catalogue import CATALOGUE, Signal
from outdo.report.facts import RunFacts
from outdo.runs.curves import Metrics

NUM_STYLES = 8  # of a line
MAX_ENVELOPES = 3  # in a chart; more cannot be distinguished
MAX_POINTS = 400  # evaluations
Values = Sequence[float | None]
SUPERVISED = (  # as the catalogue has it for GRPO
    Signal(
        "loss",
        "Loss",
        "on the examples of an update, and on held-out ones",
        "falls, then flat",
        "rises: lower `sft_learning_rate`",
        "reward",
        also=("held_out_loss",),
    ),
    Signal(
        "grad_norm",
        "Gradient norm",
        "length of the gradient before it is clipped",
        "steady",
        "grows: lower `sft_learning_rate`",
        "optimizer",
        log=True,
    ),
    Signal("lr", "Learning rate", "the rate of the update", "follows the schedule", "", "optimizer"),
)


@dataclass(frozen=True)
class Line:
    name: str
    y: Values
    low: Values | None
    high: Values | None
    style: int


@dataclass(frozen=True)
class Chart:
    """One chart over the steps of `x`, which count from 1."""

    signal: Signal
    x: Sequence[int]
    time: Values
    tokens: Values
    lines: tuple[Line, ...]
    points: tuple[dict[str, Any], ...] = ()
    marks: tuple[dict[str, Any], ...] = ()

    @property
    def bands(self) -> list[dict[str, Any]]:
        bands = (("good", self.signal.good_band), ("bad", self.signal.bad_band))
        return [{"from": band[0], "to": band[1], "kind": kind} for kind, band in bands if band]


def grpo_charts(facts: RunFacts) -> list[Chart]:
    return [_with_marks(chart, facts) for chart in _charts(facts.metrics, CATALOGUE)]


def sft_charts(facts: RunFacts) -> list[Chart]:
    """Of the warm-up, or of a supervised run."""
    return list(_charts(facts.sft, SUPERVISED))


def _charts(metrics: Metrics, catalogue: Sequence[Signal]) -> Iterator[Chart]:
    for signal in catalogue:
        names = [name for pattern in signal.names for name in _measured(pattern, metrics)]
        series = {name: metrics.series[name] for name in names}
        lines = tuple(Line(name, s.mean, s.low, s.high, i % NUM_STYLES) for i, (name, s) in enumerate(series.items()))
        if len(lines) > MAX_ENVELOPES:
            lines = tuple(replace(line, low=None, high=None) for line in lines)
        if lines and not (signal.name == "reward/*" and len(lines) == 1):  # a single part is the reward itself
            yield Chart(signal, metrics.steps, metrics.time, metrics.tokens, lines)


def _measured(pattern: str, metrics: Metrics) -> list[str]:
    """The names that fit a pattern and have at least one value."""
    names = [name for name in metrics.series if fnmatchcase(name, pattern)]
    return [name for name in names if any(value is not None for value in metrics.series[name].mean)]


def _with_marks(chart: Chart, facts: RunFacts) -> Chart:
    """With evaluations on the chart of success, and findings on the charts of their signals."""
    names = {line.name for line in chart.lines}
    points = _evaluations(facts) if "success_rate" in names else ()
    failures = [f for f in facts.findings if f.severity != "info" and names & set(f.signals)]
    marks = tuple({"x": f.step, "label": f.code, "severity": f.severity} for f in failures)
    return replace(chart, points=points, marks=marks)


def _evaluations(facts: RunFacts) -> tuple[dict[str, Any], ...]:
    splits = list(dict.fromkeys(evaluation.split for evaluation in facts.evals))
    return tuple(
        {
            "name": f"held out: {evaluation.split}",
            "x": evaluation.step,
            "y": evaluation.success,
            "low": evaluation.low,
            "high": evaluation.high,
            "style": (1 + splits.index(evaluation.split)) % NUM_STYLES,
        }
        for evaluation in facts.evals
        if evaluation.success is not None
    )[:MAX_POINTS]


def as_data(charts: Sequence[Chart]) -> list[dict[str, Any]]:
    """For the page's script, which has the shared axes apart."""
    return [
        {
            "title": chart.signal.title,
            "axis": "sft" if chart.signal in SUPERVISED else "grpo",
            "log": chart.signal.log,
            "lines": [{key: value for key, value in vars(line).items() if value is not None} for line in chart.lines],
            "points": list(chart.points),
            "bands": chart.bands,
            "marks": list(chart.marks),
        }
        for chart in charts
    ]
