"""What a person sees of a run: a live table in a terminal, plain lines everywhere else."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from outdo.evals.held_out import Evaluation
from outdo.metrics.estimate import format_share
from outdo.parallel.launch import read_launch
from outdo.types import Reporter
from outdo.untrusted.terminal import PrintableConsole, make_output_printable

if TYPE_CHECKING:
    from outdo.training.context import StageResult

SIGNALS = {  # metric -> how it is called and written in the table
    "reward_mean": ("reward", "{:.3f}"),
    "success_rate": ("success", "{:.3f}"),
    "kl_mean": ("KL", "{:.4f}"),
    "entropy_mean": ("entropy", "{:.3f}"),
    "informative": ("informative", "{:.2f}"),
    "len_mean": ("length", "{:.1f}"),
    "tokens_per_s": ("tokens/s", "{:,.0f}"),
}
BARS = "▁▂▃▄▅▆▇█"
MAX_LINES = 20  # that a run prints at most


class _Pace:
    """The ETA by the steps since this process started: a resumed run starts in the middle."""

    def __init__(self) -> None:
        self.start = time.monotonic()
        self.first: int | None = None

    def eta(self, step: int, total: int) -> str:
        self.first = step if self.first is None else self.first
        seconds = (time.monotonic() - self.start) / (step - self.first + 1) * (total - step)
        return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


class PlainLines:
    """For logs and pipes."""

    def __init__(self, console: Console) -> None:
        self.console, self.pace = console, _Pace()

    def note(self, line: str) -> None:
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def begin(self, phase: str) -> None:
        self.pace = _Pace()
        self.note(phase)

    def progress(self, name: str, step: int, total: int, more: str) -> None:
        if _due(step, total, 5):
            self.note(f"  {name} {step}/{total}  {more}")

    def step(self, step: int, total: int, row: Mapping[str, Any]) -> None:
        eta = self.pace.eta(step, total)
        if _due(step, total, MAX_LINES):
            self.note(f"  step {step}/{total}  {signal_line(row)}  ETA {eta}")

    def close(self) -> None: ...


class LiveTable(PlainLines):
    """For terminals: progress, and each signal at the start, now, and over time."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self.rows: list[Mapping[str, Any]] = []
        self.live: Live | None = None

    def begin(self, phase: str) -> None:
        self.close()
        self.rows = []
        super().begin(phase)

    def progress(self, name: str, step: int, total: int, more: str) -> None:
        self._show(_progress(name, step, total, self.pace, more))

    def step(self, step: int, total: int, row: Mapping[str, Any]) -> None:
        self.rows.append(row)
        table = Table("signal", "first", "now", "over the run", box=None, header_style="dim", padding=(0, 2))
        for key, (name, _) in SIGNALS.items():
            values = [r[key] for r in self.rows if r.get(key) is not None]
            table.add_row(name, _value(self.rows[0], key), _value(row, key), Text(_spark(values), style="cyan"))
        self._show(Group(_progress("step", step, total, self.pace), table))

    def close(self) -> None:
        if self.live is not None:
            self.live.stop()
            self.live = None

    def _show(self, what: Any) -> None:
        if self.live is None:
            self.live = Live(console=self.console, refresh_per_second=8)
            self.live.start()
            make_output_printable()  # Rich has put a stream of its own there, which reads escape codes
        self.live.update(what)


class Silent:
    """Reports nothing: the first process of a launch does."""

    def note(self, line: str) -> None: ...

    def begin(self, phase: str) -> None: ...

    def progress(self, name: str, step: int, total: int, more: str) -> None: ...

    def step(self, step: int, total: int, row: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...


def make_reporter(console: Console | None = None) -> Reporter:
    if not read_launch().is_first:
        return Silent()
    console = console or PrintableConsole(file=sys.stdout)
    return LiveTable(console) if console.is_terminal else PlainLines(console)


def width_of(table: Table) -> int:
    """How wide it is where nothing is cut."""
    return PrintableConsole(width=10_000).measure(table).maximum


def print_whole(console: Console, table: Table) -> None:
    """At its own width: where a window is narrower its lines are broken, and no number is cut."""
    before, console.width = console.width, max(console.width, width_of(table))
    console.print(table)
    console.width = before


def summary(before: Sequence[Evaluation], after: Sequence[Evaluation]) -> Table:
    """Held-out success before and after, with intervals; with partial credit, also the mean reward of greedy answers.
    What was looked at only afterwards has no before."""
    had = {old.split: old for old in before}
    ks = sorted({k for new in after for k in new.pass_at})
    rewards = ["reward [95%]"] if any(one.has_partial_credit for one in (*before, *after)) else []
    columns = ["before [95%]", "after [95%]", *(f"pass@{k}" for k in ks), *rewards]
    table = Table("held out", *columns, box=None, padding=(0, 1))
    for new in after:
        old = had.get(new.split)
        cells = [_change(old.pass_at.get(k) if old else None, new.pass_at.get(k)) for k in ks]
        cells += [f"{reward(old)} → {reward(new)}" if old else reward(new)] if rewards else []
        table.add_row(f"{new.split} ({new.n})", interval(old), interval(new), *cells)
    return table


def stages_table(stages: Sequence[StageResult]) -> Table:
    """A row per stage and split, with the stage's task."""
    table = Table("stage", "task", "held out", "before [95%]", "after [95%]", "pass@1", box=None, padding=(0, 1))
    for stage in stages:
        name, task, before = stage.name, stage.recipe.dataset_name, {one.split: one for one in stage.before}
        for one in stage.after:
            old = before.get(one.split)
            sampled = _change(old.pass_at.get(1) if old else None, one.pass_at.get(1))
            table.add_row(name, task, f"{one.split} ({one.n})", interval(old), interval(one), sampled)
            name = task = ""
        if not stage.after:
            table.add_row(name, task, *"––––")
    return table


def _change(old: float | None, new: float | None) -> str:
    return format_share(new) if old is None or new is None else f"{format_share(old)} → {format_share(new)}"


def interval(e: Evaluation | None) -> str:
    return f"{format_share(e.success_rate)} [{e.low:.2f}, {e.high:.2f}]" if e else "–"


def reward(e: Evaluation | None) -> str:
    """The mean reward of greedy answers."""
    ends = e.reward_interval if e else None
    return "–" if ends is None else "{:.3f} [{:.2f}, {:.2f}]".format(*ends)


def _progress(name: str, step: int, total: int, pace: _Pace, more: str = "") -> Table:
    line = Table.grid(padding=(0, 2))
    eta = f"ETA {pace.eta(step, total)}"
    line.add_row(f"{name} {step}/{total}", ProgressBar(total=total, completed=step, width=40), eta, more)
    return line


def signal_line(row: Mapping[str, Any]) -> str:
    """The main signals of a step in one line."""
    return "  ".join(f"{name} {_value(row, key)}" for key, (name, _) in SIGNALS.items())


def _value(row: Mapping[str, Any], key: str) -> str:
    return "–" if row.get(key) is None else SIGNALS[key][1].format(row[key])


def _spark(values: Sequence[float], width: int = 32) -> str:
    """A curve in one line: means of equal stretches, scaled between the least and the most."""
    if not values:
        return ""
    size = max(1, -(-len(values) // width))
    means = [sum(part) / len(part) for part in (values[i : i + size] for i in range(0, len(values), size))]
    low, high = min(means), max(means)
    return "".join(BARS[int((m - low) / (high - low) * (len(BARS) - 1))] if high > low else BARS[0] for m in means)


def _due(step: int, total: int, lines: int) -> bool:
    return step == 1 or step == total or step % max(1, total // lines) == 0
