"""Success and mean reward on held-out problems: of one greedy answer each, and of sampled ones; pass@k."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from outdo.errors import BrokenGraders
from outdo.metrics.estimate import mean_interval, pass_at_k, reward_interval, wilson
from outdo.metrics.headline import FIELDS, deciding_metric
from outdo.recipe.schema import Recipe
from outdo.rewards.compose import Rewards
from outdo.rollout.deal import Deal
from outdo.rollout.shares import sample_graded, sample_share
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
    rewards: Rewards | None = None  # that graded them

    def success_by_problem(self) -> dict[str, float]:
        """1.0 where the greedy answer is right, else 0.0. Broken ones are left out."""
        verdicts = {group.prompt.id: group.grades[0].verdict for group in self.greedy}
        return {key: float(verdict == "right") for key, verdict in verdicts.items() if verdict != "broken"}

    def pass_by_problem(self, k: int) -> dict[str, float]:
        """Each problem's pass@k. Problems with fewer than k answers that could be judged are left out."""
        counts = {group.prompt.id: _counts(group) for group in self.sampled}
        return {key: pass_at_k(judged, right, k) for key, (judged, right) in counts.items() if judged >= k}

    def reward_by_problem(self) -> dict[str, float]:
        """What the greedy answer was paid by the reward that decides success, before weights. Broken ones are left
        out."""
        return {group.prompt.id: scores[0] for group in self.greedy if (scores := self._scores(group))}

    def sampled_reward_by_problem(self) -> dict[str, float]:
        """The mean of the sampled answers."""
        scores = {group.prompt.id: self._scores(group) for group in self.sampled}
        return {key: math.fsum(each) / len(each) for key, each in scores.items() if each}

    @property
    def max_reward(self) -> float | None:
        return max((score for group in (*self.greedy, *self.sampled) for score in self._scores(group)), default=None)

    def _scores(self, group: Group) -> list[float]:
        """Of the answers that could be judged."""
        truth = self.rewards.of(group.prompt).truth if self.rewards else ""
        scores = [grade.parts.get(truth, grade.reward) for grade in group.grades if grade.verdict != "broken"]
        return [score for score in scores if score is not None]


@dataclass(frozen=True)
class Evaluation:
    """`success_rate` and `reward_mean` are of greedy answers, one for each problem; pass@k and `sampled_reward_mean` of
    sampled ones. Rewards are those of the reward that decides success, before weights."""

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
    reward_mean: float | None = None  # None: not measured, as in older versions
    reward_low: float | None = None
    reward_high: float | None = None
    sampled_reward_mean: float | None = None
    sampled_reward_low: float | None = None
    sampled_reward_high: float | None = None
    max_reward: float | None = None  # of all answers
    rewards: tuple[float | None, ...] = ()  # of the greedy answers, as verdicts; empty: they are the verdicts
    entropy_mean: float | None = None  # of the sampled answers, as training measures it: the mean of -log p, in nats
    judge: str = ""  # the reward that decides success
    pass_threshold: float | None = None  # a reward from which an answer is right; None: the judge's own verdict

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Evaluation:
        """From its row. Rows of older versions lack the optional fields."""
        passes = {int(k[1]): value for key, value in row.items() if (k := re.fullmatch(r"pass@(\d+)", key))}
        ends = {k: (row[f"pass@{k}_low"], row[f"pass@{k}_high"]) for k in passes if f"pass@{k}_low" in row}
        required = {name: row[name] for name in ("split", "n", "success_rate", "low", "high", "temperature", "broken")}
        optional = {name: row[name] for name in OPTIONAL if name in row}
        optional |= {"rewards": tuple(row.get("rewards") or ())}
        return cls(**required, **optional, pass_at=passes, pass_interval=ends)

    @property
    def unjudged(self) -> str:
        """Says how many answers no grader could judge; empty where there are none."""
        counts = {"greedy": self.broken, "sampled": self.broken_sampled}
        listed = " and ".join(f"{count} {kind}" for kind, count in counts.items() if count)
        return f"{listed} answers could not be judged and are left out" if listed else ""

    @property
    def has_partial_credit(self) -> bool:
        """Whether the mean reward says more than success does."""
        pairs = (self.reward_mean, self.success_rate), (self.sampled_reward_mean, self.pass_at.get(1))
        return any(a is not None and b is not None and abs(a - b) > 1e-5 for a, b in pairs)

    @property
    def reward_interval(self) -> tuple[float, float, float] | None:
        """The mean reward of greedy answers with its interval; None where it was not measured."""
        ends = self.reward_mean, self.reward_low, self.reward_high
        return None if None in ends else ends  # type: ignore[return-value]

    @property
    def sampled_reward_interval(self) -> tuple[float, float, float] | None:
        ends = self.sampled_reward_mean, self.sampled_reward_low, self.sampled_reward_high
        return None if None in ends else ends  # type: ignore[return-value]

    @property
    def threshold(self) -> float:
        return 1.0 if self.pass_threshold is None else self.pass_threshold

    def row(self, step: int | None = None) -> dict[str, Any]:
        """As a run's folder stores it; without a step where it belongs to no run."""
        shares: dict[str, float] = {"success_rate": self.success_rate, "low": self.low, "high": self.high}
        for k, value in self.pass_at.items():
            shares[f"pass@{k}"] = value
            if k in self.pass_interval:
                shares[f"pass@{k}_low"], shares[f"pass@{k}_high"] = self.pass_interval[k]
        measured = {name: getattr(self, name) for name in MEASURED}
        shares |= {name: value for name, value in measured.items() if value is not None}
        by_problem = {"rewards": list(self.rewards)} if self.rewards else {}
        return {
            **({} if step is None else {"step": step}),
            "split": self.split,
            "n": self.n,
            **{key: round(value, 6) for key, value in shares.items()},
            "temperature": self.temperature,
            **_limits(self),
            **({"judge": self.judge} if self.judge else {}),
            **({} if self.pass_threshold is None else {"pass_threshold": self.pass_threshold}),
            "broken": self.broken,
            "broken_sampled": self.broken_sampled,
            **({"too_long": self.too_long} if self.too_long else {}),
            **({} if step is None else {"problems": self.problems, "verdicts": self.verdicts, **by_problem}),
        }


LIMITS = ("top_p", "top_k", "min_p")  # in a row only where they limit the samples
_BOUNDS = ("mean", "low", "high")
MEASURED = (  # numbers that rows of older versions lack
    *(f"{name}_{end}" for name in ("reward", "sampled_reward") for end in _BOUNDS),
    *("max_reward", "entropy_mean"),
)
OPTIONAL = ("problems", "verdicts", "broken_sampled", "too_long", "judge", "pass_threshold", *MEASURED, *LIMITS)


def headline(evaluation: Evaluation, recipe: Recipe, others: Iterable[Evaluation] = ()) -> float:
    """The number that decides between evaluations: success, or the mean reward, by the recipe's `eval_metric`.

    `others` are the evaluations that it is compared with. Under `auto` they decide too: all are ranked by one number.
    """
    metric = deciding_metric(recipe.eval_metric, [one.row() for one in (evaluation, *others)])
    value = getattr(evaluation, FIELDS[metric])
    return evaluation.success_rate if value is None else float(value)


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

    def counted(n: int, params: SampleParams, deal: Deal) -> Iterator[Group]:
        at_once = max(1, MAX_TRUNCATED_BATCH // n) if params.truncates else None
        for group in sample_share(sampler, deal, n, params, seed, at_once):
            advance(len(group.trajectories))
            yield group

    def graded(n: int, params: SampleParams) -> tuple[Group, ...]:
        groups = tuple(sample_graded(prompts, partial(counted, n, params), rewards))
        if all(grade.verdict == "broken" for group in groups for grade in group.grades):
            raise BrokenGraders(f"none of {len(groups) * n} answers could be judged: {groups[0].grades[0].reason}")
        return groups

    greedy = graded(1, SampleParams(params.max_completion_length, temperature=0.0, stop=params.stop))
    return GradedAnswers(greedy, graded(samples, params) if samples else (), rewards)


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
    evaluation = Evaluation(
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
    )
    return replace(evaluation, **limits, **_reward_numbers(answers))


def _reward_numbers(answers: GradedAnswers) -> dict[str, Any]:
    """The fields about rewards, and the entropy."""
    greedy, sampled = answers.reward_by_problem(), answers.sampled_reward_by_problem()
    numbers: dict[str, Any] = {"max_reward": answers.max_reward}
    for name, values in (("reward", list(greedy.values())), ("sampled_reward", list(sampled.values()))):
        if values:
            ends = math.fsum(values) / len(values), *reward_interval(values)
            numbers |= {f"{name}_{end}": value for end, value in zip(_BOUNDS, ends, strict=True)}
    if greedy != answers.success_by_problem():
        ids = sorted(group.prompt.id for group in answers.greedy)
        numbers["rewards"] = tuple(round(greedy[key], 6) if key in greedy else None for key in ids)
    trajectories = [trajectory for group in answers.sampled for trajectory in group.trajectories]
    logprobs = [logprob for trajectory in trajectories for logprob in trajectory.logprobs]
    if logprobs:
        numbers["entropy_mean"] = 0.0 - math.fsum(logprobs) / len(logprobs)
    if answers.rewards and answers.greedy:
        rewards = answers.rewards.of(answers.greedy[0].prompt)
        truth = rewards.part(rewards.truth)
        numbers |= {"judge": truth.source or truth.name, "pass_threshold": rewards.pass_threshold}
    return numbers


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
