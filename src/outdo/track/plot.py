"""A run's curves as a picture. Needs matplotlib: `pip install outdo[plot]`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outdo.errors import RunError
from outdo.run import read_rows, read_run

PANELS = (  # title, metrics of metrics.jsonl, what a good curve looks like
    ("reward and success", ("reward_mean", "success_rate"), "rise, then flat"),
    ("groups", ("informative", "all_right", "all_wrong"), "informative above 0"),
    ("KL to the start", ("kl_mean",), "small and slow"),
    ("entropy", ("entropy_mean",), "falls, but not to 0"),
    ("answer length", ("len_mean",), "steady or earned"),
    ("gradient norm", ("grad_norm",), "steady"),
)


def plot_run(folder: Path, out: Path) -> Path:
    """Draws the curves of a run folder, finished or not, to a PNG or SVG file."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise RunError("drawing needs matplotlib: pip install 'outdo[plot]'") from None
    manifest = read_run(folder)
    rows = list(read_rows(folder / "metrics.jsonl"))
    if not rows:
        raise RunError(f"{folder} has no steps yet: there is nothing to draw")
    evals = [row for row in read_rows(folder / "evals.jsonl") if row["split"] == "test"]
    figure = Figure(figsize=(11, 5.6), layout="constrained")
    for axis, (title, names, good) in zip(figure.subplots(2, 3).flat, PANELS, strict=True):
        for name in names:
            steps = [row["step"] + 1 for row in rows if row.get(name) is not None]
            values = [row[name] for row in rows if row.get(name) is not None]
            (line,) = axis.plot(steps, smooth(values), linewidth=1.8, label=name)
            axis.plot(steps, values, linewidth=0.7, alpha=0.3, color=line.get_color())
        if "success_rate" in names and evals:
            _draw_evals(axis, evals)
        axis.set_title(f"{title}  ({good})", fontsize=9, loc="left")
        axis.grid(alpha=0.25)
        axis.tick_params(labelsize=8)
        if len(names) > 1:
            axis.legend(fontsize=7, frameon=False)
    recipe = manifest["recipe"]
    figure.suptitle(f"{recipe['dataset_name']}, {recipe['model_name_or_path']}, seed {recipe['seed']}", fontsize=10)
    figure.supxlabel("step", fontsize=9)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=110)
    return out


def smooth(values: Sequence[float], window: int = 9) -> list[float]:
    """A centred moving mean that keeps its ends."""
    half = window // 2
    parts = [values[max(0, i - half) : i + half + 1] for i in range(len(values))]
    return [sum(part) / len(part) for part in parts]


def _draw_evals(axis: Any, evals: Sequence[dict[str, Any]]) -> None:
    steps, rates = [row["step"] for row in evals], [row["success_rate"] for row in evals]
    errors = [
        [rate - row["low"] for rate, row in zip(rates, evals, strict=True)],
        [row["high"] - rate for rate, row in zip(rates, evals, strict=True)],
    ]
    axis.errorbar(steps, rates, yerr=errors, fmt="o", color="black", markersize=4, capsize=3, label="held out (greedy)")
