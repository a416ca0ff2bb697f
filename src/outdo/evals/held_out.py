"""Success on held-out problems: of one greedy answer each, with an interval, and pass@k of sampled answers."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from outdo.errors import BrokenGraders
from outdo.metrics.estimate import mean_interval, pass_at_k, wilson
from outdo.rewards.compose import Rewards, grade_all
from outdo.runs.held_out import HeldOutAnswer, held_out_answers
from outdo.types import Group, Prompt, SampleParams, Sampler

MAX_TRUNCATED_BATCH = 2048  # answers in one call where top_p, top_k or min_p keeps a list of tokens at every position
Advance = Callable[[int], None]  # called with the number of further answers
Progress = Callable[[str, int], AbstractContextManager[Advance]]  # a progress bar: its name and total


def no_progress(name: str, total: int) -> AbstractContextManager[Advance]:
    return nullcontext(lambda count: None)


@dataclass(frozen=True)
class GradedAnswers:
    """A model's answers to a set of problems: one greedy answer to each, and sampled ones for pass@k."""

    greedy: tuple[Group, ...]
    sampled: tuple[Group, ...] = ()

    def success_by_problem(self) -> dict[str, float]:
        """1.0 where the greedy answer is right, else 0.0. Broken ones are left out."""
        verdicts = {group.prompt.id: group.grades[0].verdict for group in self.greedy}
        return {key: float(verdict == "right") for key, verdict in verdicts.items() if verdict != "broken"}

    def pass_by_problem(self, k: int) -> dict[str, float]:
        """Each problem's pass@k. Problems with fewer than k answers that could be judged are left out."""
        counts = {group.prompt.id: _counts(group) for group in self.sampled}
        return {key: pass_at_k(judged, right, k) for key, (judged, right) in counts.items() if judged >= k}


@dataclass(frozen=True)
class Evaluation:
    """`success_rate` is of greedy answers, one for each problem; pass@k is of sampled ones."""

    split: str
    n: int  # problems that could be judged
    success_rate: float
    low: float
    high: float
    pass_at: dict[int, float] = field(default_factory=dict)
    temperature: float = 1.0
    broken: int = 0  # greedy answers that could not be judged
    pass_interval: dict[int, tuple[float, float]] = field(default_factory=dict)
    problems: str = ""  # a hash of the problems' ids
    verdicts: str = ""  # of the greedy answers, problems in the order of their ids: 1 right, 0 wrong, - broken
    broken_sampled: int = 0  # sampled answers that could not be judged: pass@k is of the others
    too_long: int = 0  # problems that did not fit the model's context and were skipped
    top_p: float = 1.0  # of the sampled answers, as temperature
    top_k: int = 0
    min_p: float = 0.0
    answers: tuple[HeldOutAnswer, ...] = field(default=(), repr=False, compare=False)  # of a run, which keeps them

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Evaluation:
        """From its row. Rows of older versions lack the optional fields."""
        passes = {int(k[1]): value for key, value in row.items() if (k := re.fullmatch(r"pass@(\d+)", key))}
        ends = {k: (row[f"pass@{k}_low"], row[f"pass@{k}_high"]) for k in passes if f"pass@{k}_low" in row}
        required = {name: row[name] for name in ("split", "n", "success_rate", "low", "high", "temperature", "broken")}
        optional = {name: row[name] for name in OPTIONAL if name in row}
        return cls(**required, **optional, pass_at=passes, pass_interval=ends)

    @property
    def unjudged(self) -> str:
        """Says how many answers no grader could judge; empty where there are none."""
        counts = {"greedy": self.broken, "sampled": self.broken_sampled}
        listed = " and ".join(f"{count} {kind}" for kind, count in counts.items() if count)
        return f"{listed} answers could not be judged and are left out" if listed else ""

    def row(self, step: int | None = None) -> dict[str, float | int | str]:
        """As a run's folder stores it; without a step where it belongs to no run."""
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
            **_limits(self),
            "broken": self.broken,
            "broken_sampled": self.broken_sampled,
            **({"too_long": self.too_long} if self.too_long else {}),
            **({} if step is None else {"problems": self.problems, "verdicts": self.verdicts}),
        }


LIMITS = ("top_p", "top_k", "min_p")  # in a row only where they limit the samples
OPTIONAL = ("problems", "verdicts", "broken_sampled", "too_long", *LIMITS)


def _limits(params: Any) -> dict[str, float | int]:
    values = {name: getattr(params, name) for name in LIMITS}
    return {name: value for name, value in values.items() if value != getattr(Evaluation, name)}


def describe_limits(params: Any) -> str:
    """`, top_p 0.95` where that limits the samples; empty without limits. `params` is anything with those fields."""
    return "".join(f", {name} {value:g}" for name, value in _limits(params).items())


def default_ks(samples: int) -> tuple[int, ...]:
    """The k's of pass@k for that many samples: 1, and 8 or 10, or all of them where they are fewer."""
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
    """One greedy answer to each prompt, then `samples` by `params`."""
    graded = sample_and_grade(prompts, sampler, rewards, params, samples, seed)
    return replace(summarize(graded, split, ks, params), answers=held_out_answers(graded.greedy, graded.sampled))


def sample_and_grade(
    prompts: Sequence[Prompt],
    sampler: Sampler,
    rewards: Rewards,
    params: SampleParams,
    samples: int,
    seed: int,
    advance: Advance = lambda count: None,
) -> GradedAnswers:
    """`advance` is called as answers are generated, for `len(prompts) * (1 + samples)` in all."""

    def counted(n: int, params: SampleParams) -> Iterator[Group]:
        size = max(1, MAX_TRUNCATED_BATCH // n) if params.truncates else len(prompts)
        for start in range(0, len(prompts), size):
            for group in sampler.sample(list(prompts[start : start + size]), n, params, seed):
                advance(len(group.trajectories))
                yield group

    def graded(n: int, params: SampleParams) -> tuple[Group, ...]:
        groups = grade_all(counted(n, params), rewards)
        if all(grade.verdict == "broken" for group in groups for grade in group.grades):
            raise BrokenGraders(f"none of {len(groups) * n} answers could be judged: {groups[0].grades[0].reason}")
        return tuple(groups)

    greedy = graded(1, SampleParams(params.max_completion_length, temperature=0.0, stop=params.stop))
    return GradedAnswers(greedy, graded(samples, params) if samples else ())


def summarize(
    answers: GradedAnswers, split: str, ks: Sequence[int] = (), params: SampleParams | None = None
) -> Evaluation:
    """Rates and intervals. A k that no problem has enough answers for is left out. `params` are of the samples."""
    success = answers.success_by_problem()
    successes, broken = int(sum(success.values())), len(answers.greedy) - len(success)
    samples = max((len(group.trajectories) for group in answers.sampled), default=0)
    values = {k: list(answers.pass_by_problem(k).values()) for k in ks or default_ks(samples)}
    values = {k: each for k, each in values.items() if each}
    limits = {name: getattr(params, name) for name in LIMITS} if params else {}
    return Evaluation(
        split,
        len(success),
        successes / len(success),
        *wilson(successes, len(success)),
        {k: sum(each) / len(each) for k, each in values.items()},
        params.temperature if params else 1.0,
        broken,
        {k: mean_interval(each) for k, each in values.items()},
        *_by_problem(answers.greedy),
        broken_sampled=sum(len(group.grades) - _counts(group)[0] for group in answers.sampled),
        **limits,
    )


def problems_of(ids: Iterable[str]) -> str:
    """A hash of the problems' ids, in any order."""
    return hashlib.blake2b("\0".join(sorted(ids)).encode(), digest_size=8).hexdigest()


def _by_problem(greedy: Sequence[Group]) -> tuple[str, str]:
    """The hash of the problems, and a letter for each verdict: two runs are compared on the same problems."""
    verdicts = {group.prompt.id: group.grades[0].verdict for group in greedy}
    letters = "".join({"right": "1", "wrong": "0"}.get(verdicts[key], "-") for key in sorted(verdicts))
    return problems_of(verdicts), letters


def _counts(group: Group) -> tuple[int, int]:
    """Answers that could be judged, and right ones."""
    verdicts = [grade.verdict for grade in group.grades]
    return len(verdicts) - verdicts.count("broken"), verdicts.count("right")
