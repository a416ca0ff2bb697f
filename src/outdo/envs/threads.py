"""Runs functions of users, sync or async, beside an event loop that they must not hold up.

A sync function runs in a thread, an async one on another event loop, which all of them share. Past its deadline a call
is abandoned: the caller gets Overdue, others get other threads, and the process does not wait for it when it exits.
What a function prints is dropped: standard output and error are the run's own.

Not covered: what C code or another process writes to the terminal, what threads print that the function starts itself,
and a function that never gives Python's lock back.
"""

from __future__ import annotations

import asyncio
import inspect
import io
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from contextvars import ContextVar, copy_context
from functools import partial
from queue import SimpleQueue
from typing import IO, Any, TypeVar, cast

from outdo.errors import describe
from outdo.rewards.calls import is_async
from outdo.untrusted.terminal import PrintableStream

MAX_THREADS = 1024  # calls of sync functions that run at once, beside those of environments
MAX_HANGING = 256  # abandoned calls that still run, after which no more are started
_GRACE_SECONDS = 1.0  # for the shared event loop to react, after which it counts as blocked

Outcome = tuple[Any, BaseException | None]  # what a function returned, or raised
Job = Callable[[], Any]
T = TypeVar("T")
_MUTED: ContextVar[bool] = ContextVar("muted", default=False)


class Overdue(TimeoutError):
    """A call took longer than it may, and was abandoned."""


class Lane:
    """A thread of its own for the sync functions of one environment, one call after another, so that it needs no locks
    and may keep what belongs to one thread. Used from one event loop."""

    def __init__(self) -> None:
        self._worker: _Worker | None = None
        self._turn = asyncio.Lock()

    async def run(self, job: Job, seconds: float | None) -> Outcome:
        async with self._turn:
            if self._worker is None or self._worker.ended:
                self._worker = _Worker()
            return await self._worker.run(job, seconds)

    def close(self) -> None:
        if self._worker:
            self._worker.end()


async def run(function: Callable[..., Any], *args: Any, seconds: float | None, lane: Lane | None = None) -> Any:
    """What the function returns. Raises what it raises, and Overdue after so many seconds."""
    _mute_streams()
    if is_async(function):
        outcome = await _LOOP.run(partial(function, *args), seconds)
    else:
        outcome = await (lane or _THREADS).run(partial(function, *args), seconds)
        if inspect.isawaitable(outcome[0]):
            outcome = await _LOOP.run(partial(_returned, outcome[0]), seconds)
    value, error = outcome
    if error is None:
        return value
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        raise error
    raise RuntimeError(describe(error)) from error  # it must not end a coroutine, or the run


async def _returned(awaitable: Awaitable[T]) -> T:
    return await awaitable


class _Worker:
    """A thread that does jobs until it is ended, or abandoned with one of them."""

    num_hanging = 0  # of all workers
    _lock = threading.Lock()

    def __init__(self) -> None:
        self.ended = False
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        threading.Thread(target=self._work, name="user function", daemon=True).start()

    async def run(self, job: Job, seconds: float | None) -> Outcome:
        if self.num_hanging >= MAX_HANGING:
            raise RuntimeError(f"{self.num_hanging} earlier calls have not returned: no more are started")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Outcome] = loop.create_future()
        context = copy_context()

        def work() -> None:
            outcome = context.run(_outcome, job)
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(_settle, future, outcome)

        self._jobs.put(work)
        try:
            return await asyncio.wait_for(future, seconds)
        except (TimeoutError, asyncio.CancelledError) as error:
            with self._lock:
                _Worker.num_hanging += 1
            self._jobs.put(self._returned)
            self.end()
            if isinstance(error, TimeoutError):
                raise Overdue(f"timed out after {seconds:g} s") from None
            raise

    def end(self) -> None:
        """Ends the thread after its last job."""
        self.ended = True
        self._jobs.put(None)

    def _work(self) -> None:
        while job := self._jobs.get():
            job()

    def _returned(self) -> None:
        with self._lock:
            _Worker.num_hanging -= 1


def _settle(future: asyncio.Future[Outcome], outcome: Outcome) -> None:
    if not future.done():  # not abandoned
        future.set_result(outcome)


def _outcome(job: Job) -> Outcome:
    _MUTED.set(True)
    try:
        return job(), None
    except BaseException as error:  # SystemExit too
        return None, error


class _Threads:
    """Threads that calls take in turn."""

    def __init__(self) -> None:
        self._idle: list[_Worker] = []
        self._num_busy = 0
        self._lock = threading.Lock()

    async def run(self, job: Job, seconds: float | None) -> Outcome:
        while not (worker := self._take()):
            await asyncio.sleep(0.01)
        try:
            return await worker.run(job, seconds)
        finally:
            with self._lock:
                self._num_busy -= 1
                if not worker.ended:
                    self._idle.append(worker)

    def _take(self) -> _Worker | None:
        with self._lock:
            if self._num_busy >= MAX_THREADS:
                return None
            try:
                worker = self._idle.pop() if self._idle else _Worker()
            except RuntimeError:  # the system has no more threads: wait for one of these
                if not self._num_busy:
                    raise
                return None
            self._num_busy += 1
            return worker


class _Loop:
    """The event loop of async functions, in a thread of its own: one of them that blocks holds up others until its
    deadline, but never the run. A loop that stays blocked is abandoned."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run(self, function: Callable[[], Awaitable[Any]], seconds: float | None) -> Outcome:
        loop = self._started()
        future = asyncio.run_coroutine_threadsafe(_awaited(function), loop)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), seconds)
        except (TimeoutError, asyncio.CancelledError) as error:
            await self._abandon_if_blocked(loop)
            if isinstance(error, TimeoutError):
                raise Overdue(f"timed out after {seconds:g} s") from None
            raise

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="async functions", daemon=True).start()
            return self._loop

    async def _abandon_if_blocked(self, loop: asyncio.AbstractEventLoop) -> None:
        reaction = asyncio.run_coroutine_threadsafe(_react(), loop)
        try:
            await asyncio.wait_for(asyncio.wrap_future(reaction), _GRACE_SECONDS)
        except TimeoutError:
            with self._lock:
                if self._loop is loop:
                    self._loop = None


async def _react() -> None:
    pass


def _awaited(function: Callable[[], Awaitable[Any]]) -> Coroutine[Any, Any, Outcome]:
    async def outcome() -> Outcome:
        _MUTED.set(True)  # in this task alone
        try:
            return await function(), None
        except BaseException as error:  # that it was cancelled too: nobody but the function itself may need to know
            return None, error

    return outcome()


_THREADS, _LOOP = _Threads(), _Loop()


class MutedStream:
    """A text stream that drops what users' functions write while they are called; all else is the stream's own."""

    def __init__(self, stream: IO[str]) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        return len(text) if _MUTED.get() else self.stream.write(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        if name == "buffer" and _MUTED.get():
            return io.BytesIO()
        return getattr(self.stream, name)


def _mute_streams() -> None:
    """Puts a MutedStream where what is printed ends, below what makes it printable."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, PrintableStream):
            if not isinstance(stream.stream, MutedStream):
                stream.stream = cast(IO[str], MutedStream(stream.stream))
        elif stream is not None and not isinstance(stream, MutedStream):
            setattr(sys, name, MutedStream(stream))
