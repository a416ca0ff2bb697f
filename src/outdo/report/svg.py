"""A chart as it is printed, and as it is seen where no script runs. Colours come from the page's stylesheet."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from outdo.report.charts import Chart
from outdo.report.html import Raw, el

WIDTH, HEIGHT = 420, 150
LEFT, RIGHT, TOP, BOTTOM = 44, 8, 8, 18
POINTS = 150  # of a line
Scale = Callable[[float], float]


def drawn(chart: Chart) -> Raw:
    """An SVG picture, or nothing where nothing can be drawn."""
    values = [v for line in chart.lines for v in line.y if v is not None and (v > 0 or not chart.signal.log)]
    values += [end for point in chart.points for end in (point["y"], point["low"], point["high"]) if end is not None]
    if not values or not chart.x:
        return Raw("")
    turn: Scale = math.log10 if chart.signal.log and min(values) > 0 else float
    low, high = turn(min(values)), turn(max(values))
    low, high = (low - 0.5, high + 0.5) if high == low else (low, high)
    first = min([chart.x[0], *(point["x"] for point in chart.points)])
    last = max([chart.x[-1], *(point["x"] for point in chart.points), first + 1])

    def across(x: float) -> float:
        return LEFT + (x - first) / (last - first) * (WIDTH - LEFT - RIGHT)

    def up(y: float) -> float:
        return HEIGHT - BOTTOM - (turn(y) - low) / (high - low) * (HEIGHT - BOTTOM - TOP)

    def can(y: float | None) -> bool:
        return y is not None and (y > 0 or turn is float)

    marks = [
        el("line", x1=_px(across(m["x"])), x2=_px(across(m["x"])), y1=TOP, y2=HEIGHT - BOTTOM, class_="mark")
        for m in chart.marks
    ]
    lines = [
        el("polyline", points=run, class_=f"l{line.style}")
        for line in chart.lines
        for run in _runs(chart.x, line.y, across, up, can)
    ]
    points = [part for point in chart.points for part in _point(point, across, up, can)]
    told = (10**low, 10**high) if turn is math.log10 else (low, high)
    return el(
        "svg",
        _axes(told, (first, last)),
        marks,
        lines,
        points,
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_label=f"{chart.signal.title} by step",
    )


def _axes(values: tuple[float, float], steps: tuple[int, int]) -> list[Raw]:
    foot = HEIGHT - BOTTOM
    return [
        el("line", x1=LEFT, x2=WIDTH - RIGHT, y1=foot, y2=foot, class_="axis"),
        el("line", x1=LEFT, x2=LEFT, y1=TOP, y2=foot, class_="axis"),
        el("text", f"{values[1]:.3g}", x=LEFT - 4, y=TOP + 8, text_anchor="end"),
        el("text", f"{values[0]:.3g}", x=LEFT - 4, y=foot, text_anchor="end"),
        el("text", f"{steps[0]:,}", x=LEFT, y=HEIGHT - 4),
        el("text", f"step {steps[1]:,}", x=WIDTH - RIGHT, y=HEIGHT - 4, text_anchor="end"),
    ]


def _runs(
    x: Sequence[int], y: Sequence[float | None], across: Scale, up: Scale, can: Callable[[float | None], bool]
) -> Iterator[str]:
    """Stretches that were measured, in fewer points where there are many."""
    every = max(1, len(x) // POINTS)
    run: list[str] = []
    for at in range(0, len(x), every):
        part = [value for value in y[at : at + every] if value is not None and can(value)]
        if part:
            run.append(f"{_px(across(x[at]))},{_px(up(sum(part) / len(part)))}")
        elif run:
            yield " ".join(run)
            run = []
    if run:
        yield " ".join(run if len(run) > 1 else run * 2)


def _point(point: dict[str, Any], across: Scale, up: Scale, can: Callable[[float | None], bool]) -> Iterator[Raw]:
    if not can(point["y"]):
        return
    x = _px(across(point["x"]))
    if can(point["low"]) and can(point["high"]):
        yield el("line", x1=x, x2=x, y1=_px(up(point["low"])), y2=_px(up(point["high"])), class_=f"l{point['style']}")
    yield el("circle", cx=x, cy=_px(up(point["y"])), r=3, class_=f"p{point['style']}")


def shares(parts: Sequence[tuple[str, float]]) -> Raw:
    """One bar in parts, as wide as each is of the whole."""
    whole = sum(value for _, value in parts) or 1.0
    bars, at = [], 0.0
    for i, (name, value) in enumerate(parts):
        wide = value / whole * 1000
        bars.append(el("rect", el("title", name), x=_px(at), y=0, width=_px(wide), height=20, class_=f"p{i}"))
        at += wide
    return el(
        "svg",
        bars,
        viewBox="0 0 1000 20",
        preserveAspectRatio="none",
        class_="shares",
        role="img",
        aria_label="shares of the time",
    )


def _px(value: float) -> str:
    return f"{value:.1f}"
