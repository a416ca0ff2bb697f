"""Interrupts: SIGTERM (a scheduler) and SIGINT (Ctrl-C).

A signal raises `Interrupted` at once where work may be dropped, and waits where it may not, as during an update:

    with interrupts.listen() as uninterruptible:
        sample()
        with uninterruptible():
            update()      # a signal that arrives here is raised when this is done

A signal that was ignored before stays ignored, as SIGINT of a shell's background job. `nohup` decides about SIGHUP. A
second signal, while the first waits or the run is saved, ends the process at once: the disk is valid at any moment.

Where several processes train, a signal is raised only where all agree on it, at the next step's sampling or update; one
that comes a moment after the first is the launcher's, which passes it on.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import FrameType
from typing import Any

from outdo.parallel.world import World, get_world

PASSED_ON = 5.0  # seconds in which a launcher sends a signal that the processes may have got already
SIGNALS = (signal.SIGTERM, signal.SIGINT)

Uninterruptible = Callable[[], AbstractContextManager[None]]


class Interrupted(KeyboardInterrupt):
    """A signal asked the process to stop. Exit status: 128 and the signal's number (143, 130)."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number

    def __reduce__(self) -> tuple[type[Interrupted], tuple[int]]:
        return Interrupted, (self.number,)


class _Listener:
    def __init__(self, is_shared: bool) -> None:
        self.is_shared = is_shared  # with other processes, which have to agree
        self.depth = int(is_shared)
        self.pending: int | None = None
        self.interrupted = 0.0  # when the first signal came

    def handle(self, number: int, frame: FrameType | None) -> None:
        if self.interrupted:
            if self.is_shared and time.monotonic() - self.interrupted < PASSED_ON:
                return
            os._exit(128 + number)
        self.interrupted = time.monotonic()
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
        self._raise_pending()

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Inside, a signal is raised at once: of several processes the others are told."""
        self.depth -= 1
        try:
            self._raise_pending()
            yield
        finally:
            self.depth += 1

    def _raise_pending(self) -> None:
        if self.pending is not None and not self.depth:
            number, self.pending = self.pending, None
            raise Interrupted(number)


@contextmanager
def listen(world: World | None = None) -> Iterator[Uninterruptible]:
    """Handles the signals while inside. Off the main thread Python cannot: there it changes nothing. In a part that is
    not to be interrupted, `world.interruptible` is where it may be all the same."""
    world = world or get_world()
    listener = _Listener(world.is_shared)
    if threading.current_thread() is not threading.main_thread():
        yield listener.uninterruptible
        return
    ignored = (signal.SIG_IGN, None)  # None: a handler that is not Python's, which could not be restored
    numbers = [number for number in SIGNALS if signal.getsignal(number) not in ignored]
    before: dict[int, Any] = {number: signal.signal(number, listener.handle) for number in numbers}
    world.interruptible = listener.interruptible
    try:
        yield listener.uninterruptible
    finally:
        world.interruptible = nullcontext
        for number, handler in before.items():
            signal.signal(number, handler)
