"""Curves of runs as a picture, for notebooks and files. Needs matplotlib: `pip install outdo[plot]`."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from outdo.errors import RecipeError, RunError, did_you_mean
from outdo.runs import find
from outdo.runs.files import disk_errors
from outdo.runs.layout import row_path
from outdo.runs.manifest import read_manifest
from outdo.runs.outputs import write_picture
from outdo.runs.reader import JsonRow, describe_skipped, read_evals, read_rows

PANELS = (  # title, names of signals, what a good curve looks like
    ("reward and success", ("success_rate", "reward_mean"), "rise, then flat"),
    ("groups", ("informative", "all_right", "all_wrong"), "informative above 0"),
    ("KL to the start", ("kl_mean",), "small and slow"),
    ("entropy", ("entropy_mean",), "falls, but not to 0"),
    ("answer length", ("len_mean",), "steady or earned"),
    ("gradient norm", ("grad_norm",), "steady"),
)
SUPERVISED_PANELS = (  # of a supervised run
    ("loss", ("loss", "held_out_loss"), "falls, then flat"),
    ("gradient norm", ("grad_norm",), "steady"),
    ("learning rate", ("lr",), "follows the schedule"),
)
MAX_POINTS = 2000  # of a curve
MAX_COLUMNS = 3  # of panels
DASHES = ("-", "--", ":", "-.")  # of one run's lines in a panel
MISSING = "drawing needs matplotlib: pip install 'outdo[plot]'"

Panel = tuple[str, Sequence[str], str]
Notify = Callable[[str], None]


class HasFolder(Protocol):
    """What `outdo.train` returns."""

    @property
    def folder(self) -> Path: ...


AnyRun = str | Path | HasFolder


@dataclass(frozen=True)
class _Curves:
    """A run's rows. `name` identifies it among several."""

    name: str
    title: str
    rows: list[JsonRow]
    evals: list[JsonRow]
    panels: Sequence[Panel]
    skipped: Sequence[str]  # lines that are not JSON rows
    held_out: str  # how answers to held-out problems were sampled


def plot(*runs: AnyRun | Sequence[AnyRun], signals: Sequence[str] | str | None = None) -> Any:
    """A matplotlib Figure of a run's curves; several runs are overlaid. A notebook shows it.

    A run is a folder, its name under runs/, or what `train` returned. `signals` selects metrics by name, a panel each.
    Raises RunError where matplotlib or rows are missing, RecipeError for a signal that no run has. Lines that are not
    JSON rows are skipped with a warning.
    """
    flat: list[Any] = [each for run in runs for each in (run if isinstance(run, (list, tuple)) else [run])]
    return _figure([find_run(run) for run in flat], signals, lambda message: warnings.warn(message, stacklevel=4))


def _figure(folders: Sequence[Path], signals: Sequence[str] | str | None, notify: Notify) -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise RunError(MISSING) from None

    class Picture(Figure):
        """A notebook shows it even if pyplot is not loaded."""

        def _repr_png_(self) -> bytes:
            file = io.BytesIO()
            self.savefig(file, format="png", dpi=110)
            return file.getvalue()

    runs = [_read(folder) for folder in folders]
    if skipped := [line for run in runs for line in run.skipped]:
        notify(describe_skipped(skipped))
    if not runs:
        raise RecipeError("plot needs a run: a folder, its name under runs/, or what train returned")
    if signals:
        panels = _selected(runs, [signals] if isinstance(signals, str) else signals)
    else:
        panels = [(title, names if len(runs) == 1 else names[:1], good) for title, names, good in runs[0].panels]
    columns = min(MAX_COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    figure = Picture(figsize=(max(3.7 * columns, 5.5), 2.8 * rows), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axis, panel in zip(axes, panels, strict=False):
        _draw(axis, panel, runs)
    for axis in axes[len(panels) :]:
        axis.remove()
    figure.suptitle(runs[0].title if len(runs) == 1 else " vs ".join(run.name for run in runs), fontsize=10)
    figure.supxlabel("step", fontsize=9)
    return figure


def plot_runs(
    folders: Sequence[Path], out: Path, signals: Sequence[str] | None = None, notify: Notify = warnings.warn
) -> Path:
    """Draws the curves of runs, finished or not, to a PNG, SVG or PDF file; `notify` gets what was skipped."""
    figure = _figure(folders, signals, notify)
    with disk_errors(out, "name another place with --out"):
        out.parent.mkdir(parents=True, exist_ok=True)
        try:
            write_picture(figure, out)
        except ValueError as error:
            raise RecipeError(f"{out}: use the suffix .png, .svg or .pdf ({error})") from None
    return out


def find_run(run: AnyRun) -> Path:
    """A run's folder, of any trainer. Raises RunError where there is none."""
    return find.find_viewable(run if isinstance(run, (str, Path)) else run.folder)


def _read(folder: Path) -> _Curves:
    manifest = read_manifest(folder)
    recipe = manifest.recipe
    seed = f"seed {recipe['seed']}" if recipe.get("seed") is not None else None
    named = (recipe.get("dataset_name"), recipe.get("model_name_or_path"), seed, manifest.trainer)
    title = ", ".join(str(each) for each in named if each is not None)
    skipped: list[str] = []
    rows = list(read_rows(row_path(folder, manifest.kind), skipped))
    if not rows:
        raise RunError(f"{find.shown_name(folder)} has no steps yet: there is nothing to draw")
    evals = list(read_evals(folder, skipped))
    first_split = [row for row in evals if row["split"] == evals[0]["split"]]
    held_out = "held out" if manifest.trainer else "held out (greedy)"
    panels = SUPERVISED_PANELS if manifest.kind == "sft" else PANELS
    return _Curves(folder.resolve().name, title, rows, first_split, panels, skipped, held_out)


def _selected(runs: Sequence[_Curves], signals: Sequence[str]) -> list[Panel]:
    """A panel for each. An unknown name is refused with the nearest."""
    names = dict.fromkeys(name for run in runs for row in run.rows for name in row if name != "step")
    for name in signals:
        if name not in names:
            hint = did_you_mean(name, names) or f"; there are {', '.join(names)}"
            raise RecipeError(f"signals: no run has {name!r}{hint}")
    return [(name, (name,), "") for name in signals]


def _draw(axis: Any, panel: Panel, runs: Sequence[_Curves]) -> None:
    title, names, good = panel
    for index, run in enumerate(runs):
        for dash, name in zip(DASHES, names, strict=False):
            steps, values = thinned(run.rows, name)
            if not values:
                continue
            style = {"color": f"C{index}", "linestyle": dash} if len(runs) > 1 else {}
            label = ", ".join(([run.name] if len(runs) > 1 else []) + ([name] if len(names) > 1 else []))
            (line,) = axis.plot(steps, smooth(values), linewidth=1.8, label=label or name, **style)
            axis.plot(steps, values, linewidth=0.7, alpha=0.3 / len(runs), color=line.get_color())
        if "success_rate" in names and run.evals:
            colour = f"C{index}" if len(runs) > 1 else "black"
            _draw_evals(axis, run.evals, colour, "" if index else run.held_out)
    axis.set_title(f"{title}  ({good})" if good else title, fontsize=9, loc="left")
    axis.grid(alpha=0.25)
    axis.tick_params(labelsize=8)
    if not axis.lines:
        axis.text(0.5, 0.5, "not measured", ha="center", fontsize=9, color="gray", transform=axis.transAxes)
        axis.set(xticks=[], yticks=[])
    if axis.lines and (len(names) > 1 or len(runs) > 1):
        axis.legend(fontsize=7, frameon=False)


def thinned(rows: Sequence[Mapping[str, Any]], name: str) -> tuple[list[int], list[float]]:
    """Steps, counted from 1, with their values; means of equal bins where there are many."""
    points = [(row["step"], float(row[name])) for row in rows if isinstance(row.get(name), (int, float))]
    size = max(1, -(-len(points) // MAX_POINTS))
    bins = [points[i : i + size] for i in range(0, len(points), size)]
    return [each[-1][0] for each in bins], [sum(value for _, value in each) / len(each) for each in bins]


def smooth(values: Sequence[float], window: int = 9) -> list[float]:
    """A centred moving mean, with smaller windows at the ends."""
    half = window // 2
    windows = [values[max(0, i - half) : i + half + 1] for i in range(len(values))]
    return [sum(each) / len(each) for each in windows]


def _draw_evals(axis: Any, evals: Sequence[JsonRow], colour: str, label: str) -> None:
    steps, rates = [row["step"] for row in evals], [row["success_rate"] for row in evals]
    lows, highs = ([row.get(end, row["success_rate"]) for row in evals] for end in ("low", "high"))
    ends = [a - b for a, b in zip(rates, lows, strict=True)], [b - a for a, b in zip(rates, highs, strict=True)]
    axis.errorbar(steps, rates, yerr=ends, color=colour, fmt="o", markersize=4, capsize=3, label=label or None)
