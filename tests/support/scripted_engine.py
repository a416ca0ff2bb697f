"""An engine without a model, for tests of loops and episodes: it answers from a dict or a function of prompt tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from outdo.types import Generation, Request, RequestStream, Segment, WeightSource

Tokens = tuple[int, ...]
Script = Mapping[Tokens, Sequence[Tokens]] | Callable[[Request, int], Tokens]


class ScriptedEngine:
    """A dict gives the answers to each prompt, taken in turn by its seeds; a function, the answer to the i-th seed.

    Answers are cut at max_completion_length. `requests` and `updates` record what the engine was given.
    """

    capacity = 4

    def __init__(self, script: Script, logprob: float = -0.5) -> None:
        self.script, self.logprob, self.version = script, logprob, 0
        self.requests: list[Request] = []
        self.updates: list[int] = []
        self.num_aborts = 0

    def generate(self, requests: Iterable[Request]) -> Iterator[Generation]:
        num_aborts = self.num_aborts
        for request in requests:
            self.requests.append(request)
            answers = [self._answer(request, i) for i in range(len(request.seeds))]
            limit = request.limit or request.params.max_completion_length
            if request.watch:
                for count in range(1, min(limit, len(answers[0]))):
                    request.watch(list(answers[0][:count]))
            segments = tuple(Segment(ids[:limit], (self.logprob,) * len(ids[:limit]), self.version) for ids in answers)
            yield Generation(request, segments, tuple("length" if len(ids) > limit else "stop" for ids in answers))
            if self.num_aborts != num_aborts:
                return

    def serve(self, stream: RequestStream) -> Iterator[Generation]:
        num_aborts = self.num_aborts
        while self.num_aborts == num_aborts and (requests := stream.take(wait=True)) is not None:
            yield from self.generate(requests)

    def _answer(self, request: Request, i: int) -> Tokens:
        if callable(self.script):
            return self.script(request, i)
        answers = self.script[request.prompt_ids]
        return answers[i % len(answers)]

    def update(self, source: WeightSource, version: int) -> None:
        self.version = version
        self.updates.append(version)

    def abort(self) -> None:
        self.num_aborts += 1
