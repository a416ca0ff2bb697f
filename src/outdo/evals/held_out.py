"""Success on problems that training never saw: greedy, with an interval, and pass@k from samples."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from outdo.errors import BrokenGraders
from outdo.evals.estimate import mean_interval, pass_at_k, wilson
from outdo.rewards.compose import Rewards, grade_all
from outdo.types import Group, Prompt, SampleParams, Sampler

CUT_AT_ONCE = 2048  # answers in one call where top_p leaves a list of tokens at every place
Tell = Callable[[int], None]  # is told of so many more answers


@dataclass(frozen=True)
class Answers:
    """What a model said to a set of problems, graded: one greedy answer to each, and `sampled` ones where asked for."""

    greedy: tuple[Group, ...]
    sampled: tuple[Group, ...] = ()

    def right(self) -> dict[str, float]:
        """By problem, whether the greedy answer is right. Those that could not be judged are left out."""
        grades = {group.prompt.id: group.grades[0].verdict for group in self.greedy}
        return {key: float(verdict == "right") for key, verdict in grades.items() if verdict != "broken"}

    def passes(self, k: int) -> dict[str, float]:
        """By problem, its pass@k. Problems with fewer than k answers that could be judged are left out."""
        counts = {group.prompt.id: _counts(group) for group in self.sampled}
        return {key: pass_at_k(judged, right, k) for key, (judged, right) in counts.items() if judged >= k}


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
    broken: int = 0  # greedy answers that could not be judged
    pass_interval: dict[int, tuple[float, float]] = field(default_factory=dict)
    problems: str = ""  # tells one set of problems from another
    verdicts: str = ""  # of the greedy answers, problems in the order of their ids: 1 right, 0 wrong, - broken
    broken_sampled: int = 0  # sampled answers that could not be judged: pass@k is of the others
    too_long: int = 0  # problems that did not fit the model, and were not asked

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Evaluation:
        """As it was, from its row."""
        passes = {int(k[1]): value for key, value in row.items() if (k := re.fullmatch(r"pass@(\d+)", key))}
        ends = {k: (row[f"pass@{k}_low"], row[f"pass@{k}_high"]) for k in passes if f"pass@{k}_low" in row}
        names = ("split", "n", "success_rate", "low", "high", "temperature", "broken")
        later = {"problems": "", "verdicts": "", "broken_sampled": 0, "too_long": 0}  # rows had none once
        since = {name: row.get(name, usual) for name, usual in later.items()}
        return cls(**{name: row[name] for name in names}, pass_at=passes, pass_interval=ends, **since)

    @property
    def unjudged(self) -> str:
        """How many answers no grader could judge, in words; empty where there are none."""
        counts = {"greedy": self.broken, "sampled": self.broken_sampled}
        told = " and ".join(f"{count} {kind}" for kind, count in counts.items() if count)
        return f"{told} answers could not be judged, and are left out" if told else ""

    def row(self, step: int | None = None) -> dict[str, float | int | str]:
        """As `evals.jsonl` holds it; without a step where it belongs to no run."""
        shares = {"success_rate": self.success_rate, "low": self.low, "high": self.high}
        for k, value in self.pass_at.items():
            shares[f"pass@{k}"] = value
            if k in self.pass_interval:
                shares[f"pass@{k}_low"], shares[f"pass@{k}_high"] = self.pass_interval[k]
        return {
            **({} if step is None else {"step": step}),
            "split": self.split,
            "n": self.n,
            **{key: round(value, 6) for key, value in shares.items()},
            "temperature": self.temperature,
            "broken": self.broken,
            "broken_sampled": self.broken_sampled,
            **({"too_long": self.too_long} if self.too_long else {}),
            **({} if step is None else {"problems": self.problems, "verdicts": self.verdicts}),
        }


def default_ks(samples: int) -> tuple[int, ...]:
    """The k's of pass@k that suit so many samples: 1, and 8 or 10, or all of them where they are fewer."""
    if samples <= 10:
        return tuple(sorted({1, samples})) if samples else ()
    return (1, 10 if samples % 10 == 0 or samples % 8 else 8)


def evaluate_prompts(
    prompts: Sequence[Prompt],
    split: str,
    sampler: Sampler,
    rewards: Rewards,
    params: SampleParams,
    samples: int,
    seed: int,
    ks: Sequence[int] = (),
) -> Evaluation:
    """One greedy answer to each prompt, then `samples` at the given temperature."""
    return measure(answer(prompts, sampler, rewards, params, samples, seed), split, ks, params.temperature)


def answer(
    prompts: Sequence[Prompt],
    sampler: Sampler,
    rewards: Rewards,
    params: SampleParams,
    samples: int,
    seed: int,
    tell: Tell = lambda count: None,
) -> Answers:
    """Asks and grades. `tell` hears of answers as they are made, `len(prompts) * (1 + samples)` in all."""
    greedy_params = SampleParams(params.max_completion_length, temperature=0.0, stop=params.stop)
    greedy = _judged(prompts, 1, sampler, rewards, greedy_params, seed, tell)
    sampled = _judged(prompts, samples, sampler, rewards, params, seed, tell) if samples else []
    return Answers(tuple(greedy), tuple(sampled))


def measure(answers: Answers, split: str, ks: Sequence[int] = (), temperature: float = 1.0) -> Evaluation:
    """The numbers. A k that no problem has enough answers for is left out."""
    right = answers.right()
    successes, broken = int(sum(right.values())), len(answers.greedy) - len(right)
    samples = max((len(group.trajectories) for group in answers.sampled), default=0)
    values = {k: list(answers.passes(k).values()) for k in ks or default_ks(samples)}
    values = {k: each for k, each in values.items() if each}
    return Evaluation(
        split,
        len(right),
        successes / len(right),
        *wilson(successes, len(right)),
        {k: sum(each) / len(each) for k, each in values.items()},
        temperature,
        broken,
        {k: mean_interval(each) for k, each in values.items()},
        *_by_problem(answers.greedy),
        broken_sampled=sum(len(group.grades) - _counts(group)[0] for group in answers.sampled),
    )


def problems_of(ids: Iterable[str]) -> str:
    """What tells these problems from others, in whatever order they are asked."""
    return hashlib.blake2b("\0".join(sorted(ids)).encode(), digest_size=8).hexdigest()


def _by_problem(greedy: Sequence[Group]) -> tuple[str, str]:
    """Which problems they are, and how each went: two runs are compared on the same ones."""
    verdicts = {group.prompt.id: group.grades[0].verdict for group in greedy}
    went = "".join({"right": "1", "wrong": "0"}.get(verdicts[key], "-") for key in sorted(verdicts))
    return problems_of(verdicts), went


def _judged(
    prompts: Sequence[Prompt],
    n: int,
    sampler: Sampler,
    rewards: Rewards,
    params: SampleParams,
    seed: int,
    tell: Tell,
) -> list[Group]:
    at_once = max(1, CUT_AT_ONCE // n) if params.truncates else len(prompts)
    parts = [list(prompts[start : start + at_once]) for start in range(0, len(prompts), at_once)]
    made = (group for part in parts for group in sampler.sample(part, n, params, seed))
    groups = grade_all(_told(made, tell), rewards)
    if all(grade.verdict == "broken" for group in groups for grade in group.grades):
        raise BrokenGraders(f"not one of {len(groups) * n} answers could be judged: {groups[0].grades[0].reason}")
    return groups


def _told(groups: Iterable[Group], tell: Tell) -> Iterator[Group]:
    for group in groups:
        tell(len(group.trajectories))
        yield group


def _counts(group: Group) -> tuple[int, int]:
    verdicts = [grade.verdict for grade in group.grades]
    return len(verdicts) - verdicts.count("broken"), verdicts.count("right")
