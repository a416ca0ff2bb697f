"""Progress of a long command, on standard error: standard output has the result alone."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from outdo.untrusted.terminal import PrintableConsole, make_output_printable

INTERVAL_S = 10.0  # between two lines without a terminal


@contextmanager
def progress_bar(name: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar in a terminal, else a line at intervals. Yields a function that takes the number of further items done."""
    console = PrintableConsole(file=sys.stderr)
    if console.is_terminal:
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
        with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
            make_output_printable()  # Rich has put a stream of its own there, which reads escape codes
            task = bar.add_task(name, total=total)
            yield lambda count: bar.advance(task, count)
        return
    done, last = 0, time.monotonic()

    def advance(count: int) -> None:
        nonlocal done, last
        done += count
        if time.monotonic() - last > INTERVAL_S:
            last = time.monotonic()
            print(f"{name}: {done:,} of {total:,}", file=sys.stderr, flush=True)

    yield advance
