"""Work that may hang, crash or eat memory, in processes that can be killed.

There are as many places as cores. A job that has held one for a moment steps aside, stopped, for those that wait, and
has its turn again after them; so a few that hang do not hold up the many that do not. At its deadline it is killed.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from outdo.errors import SandboxError
from outdo.sandbox.worker import FORK, framed, read_exactly

MOMENT = 0.08  # seconds that a job holds a place while others wait for one
LEAST = 0.15  # seconds that a job holds a place before it is late, however many others there are
MOST = 96  # workers of one call, those that stepped aside included
CORES = os.cpu_count() or 1
Job = tuple[str, tuple[Any, ...]]  # "package.module:function" and its arguments


@dataclass(frozen=True)
class Reply:
    """What became of a job: a value, or why there is none."""

    kind: Literal["value", "raised", "timeout", "died"]
    value: Any = None
    words: str = ""


@dataclass(eq=False)
class _Worker:
    pid: int
    connection: socket.socket
    job: int = -1  # index of what it works on
    began: float = 0.0
    placed: float = 0.0  # since when it has its place
    held: float = 0.0  # seconds that it has had one, before that
    received: bytearray = field(default_factory=bytearray)


class Pool:
    """Workers that have imported `modules`, each allowed `memory_mb` beyond what that takes (0: no limit).

    Started when first used; safe to use from any thread; ends with this process, however that ends.
    """

    def __init__(self, modules: Sequence[str] = (), memory_mb: int = 0, places: int = CORES) -> None:
        self.modules, self.memory_mb, self.places = tuple(modules), memory_mb, places
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []
        self._first: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def run(self, jobs: Sequence[Job], seconds: float) -> list[Reply]:
        """Every job's reply, in order. A job whose worker dies under it is tried once more."""
        replies: dict[int, Reply] = {}
        waiting, aside = deque(range(len(jobs))), deque[_Worker]()
        placed: set[_Worker] = set()
        died: set[int] = set()
        try:
            while waiting or placed or aside:
                while len(placed) < self.places and (aside or waiting):
                    new = waiting and len(aside) + len(placed) < MOST
                    if new:
                        placed.add(self._hand(waiting[0], jobs, fresh=waiting[0] in died))
                        waiting.popleft()
                    else:
                        placed.add(self._resume(aside.popleft()))
                for worker, reply in self._wait(placed, aside, bool(waiting), seconds):
                    if reply.kind == "died" and worker.job not in died:
                        died.add(worker.job)
                        waiting.append(worker.job)
                    else:
                        replies[worker.job] = reply
                    self._put_back(worker, alive=reply.kind in ("value", "raised"))
        finally:
            for worker in [*placed, *aside]:  # interrupted
                self._put_back(worker, alive=False)
        return [replies[index] for index in range(len(jobs))]

    def close(self) -> None:
        """Ends every process."""
        with self._lock:
            first, self._first = self._first, None
            if self._control:
                self._control.close()
            for worker in self._idle:
                worker.connection.close()
            self._idle = []
        if first:
            first.wait()

    def _wait(
        self, placed: set[_Worker], aside: deque[_Worker], others: bool, seconds: float
    ) -> list[tuple[_Worker, Reply]]:
        """Sleeps until something happens. Who is done, dead or too late leaves; who had its moment steps aside."""
        turns = [worker.placed + MOMENT for worker in placed if others or aside]
        ends = [_due(worker, seconds) for worker in placed]
        readable = _readable(placed, max(0.0, min(turns + ends) - _now()))
        done = [(worker, reply) for worker in readable if (reply := _received(worker))]
        placed -= {worker for worker, _ in done}
        now = _now()
        late = [w for w in placed if now >= _due(w, seconds)]
        late += [w for w in aside if now >= w.began + seconds and w.held >= min(LEAST, seconds)]
        for worker in late:
            placed.discard(worker)
            with suppress(ValueError):
                aside.remove(worker)
            done.append((worker, Reply("timeout", words=f"no verdict within {seconds:g} s")))
        for worker in [w for w in placed if (others or aside) and _now() - w.placed >= MOMENT]:
            placed.remove(worker)
            worker.held += _now() - worker.placed
            aside.append(worker)
            self._signal(worker, signal.SIGSTOP)
        return done

    def _resume(self, worker: _Worker) -> _Worker:
        self._signal(worker, signal.SIGCONT)
        worker.placed = _now()
        return worker

    def _signal(self, worker: _Worker, number: int) -> None:
        with self._lock:
            self._order(number, worker.pid)

    def _order(self, number: int, pid: int) -> None:
        """To the first process, which knows whether it is still its child. The lock is held."""
        if self._control:
            with suppress(OSError):
                self._control.sendall(bytes([number]) + pid.to_bytes(4, "big"))

    def _hand(self, index: int, jobs: Sequence[Job], fresh: bool) -> _Worker:
        """Gives a job to an idle worker, or to a new one; `fresh`: to a new one, as the idle may be dying too."""
        data = framed(pickle.dumps(jobs[index]))
        while True:
            with self._lock:
                fresh = fresh or not self._idle
                worker = self._fork() if fresh else self._idle.pop()
            try:
                worker.connection.sendall(data)
            except OSError:  # it died while it was idle
                worker.connection.close()
                if fresh:
                    raise
                continue
            worker.job, worker.began, worker.placed, worker.held = index, _now(), _now(), 0.0
            return worker

    def _put_back(self, worker: _Worker, alive: bool) -> None:
        """Back among the idle, or ended."""
        with self._lock:
            if alive and self._first and len(self._idle) < 4 * self.places:
                worker.received.clear()
                self._idle.append(worker)
            else:
                worker.connection.close()
                self._order(signal.SIGKILL, worker.pid)

    def _fork(self) -> _Worker:
        """A new worker; a new first process too where the old one has gone. The lock is held."""
        for _ in range(2):
            ours, theirs = socket.socketpair()
            try:
                control = self._control if self._first and self._first.poll() is None else self._start()
                assert control
                with theirs:
                    socket.send_fds(control, [bytes([FORK, 0, 0, 0, 0])], [theirs.fileno()])
                return _Worker(int.from_bytes(read_exactly(control, 4), "big"), ours)
            except (OSError, EOFError):
                ours.close()
                theirs.close()
                self._end_first()
        modules = f" that imports {', '.join(self.modules)}" if self.modules else ""
        raise SandboxError(f"cannot start a worker process{modules}")

    def _end_first(self) -> None:
        if self._first:
            self._first.kill()
            self._first.wait()
        self._first = None

    def _start(self) -> socket.socket:
        self._end_first()
        ours, theirs = socket.socketpair()
        line = [sys.executable, "-m", "outdo.sandbox.worker", str(theirs.fileno()), str(self.memory_mb), *self.modules]
        with theirs:
            self._first = subprocess.Popen(
                line,
                stdin=subprocess.DEVNULL,
                stdout=2,  # what a reward prints is for people: standard output is the command's own
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                env={**os.environ, "PYTHONHASHSEED": "0"},  # sets have one order, whoever asks and whenever
            )
        ours.sendall(framed(pickle.dumps([os.path.abspath(path) for path in sys.path])))
        for old in (self._control, *(worker.connection for worker in self._idle)):
            if old:
                old.close()
        self._idle = []
        self._control = ours
        atexit.register(self.close)
        return ours


def _now() -> float:
    return time.monotonic()


def _due(worker: _Worker, seconds: float) -> float:
    """When a job that has a place is too late: at its deadline, if it had its share of it by then."""
    return max(worker.began + seconds, worker.placed + min(LEAST, seconds) - worker.held)


def _readable(workers: set[_Worker], seconds: float) -> list[_Worker]:
    """Those of whom something has come, after so many seconds at most. (`select` takes no descriptor past 1023.)"""
    by_descriptor = {worker.connection.fileno(): worker for worker in workers}
    poll = select.poll()
    for descriptor in by_descriptor:
        poll.register(descriptor, select.POLLIN)
    return [by_descriptor[descriptor] for descriptor, _ in poll.poll(math.ceil(seconds * 1000))]


def _received(worker: _Worker) -> Reply | None:
    """The reply, when all of it has come."""
    try:
        piece = worker.connection.recv(2**20)
    except OSError:
        piece = b""
    if not piece:
        return Reply("died", words="the process that judged it ended without a verdict")
    worker.received += piece
    if len(worker.received) < 8 or len(worker.received) - 8 < int.from_bytes(worker.received[:8], "big"):
        return None
    message = json.loads(bytes(worker.received[8:]))
    if "raised" in message:
        return Reply("raised", words=f"{message['raised']}: {message['words']}")
    return Reply("value", message["value"])
