"""Runs side by side: the keys in which they differ, their results, and whether a difference is more than noise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from outdo.doctor.run_row import RunRow, read_run_row
from outdo.errors import RecipeError, RunError
from outdo.evals.estimate import Difference, format_share
from outdo.evals.report import describe_difference, format_difference
from outdo.runs.manifest import read_manifest
from outdo.sweeps.analysis import between, by_problem
from outdo.sweeps.grid import SWEEP_FILE, format_value
from outdo.sweeps.report import NONE, number

IGNORED_KEYS = ("output_dir", "resume")  # differ between any two runs
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
    "tokens_per_s": ("tokens/s", "{:,.0f}"),
}


@dataclass(frozen=True)
class Side:
    """One run."""

    name: str
    recipe: dict[str, Any]
    row: RunRow


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


def differing(sides: Sequence[Side]) -> dict[str, list[Any]]:
    """The keys in which they differ, with the value of each run."""
    keys = dict.fromkeys(key for side in sides for key in side.recipe if key not in IGNORED_KEYS)
    values = {key: [side.recipe.get(key) for side in sides] for key in keys}
    return {key: each for key, each in values.items() if any(value != each[0] for value in each)}


def against(side: Side, first: Side) -> Difference | None:
    """The difference in held-out success; None where one has none, or they were evaluated on different problems."""
    new, old = side.row, first.row
    if new["success_rate"] is None or old["success_rate"] is None or new["split"] != old["split"]:
        return None
    if new["problems"] and old["problems"] and new["problems"] != old["problems"]:
        return None
    return between([new], [old])


def is_paired(side: Side, first: Side) -> bool:
    return by_problem([side.row, first.row]) is not None


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
        table.add_row(title, *(number(side.row[name], how) for side in shown))
    return table


def _success(row: RunRow) -> str:
    if row["success_rate"] is None:
        return NONE
    return f"{format_share(row['success_rate'])} [{row['low']:.3f}, {row['high']:.3f}]"


def describe_sides(sides: Sequence[Side]) -> list[str]:
    """What the table does not show: how the runs ended, and how the difference was computed."""
    lines = []
    for side in sides:
        row = side.row
        notes = [row["why"]] if row["status"] in ("halted", "failed", "stopped") else []
        notes += [trouble for trouble in row["troubles"] if trouble != row["status"]]
        minor = [code for code in row["findings"] if not any(code in trouble for trouble in row["troubles"])]
        notes += [f"the doctor says {', '.join(minor)}"] if minor else []
        if notes:
            lines.append(f"{side.name}: {'; '.join(filter(None, notes))}")
        if row["success_rate"] is None:
            lines.append(f"{side.name} has no held-out evaluation after training, so its success cannot be compared")
    for side in sides[1:]:
        gap = against(side, sides[0])
        if gap and not is_paired(side, sides[0]):
            lines.append(f"{side.name}: the difference is not paired, because one run has no verdicts by problem")
        elif gap is None and None not in (side.row["success_rate"], sides[0].row["success_rate"]):
            lines.append(f"{side.name} and {sides[0].name} were evaluated on different problems: no comparison")
    if len({side.recipe.get("seed") for side in sides}) == 1:
        return lines
    return [*lines, "the difference is between single runs: another seed may give another"]


def as_json(sides: Sequence[Side]) -> dict[str, Any]:
    first = sides[0]
    gaps = {side.name: against(side, first) for side in sides[1:]}
    return {
        "differing": {key: dict(zip([s.name for s in sides], v, strict=True)) for key, v in differing(sides).items()},
        "runs": [{"run": side.name, **side.row} for side in sides],
        "differences": [
            {"run": name, "against": first.name, "difference": gap.value, "low": gap.low, "high": gap.high}
            | {"noise": gap.is_noise, "paired": is_paired(side, first)}
            for side, (name, gap) in zip(sides[1:], gaps.items(), strict=True)
            if gap
        ],
    }
