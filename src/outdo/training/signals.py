"""Being told to stop: SIGTERM (a scheduler) and SIGINT (Ctrl-C).

A signal raises `Stopped` at once where work may be dropped, and waits where it may not, as in the middle of an update:

    with signals.heard() as undivided:
        sample()
        with undivided():
            update()      # a signal that comes here is raised when this is done

A signal that was ignored before stays ignored: a job in the background of a shell has SIGINT so. SIGHUP is not heard:
`nohup` decides.

A second signal while the first one waits, or while the run is being saved, does not wait: the process ends. What is on
the disk is whole at any moment.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import Any

HEARD = (signal.SIGTERM, signal.SIGINT)

Undivided = Callable[[], AbstractContextManager[None]]


class Stopped(KeyboardInterrupt):
    """The process was told to stop. Exit status 128 and the signal's number: 143, 130."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class _Ear:
    def __init__(self) -> None:
        self.depth = 0
        self.waiting: int | None = None
        self.told = False

    def hear(self, number: int, frame: FrameType | None) -> None:
        if self.told:
            os._exit(128 + number)
        self.told = True
        if self.depth:
            self.waiting = number
        else:
            raise Stopped(number)

    @contextmanager
    def undivided(self) -> Iterator[None]:
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1
        if self.waiting is not None and not self.depth:
            number, self.waiting = self.waiting, None
            raise Stopped(number)


@contextmanager
def heard() -> Iterator[Undivided]:
    """Listens to the signals while inside. Off the main thread nothing can: there it changes nothing."""
    ear = _Ear()
    if threading.current_thread() is not threading.main_thread():
        yield ear.undivided
        return
    ignored = (signal.SIG_IGN, None)  # None: a handler that is not Python's, which could not be put back
    heeded = [number for number in HEARD if signal.getsignal(number) not in ignored]
    before: dict[int, Any] = {number: signal.signal(number, ear.hear) for number in heeded}
    try:
        yield ear.undivided
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
