"""The charts of a report: of each signal of the catalogue what was measured, as plain values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from outdo.dash.shapes import Finding, Metrics
from outdo.metrics.catalogue import CATALOGUE, Signal
from outdo.report.story import Story

STYLES = 8  # ways to draw a line
ENVELOPES = 3  # lines in a chart, of which the least and most can still be told apart
Values = Sequence[float | None]
SUPERVISED = (  # of sft.jsonl: the first of the names is the chart's
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
    Signal("lr", "Learning rate", "the rate of the update", "as the recipe says", "", "optimizer"),
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
    """One chart over the steps of `x`: they count what is done, so that the first is 1."""

    signal: Signal
    x: Sequence[int]
    time: Values
    tokens: Values
    lines: tuple[Line, ...]
    points: tuple[dict[str, Any], ...] = ()
    marks: tuple[dict[str, Any], ...] = ()

    @property
    def bands(self) -> list[dict[str, Any]]:
        both = (("good", self.signal.good_band), ("bad", self.signal.bad_band))
        return [{"from": band[0], "to": band[1], "kind": kind} for kind, band in both if band]


def charts_of(story: Story) -> list[Chart]:
    """GRPO's signals."""
    return [_with_marks(chart, story) for chart in _charts(story.metrics, CATALOGUE)]


def supervised_of(story: Story) -> list[Chart]:
    """Those of the warm-up or of a supervised run."""
    return list(_charts(story.sft, SUPERVISED))


def _charts(metrics: Metrics, catalogue: Sequence[Signal]) -> Iterator[Chart]:
    for signal in catalogue:
        names = [name for wanted in signal.names for name in _matching(wanted, metrics)]
        lines = tuple(_line(metrics, name, i % STYLES) for i, name in enumerate(dict.fromkeys(names)))
        if len(lines) > ENVELOPES:
            lines = tuple(replace(line, low=None, high=None) for line in lines)
        if lines and not (signal.name == "reward/*" and len(lines) == 1):  # one part is the reward
            yield Chart(signal, [step + 1 for step in metrics.steps], metrics.time, metrics.tokens, lines)


def _matching(wanted: str, metrics: Metrics) -> list[str]:
    """Signals that were measured at all and are not always the same nothing."""
    names = [name for name in metrics.series if _fits(wanted, name)]
    return [name for name in names if any(value is not None for value in metrics.series[name].mean)]


def _fits(wanted: str, name: str) -> bool:
    return name.startswith(wanted[:-1]) if wanted.endswith("/*") else name == wanted


def _line(metrics: Metrics, name: str, style: int) -> Line:
    series = metrics.series[name]
    return Line(name, series.mean, series.low, series.high, style)


def _with_marks(chart: Chart, story: Story) -> Chart:
    """Evaluations on the chart of success; findings on those that show them."""
    names = {line.name for line in chart.lines}
    points = _evaluations(story) if "success_rate" in names else ()
    marks = tuple(_mark(finding) for finding in story.findings if names & set(finding.signals) and _is_ill(finding))
    return Chart(chart.signal, chart.x, chart.time, chart.tokens, chart.lines, points, marks)


def _is_ill(finding: Finding) -> bool:
    return finding.severity != "info"


def _mark(finding: Finding) -> dict[str, Any]:
    return {"x": finding.step + 1, "label": finding.code, "severity": finding.severity}


def _evaluations(story: Story) -> tuple[dict[str, Any], ...]:
    splits = list(dict.fromkeys(one.split for one in story.evals))
    return tuple(
        {
            "name": f"held out: {one.split}",
            "x": one.step,
            "y": one.success,
            "low": one.low,
            "high": one.high,
            "style": (1 + splits.index(one.split)) % STYLES,
        }
        for one in story.evals
        if one.success is not None
    )[:400]


def as_data(charts: Sequence[Chart]) -> list[dict[str, Any]]:
    """For the page's script, which is given the axes once where they are shared."""
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
