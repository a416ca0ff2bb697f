"""Prompts in, groups of answers out: renders prompts, runs an engine, decodes what it wrote."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from outdo.rollout.deal import Deal, DealtRequests
from outdo.seeds import seed_of
from outdo.types import Engine, Generation, Group, Prompt, Request, SampleParams, Trajectory, WeightSource

if TYPE_CHECKING:
    from outdo.models.renderer import Renderer


@dataclass(frozen=True)
class Sampler:
    """An engine with the renderer of its model."""

    engine: Engine
    renderer: Renderer

    def sample(self, prompts: Sequence[Prompt], n: int, params: SampleParams, seed: int) -> Iterator[Group]:
        """Groups of `n` answers, each once its last answer is done, in any order, so that grading overlaps sampling.
        The seed of every answer is `seed_of(seed, prompt.id, index)`: batch layout does not change what is sampled."""
        requests = self._requests(prompts, n, params, seed)
        yield from self._groups(self.engine.generate(requests), prompts)

    def sample_dealt(self, deal: Deal, n: int, params: SampleParams, seed: int) -> Iterator[Group]:
        """The same of the prompts that this process gets."""
        requests = self._requests(deal.prompts, n, params, seed)
        longest = max(len(request.prompt_ids) for request in requests) + params.max_completion_length
        room = max(1, self.engine.capacity // n)
        stream = DealtRequests(deal, requests.__getitem__, params, longest, min(room, len(requests)))

        def generations() -> Iterator[Generation]:
            for generation in self.engine.serve(stream, n):
                stream.done()
                yield generation

        yield from self._groups(generations(), deal.prompts)

    def _requests(self, prompts: Sequence[Prompt], n: int, params: SampleParams, seed: int) -> list[Request]:
        encoded = self.renderer.encode_all(prompts, params.max_completion_length)
        requests = []
        for place, (prompt, ids) in enumerate(zip(prompts, encoded, strict=True)):
            seeds = tuple(seed_of(seed, prompt.id, i) for i in range(n))
            requests.append(Request(str(place), ids, seeds, params, seed_of(seed, prompt.id)))
        return requests

    def _groups(self, generations: Iterator[Generation], prompts: Sequence[Prompt]) -> Iterator[Group]:
        ready: list[Generation] = []  # decoded together, by all cores
        for generation in generations:
            ready.append(generation)
            if generation.more:
                continue
            texts = iter(self.renderer.decode_answers([part.token_ids for one in ready for part in one.segments]))
            for one in ready:
                answers = zip(one.segments, one.finishes, strict=True)
                trajectories = tuple(Trajectory((segment,), next(texts), finish) for segment, finish in answers)
                yield Group(prompts[int(one.request.id)], one.request.prompt_ids, trajectories)
            ready = []

    def update(self, source: WeightSource, version: int) -> None:
        self.engine.update(source, version)
