"""`outdo compare`: the runs that it reads, and their tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from outdo.doctor.compare import (
    VALUES,
    Side,
    against,
    difference_rows,
    differing,
    metric_of,
    rewards_differ,
    split_names,
    why_not,
)
from outdo.doctor.run_row import read_run_row
from outdo.errors import RecipeError, RunError
from outdo.evals.report import describe_difference, format_difference
from outdo.metrics.estimate import format_share
from outdo.metrics.headline import Metric
from outdo.runs.find import shown_name
from outdo.runs.manifest import read_manifest
from outdo.sweeps.grid import SWEEP_FILE, format_value
from outdo.sweeps.report import NONE, number

APART = "not comparable"
TABLE_ROWS = {  # signal -> title and format
    "reward_mean": ("training reward", "{:.3f}"),
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
    return Side(shown_name(folder), manifest.recipe, read_run_row(folder, skipped), str(manifest.trainer or ""))


def tables(sides: Sequence[Side], width: int) -> Iterator[Table]:
    """As many runs side by side as fit the window, each table with the first run."""
    label = max(len(text) for text in _labels(sides))
    per_table = max(1, (width - label - 2) // 24 - 1)
    others = sides[1:]
    for start in range(0, len(others), per_table):
        yield _table([sides[0], *others[start : start + per_table]], differing(sides), sides)


def _labels(sides: Sequence[Side]) -> list[str]:
    splits = [f"{split} success [95%]" for split in split_names(sides)[1:]]
    apart = [f"{TABLE_ROWS['reward_mean'][0]} ({APART})"] if rewards_differ(sides) else []
    return [*differing(sides), *(title for title, _ in TABLE_ROWS.values()), "success [95%]", *splits, *apart]


def _table(shown: Sequence[Side], keys: dict[str, list[Any]], sides: Sequence[Side]) -> Table:
    indices = [sides.index(side) for side in shown]
    table = Table(box=None, header_style="dim", padding=(0, 1))
    table.add_column("")
    for side in shown:
        table.add_column(Text(side.name), overflow="fold")
    for key, values in keys.items():
        table.add_row(Text(key), *(Text(_value(sides[i], key, values[i]), overflow="fold") for i in indices))
    if any(side.trainer for side in shown):
        table.add_row("trainer", *(Text(side.trainer or "outdo") for side in shown))
    table.add_row("status", *(str(side.row["status"]) for side in shown))
    for index, split in enumerate(split_names(sides) or [""]):
        _add_split(table, shown, split, f"{split} " if index else "")
    for name, (title, how) in TABLE_ROWS.items():
        if name == "price" and all(side.row[name] is None for side in sides):
            continue
        apart = name == "reward_mean" and rewards_differ(shown)
        table.add_row(f"{title} ({APART})" if apart else title, *(number(side.row[name], how) for side in shown))
    return table


def _value(side: Side, key: str, value: Any) -> str:
    return NONE if side.trainer and key not in side.recipe else format_value(value)


def _add_split(table: Table, shown: Sequence[Side], split: str, prefix: str) -> None:
    """A split's success, sampled success and, with partial credit, reward, each against the first run. The first split
    has no prefix."""
    rows = [side.row["splits"].get(split) or {"passes": {}} for side in shown]
    measures: tuple[Metric, ...] = ("success", "reward") if any(row.get("partial") for row in rows) else ("success",)
    for metric in measures:
        before = "before" if metric == "success" else "reward_before"
        table.add_row(Text(f"{prefix}{metric} [95%]"), *(Text(_interval(row, metric)) for row in rows))
        table.add_row("  before", *(format_share(row.get(before)) for row in rows))
        gaps = [against(side, shown[0], split, metric) for side in shown[1:]]
        whys = [APART if why_not(side, shown[0], split, metric) else NONE for side in shown[1:]]
        values = zip(gaps, whys, strict=True)
        table.add_row(
            "  difference", "", *(Text(why if gap is None else format_difference(gap)) for gap, why in values)
        )
        table.add_row("", "", *("" if gap is None else describe_difference(gap) for gap in gaps))
    for k in sorted({k for row in rows for k in row["passes"]}, key=lambda k: int(k[5:])):
        table.add_row(f"{prefix}{k}", *(format_share(row["passes"].get(k, {}).get("value")) for row in rows))


def _interval(row: Mapping[str, Any], metric: Metric) -> str:
    value, low, high = (row.get(name) for name in VALUES[metric])
    if value is None:
        return NONE
    if low is None or high is None:
        return format_share(value)
    return f"{format_share(value)} [{low:.3f}, {high:.3f}]"


def as_json(sides: Sequence[Side]) -> dict[str, Any]:
    return {
        "differing": {key: dict(zip([s.name for s in sides], v, strict=True)) for key, v in differing(sides).items()},
        "runs": [{"run": side.name, **side.row} for side in sides],
        "decides": metric_of(sides),
        "differences": difference_rows(sides),
    }
