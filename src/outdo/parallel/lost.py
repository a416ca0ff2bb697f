"""Which process is gone, and what it was doing: asked when a connection breaks or nothing comes for too long."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outdo.parallel.launch import Launch

SETTLE = 2.0  # seconds for the cause to be written down, or the process to be gone


@dataclass
class Peers:
    """All processes by rank, as machine and process id, and the store where each notes what it does."""

    launch: Launch
    places: tuple[tuple[str, int], ...]
    store: Any
    phase_key: str = "phase"  # under which it is noted what a process does
    num_exchanges: int = 0  # that this process has begun

    def note(self, key: str, text: str) -> None:
        """Best effort: the store is the launcher's, and dies with it."""
        with suppress(Exception):
            self.store.set(f"outdo/{key}/{self.launch.rank}", text)

    @contextmanager
    def busy(self, phase: str) -> Iterator[None]:
        """While it does its part of an exchange."""
        self.count_exchange(phase)
        try:
            yield
        finally:
            self.note(self.phase_key, f"{self.num_exchanges} ")

    def count_exchange(self, phase: str = "") -> None:
        self.num_exchanges += 1
        self.note(self.phase_key, f"{self.num_exchanges} {phase}")

    def notes(self, key: str) -> dict[int, str]:
        """What the others have noted, by rank."""
        texts = {}
        for rank in range(self.launch.size):
            with suppress(Exception):
                name = f"outdo/{key}/{rank}"
                if rank != self.launch.rank and self.store.check([name]):
                    texts[rank] = self.store.get(name).decode()
        return {rank: text for rank, text in texts.items() if text}

    def left(self, run: int) -> set[int]:
        """The others that have left that run, or a later one."""
        return {rank for rank, number in self.notes("left").items() if int(number) >= run}

    def wait_for_first(self, run: int) -> None:
        """Until the first process has left that run, or is gone; or the store is, and nobody can know."""
        with suppress(Exception):
            while 0 not in self.left(run) and 0 not in self.gone():
                self.store.check(["outdo/left/0"])
                time.sleep(0.05)

    def gone(self) -> list[int]:
        """The processes of this machine that are no more."""
        here = machine()
        others = [(rank, pid) for rank, (place, pid) in enumerate(self.places) if place == here]
        return [rank for rank, pid in others if rank != self.launch.rank and not _is_running(pid)]


def machine() -> str:
    """Where process ids mean the same: this boot of this machine, and the container's namespace."""
    parts = [socket.gethostname()]
    for read in (Path("/proc/sys/kernel/random/boot_id").read_text, lambda: os.readlink("/proc/self/ns/pid")):
        with suppress(OSError):
            parts.append(read().strip())
    return " ".join(parts)


def find_lost(peers: Peers, error: BaseException) -> str:
    """In words: which process has ended and why, or which one the others wait for. An error that a process noted
    comes before one that was killed, and that before one that only does not answer."""
    deadline = time.monotonic() + SETTLE
    is_late = "imed out" in str(error)
    while not (failures := peers.notes("failure")) and not (gone := peers.gone()) and time.monotonic() < deadline:
        if is_late:
            break
        time.sleep(0.05)
    if not failures:
        time.sleep(0.1)
        failures = peers.notes("failure")
    if failures:
        rank = min(failures)
        return f"process {rank} failed: {failures[rank]}"
    if gone:
        return f"{_named(gone, peers)} of {peers.launch.size} ended without a word: it was killed, or it crashed"
    behind = _behind(peers)
    if behind and is_late:
        what = f" with {behind[0][1]}" if behind[0][1] else ""
        return (
            f"{_named([rank for rank, _ in behind], peers)} of {peers.launch.size} is still busy{what}, and the others "
            "have waited as long as parallel.timeout allows"
        )
    return f"another process of {peers.launch.size} does not answer ({str(error)[:120]})"


def _behind(peers: Peers) -> list[tuple[int, str]]:
    """The processes that have come less far than this one, and what they do."""
    notes = {rank: text.partition(" ") for rank, text in peers.notes(peers.phase_key).items()}
    return [(rank, phase) for rank, (count, _, phase) in notes.items() if int(count) < peers.num_exchanges or phase]


def _named(ranks: list[int], peers: Peers) -> str:
    named = ", ".join(f"{rank} (pid {peers.places[rank][1]})" for rank in ranks)
    return f"{'process' if len(ranks) == 1 else 'processes'} {named}"


def _is_running(pid: int) -> bool:
    """Not one that has ended and whose parent has not looked yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        pass
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return not Path("/proc/self").exists()
