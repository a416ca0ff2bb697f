"""Success on problems that training never saw: greedy, with an interval, and pass@k from samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from outdo.errors import BrokenGraders
from outdo.evals.estimate import pass_at_k, wilson
from outdo.grade.compose import Rewards, grade_all
from outdo.types import Group, Prompt, SampleParams, Sampler

KS = (1, 10)


@dataclass(frozen=True)
class Evaluation:
    """`success_rate` is that of the greedy answer, one for each problem; pass@k is of sampled ones."""

    split: str
    n: int  # problems that could be judged
    success_rate: float
    low: float
    high: float
    pass_at: dict[int, float] = field(default_factory=dict)
    temperature: float = 1.0
    broken: int = 0

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Evaluation:
        """As it was, from its row."""
        passes = {int(key.removeprefix("pass@")): value for key, value in row.items() if key.startswith("pass@")}
        names = ("split", "n", "success_rate", "low", "high", "temperature", "broken")
        return cls(**{name: row[name] for name in names}, pass_at=passes)

    def row(self, step: int) -> dict[str, float | int | str]:
        """As `evals.jsonl` holds it."""
        passes = {f"pass@{k}": value for k, value in self.pass_at.items()}
        shares = {"success_rate": self.success_rate, "low": self.low, "high": self.high, **passes}
        return {
            "step": step,
            "split": self.split,
            "n": self.n,
            **{key: round(value, 6) for key, value in shares.items()},
            "temperature": self.temperature,
            "broken": self.broken,
        }


def evaluate_prompts(
    prompts: Sequence[Prompt],
    split: str,
    sampler: Sampler,
    rewards: Rewards,
    params: SampleParams,
    samples: int,
    seed: int,
) -> Evaluation:
    """One greedy answer to each prompt, then `samples` at the given temperature."""
    greedy_params = SampleParams(params.max_completion_length, temperature=0.0, stop=params.stop)
    greedy = _judged(prompts, 1, sampler, rewards, greedy_params, seed)
    verdicts = [group.grades[0].verdict for group in greedy]
    n, right = len(verdicts) - verdicts.count("broken"), verdicts.count("right")
    low, high = wilson(right, n)
    passes: dict[int, float] = {}
    if samples:
        counts = [_counts(group) for group in _judged(prompts, samples, sampler, rewards, params, seed)]
        for k in sorted({min(k, samples) for k in KS}):
            values = [pass_at_k(judged, right, k) for judged, right in counts if judged >= k]
            if values:
                passes[k] = sum(values) / len(values)
    return Evaluation(split, n, right / n, low, high, passes, params.temperature, verdicts.count("broken"))


def _judged(
    prompts: Sequence[Prompt], n: int, sampler: Sampler, rewards: Rewards, params: SampleParams, seed: int
) -> list[Group]:
    groups = grade_all(sampler.sample(list(prompts), n, params, seed), rewards)
    if all(grade.verdict == "broken" for group in groups for grade in group.grades):
        raise BrokenGraders(f"not one of {len(groups) * n} answers could be judged: {groups[0].grades[0].reason}")
    return groups


def _counts(group: Group) -> tuple[int, int]:
    verdicts = [grade.verdict for grade in group.grades]
    return len(verdicts) - verdicts.count("broken"), verdicts.count("right")
