"""An engine's thread, for requests of any parameters.

An engine serves one set of parameters at a time (`Engine.serve`). Requests of another set, or longer than the running
stream has room for, wait for a stream of their own: it starts when the running one has nothing to do, or, once they
have waited for `patience` seconds, when the running one has answered what it has begun. Sets take turns, so that
none waits for ever. What is sampled depends on none of this.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count

from outdo.errors import EngineError
from outdo.learn.memory import is_out_of_memory
from outdo.rollout import OnTokens
from outdo.rollout.turns import Turn
from outdo.serve.backend import STOPPED
from outdo.types import Engine, Generation, Request, SampleParams

PATIENCE = 1.0
IDLE_WAIT = 0.2  # seconds after which an idle engine looks up
MIN_ANSWER, MIN_LENGTH = 256, 512  # tokens that every stream has room for, where the context does
MAX_WAITING = 4096  # requests


class Busy(EngineError):
    """Too many requests are waiting."""


@dataclass(eq=False)
class _Pending:
    """A request, and who waits for its answer."""

    request: Request
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Turn]
    since: float = field(default_factory=time.monotonic)

    @property
    def length(self) -> int:
        return len(self.request.prompt_ids) + self.request.limit

    def end(self, result: Turn | BaseException) -> None:
        with suppress(RuntimeError):  # its loop is closed
            self.loop.call_soon_threadsafe(_set, self.future, result)


def _set(future: asyncio.Future[Turn], result: Turn | BaseException) -> None:
    if future.done():  # cancelled
        return
    future.set_exception(result) if isinstance(result, BaseException) else future.set_result(result)


@dataclass(eq=False)
class _Stream:
    """A `RequestStream`: the requests of one set of parameters that fit in it, for as long as it is their turn."""

    host: EngineHost
    params: SampleParams
    max_length: int
    capacity: int
    kind: SampleParams  # its parameters as requests that wait have them
    opened: float = field(default_factory=time.monotonic)
    ended: bool = False
    num_taken: int = 0
    in_flight: dict[str, _Pending] = field(default_factory=dict)

    def fits(self, pending: _Pending) -> bool:
        roomy = pending.request.limit <= self.params.max_completion_length and pending.length <= self.max_length
        return roomy and pending.request.params == self.kind

    def take(self, wait: bool) -> Sequence[Request] | None:
        return self.host._take(self, wait)

    def settle(self) -> None: ...

    def dropped(self) -> Sequence[str]:
        return self.host._take_dropped()


class EngineHost:
    """A Backend that owns the engine's thread from `start` to `close`. `context` is the most tokens of a prompt and its
    answer. `prepare` is called in that thread first."""

    def __init__(
        self, engine: Engine, context: int, patience: float = PATIENCE, prepare: Callable[[], object] | None = None
    ) -> None:
        self.engine, self.context, self.patience, self.prepare = engine, context, patience, prepare
        self._waiting: dict[SampleParams, list[_Pending]] = {}  # by parameters, but for max_completion_length
        self._stream: _Stream | None = None
        self._dropped: list[str] = []
        self._changed = threading.Condition()
        self._names = count()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> EngineHost:
        self._thread.start()
        return self

    async def generate(
        self,
        prompt_ids: Sequence[int],
        seed: int,
        params: SampleParams,
        *,
        follows: str = "",
        keep: bool = False,
        watch: OnTokens | None = None,
    ) -> Turn:
        """As `Backend.generate`. Raises EngineError where the engine fails or stops, Busy where too many wait."""
        loop = asyncio.get_running_loop()
        limit, params = params.max_completion_length, replace(params, max_completion_length=1)
        with self._changed:
            if self._closed:
                raise EngineError(STOPPED)
            if sum(map(len, self._waiting.values())) >= MAX_WAITING:
                raise Busy(f"{MAX_WAITING:,} requests are waiting already: try again later")
            name, ids = str(next(self._names)), tuple(prompt_ids)
            request = Request(name, ids, (seed,), params, seed, limit, follows, keep, watch)
            pending = _Pending(request, loop, loop.create_future())
            self._waiting.setdefault(params, []).append(pending)
            self._changed.notify()
        return await pending.future

    def drop(self, turn: str) -> None:
        with self._changed:
            self._dropped.append(turn)

    def close(self) -> None:
        """As `Backend.close`. The engine's thread ends as soon as the engine notices."""
        with self._changed:
            self._closed = True
            waiting = [*self._all_waiting(), *(self._stream.in_flight.values() if self._stream else ())]
            self._waiting.clear()
            self._changed.notify()
        for pending in waiting:
            pending.end(EngineError(STOPPED))
        self.engine.abort()

    def join(self, seconds: float = 5.0) -> None:
        """Waits for the engine's thread to end, after `close`."""
        self._thread.join(seconds)

    def _run(self) -> None:
        if self.prepare:
            self.prepare()
        while (stream := self._next_stream()) is not None:
            error: BaseException = EngineError("the engine ended without an answer: send the request again")
            try:
                for generation in self.engine.serve(stream):
                    self._deliver(stream, generation)
            except Exception as failure:  # of any kind: whoever waits is answered, and the next stream may work
                error = _described(failure)
            with self._changed:
                unanswered = list(stream.in_flight.values())
                if not stream.ended and not stream.num_taken:  # it failed at its start, and would again
                    unanswered += [pending for pending in self._all_waiting() if stream.fits(pending)]
                stream.ended = True
                stream.in_flight.clear()
                self._forget(stream.kind, unanswered)
            for pending in unanswered:
                pending.end(error)

    def _next_stream(self) -> _Stream | None:
        """For the oldest request that the last stream had no place for, or else the oldest. None: closed."""
        with self._changed:
            while not (waiting := self._all_waiting()) and not self._closed:
                self._changed.wait()
            if self._closed:
                return None
            last = self._stream
            oldest = min(waiting, key=lambda pending: (last is not None and last.fits(pending), pending.since))
            kind = oldest.request.params
            answer = _rounded(max(pending.request.limit for pending in self._waiting[kind]), MIN_ANSWER, self.context)
            length = _rounded(max(pending.length for pending in self._waiting[kind]), MIN_LENGTH, self.context)
            params = replace(kind, max_completion_length=answer)
            self._stream = _Stream(self, params, length, self.engine.capacity, kind)
            return self._stream

    def _take(self, stream: _Stream, wait: bool) -> Sequence[Request] | None:
        with self._changed:
            waiting = self._all_waiting()
            if wait and not waiting and not self._closed:
                self._changed.wait(IDLE_WAIT)
                waiting = self._all_waiting()
            if self._closed or stream.ended:
                return None
            mine = [pending for pending in self._waiting.get(stream.kind, ()) if stream.fits(pending)]
            if len(mine) < len(waiting):
                since = min(pending.since for pending in waiting if not stream.fits(pending))
                waited = time.monotonic() - max(stream.opened, since)
                if waited > self.patience or not (mine or stream.in_flight):
                    stream.ended = True
                    return None
            taken = mine[: max(stream.capacity - len(stream.in_flight), 0)]
            self._forget(stream.kind, taken)
            stream.in_flight |= {pending.request.id: pending for pending in taken}
            stream.num_taken += len(taken)
            return [_for_stream(pending.request, stream.params) for pending in taken]

    def _all_waiting(self) -> list[_Pending]:
        """Without those that nobody waits for any more."""
        for kind, waiting in list(self._waiting.items()):
            self._waiting[kind] = [pending for pending in waiting if not pending.future.done()]
            if not self._waiting[kind]:
                del self._waiting[kind]
        return [pending for waiting in self._waiting.values() for pending in waiting]

    def _forget(self, kind: SampleParams, some: Sequence[_Pending]) -> None:
        """They wait no more."""
        names = {pending.request.id for pending in some}
        self._waiting[kind] = [one for one in self._waiting.get(kind, ()) if one.request.id not in names]

    def _take_dropped(self) -> Sequence[str]:
        with self._changed:
            names, self._dropped = self._dropped, []
            return names

    def _deliver(self, stream: _Stream, generation: Generation) -> None:
        name = generation.request.id
        with self._changed:
            pending = stream.in_flight.pop(name, None)
        if pending is not None:
            pending.end(Turn(name, generation.segments[0], generation.finishes[0]))


def _for_stream(request: Request, params: SampleParams) -> Request:
    limit = 0 if request.limit == params.max_completion_length else request.limit
    return replace(request, params=params, limit=limit)


def _rounded(tokens: int, least: int, most: int) -> int:
    """A power of two: few sizes, so that buffers of earlier streams can be reused."""
    return min(max(1 << (tokens - 1).bit_length(), least), most)


def _described(failure: Exception) -> EngineError:
    if is_out_of_memory(failure):
        return EngineError("out of memory: serve fewer answers side by side (--rows), or shorter ones (--context)")
    return EngineError(f"the engine failed: {type(failure).__name__}: {failure}")
