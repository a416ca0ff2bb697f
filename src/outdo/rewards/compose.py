"""Combines several weighted rewards into one grade for each answer. A reward that fails is broken, never a silent 0.

Every function sees one group at a time: nothing leaks between prompts, and its statistics are the group's. The reward
that decides success (the truth) runs first; the others may take its `verdicts`.
"""

from __future__ import annotations

import inspect
import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from outdo.errors import BrokenGraders, GraderError
from outdo.recipe import plugins
from outdo.recipe.reward_names import canonical_reward
from outdo.rewards import rft
from outdo.rewards.calls import Failure, Where, call
from outdo.rewards.registry import GRADERS, Grader
from outdo.types import PART, Grade, Group, Prompt, RewardFunction, Verdict

MAX_GROUPS_IN_FLIGHT = 4  # groups graded in parallel, while the next are sampled
TIMEOUT = 10.0  # seconds
ROUNDING = 1e-9  # below pass_threshold that still passes
Waiting = AbstractContextManager[None] | None  # entered while only grades are outstanding

REWARDS: dict[str, RewardFunction] = {name: grader.function for name, grader in GRADERS.items()}


@dataclass(frozen=True)
class Reward:
    name: str
    function: RewardFunction
    weight: float = 1.0
    where: Where = "here"  # the thread or process it runs in
    source: str = ""  # the name it was loaded by, for a user's function that is not an object

    @property
    def grader(self) -> Grader | None:
        """The built-in grader behind it; None for a user's function, also one with a built-in name."""
        builtin = GRADERS.get(self.name)
        return builtin if builtin and builtin.function is self.function else None


@dataclass(frozen=True)
class Rewards:
    """What answers are graded by. `truth` names the reward whose verdict is success; its weight may be 0."""

    parts: tuple[Reward, ...]
    truth: str
    max_completion_length: int = 0
    gate: str = ""  # the others count only where this one is right
    timeout: float = TIMEOUT  # seconds for one answer, or one call of a user's function
    audit: str = ""  # this one is only logged: it adds nothing to the reward, and may break
    pass_threshold: float | None = None  # an answer that the truth pays this is right; None: the truth's own verdict
    by_part: Mapping[str, Rewards] = field(default_factory=dict)  # of a mixture: the rewards of each of its tasks

    def of(self, prompt: Prompt) -> Rewards:
        """The rewards for answers to this prompt."""
        return self.by_part.get(prompt.meta.get(PART, ""), self)

    @property
    def judge(self) -> Grader | None:
        """The built-in grader that decides success; None where a user's function does."""
        return self.part(self.truth).grader

    def part(self, name: str) -> Reward:
        return next(part for part in self.parts if part.name == name)


def find_rewards(
    names: Sequence[str],
    weights: Sequence[float],
    truth: str,
    max_completion_length: int = 0,
    own: Mapping[str, RewardFunction] | None = None,
    gate: str = "",
    timeout: float = TIMEOUT,
    audit: str = "",
    pass_threshold: float | None = None,
) -> Rewards:
    """Rewards by name, also of `own`; with `truth`, `gate` and `audit`, at weight 0 if unnamed. Raises GraderError."""
    names = [_known(name, own) for name in names]
    truth, gate, audit = (_known(name, own) for name in (truth, gate, audit))
    if audit and _short(audit) in map(_short, names):
        raise GraderError(f"audit_reward={audit} is trained on, as reward_funcs has it: name a reward it lacks")
    parts = [_load(name, weight, own or {}) for name, weight in zip(names, weights or [1.0] * len(names), strict=True)]
    full_names = {_short(name): name for name in names}
    for extra in filter(None, (truth, gate, audit)):
        other = full_names.setdefault(_short(extra), extra)
        if _short(extra) not in [part.name for part in parts]:
            parts.append(_load(extra, 0.0, own or {}))
        elif other != extra and extra in REWARDS:
            raise GraderError(f"your own reward {extra!r} has the name of the task's verifier: give it another name")
        elif other != extra and _short(extra) != extra:
            raise GraderError(f"{extra} has the name of another reward of this run, {other}: give it another name")
    if len({part.name for part in parts}) < len(parts):
        raise GraderError(f"reward_funcs names the same reward twice: {', '.join(part.name for part in parts)}")
    settings = _short(truth), max_completion_length, _short(gate), timeout, _short(audit)
    return Rewards(tuple(parts), *settings, pass_threshold)


def _known(name: str, own: Mapping[str, RewardFunction] | None) -> str:
    """A name of the user's own, or ours for that of another trainer."""
    return name if name in (own or {}) else canonical_reward(name)


def _short(name: str) -> str:
    return name.rpartition("/")[2].removesuffix(".json") if name.endswith(".json") else name.rpartition(":")[2]


def _load(name: str, weight: float, own: Mapping[str, RewardFunction]) -> Reward:
    """Built-in rewards run here, a user's named function in a worker process, a user's object in a thread."""
    if name in REWARDS and name not in own:
        return Reward(name, REWARDS[name], weight)
    if name.endswith(".json"):
        return Reward(_short(name), rft.load(name)[0], weight, source=name)
    function = plugins.find(name, {**REWARDS, **own}, "outdo.rewards", GraderError)
    if not callable(function):
        raise GraderError(f"reward {name} is a {type(function).__name__}, not a function")
    callables = function, getattr(function, "__call__", None)  # noqa: B004  # it may be an object
    if any(inspect.iscoroutinefunction(one) or inspect.isasyncgenfunction(one) for one in callables):
        raise GraderError(f"reward {name} is async: write it with a plain `def`, which may `return asyncio.run(…)`")
    if name in own:
        return Reward(name, function, weight, "thread")
    return Reward(_short(name), function, weight, plugins.absolute_name(name), source=name)


def graded(groups: Iterable[Group], rewards: Rewards, waiting: Waiting = None) -> Iterator[Group]:
    """Yields each group once it and those before it are graded, while the next are sampled.

    An error of a grader is raised when everything is sampled: then the sampler is done, and its rollouts can be kept.
    """
    executor = ThreadPoolExecutor(MAX_GROUPS_IN_FLIGHT, "grade")
    pending: deque[Future[Group]] = deque()
    try:
        for group in groups:
            pending.append(executor.submit(grade, group, rewards))
            while pending and pending[0].done() and not pending[0].exception():
                yield pending.popleft().result()
        with waiting or nullcontext():
            while pending:
                yield pending.popleft().result()
    finally:
        executor.shutdown(wait=False, cancel_futures=True)


def grade_all(groups: Iterable[Group], rewards: Rewards, waiting: Waiting = None) -> list[Group]:
    """`graded` as a list."""
    return list(graded(groups, rewards, waiting))


def grade(group: Group, rewards: Rewards) -> Group:
    """The same group with its grades."""
    rewards = rewards.of(group.prompt)
    truth = [_decided(one, rewards.pass_threshold) for one in _judge(rewards.part(rewards.truth), group, rewards, None)]
    verdicts = [grade.verdict if grade else "broken" for grade in truth]
    per_part = [
        truth if part.name == rewards.truth else _judge(part, group, rewards, verdicts) for part in rewards.parts
    ]
    return replace(group, grades=tuple(_combine(rewards, judged) for judged in zip(*per_part, strict=True)))


def _decided(grade: Grade | None, threshold: float | None) -> Grade | None:
    """With the verdict by the threshold. This is the one place where success is decided by a number of the user's."""
    if grade is None or grade.reward is None or threshold is None:
        return grade
    is_right = grade.reward >= threshold - ROUNDING
    return replace(grade, verdict="right" if is_right else "wrong", reason="" if is_right else grade.reason)


def halt_if_broken(groups: Sequence[Group], limit: float) -> None:
    """Raises BrokenGraders where more than this share of the answers is broken."""
    grades = [grade for group in groups for grade in group.grades]
    broken = [grade for grade in grades if grade.verdict == "broken"]
    if grades and len(broken) > limit * len(grades):
        raise BrokenGraders(
            f"{len(broken)} of {len(grades)} answers could not be judged, more than broken_limit={limit:g} allows; "
            f"the first: {broken[0].reason}"
        )


def _judge(part: Reward, group: Group, rewards: Rewards, verdicts: Sequence[str] | None) -> list[Grade | None]:
    """One reward's grade for each answer. Where the call for the group fails, each answer is graded alone."""
    n = len(group.trajectories)
    columns = _arguments(part, group, rewards, verdicts)
    (result,) = call(part.name, part.function, part.where, [columns], [n], rewards.timeout)
    if not isinstance(result, Failure):
        return result
    if n == 1 or not result.retry_alone:
        return [Grade(None, "broken", reason=result.message)] * n
    columns_G = [_select(columns, index, n) for index in range(n)]
    results = call(part.name, part.function, part.where, columns_G, [1] * n, rewards.timeout)
    return [Grade(None, "broken", reason=one.message) if isinstance(one, Failure) else one[0] for one in results]


def _select(columns: Mapping[str, Any], index: int, n: int) -> dict[str, Any]:
    """The columns of one of n answers."""
    return {
        key: value[index : index + 1] if isinstance(value, list) and len(value) == n else value
        for key, value in columns.items()
    }


def _arguments(part: Reward, group: Group, rewards: Rewards, verdicts: Sequence[str] | None) -> dict[str, Any]:
    """The columns that the function takes, one value for each answer; all of them where it takes **columns."""
    n = len(group.trajectories)
    columns: dict[str, Any] = {key: [value] * n for key, value in group.prompt.meta.items()}
    columns |= {
        "completions": [answer.text for answer in group.trajectories],
        "prompts": [group.prompt.text] * n,
        "messages": [group.prompt.messages] * n,
        "answer": [group.prompt.answer] * n,
        "finish": [answer.finish for answer in group.trajectories],
        "max_completion_length": rewards.max_completion_length,  # these two are numbers, not lists
        "reward_timeout": rewards.timeout,
    }
    if any(answer.token_ids for answer in group.trajectories):
        columns["completion_ids"] = [answer.token_ids for answer in group.trajectories]
    if verdicts is not None:
        columns["verdicts"] = list(verdicts)
    parameters = inspect.signature(part.function).parameters.values()
    named = [p for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    missing = [p.name for p in named if p.default is p.empty and p.name not in columns]
    if "verdicts" in missing:
        raise GraderError(f"reward {part.name} needs the verdicts of another, named before it: numeric,{part.name}")
    if missing:
        raise GraderError(
            f"reward {part.name} needs {', '.join(missing)}, which the data lacks; it has {', '.join(columns)}"
        )
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return columns
    return {p.name: columns[p.name] for p in named if p.name in columns}


def _combine(rewards: Rewards, judged: Sequence[Grade | None]) -> Grade:
    """The weighted sum. A part that abstains (None) is left out; broken where the truth or every weighted part does."""
    by_name = {part.name: grade for part, grade in zip(rewards.parts, judged, strict=True)}
    parts: Mapping[str, float | None] = {name: grade.reward if grade else None for name, grade in by_name.items()}
    counted = [grade for name, grade in by_name.items() if name != rewards.audit or name == rewards.truth]
    broken = [grade for grade in counted if grade and grade.verdict == "broken"]
    truth, gate = by_name[rewards.truth], by_name[rewards.gate or rewards.truth]
    closed = rewards.gate and not (gate and gate.verdict == "right")
    weighted = [
        part.weight * grade.reward * (not closed or part.name == rewards.gate)
        for part, grade in zip(rewards.parts, judged, strict=True)
        if part.weight and grade and grade.reward is not None
    ]
    if broken or truth is None or not weighted or not math.isfinite(sum(weighted)):
        why = "every reward with a weight abstained" if not weighted else f"the rewards sum to {sum(weighted)}"
        reason = broken[0].reason if broken else f"{rewards.truth} abstained" if truth is None else why
        return Grade(None, "broken", parts, reason)
    verdict: Verdict = "right" if truth.verdict == "right" else "wrong"
    return Grade(sum(weighted), verdict, parts, truth.reason)
