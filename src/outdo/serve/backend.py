"""Who samples what the endpoints need: an engine of the server's own, or the stream of a training run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from outdo.errors import EngineError
from outdo.rollout import OnTokens
from outdo.rollout.turns import Turn, TurnQueue
from outdo.serve.errors import ApiError
from outdo.types import SampleParams

STOPPED = "the engine has stopped"


class Backend(Protocol):
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
        """What the model writes to these tokens: at most `params.max_completion_length`. As `TurnQueue.generate`."""

    def drop(self, turn: str) -> None:
        """Nobody will follow that turn, which was generated with `keep`."""

    def close(self) -> None:
        """Does not wait: whoever waits for a turn gets an EngineError, and so does whoever asks from now on."""


@dataclass
class QueueBackend:
    """A training run's stream: the one of the step in hand. Its parameters are the run's: what is trained on must be
    sampled as the learner counts it, so an agent's temperature, top_p, top_k and min_p are ignored. Raises ApiError
    for a `stop` of an agent's own, which the stream does not end at."""

    queue: TurnQueue | None = None  # None: no step has begun

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
        if self.queue is None:
            raise EngineError(STOPPED)
        own = self.queue.params
        if set(params.stop) - set(own.stop):
            raise ApiError("stop: in training, the recipe's `stop` ends an answer; leave it out", param="stop")
        limit = min(params.max_completion_length, own.max_completion_length)
        return await self.queue.generate(prompt_ids, seed, limit=limit, follows=follows, keep=keep, watch=watch)

    def drop(self, turn: str) -> None:
        if self.queue:
            self.queue.drop(turn)

    def close(self) -> None:
        if self.queue:
            self.queue.close(EngineError(STOPPED))
