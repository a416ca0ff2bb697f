"""The results of a sweep as text: a table that fits the window, a heat map, a Markdown page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

from outdo.doctor.compare import NO_KL, judged_apart
from outdo.evals.report import describe_difference, format_difference
from outdo.metrics.headline import Metric
from outdo.sweeps.analysis import Setting, difference, has_partial_credit, other_splits
from outdo.sweeps.choice import Choice
from outdo.sweeps.grid import Sweep, format_value

NONE = "–"
SHADES = " ░▒▓█"


@dataclass(frozen=True)
class Column:
    """A column of the table. In a narrow window, columns with the highest `rank` are dropped first."""

    title: str
    text: Callable[[Setting], str]
    rank: int


def number(value: float | None, how: str) -> str:
    return NONE if value is None else how.format(value)


def _signal(name: str, title: str, how: str, rank: int) -> Column:
    return Column(title, lambda s: number(s.mean(name), how), rank)


EXTRA_COLUMNS = {  # signals that `sweep.columns` may name, beside those that are always shown
    "adv_noise": ("adv. noise", "{:.3f}"),
    "adv_std": ("adv. std", "{:.2f}"),
    "grad_norm": ("grad norm", "{:.2f}"),
    "clipfrac": ("clipped", "{:.3f}"),
    "truncated": ("cut", "{:.2f}"),
    "reward_mean": ("reward", "{:.2f}"),
}


def _interval(metric: Metric, split: str, title: str, rank: int) -> Column:
    def text(s: Setting) -> str:
        ends = s.interval(metric, split)
        return "{:.3f} [{:.2f}, {:.2f}]".format(*ends) if ends else NONE

    return Column(title, text, rank)


def _seeds(s: Setting) -> str:
    """How many of them are evaluated."""
    done, total = len(s.evaluated), len(s.rows)
    return str(total) if done == total else f"{done} of {total}"


def columns_of(settings: Sequence[Setting], extra: Sequence[str] = ()) -> list[Column]:
    """The columns that are not empty in this sweep."""
    k = next((s.pass_name for s in settings if s.pass_name), "")
    partial, splits = has_partial_credit(settings), other_splits(settings)
    columns = [
        Column("setting", lambda s: s.name, 0),
        _interval("success", "", "success [95%]", 0),
        *([_interval("reward", "", "reward [95%]", 0)] if partial else []),
        *([Column("seeds", _seeds, 6)] if any(len(s.rows) > 1 for s in settings) else []),
        Column("gain", lambda s: number(s.gain, "{:+.2f}"), 5),
        *([_signal("pass@1", "pass@1", "{:.2f}", 1)] if k else []),
        *([_signal(k, k, "{:.2f}", 4)] if k and k != "pass@1" else []),
        *(_interval("success", split, f"{split} [95%]", 1) for split in splits),
        *(_interval("reward", split, f"{split} reward [95%]", 3) for split in splits if partial),
        _signal("kl_mean", "KL", "{:.3f}", 1),
        _signal("entropy_mean", "entropy", "{:.3f}", 2),
        _signal("group_diversity", "diverse", "{:.2f}", 3),
        _signal("informative", "inform.", "{:.2f}", 8),
        _signal("len_mean", "length", "{:.1f}", 9),
        *(_signal(name, *EXTRA_COLUMNS[name], rank=1) for name in extra),
        _signal("tokens_per_s", "tokens/s", "{:,.0f}", 10),
        _signal("seconds", "seconds", "{:.0f}", 7),
    ]
    return [c for c in columns if c.rank == 0 or any(c.text(s) != NONE for s in settings)]


def table(settings: Sequence[Setting], width: int, extra: Sequence[str] = ()) -> Table:
    """A line per setting, mean over its seeds."""
    columns = columns_of(settings, extra)
    widths = {c.title: max(len(c.title), *(len(c.text(s)) for s in settings)) + 2 for c in columns}
    while sum(widths[c.title] for c in columns) > width and len(columns) > 2:
        columns.remove(max(columns, key=lambda c: c.rank))
    out = Table(box=None, header_style="dim", padding=(0, 1))
    for column in columns:
        first = column.title == "setting"
        out.add_column(Text(column.title), no_wrap=not first, overflow="fold", justify="left" if first else "right")
    for s in settings:
        out.add_row(*(Text(column.text(s)) for column in columns))
    return out


def notes(settings: Sequence[Setting]) -> list[str]:
    """Where each setting failed, and the doctor's findings."""
    return [f"{s.name}: {'; '.join(lines)}" for s in settings if (lines := _failures(s)) and lines != ["waiting"]]


def _failures(s: Setting) -> list[str]:
    whys = [str(row["why"]) for row in s.rows if row["status"] in ("halted", "failed") and row["why"]]
    codes = list(dict.fromkeys(code for row in s.rows for code in row.get("findings") or ()))
    minor = [code for code in codes if not any(code in trouble for trouble in s.troubles)]
    doctor = [f"the doctor says {', '.join(minor)}"] if minor else []
    unknown = [] if s.has_kl or not s.evaluated else [NO_KL]
    return [*s.troubles, *s.falls, *unknown, *list(dict.fromkeys(whys))[:1], *doctor]


def plane(
    settings: Sequence[Setting], varied: Sequence[str]
) -> tuple[list[Any], list[Any], list[list[Setting | None]]]:
    """Settings of two keys as a grid: the first key's values down, the second's across."""
    values_of = [[s.keys[key] for s in settings] for key in varied]
    down, across = ([v for i, v in enumerate(values) if v not in values[:i]] for values in values_of)
    at = {(format_value(s.keys[varied[0]]), format_value(s.keys[varied[1]])): s for s in settings}
    return down, across, [[at.get((format_value(y), format_value(x))) for x in across] for y in down]


def heat_map(settings: Sequence[Setting], varied: Sequence[str]) -> Table:
    """What decides by two keys, darker where higher; `!` marks signals that are not sane."""
    down, across, cells = plane(settings, varied)
    out = Table(box=None, header_style="dim", padding=(0, 1))
    out.add_column("", no_wrap=True)
    for value in across:
        out.add_column(Text(format_value(value)), justify="right", no_wrap=True)
    values = [s.value for s in settings if s.value is not None]
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    for value, line in zip(down, cells, strict=True):
        out.add_row(Text(format_value(value)), *(Text(_heat_cell(s, low, high)) for s in line))
    return out


def _heat_cell(s: Setting | None, low: float, high: float) -> str:
    if s is None or s.value is None:
        return s.rows[0]["status"] if s else NONE
    shade = SHADES[round((s.value - low) / (high - low) * (len(SHADES) - 1))] if high > low else SHADES[2]
    return f"{shade * 2} {s.value:.3f}{'' if s.is_sane else '!'}"


def page(
    sweep: Sweep, settings: Sequence[Setting], choice: Choice, facts: Mapping[str, str], picture: str | None = None
) -> str:
    """The results as Markdown; each setting is also compared with the default, where there is one."""
    columns = columns_of(settings, sweep.columns)
    base = next((s for s in settings if s.name == sweep.default and s.value is not None), None)
    if base:
        columns.insert(2, Column(f"against {base.name}", lambda s: _against(s, base), 0))
    lines = [f"# {sweep.title}", "", *([sweep.about, ""] if sweep.about else [])]
    lines += [*(f"- {key}: {value}" for key, value in facts.items()), ""]
    lines += ["| " + " | ".join([*(c.title for c in columns), "failures"]) + " |"]
    lines += ["| " + " | ".join(["---"] * (len(columns) + 1)) + " |"]
    for s in settings:
        lines.append("| " + " | ".join([*(_plain(c.text(s)) for c in columns), _plain("; ".join(_failures(s)))]) + " |")
    lines += ["", f"**Pick** {choice.why}" if choice.name else choice.why, ""]
    lines += [f"![{sweep.title}]({picture})", ""] if picture else []
    return "\n".join(lines)


def _against(s: Setting, base: Setting) -> str:
    if s is base or s.value is None:
        return NONE
    if judged_apart([*s.evaluated, *base.evaluated], s.metric):
        return "not comparable"
    gap = difference(s, base)
    return f"{format_difference(gap)}, {describe_difference(gap)}"


def _plain(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
