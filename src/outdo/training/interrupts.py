"""Interrupts: SIGTERM (a scheduler) and SIGINT (Ctrl-C).

A signal raises `Interrupted` at once where work may be dropped, and waits where it may not, as during an update:

    with interrupts.listen() as uninterruptible:
        sample()
        with uninterruptible():
            update()      # a signal that arrives here is raised when this is done

A signal that was ignored before stays ignored, as SIGINT of a shell's background job. `nohup` decides about SIGHUP. A
second signal, while the first waits or the run is saved, ends the process at once: the disk is valid at any moment.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT)

Uninterruptible = Callable[[], AbstractContextManager[None]]


class Interrupted(KeyboardInterrupt):
    """A signal asked the process to stop. Exit status: 128 and the signal's number (143, 130)."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class _Listener:
    def __init__(self) -> None:
        self.depth = 0
        self.pending: int | None = None
        self.interrupted = False

    def handle(self, number: int, frame: FrameType | None) -> None:
        if self.interrupted:
            os._exit(128 + number)
        self.interrupted = True
        if self.depth:
            self.pending = number
        else:
            raise Interrupted(number)

    @contextmanager
    def uninterruptible(self) -> Iterator[None]:
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1
        if self.pending is not None and not self.depth:
            number, self.pending = self.pending, None
            raise Interrupted(number)


@contextmanager
def listen() -> Iterator[Uninterruptible]:
    """Handles the signals while inside. Off the main thread Python cannot: there it changes nothing."""
    listener = _Listener()
    if threading.current_thread() is not threading.main_thread():
        yield listener.uninterruptible
        return
    ignored = (signal.SIG_IGN, None)  # None: a handler that is not Python's, which could not be restored
    numbers = [number for number in SIGNALS if signal.getsignal(number) not in ignored]
    before: dict[int, Any] = {number: signal.signal(number, listener.handle) for number in numbers}
    try:
        yield listener.uninterruptible
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
