"""Answers while they are generated: what an engine's thread shows, as it comes, in the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from outdo.rollout import OnTokens
from outdo.rollout.turns import Turn
from outdo.serve.texts import AnswerText

GAP = 0.02  # seconds between two pieces of an answer: several tokens at once cost less than one by one
Generate = Callable[[OnTokens], Awaitable[Turn]]


class Piece(NamedTuple):
    """Text that an answer has grown by; with its last one the turn."""

    place: int  # of the answer among the others
    text: str
    turn: Turn | None = None


class _Latest:
    """The newest tokens of an answer, passed on from the engine's thread. Older ones that were not looked at in time
    are skipped: they are the beginning of the newer ones."""

    def __init__(self) -> None:
        self.loop, self.changed, self.ids = asyncio.get_running_loop(), asyncio.Event(), list[int]()

    def post(self, ids: list[int]) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(self._set, ids)

    def _set(self, ids: list[int]) -> None:
        self.ids = ids
        self.changed.set()


async def follow(generate: Generate, text: AnswerText, place: int = 0) -> AsyncIterator[Piece]:
    """The pieces of one answer. Raises what `generate` does."""
    latest = _Latest()
    turn = asyncio.ensure_future(generate(latest.post))
    turn.add_done_callback(lambda _: latest.changed.set())
    try:
        while True:
            await latest.changed.wait()
            latest.changed.clear()
            if turn.done():
                break
            if piece := text.grow(latest.ids):
                yield Piece(place, piece)
            await asyncio.wait({turn}, timeout=GAP)
        yield Piece(place, "", turn.result())
    finally:
        turn.cancel()


async def follow_all(calls: Sequence[Generate], texts: Sequence[AnswerText]) -> AsyncIterator[Piece]:
    """The pieces of several answers, as they come. The first error ends all."""
    pieces: asyncio.Queue[Piece | BaseException] = asyncio.Queue()

    async def pump(index: int) -> None:
        try:
            async for piece in follow(calls[index], texts[index], index):
                pieces.put_nowait(piece)
        except Exception as error:
            pieces.put_nowait(error)

    tasks = [asyncio.ensure_future(pump(index)) for index in range(len(calls))]
    try:
        remaining = len(calls)
        while remaining:
            piece = await pieces.get()
            if isinstance(piece, BaseException):
                raise piece
            remaining -= piece.turn is not None
            yield piece
    finally:
        for task in tasks:
            task.cancel()


async def gather_turns(calls: Sequence[Awaitable[Turn]]) -> list[Turn]:
    """All of them; the first error ends the others."""
    tasks = [asyncio.ensure_future(one) for one in calls]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
