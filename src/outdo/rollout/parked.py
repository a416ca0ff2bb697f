"""Turns that are done and may be continued: what they had cached waits for the request that follows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from outdo.models.resume import Parked, Resumed
from outdo.types import Generation, Request


class Cache(Protocol):
    def discard(self, parked: Parked) -> None: ...


class Turn(NamedTuple):
    request: Request
    length: int  # tokens of its answer
    cached: Parked


@dataclass
class ParkedTurns:
    """Oldest first. Any of them may be dropped: the turn that follows it is then prefilled whole."""

    cache: Cache
    turns: dict[str, Turn] = field(default_factory=dict)  # by id of the request

    def __bool__(self) -> bool:
        return bool(self.turns)

    def add(self, generation: Generation, cached: Parked) -> None:
        (segment,) = generation.segments
        self.turns[generation.request.id] = Turn(generation.request, len(segment.token_ids), cached)

    def resume(self, request: Request, row: int) -> Resumed | None:
        """How that row starts from the turn that the request follows, if that is still here."""
        turn = self.turns.pop(request.follows, None)
        if turn is None:
            return None
        length = len(request.prompt_ids) - 1
        # The answer's last token was never fed, and a row that has ended may write over the one before it.
        start = len(turn.request.prompt_ids) + turn.length - 2
        return Resumed(row, start, length, turn.cached)

    def drop(self, names: Iterable[str]) -> None:
        for name in names:
            if turn := self.turns.pop(name, None):
                self.cache.discard(turn.cached)

    def drop_oldest(self) -> None:
        self.drop([next(iter(self.turns))])
