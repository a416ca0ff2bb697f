"""`outdo compare`: the runs that it reads, and their tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from outdo.doctor.compare import Side, against, difference_rows, differing
from outdo.doctor.run_row import RunRow, read_run_row
from outdo.errors import RecipeError, RunError
from outdo.evals.report import describe_difference, format_difference
from outdo.metrics.estimate import format_share
from outdo.runs.manifest import read_manifest
from outdo.sweeps.grid import SWEEP_FILE, format_value
from outdo.sweeps.report import NONE, number

TABLE_ROWS = {  # signal -> title and format
    "reward_mean": ("reward", "{:.3f}"),
    "kl_mean": ("KL", "{:.4f}"),
    "entropy_mean": ("entropy", "{:.3f}"),
    "group_diversity": ("diversity", "{:.2f}"),
    "informative": ("informative", "{:.2f}"),
    "len_mean": ("length", "{:.1f}"),
    "truncated": ("truncated", "{:.2f}"),
    "adv_noise": ("advantage noise", "{:.3f}"),
    "steps": ("steps", "{:d}"),
    "seconds": ("seconds", "{:.0f}"),
    "device_seconds": ("device-seconds", "{:,.0f}"),
    "price": ("price", "{:.4g}"),
    "tokens_per_s": ("tokens/s", "{:,.0f}"),
}


def read(folders: Sequence[Path], skipped: list[str]) -> list[Side]:
    """Raises RecipeError where one holds no run, or is named twice. Adds lines that are not JSON rows to `skipped`."""
    places = [folder.resolve() for folder in folders]
    for i, folder in enumerate(folders):
        if places[i] in places[:i]:
            raise RecipeError(f"{folder} is named twice: remove one")
    return [_side(folder, skipped) for folder in folders]


def _side(folder: Path, skipped: list[str]) -> Side:
    if (folder / SWEEP_FILE).exists():
        raise RecipeError(f"{folder} holds a sweep, not a run: name its cells, {folder}/cell-*")
    try:
        manifest = read_manifest(folder)
    except RunError as error:
        raise RecipeError(f"{error}: name folders of runs") from None
    if manifest.kind == "stages":
        raise RecipeError(f"{folder} has stages, each a run of its own: name those, such as {folder}/02-grpo")
    return Side(str(folder), manifest.recipe, read_run_row(folder, skipped))


def tables(sides: Sequence[Side], width: int) -> Iterator[Table]:
    """As many runs side by side as fit the window, each table with the first run."""
    label = max(len(text) for text in _labels(sides))
    per_table = max(1, (width - label - 2) // 24 - 1)
    others = sides[1:]
    for start in range(0, len(others), per_table):
        yield _table([sides[0], *others[start : start + per_table]], differing(sides), sides)


def _labels(sides: Sequence[Side]) -> list[str]:
    return [*differing(sides), *(title for title, _ in TABLE_ROWS.values()), "success [95%]"]


def _table(shown: Sequence[Side], keys: dict[str, list[Any]], sides: Sequence[Side]) -> Table:
    indices = [sides.index(side) for side in shown]
    table = Table(box=None, header_style="dim", padding=(0, 1))
    table.add_column("")
    for side in shown:
        table.add_column(Text(side.name), overflow="fold")
    for key, values in keys.items():
        table.add_row(Text(key), *(Text(format_value(values[i]), overflow="fold") for i in indices))
    table.add_row("status", *(str(side.row["status"]) for side in shown))
    table.add_row(Text("success [95%]"), *(Text(_success(side.row)) for side in shown))
    table.add_row("  before", *(format_share(side.row["before"]) for side in shown))
    gaps = [against(side, shown[0]) for side in shown[1:]]
    table.add_row("  difference", "", *(Text(NONE if gap is None else format_difference(gap)) for gap in gaps))
    table.add_row("", "", *(NONE if gap is None else describe_difference(gap) for gap in gaps))
    for k in sorted({k for side in shown for k in side.row["passes"]}, key=lambda k: int(k[5:])):
        table.add_row(k, *(format_share(side.row["passes"].get(k, {}).get("value")) for side in shown))
    for name, (title, how) in TABLE_ROWS.items():
        if name == "price" and all(side.row[name] is None for side in sides):
            continue
        table.add_row(title, *(number(side.row[name], how) for side in shown))
    return table


def _success(row: RunRow) -> str:
    if row["success_rate"] is None:
        return NONE
    return f"{format_share(row['success_rate'])} [{row['low']:.3f}, {row['high']:.3f}]"


def as_json(sides: Sequence[Side]) -> dict[str, Any]:
    return {
        "differing": {key: dict(zip([s.name for s in sides], v, strict=True)) for key, v in differing(sides).items()},
        "runs": [{"run": side.name, **side.row} for side in sides],
        "differences": difference_rows(sides),
    }
