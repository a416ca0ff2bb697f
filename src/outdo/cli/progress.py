"""Progress of something long, on standard error, so that what is asked for stays alone on standard output."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

PATIENCE = 10.0  # seconds between two lines where there is no terminal


@contextmanager
def counting(name: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar in a terminal, else a line now and then. It is told how many more are done."""
    console = Console(file=sys.stderr)
    if console.is_terminal:
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
        with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
            task = bar.add_task(name, total=total)
            yield lambda count: bar.advance(task, count)
        return
    done, last = 0, time.monotonic()

    def tell(count: int) -> None:
        nonlocal done, last
        done += count
        if time.monotonic() - last > PATIENCE:
            last = time.monotonic()
            print(f"{name}: {done:,} of {total:,}", file=sys.stderr, flush=True)

    yield tell
