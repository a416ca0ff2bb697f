"""Turns that coroutines request, and an engine generates in another thread.

An event loop runs environments, agents or a server; the engine's thread runs `for one in engine.serve(queue):
queue.deliver(one)`. What is sampled depends on a request alone, not on when it comes.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from typing import Any, NamedTuple, TypeVar

from outdo.errors import RunError
from outdo.types import Engine, Finish, Generation, Group, Request, SampleParams, Segment

T = TypeVar("T")
SETTLE_SECONDS = 1.0  # at most, that an engine waits for requests that are about to come
CLOSE_SECONDS = 15.0  # for all environments or agents of a call together, before it continues without them


class Turn(NamedTuple):
    """What the model wrote to one request."""

    id: str
    segment: Segment
    finish: Finish


@dataclass
class Idle:
    """Seconds in which the engine had nothing to do, because every answer waited for its environment."""

    seconds: float = 0.0


@dataclass(eq=False)
class TurnQueue:
    """A `RequestStream` for one set of parameters. Closed when no more requests will come."""

    params: SampleParams
    max_length: int
    capacity: int = 32
    idle: Idle = field(default_factory=Idle)
    _new: list[Request] = field(default_factory=list)
    _pending: dict[str, tuple[asyncio.AbstractEventLoop, asyncio.Future[Turn], bool]] = field(default_factory=dict)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _names: count[int] = field(default_factory=count)
    _unwanted: list[str] = field(default_factory=list)
    _num_running: int = 0
    _num_busy: int = 0  # of which a request is about to come
    _closed: bool = False

    async def generate(
        self,
        prompt_ids: Sequence[int],
        seed: int,
        *,
        limit: int = 0,
        follows: str = "",
        keep: bool = False,
        watch: Callable[[list[int]], None] | None = None,
        busy: bool = False,
    ) -> Turn:
        """What the model writes to these tokens. `follows` names a turn that was generated with `keep`, and with which
        these tokens begin. `watch` is called from the engine's thread. `busy`: the caller has called `enter`, and
        will call again or `leave` as soon as there is a turn."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Turn] = loop.create_future()
        with self._changed:
            if self._closed:
                raise RunError("the engine has stopped: no more turns")
            name = str(next(self._names))
            self._new.append(Request(name, tuple(prompt_ids), (seed,), self.params, seed, limit, follows, keep, watch))
            self._pending[name] = loop, future, busy
            self._num_busy -= busy
            self._changed.notify()
        return await future

    def take(self, wait: bool) -> Sequence[Request] | None:
        with self._changed:
            if wait and not self._new and not self._closed:
                start = time.monotonic()
                self._changed.wait(0.1)  # no longer, so that an interrupt is noticed
                self.idle.seconds += time.monotonic() - start
            room = max(self.capacity - self._num_running, 0)
            taken, self._new = self._new[:room], self._new[room:]
            self._num_running += len(taken)
            return None if self._closed and not taken else taken

    def enter(self, num: int = 1) -> None:
        """So many requests are about to come."""
        with self._changed:
            self._num_busy += num

    def leave(self) -> None:
        """One of them is done, or waits for something else."""
        with self._changed:
            self._num_busy -= 1
            self._changed.notify()

    def settle(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._num_busy <= 0 or self._closed, SETTLE_SECONDS)

    def drop(self, name: str) -> None:
        """Nobody will follow that turn."""
        with self._changed:
            self._unwanted.append(name)

    def dropped(self) -> Sequence[str]:
        with self._changed:
            names, self._unwanted = self._unwanted, []
        return names

    def deliver(self, generation: Generation) -> None:
        name = generation.request.id
        with self._changed:
            self._num_running -= 1
            pending = self._pending.pop(name, None)
            if pending is None:  # closed meanwhile
                return
            loop, future, busy = pending
            self._num_busy += busy
        turn = Turn(name, generation.segments[0], generation.finishes[0])
        loop.call_soon_threadsafe(_settle, future, turn)

    def close(self, error: BaseException | None = None) -> None:
        """No more requests. Those that wait for a turn get the error, or are cancelled."""
        with self._changed:
            self._closed, pending = True, list(self._pending.values())
            self._pending.clear()
            self._new.clear()
            self._changed.notify()
        for loop, future, _ in pending:
            loop.call_soon_threadsafe(_end, future, error)


def by_length(request: Request) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """Orders requests that came together by what they are, not by which came first. Prompts of similar length side by
    side need little padding."""
    return len(request.prompt_ids), request.prompt_ids, request.seeds


def _settle(future: asyncio.Future[Turn], turn: Turn) -> None:
    if not future.done():
        future.set_result(turn)


def _end(future: asyncio.Future[Turn], error: BaseException | None) -> None:
    if not future.done():
        future.set_exception(error) if error else future.cancel()


def serve_groups(
    engine: Engine,
    queue: TurnQueue,
    playing: Future[None],
    done: deque[Group],
    close: Callable[[], Coroutine[Any, Any, None]],
) -> Iterator[Group]:
    """Serves the queue with the engine, in this thread, while `playing` asks it for turns; yields the groups that it
    appends to `done`. `close` ends what is still played, whatever happens."""
    try:
        for generation in engine.serve(queue):
            queue.deliver(generation)
            while done:
                yield done.popleft()
        playing.result()
        while done:
            yield done.popleft()
    except BaseException as error:
        queue.close(error if isinstance(error, Exception) else None)
        raise
    finally:
        with suppress(TimeoutError):
            in_loop(close()).result(CLOSE_SECONDS)


async def run_all(coroutines: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Runs them at once. The first error ends the others, and is raised as it is."""
    try:
        async with asyncio.TaskGroup() as tasks:
            for coroutine in coroutines:
                tasks.create_task(coroutine)
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """The event loop of environments and agents, in a thread that ends with the process."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="environments", daemon=True).start()
    return loop


def in_loop(coroutine: Coroutine[Any, Any, T]) -> Future[T]:
    """Runs it in the event loop of environments and agents."""
    return asyncio.run_coroutine_threadsafe(coroutine, _loop())


@dataclass(frozen=True)
class Listed:
    """Requests that are all known from the start, as a stream."""

    requests: list[Request]

    @property
    def params(self) -> SampleParams:
        return self.requests[0].params

    @property
    def max_length(self) -> int:
        return max(len(request.prompt_ids) for request in self.requests) + self.params.max_completion_length

    @property
    def capacity(self) -> int:
        return len(self.requests)

    def take(self, wait: bool) -> Sequence[Request] | None:
        taken = list(self.requests)
        self.requests.clear()
        return taken or None

    def dropped(self) -> Sequence[str]:
        return ()

    def settle(self) -> None: ...
