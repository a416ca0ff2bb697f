"""Work that may hang, crash or eat memory, in processes that can be killed.

There are as many places as cores. A job that has held one for a moment steps aside, stopped, for those that wait, and
has its turn again after them; so a few that hang do not hold up the many that do not. At its deadline it is killed.
"""

from __future__ import annotations

import atexit
import json
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

from outdo.errors import GraderError
from outdo.grade.worker import FORK, framed, read_exactly

MOMENT = 0.08  # seconds that a job holds a place while others wait for one
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
    received: bytearray = field(default_factory=bytearray)


class Pool:
    """Workers that have imported `modules`, each allowed `memory_mb` beyond what that takes (0: no limit).

    Started when first used; safe to use from any thread; ends with this process, however that ends.
    """

    def __init__(self, modules: Sequence[str] = (), memory_mb: int = 0) -> None:
        self.modules, self.memory_mb = tuple(modules), memory_mb
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
                while len(placed) < CORES and (aside or waiting):
                    new = waiting and len(aside) + len(placed) < MOST
                    placed.add(self._hand(waiting.popleft(), jobs) if new else self._resume(aside.popleft()))
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
        ends = [worker.began + seconds for worker in (*placed, *aside)]
        readable, _, _ = select.select([w.connection for w in placed], [], [], max(0.0, min(turns + ends) - _now()))
        done = [(worker, reply) for worker in placed if worker.connection in readable and (reply := _received(worker))]
        placed -= {worker for worker, _ in done}
        for worker in [w for w in (*placed, *aside) if _now() - w.began >= seconds]:
            placed.discard(worker)
            with suppress(ValueError):
                aside.remove(worker)
            done.append((worker, Reply("timeout", words=f"no verdict within {seconds:g} s")))
        for worker in [w for w in placed if (others or aside) and _now() - w.placed >= MOMENT]:
            placed.remove(worker)
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

    def _hand(self, index: int, jobs: Sequence[Job]) -> _Worker:
        data = framed(pickle.dumps(jobs[index]))
        while True:
            with self._lock:
                fresh = not self._idle
                worker = self._fork() if fresh else self._idle.pop()
            try:
                worker.connection.sendall(data)
            except OSError:  # it died while it was idle
                worker.connection.close()
                if fresh:
                    raise
                continue
            worker.job, worker.began, worker.placed = index, _now(), _now()
            return worker

    def _put_back(self, worker: _Worker, alive: bool) -> None:
        """Back among the idle, or ended."""
        with self._lock:
            if alive and self._first and len(self._idle) < 4 * CORES:
                worker.received.clear()
                self._idle.append(worker)
            else:
                worker.connection.close()
                self._order(signal.SIGKILL, worker.pid)

    def _fork(self) -> _Worker:
        """A new worker; a new first process too where the old one has gone. The lock is held."""
        for _ in range(2):
            try:
                control = self._control if self._first and self._first.poll() is None else self._start()
                assert control
                ours, theirs = socket.socketpair()
                with theirs:
                    socket.send_fds(control, [bytes([FORK, 0, 0, 0, 0])], [theirs.fileno()])
                return _Worker(int.from_bytes(read_exactly(control, 4), "big"), ours)
            except (OSError, EOFError):
                ours.close()
                self._first = None
        raise GraderError(f"no worker process can be started for {', '.join(self.modules) or 'rewards'}")

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        line = [sys.executable, "-m", "outdo.grade.worker", str(theirs.fileno()), str(self.memory_mb), *self.modules]
        with theirs:
            self._first = subprocess.Popen(
                line, stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),), start_new_session=True
            )
        ours.sendall(framed(pickle.dumps([os.path.abspath(path) for path in sys.path])))
        if self._control:
            self._control.close()
        self._idle = []
        self._control = ours
        atexit.register(self.close)
        return ours


def _now() -> float:
    return time.monotonic()


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
