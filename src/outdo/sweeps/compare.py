"""Any runs side by side: in which keys they differ, what each came to, and whether that is more than noise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from outdo.errors import RecipeError, RunError
from outdo.evals.estimate import Difference, format_share
from outdo.evals.report import describe_difference, format_difference
from outdo.runs.manifest import read_manifest
from outdo.sweeps.analysis import between, by_problem
from outdo.sweeps.grid import told
from outdo.sweeps.report import NONE, number
from outdo.sweeps.rows import Row, row_of

UNLIKE = ("output_dir", "resume")  # keys that differ between any two runs
LINES = {  # of the table: the row's name -> how it is called and written
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
    row: Row


def read(folders: Sequence[Path], passed: list[str]) -> list[Side]:
    """Raises RecipeError where one holds no run, or is named twice. Lines that are no rows are told in `passed`."""
    places = [folder.resolve() for folder in folders]
    for i, folder in enumerate(folders):
        if places[i] in places[:i]:
            raise RecipeError(f"{folder} is named twice: it does not differ from itself")
    return [_side(folder, passed) for folder in folders]


def _side(folder: Path, passed: list[str]) -> Side:
    if (folder / "sweep.json").exists():
        raise RecipeError(f"{folder} holds a sweep, not a run: name its cells, {folder}/cell-*")
    try:
        manifest = read_manifest(folder)
    except RunError as error:
        raise RecipeError(f"{error}: name folders of runs") from None
    if manifest.kind == "stages":
        raise RecipeError(f"{folder} has stages, each a run of its own: name those, such as {folder}/02-grpo")
    return Side(str(folder), manifest.recipe, row_of(folder, passed))


def differing(sides: Sequence[Side]) -> dict[str, list[Any]]:
    """The keys in which they differ, with each one's value."""
    keys = dict.fromkeys(key for side in sides for key in side.recipe if key not in UNLIKE)
    values = {key: [side.recipe.get(key) for side in sides] for key in keys}
    return {key: each for key, each in values.items() if any(value != each[0] for value in each)}


def against(side: Side, first: Side) -> Difference | None:
    """The difference in held-out success; None where one has none, or they were asked different kinds of problems."""
    ours, theirs = side.row, first.row
    if ours["success_rate"] is None or theirs["success_rate"] is None or ours["split"] != theirs["split"]:
        return None
    if ours["problems"] and theirs["problems"] and ours["problems"] != theirs["problems"]:
        return None
    return between([ours], [theirs])


def is_paired(side: Side, first: Side) -> bool:
    return by_problem([side.row, first.row]) is not None


def tables(sides: Sequence[Side], width: int) -> Iterator[Table]:
    """As many runs side by side as the window holds, the first in each."""
    label = max(len(text) for text in _labels(sides))
    room = max(1, (width - label - 2) // 24 - 1)
    others = sides[1:]
    for start in range(0, len(others), room):
        yield _table([sides[0], *others[start : start + room]], differing(sides), sides)


def _labels(sides: Sequence[Side]) -> list[str]:
    return [*differing(sides), *(title for title, _ in LINES.values()), "success [95%]"]


def _table(shown: Sequence[Side], keys: dict[str, list[Any]], sides: Sequence[Side]) -> Table:
    place = [sides.index(side) for side in shown]
    table = Table(box=None, header_style="dim", padding=(0, 1))
    table.add_column("")
    for side in shown:
        table.add_column(Text(side.name), overflow="fold")
    for key, values in keys.items():
        table.add_row(Text(key), *(Text(told(values[i]), overflow="fold") for i in place))
    table.add_row("status", *(str(side.row["status"]) for side in shown))
    table.add_row(Text("success [95%]"), *(Text(_success(side.row)) for side in shown))
    table.add_row("  before", *(format_share(side.row["before"]) for side in shown))
    gaps = [against(side, shown[0]) for side in shown[1:]]
    table.add_row("  difference", "", *(Text(NONE if gap is None else format_difference(gap)) for gap in gaps))
    table.add_row("", "", *(NONE if gap is None else describe_difference(gap) for gap in gaps))
    for k in sorted({k for side in shown for k in side.row["passes"]}, key=lambda k: int(k[5:])):
        table.add_row(k, *(format_share(side.row["passes"].get(k, {}).get("value")) for side in shown))
    for name, (title, how) in LINES.items():
        table.add_row(title, *(number(side.row[name], how) for side in shown))
    return table


def _success(row: Row) -> str:
    if row["success_rate"] is None:
        return NONE
    return f"{format_share(row['success_rate'])} [{row['low']:.3f}, {row['high']:.3f}]"


def words(sides: Sequence[Side]) -> list[str]:
    """What the table leaves out: how the runs ended, and what the difference rests on."""
    lines = []
    for side in sides:
        said = [side.row["why"]] if side.row["status"] in ("halted", "failed", "stopped") else []
        said += [words for words in side.row["troubles"] if words != side.row["status"]]
        lesser = [code for code in side.row["findings"] if not any(code in words for words in side.row["troubles"])]
        said += [f"the doctor says {', '.join(lesser)}"] if lesser else []
        if said:
            lines.append(f"{side.name}: {'; '.join(filter(None, said))}")
        if side.row["success_rate"] is None:
            lines.append(f"{side.name} has no held-out evaluation after training: there is no success to compare")
    for side in sides[1:]:
        gap = against(side, sides[0])
        if gap and not is_paired(side, sides[0]):
            lines.append(f"{side.name}: the difference is not paired; one of the runs has no verdicts by problem")
        elif gap is None and None not in (side.row["success_rate"], sides[0].row["success_rate"]):
            lines.append(f"{side.name} was asked other problems than {sides[0].name}: no difference is told")
    if len({side.recipe.get("seed") for side in sides}) == 1:
        return lines
    return [*lines, "one run each: the difference holds for these runs; another seed may give another"]


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
