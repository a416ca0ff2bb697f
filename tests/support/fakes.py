"""Fakes at the seams that have a protocol: a scripted sampler, a learner of one number, a silent reporter."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from outdo.types import Batch, Group, Learner, Prompt, Reporter, SampleParams, Sampler, Trajectory, WeightSource


class ScriptedSampler:
    """Answers each prompt with the token ids that the script gives; their text is the ids, joined."""

    def __init__(self, script: Callable[[Prompt, int], Sequence[Sequence[int]]]) -> None:
        self.script, self.version = script, 0
        self.calls: list[tuple[list[str], int, int]] = []  # ids of prompts, seed, version

    def sample(self, prompts: Sequence[Prompt], n: int, params: SampleParams, seed: int) -> Iterator[Group]:
        self.calls.append(([prompt.id for prompt in prompts], seed, self.version))
        for prompt in reversed(prompts):  # in any order
            answers = self.script(prompt, self.version)
            assert len(answers) == n
            yield Group(prompt, (1, 2), tuple(self._trajectory(ids) for ids in answers))

    def update(self, source: WeightSource, version: int) -> None:
        assert source.weights()
        self.version = version

    def _trajectory(self, ids: Sequence[int]) -> Trajectory:
        return Trajectory.single(tuple(ids), (-0.5,) * len(ids), " ".join(map(str, ids)), "stop", self.version)


class NumberLearner:
    """One weight, moved by the advantage of every trained token over all of them."""

    def __init__(self, rate: float = 1.0) -> None:
        self.weight, self.rate, self.beta = 0.0, rate, 0.0
        self.batches: list[Batch] = []

    def update(self, batch: Batch, step: int) -> dict[str, float]:
        self.batches.append(batch)
        moved = sum(sample.advantage * sample.num_trained for sample in batch.samples) / batch.num_tokens
        self.weight += self.rate * moved
        return {"loss": -moved, "lr": self.rate, "grad_norm": abs(moved)}

    def penalties(self, groups: Sequence[Group]) -> list[list[float]] | None:
        return None

    def logprobs(self, groups: Sequence[Group]) -> list[list[list[float]]]:
        return [[list(one.logprobs) for one in group.trajectories] for group in groups]

    def weights(self) -> Mapping[str, Any]:
        return {"weight": self.weight}

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return {}, {"weight": self.weight}

    def load_state(self, tensors: Mapping[str, Any], plain: Mapping[str, Any]) -> None:
        self.weight = plain["weight"]

    def scale_rate(self, factor: float) -> None:
        self.rate *= factor

    def scale_beta(self, factor: float) -> None:
        self.beta *= factor

    def check_memory(self) -> None: ...


class QuietReporter:
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.steps: list[int] = []

    def note(self, line: str) -> None:
        self.lines.append(line)

    def begin(self, phase: str) -> None:
        self.lines.append(phase)

    def progress(self, name: str, step: int, total: int, more: str) -> None: ...

    def step(self, step: int, total: int, row: Mapping[str, Any]) -> None:
        self.steps.append(step)

    def close(self) -> None: ...


_: tuple[Sampler, Learner, Reporter] = (ScriptedSampler(lambda *_: ()), NumberLearner(), QuietReporter())  # by mypy too
