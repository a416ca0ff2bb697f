"""Which process samples which prompts: each has a share, and one that is done takes from what is left of all."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

from outdo.parallel.world import World
from outdo.types import Prompt, Request, SampleParams

_calls = count()  # of deals: every process makes the same ones


@dataclass
class Deal:
    """The prompts of one call of a sampler. Each process begins with those that it has room for; the others are drawn
    by whoever has room next. Where all have room for their share, who samples what does not depend on time."""

    prompts: Sequence[Prompt]
    world: World
    number: int = field(default_factory=_calls.__next__)
    _common: int = 0  # from which place on prompts are drawn

    def share(self, room: int = 0) -> list[int]:
        """The places of this process's own prompts: up to so many. 0: all, and nothing is left to draw."""
        most = math.ceil(len(self.prompts) / self.world.size)
        self._common = min(room or most, most) * self.world.size
        return list(range(self.world.rank, min(self._common, len(self.prompts)), self.world.size))

    def draw(self, most: int) -> list[int]:
        """Places of further prompts: none where no process has any left."""
        if most < 1 or self._common >= len(self.prompts):
            return []
        end = self._common + self.world.add(f"deal/{self.number}", most)
        return list(range(end - most, min(end, len(self.prompts))))


@dataclass
class DealtRequests:
    """A deal as a `RequestStream`, for an engine that has `capacity` prompts in flight."""

    deal: Deal
    request_of: Callable[[int], Request]  # of the prompt at a place
    params: SampleParams
    max_length: int
    capacity: int
    num_running: int = 0
    _is_begun: bool = False

    def take(self, wait: bool) -> Sequence[Request] | None:
        """None once there is nothing left to draw."""
        if not self._is_begun:
            self._is_begun, places = True, self.deal.share(self.capacity)
        else:
            room = self.capacity - self.num_running
            places = self.deal.draw(room)
            if room > 0 and not places:
                return None
        self.num_running += len(places)
        return [self.request_of(place) for place in places]

    def done(self) -> None:
        """One of them is answered."""
        self.num_running -= 1

    def dropped(self) -> Sequence[str]:
        return ()

    def settle(self) -> None: ...
