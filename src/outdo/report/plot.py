"""Runs' curves as a picture, for notebooks and files. Needs matplotlib: `pip install outdo[plot]`."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from outdo.errors import RecipeError, RunError, did_you_mean
from outdo.runs.files import disk_errors
from outdo.runs.manifest import read_manifest
from outdo.runs.reader import describe_skipped, read_rows

PANELS = (  # title, names of metrics.jsonl, what a good curve looks like
    ("reward and success", ("success_rate", "reward_mean"), "rise, then flat"),
    ("groups", ("informative", "all_right", "all_wrong"), "informative above 0"),
    ("KL to the start", ("kl_mean",), "small and slow"),
    ("entropy", ("entropy_mean",), "falls, but not to 0"),
    ("answer length", ("len_mean",), "steady or earned"),
    ("gradient norm", ("grad_norm",), "steady"),
)
SUPERVISED = (  # the same of sft.jsonl
    ("loss", ("loss", "held_out_loss"), "falls, then flat"),
    ("gradient norm", ("grad_norm",), "steady"),
    ("learning rate", ("lr",), "as the recipe says"),
)
POINTS = 2000  # of a curve
ACROSS = 3  # panels in a row
DASHES = ("-", "--", ":", "-.")  # of one run's lines in a panel
MISSING = "drawing needs matplotlib: pip install 'outdo[plot]'"

Panel = tuple[str, Sequence[str], str]
Row = dict[str, Any]


class HasFolder(Protocol):
    """What `outdo.train` returns."""

    @property
    def folder(self) -> Path: ...


AnyRun = str | Path | HasFolder


@dataclass(frozen=True)
class _Read:
    """A run's rows. `name` tells it from the others."""

    name: str
    title: str
    rows: list[Row]
    evals: list[Row]
    panels: Sequence[Panel]
    passed: Sequence[str]  # lines that are no rows


def plot(*runs: AnyRun | Sequence[AnyRun], signals: Sequence[str] | str | None = None) -> Any:
    """A matplotlib Figure of a run's curves; of several runs, one over the other. A notebook shows it.

    A run is a folder, its name under runs/, or what `train` returned. `signals` picks some by their names in
    metrics.jsonl, a panel each. Raises RunError where matplotlib or the rows are not there, RecipeError for a signal
    that no run has. Lines that are no rows are passed over, with a warning.
    """
    flat: list[Any] = [one for run in runs for one in (run if isinstance(run, (list, tuple)) else [run])]
    return _figure([find_run(run) for run in flat], signals, lambda words: warnings.warn(words, stacklevel=4))


def _figure(folders: Sequence[Path], signals: Sequence[str] | str | None, say: Callable[[str], None]) -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise RunError(MISSING) from None

    class Picture(Figure):
        """Shown by a notebook whether or not pyplot is loaded."""

        def _repr_png_(self) -> bytes:
            file = io.BytesIO()
            self.savefig(file, format="png", dpi=110)
            return file.getvalue()

    read = [_read(folder) for folder in folders]
    if passed := [words for one in read for words in one.passed]:
        say(describe_skipped(passed))
    if not read:
        raise RecipeError("plot needs a run: a folder, its name under runs/, or what train returned")
    if signals:
        panels = _picked(read, [signals] if isinstance(signals, str) else signals)
    else:
        panels = [(title, names if len(read) == 1 else names[:1], good) for title, names, good in read[0].panels]
    across = min(ACROSS, len(panels))
    down = -(-len(panels) // across)
    figure = Picture(figsize=(max(3.7 * across, 5.5), 2.8 * down), layout="constrained")
    axes = list(figure.subplots(down, across, squeeze=False).flat)
    for axis, panel in zip(axes, panels, strict=False):
        _draw(axis, panel, read)
    for axis in axes[len(panels) :]:
        axis.remove()
    figure.suptitle(read[0].title if len(read) == 1 else " against ".join(one.name for one in read), fontsize=10)
    figure.supxlabel("step", fontsize=9)
    return figure


def plot_runs(
    folders: Sequence[Path], out: Path, signals: Sequence[str] | None = None, say: Callable[[str], None] = warnings.warn
) -> Path:
    """Draws runs' curves, finished or not, to a PNG or SVG file; `say` hears what was passed over."""
    figure = _figure(folders, signals, say)
    with disk_errors(out, "name another place with --out"):
        out.parent.mkdir(parents=True, exist_ok=True)
        try:
            figure.savefig(out, dpi=110)
        except ValueError as error:
            raise RecipeError(f"{out}: give it the ending .png or .svg ({error})") from None
    return out


def find_run(run: AnyRun) -> Path:
    """A run's folder. Raises RunError where there is none."""
    folder = Path(run) if isinstance(run, (str, Path)) else run.folder
    named = Path("runs") / folder
    if not (folder / "run.json").exists() and not folder.is_absolute() and (named / "run.json").exists():
        return named
    read_manifest(folder)  # says why there is none
    return folder


def _read(folder: Path) -> _Read:
    manifest = read_manifest(folder)
    recipe = manifest.recipe
    title = f"{recipe.get('dataset_name')}, {recipe.get('model_name_or_path')}, seed {recipe.get('seed')}"
    name = folder.resolve().name
    is_supervised = manifest.kind == "sft"
    passed: list[str] = []
    rows = list(read_rows(folder / ("sft.jsonl" if is_supervised else "metrics.jsonl"), passed))
    if not rows:
        raise RunError(f"{folder} has no steps yet: there is nothing to draw")
    evals = list(read_rows(folder / "evals.jsonl", passed))
    first = evals[0]["split"] if evals else ""
    return _Read(
        name=name,
        title=title,
        rows=rows,
        evals=[row for row in evals if row["split"] == first],
        panels=SUPERVISED if is_supervised else PANELS,
        passed=passed,
    )


def _picked(read: Sequence[_Read], signals: Sequence[str]) -> list[Panel]:
    """A panel for each. A name that no run has is refused with the nearest."""
    known = dict.fromkeys(name for one in read for row in one.rows for name in row if name != "step")
    for name in signals:
        if name not in known:
            hint = did_you_mean(name, known) or f"; there are {', '.join(known)}"
            raise RecipeError(f"signals: no run has {name!r}{hint}")
    return [(name, (name,), "") for name in signals]


def _draw(axis: Any, panel: Panel, read: Sequence[_Read]) -> None:
    title, names, good = panel
    for index, one in enumerate(read):
        for dash, name in zip(DASHES, names, strict=False):
            steps, values = thinned(one.rows, name)
            if not values:
                continue
            own = {"color": f"C{index}", "linestyle": dash} if len(read) > 1 else {}
            label = ", ".join(([one.name] if len(read) > 1 else []) + ([name] if len(names) > 1 else []))
            (line,) = axis.plot(steps, smooth(values), linewidth=1.8, label=label or name, **own)
            axis.plot(steps, values, linewidth=0.7, alpha=0.3 / len(read), color=line.get_color())
        if "success_rate" in names and one.evals:
            _draw_evals(
                axis, one.evals, f"C{index}" if len(read) > 1 else "black", "" if index else "held out (greedy)"
            )
    axis.set_title(f"{title}  ({good})" if good else title, fontsize=9, loc="left")
    axis.grid(alpha=0.25)
    axis.tick_params(labelsize=8)
    if not axis.lines:
        axis.text(0.5, 0.5, "not measured", ha="center", fontsize=9, color="gray", transform=axis.transAxes)
        axis.set(xticks=[], yticks=[])
    if axis.lines and (len(names) > 1 or len(read) > 1):
        axis.legend(fontsize=7, frameon=False)


def thinned(rows: Sequence[Mapping[str, Any]], name: str) -> tuple[list[int], list[float]]:
    """Steps, counted from 1, and values where there are any; means of equal stretches where there are many."""
    known = [(row["step"] + 1, float(row[name])) for row in rows if isinstance(row.get(name), (int, float))]
    size = max(1, -(-len(known) // POINTS))
    parts = [known[i : i + size] for i in range(0, len(known), size)]
    return [part[-1][0] for part in parts], [sum(value for _, value in part) / len(part) for part in parts]


def smooth(values: Sequence[float], window: int = 9) -> list[float]:
    """A centred moving mean that keeps its ends."""
    half = window // 2
    parts = [values[max(0, i - half) : i + half + 1] for i in range(len(values))]
    return [sum(part) / len(part) for part in parts]


def _draw_evals(axis: Any, evals: Sequence[Row], colour: str, label: str) -> None:
    steps, rates = [row["step"] for row in evals], [row["success_rate"] for row in evals]
    errors = [
        [rate - row["low"] for rate, row in zip(rates, evals, strict=True)],
        [row["high"] - rate for rate, row in zip(rates, evals, strict=True)],
    ]
    how = {"fmt": "o", "markersize": 4, "capsize": 3, "label": label or None}
    axis.errorbar(steps, rates, yerr=errors, color=colour, **how)
