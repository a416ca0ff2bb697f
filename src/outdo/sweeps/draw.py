"""A sweep as a picture. Needs matplotlib: `pip install outdo[plot]`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outdo.doctor.compare import VALUES
from outdo.errors import RunError
from outdo.runs.outputs import write_picture
from outdo.sweeps.analysis import Setting
from outdo.sweeps.grid import format_value
from outdo.sweeps.report import plane


def draw(settings: Sequence[Setting], varied: Sequence[str], title: str, out: Path) -> Path:
    """A heat map where two keys vary, else a point with its interval per setting; hollow where signals are not sane."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise RunError("drawing needs matplotlib: pip install 'outdo[plot]'") from None
    if len(varied) == 2 and all(set(varied) == s.keys.keys() for s in settings):
        figure = Figure(figsize=(6.4, 4.2), layout="constrained")
        _heat(figure, settings, varied)
    else:
        figure = Figure(figsize=(7.2, 1.2 + 0.38 * len(settings)), layout="constrained")
        _points(figure.subplots(), settings)
    figure.suptitle(title, fontsize=10)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_picture(figure, out)
    return out


def _heat(figure: Any, settings: Sequence[Setting], varied: Sequence[str]) -> None:
    axis = figure.subplots()
    down, across, cells = plane(settings, varied)
    values = [[float("nan") if s is None or s.value is None else s.value for s in line] for line in cells]
    image = axis.imshow(values, cmap="viridis", aspect="auto")
    middle = sum(image.get_clim()) / 2
    for y, line in enumerate(cells):
        for x, s in enumerate(line):
            if s is None:
                continue
            text = s.rows[0]["status"] if s.value is None else f"{s.value:.3f}\n[{s.low:.2f}, {s.high:.2f}]"
            text += "" if s.is_sane or s.value is None else "\nnot sane"
            dark = s.value is not None and s.value < middle
            axis.text(x, y, text, ha="center", va="center", fontsize=8, color="white" if dark else "black")
    axis.set_xticks(range(len(across)), [format_value(value) for value in across])
    axis.set_yticks(range(len(down)), [format_value(value) for value in down])
    axis.set_xlabel(varied[1])
    axis.set_ylabel(varied[0])
    figure.colorbar(image, label=f"held-out {settings[0].metric}")


def _points(axis: Any, settings: Sequence[Setting]) -> None:
    for y, s in enumerate(settings):
        if s.value is None or s.low is None or s.high is None:
            transform = axis.get_yaxis_transform()  # x as a fraction of the axis, y by setting
            axis.text(0.02, y, s.rows[0]["status"], va="center", fontsize=8, color="gray", transform=transform)
            continue
        error = [[max(0.0, s.value - s.low)], [max(0.0, s.high - s.value)]]
        axis.errorbar([s.value], [y], xerr=error, fmt="o", color="C0", capsize=3, mfc="C0" if s.is_sane else "white")
        runs = [row[VALUES[s.metric][0]] for row in s.evaluated]
        axis.plot(runs, [y + 0.18] * len(runs), "|", color="gray", markersize=6)
    axis.set_yticks(range(len(settings)), [s.name for s in settings], fontsize=8)
    axis.set_ylim(len(settings) - 0.5, -0.5)
    axis.set_xlabel(f"held-out {settings[0].metric}, 95%; small marks: seeds; hollow: signals not sane", fontsize=8)
    axis.grid(alpha=0.25)
