"""Runs jobs that may hang, crash or exhaust memory, in worker processes that can be killed.

There are as many slots as cores. While others wait, a job that has used up its time slice is paused (SIGSTOP) and
queued again behind them, so that a few jobs that hang do not hold up the rest. A job is killed at its deadline.
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
from outdo.sandbox.worker import FORK, LOADED, LOADING, framed, read_exactly

SLICE_SECONDS = 0.08  # of running, while other jobs wait for a slot
MIN_SECONDS = 0.15  # of running before a job can time out, however many others there are
MAX_STARTS = 4  # of the fork server for one worker, where something kills it
MAX_WORKERS = 96  # of one call, paused ones included
CORES = os.cpu_count() or 1
Job = tuple[str, tuple[Any, ...]]  # "package.module:function" and its arguments


@dataclass(frozen=True)
class Reply:
    """The outcome of a job: a value, or why there is none."""

    kind: Literal["value", "raised", "timeout", "died"]
    value: Any = None
    message: str = ""


@dataclass(eq=False)
class _Worker:
    pid: int
    connection: socket.socket
    job: int = -1  # index of its job
    started: float = 0.0  # when it got the job
    resumed: float = 0.0  # when it last got a slot
    ran: float = 0.0  # seconds in a slot before that
    is_loading: bool = False  # what it loads for its job, which has its own limit of time
    received: bytearray = field(default_factory=bytearray)


class Pool:
    """Workers that have imported `modules`, each limited to `memory_mb` beyond what that takes (0: no limit).

    A job's function may load something first (its attribute `load`); that may take `load_seconds` more than the job.

    Starts on first use; safe to use from any thread; ends with this process, however that ends.
    """

    def __init__(
        self, modules: Sequence[str] = (), memory_mb: int = 0, slots: int = CORES, load_seconds: float = 0.0
    ) -> None:
        self.load_seconds = load_seconds
        self.modules, self.memory_mb, self.slots = tuple(modules), memory_mb, slots
        self._lock = threading.RLock()
        self._idle: list[_Worker] = []
        self._server: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def run(self, jobs: Sequence[Job], seconds: float) -> list[Reply]:
        """Every job's reply, in order. A job whose worker dies is retried once."""
        replies: dict[int, Reply] = {}
        waiting, paused = deque(range(len(jobs))), deque[_Worker]()
        running: set[_Worker] = set()
        died: set[int] = set()
        try:
            while waiting or running or paused:
                while len(running) < self.slots and (paused or waiting):
                    if waiting and len(paused) + len(running) < MAX_WORKERS:
                        running.add(self._assign(waiting[0], jobs, fresh=waiting[0] in died))
                        waiting.popleft()
                    else:
                        worker = paused.popleft()
                        self._signal(worker, signal.SIGCONT)
                        worker.resumed = time.monotonic()
                        running.add(worker)
                for worker, reply in self._wait(running, paused, bool(waiting), seconds):
                    if reply.kind == "died" and worker.job not in died:
                        died.add(worker.job)
                        waiting.append(worker.job)
                    else:
                        replies[worker.job] = reply
                    self._release(worker, alive=reply.kind in ("value", "raised"))
        finally:
            for worker in [*running, *paused]:  # the call was interrupted
                self._release(worker, alive=False)
        return [replies[index] for index in range(len(jobs))]

    def close(self) -> None:
        """Ends all processes."""
        with self._lock:
            server, self._server = self._server, None
            if self._control:
                self._control.close()
            for worker in self._idle:
                worker.connection.close()
            self._idle = []
        if server:
            server.wait()

    def _wait(
        self, running: set[_Worker], paused: deque[_Worker], others: bool, seconds: float
    ) -> list[tuple[_Worker, Reply]]:
        """Sleeps until something happens; what finished, died or timed out. Pauses workers whose slice is over."""
        slice_ends = [worker.resumed + SLICE_SECONDS for worker in running if others or paused]
        deadlines = [_deadline(worker, self._limit(worker, seconds)) for worker in running]
        readable = _readable(running, max(0.0, min(slice_ends + deadlines) - time.monotonic()))
        done = [(worker, reply) for worker in readable if (reply := self._received(worker))]
        running -= {worker for worker, _ in done}
        now = time.monotonic()
        late = [w for w in running if now >= _deadline(w, self._limit(w, seconds))]
        late += [w for w in paused if now >= w.started + self._limit(w, seconds) and w.ran >= min(MIN_SECONDS, seconds)]
        for worker in late:
            running.discard(worker)
            with suppress(ValueError):
                paused.remove(worker)
            what = "its module took" if worker.is_loading else "timed out after"
            late_message = f"{what} {self._limit(worker, seconds):g} s{' to load' * worker.is_loading}"
            done.append((worker, Reply("timeout", message=late_message)))
        for worker in [w for w in running if (others or paused) and time.monotonic() - w.resumed >= SLICE_SECONDS]:
            running.remove(worker)
            worker.ran += time.monotonic() - worker.resumed
            paused.append(worker)
            self._signal(worker, signal.SIGSTOP)
        return done

    def _limit(self, worker: _Worker, seconds: float) -> float:
        return seconds + self.load_seconds if worker.is_loading else seconds

    def _received(self, worker: _Worker) -> Reply | None:
        """The reply, once it is complete. The time of a job counts from when its function was loaded."""
        if not _receive(worker):
            return Reply("died", message="the worker process died")
        while (message := _message(worker)) is not None:
            if message not in (LOADING, LOADED):
                return _reply(message)
            worker.is_loading = message == LOADING
            if message == LOADED and self.load_seconds:
                worker.started, worker.resumed, worker.ran = time.monotonic(), time.monotonic(), 0.0
        return None

    def _signal(self, worker: _Worker, number: int) -> None:
        """Sends a signal through the fork server, which knows whether the pid is still its child."""
        with self._lock, suppress(OSError):
            if self._control:
                self._control.sendall(bytes([number]) + worker.pid.to_bytes(4, "big"))

    def _assign(self, index: int, jobs: Sequence[Job], fresh: bool) -> _Worker:
        """Gives a job to an idle worker or a new one; `fresh`: only to a new one, as idle ones may be dying too."""
        data = framed(pickle.dumps(jobs[index]))
        while True:
            with self._lock:
                fresh = fresh or not self._idle
                worker = self._fork() if fresh else self._idle.pop()
            try:
                worker.connection.sendall(data)
            except OSError:  # it died while idle
                worker.connection.close()
                if fresh:
                    raise
                continue
            worker.job, worker.started, worker.resumed, worker.ran = index, time.monotonic(), time.monotonic(), 0.0
            worker.is_loading = False
            return worker

    def _release(self, worker: _Worker, alive: bool) -> None:
        """Makes a worker idle again, or kills it."""
        with self._lock:
            if alive and self._server and len(self._idle) < 4 * self.slots:
                worker.received.clear()
                self._idle.append(worker)
            else:
                worker.connection.close()
                self._signal(worker, signal.SIGKILL)

    def _fork(self) -> _Worker:
        """A new worker; starts the fork server where it is not running. Needs the lock."""
        for _ in range(MAX_STARTS):
            ours, theirs = socket.socketpair()
            try:
                control = self._control if self._server and self._server.poll() is None else self._start_server()
                assert control
                with theirs:
                    socket.send_fds(control, [bytes([FORK, 0, 0, 0, 0])], [theirs.fileno()])
                return _Worker(int.from_bytes(read_exactly(control, 4), "big"), ours)
            except (OSError, EOFError):
                ours.close()
                theirs.close()
                self._end_server()
        modules = f" that imports {', '.join(self.modules)}" if self.modules else ""
        raise SandboxError(f"cannot start a worker process{modules}")

    def _end_server(self) -> None:
        if self._server:
            self._server.kill()
            self._server.wait()
        self._server = None

    def _start_server(self) -> socket.socket:
        self._end_server()
        ours, theirs = socket.socketpair()
        line = [sys.executable, "-m", "outdo.sandbox.worker", str(theirs.fileno()), str(self.memory_mb), *self.modules]
        with theirs:
            self._server = subprocess.Popen(
                line,
                stdin=subprocess.DEVNULL,
                stdout=2,  # what a job prints goes to standard error: standard output is the command's own
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                env={**os.environ, "PYTHONHASHSEED": "0"},  # sets have the same order in every process
            )
        ours.sendall(framed(pickle.dumps([os.path.abspath(path) for path in sys.path])))
        for old in (self._control, *(worker.connection for worker in self._idle)):
            if old:
                old.close()
        self._idle = []
        self._control = ours
        atexit.register(self.close)
        return ours


def _deadline(worker: _Worker, seconds: float) -> float:
    """When a running job times out: `seconds` after its start, but not before it has run MIN_SECONDS."""
    return max(worker.started + seconds, worker.resumed + min(MIN_SECONDS, seconds) - worker.ran)


def _readable(workers: set[_Worker], seconds: float) -> list[_Worker]:
    """Workers that have sent something, within so many seconds. (`select` takes no descriptor past 1023.)"""
    by_descriptor = {worker.connection.fileno(): worker for worker in workers}
    poll = select.poll()
    for descriptor in by_descriptor:
        poll.register(descriptor, select.POLLIN)
    return [by_descriptor[descriptor] for descriptor, _ in poll.poll(math.ceil(seconds * 1000))]


def _receive(worker: _Worker) -> bool:
    """Reads what a worker has sent; False where it died."""
    try:
        piece = worker.connection.recv(2**20)
    except OSError:
        piece = b""
    worker.received += piece
    return bool(piece)


def _message(worker: _Worker) -> bytes | None:
    """Removes the first message, once it is complete."""
    end = 8 + int.from_bytes(worker.received[:8], "big")
    if len(worker.received) < 8 or len(worker.received) < end:
        return None
    message = bytes(worker.received[8:end])
    del worker.received[:end]
    return message


def _reply(message: bytes) -> Reply:
    fields = json.loads(message)
    if "raised" in fields:
        return Reply("raised", message=f"{fields['raised']}: {fields['message']}")
    return Reply("value", fields["value"])
