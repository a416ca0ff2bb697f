"""A drill as a picture: the failing run beside the fixed one. Needs matplotlib: `pip install outdo[plot]`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from outdo.drills.drill import Drill, Panel, Signal
from outdo.errors import RunError
from outdo.evals.held_out import Evaluation
from outdo.report.plot import smooth
from outdo.runs.files import disk_errors
from outdo.runs.outputs import write_picture
from outdo.runs.reader import read_evals, read_metrics

COLOURS = ("C3", "C0", "C2")
HELD_OUT = "eval_success_rate"  # followed by /SPLIT; else of the first split
MAX_SCALE_RATIO = 5.0  # to the first signal; others are not drawn


def draw(panels: Sequence[Panel], signals: Sequence[Signal], title: str, out: Path) -> Path:
    """A panel per run, on the same scale; a colour per signal. Raises RunError without matplotlib."""
    figure = _figure()
    drawn = [signal for signal in signals if _has_same_scale(panels, signals[0], signal)]
    axes = figure.subplots(1, len(panels), sharey=True)
    for axis, panel in zip(axes, panels, strict=True):
        for signal, colour in zip(drawn, COLOURS, strict=False):
            _curve(axis, panel.run, signal.name, colour)
        for step, text in panel.marks.items():
            axis.axvline(step, color="black", linestyle=":", linewidth=1)
            axis.text(step, 0.97, f" {text}", fontsize=7, va="top", transform=axis.get_xaxis_transform())
        axis.set_title(panel.title, fontsize=8, loc="left")
        axis.set_xlabel("step", fontsize=8)
        axis.grid(alpha=0.25)
        axis.tick_params(labelsize=7)
        axis.xaxis.get_major_locator().set_params(integer=True)
    axes[-1].legend(fontsize=7, frameon=False, loc="best")
    return _save(figure, title, out)


def _has_same_scale(panels: Sequence[Panel], first: Signal, other: Signal) -> bool:
    """Whether one scale fits both."""
    tops = [max(abs(v) for panel in panels for v in _points(panel.run, s.name)[1]) for s in (first, other)]
    return min(tops) * MAX_SCALE_RATIO >= max(tops)


def _curve(axis: Any, run: Path, name: str, colour: str) -> None:
    steps, values = _points(run, name)
    if name.startswith(HELD_OUT):
        label = " ".join(("held-out success", *name.split("/")[1:]))
        axis.plot(steps, values, "o-", color=colour, label=label, markersize=4)
        return
    axis.plot(steps, values, color=colour, linewidth=0.7, alpha=0.35)
    axis.plot(steps, smooth(values, 5), color=colour, linewidth=1.6, label=name)


def _points(run: Path, name: str) -> tuple[list[int], list[float]]:
    if name.startswith(HELD_OUT):
        rows = list(read_evals(run))
        split = name.partition("/")[2] or rows[0]["split"]
        rows = [row for row in rows if row["split"] == split]
        return [row["step"] for row in rows], [row["pass@1" if "pass@1" in row else "success_rate"] for row in rows]
    rows = [row for row in read_metrics(run) if row.get(name) is not None]
    return [row["step"] for row in rows], [row[name] for row in rows]


def draw_shares(evaluations: Mapping[str, Evaluation], drill: Drill, folder: Path) -> Path:
    """Held-out success of each, with its interval."""
    figure = _figure()
    axis = figure.subplots()
    for y, (name, e) in enumerate(evaluations.items()):
        error = [[max(0.0, e.success_rate - e.low)], [max(0.0, e.high - e.success_rate)]]
        axis.errorbar([e.success_rate], [y], xerr=error, fmt="o", color="C3" if "wrong" in name else "C0", capsize=4)
    axis.set_yticks(range(len(evaluations)), list(evaluations), fontsize=8)
    axis.set_ylim(len(evaluations) - 0.5, -0.5)
    axis.set_xlim(0, 1)
    axis.set_xlabel("held-out success, 95%", fontsize=8)
    axis.tick_params(labelsize=7)
    axis.grid(alpha=0.25)
    return _save(figure, drill.name, folder / "picture.png")


def _figure() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise RunError("drawing needs matplotlib: pip install 'outdo[plot]'") from None
    return Figure(figsize=(7.0, 2.6), layout="constrained")


def _save(figure: Any, title: str, out: Path) -> Path:
    figure.suptitle(title, fontsize=9)
    with disk_errors(out):
        write_picture(figure, out, dpi=100)
    return out
