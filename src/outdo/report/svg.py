"""Charts as SVG, for print and for browsers without scripts. Colours come from the page's stylesheet."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from outdo.report.charts import Chart
from outdo.report.html import Raw, el

WIDTH, HEIGHT = 420, 150
LEFT, RIGHT, TOP, BOTTOM = 44, 8, 8, 18
MAX_POINTS = 150  # of a line
Scale = Callable[[float], float]
IsDrawable = Callable[[float | None], bool]


def draw_chart(chart: Chart) -> Raw:
    """Empty where there is nothing to draw."""
    values = [v for line in chart.lines for v in line.y if v is not None and (v > 0 or not chart.signal.log)]
    values += [end for point in chart.points for end in (point["y"], point["low"], point["high"]) if end is not None]
    if not values or not chart.x:
        return Raw("")
    scale: Scale = math.log10 if chart.signal.log and min(values) > 0 else float
    low, high = scale(min(values)), scale(max(values))
    low, high = (low - 0.5, high + 0.5) if high == low else (low, high)
    first = min([chart.x[0], *(point["x"] for point in chart.points)])
    last = max([chart.x[-1], *(point["x"] for point in chart.points), first + 1])

    def to_x(x: float) -> float:
        return LEFT + (x - first) / (last - first) * (WIDTH - LEFT - RIGHT)

    def to_y(y: float) -> float:
        return HEIGHT - BOTTOM - (scale(y) - low) / (high - low) * (HEIGHT - BOTTOM - TOP)

    def is_drawable(y: float | None) -> bool:
        return y is not None and (y > 0 or scale is float)

    marks_x = [_px(to_x(mark["x"])) for mark in chart.marks]
    marks = [el("line", x1=x, x2=x, y1=TOP, y2=HEIGHT - BOTTOM, class_="mark") for x in marks_x]
    lines = [
        el("polyline", points=segment, class_=f"l{line.style}")
        for line in chart.lines
        for segment in _segments(chart.x, line.y, to_x, to_y, is_drawable)
    ]
    points = [part for point in chart.points for part in _point(point, to_x, to_y, is_drawable)]
    ends = (10**low, 10**high) if scale is math.log10 else (low, high)
    parts = (_axes(ends, (first, last)), marks, lines, points)
    return _svg(*parts, box=f"0 0 {WIDTH} {HEIGHT}", label=f"{chart.signal.title} by step")


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


def _segments(
    x: Sequence[int], y: Sequence[float | None], to_x: Scale, to_y: Scale, is_drawable: IsDrawable
) -> Iterator[str]:
    """Unbroken parts of a line, downsampled where they are long."""
    size = max(1, len(x) // MAX_POINTS)
    segment: list[str] = []
    for start in range(0, len(x), size):
        values = [value for value in y[start : start + size] if value is not None and is_drawable(value)]
        if values:
            segment.append(f"{_px(to_x(x[start]))},{_px(to_y(sum(values) / len(values)))}")
        elif segment:
            yield " ".join(segment)
            segment = []
    if segment:
        yield " ".join(segment if len(segment) > 1 else segment * 2)


def _point(point: dict[str, Any], to_x: Scale, to_y: Scale, is_drawable: IsDrawable) -> Iterator[Raw]:
    if not is_drawable(point["y"]):
        return
    x = _px(to_x(point["x"]))
    if is_drawable(point["low"]) and is_drawable(point["high"]):
        ends = {"y1": _px(to_y(point["low"])), "y2": _px(to_y(point["high"]))}
        yield el("line", x1=x, x2=x, **ends, class_=f"l{point['style']}")
    yield el("circle", cx=x, cy=_px(to_y(point["y"])), r=3, class_=f"p{point['style']}")


def draw_shares(parts: Sequence[tuple[str, float]]) -> Raw:
    """One bar, divided by the parts' shares of their sum."""
    total = sum(value for _, value in parts) or 1.0
    bars, x = [], 0.0
    for i, (name, value) in enumerate(parts):
        width = value / total * 1000
        bars.append(el("rect", el("title", name), x=_px(x), y=0, width=_px(width), height=20, class_=f"p{i}"))
        x += width
    return _svg(bars, box="0 0 1000 20", label="shares of the time", preserveAspectRatio="none", class_="shares")


def _svg(*children: Any, box: str, label: str, **attributes: str) -> Raw:
    return el("svg", *children, viewBox=box, **attributes, role="img", aria_label=label)


def _px(value: float) -> str:
    return f"{value:.1f}"
