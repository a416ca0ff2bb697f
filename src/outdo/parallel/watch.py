"""A thread that ends this process when another one is gone and the main thread does not notice: it may be blocked in an
exchange on a GPU, where nothing wakes it, until the launcher kills it without a word.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

from outdo.parallel.launch import may_speak
from outdo.parallel.lost import Peers, find_lost

INTERVAL = 1.0  # seconds between two looks
GRACE = 12.0  # that the main thread has to notice by itself; torchrun kills after 30


class Watch(threading.Thread):
    """Started once the processes have found each other; `stop` when this one ends or has noticed."""

    def __init__(self, peers: Peers, run: int) -> None:
        super().__init__(name="watch", daemon=True)
        self.peers, self.number = peers, run
        self.on_lost: Callable[[str], None] = lambda why: None
        self._stopped = threading.Event()

    def stop(self) -> None:
        self._stopped.set()

    def run(self) -> None:
        while not self._stopped.wait(INTERVAL):
            if self._is_one_lost():
                self._end()

    def _is_one_lost(self) -> bool:
        gone = set(self.peers.gone())
        return bool(gone) and not gone <= self.peers.left(self.number)

    def _end(self) -> None:
        why = find_lost(self.peers, TimeoutError())
        if self._stopped.wait(GRACE):
            return
        with suppress(Exception):
            self.on_lost(why)
        if may_speak(self.peers.launch):
            print(f"outdo: {why}", file=sys.__stderr__, flush=True)
        os._exit(1)
