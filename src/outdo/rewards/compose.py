"""Combines several weighted rewards into one grade for each answer. A reward that fails on every answer makes them
broken, never a silent 0; an answer that alone makes it fail gets its worst score (`blame.py`).

Every function sees one group at a time: nothing leaks between prompts, and its statistics are the group's. With
`batch="step"` a user's function sees all groups of a step, as in TRL. The reward that decides success (the truth) runs
first; the others may take its `verdicts`.
"""

from __future__ import annotations

import inspect
import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import accumulate, filterfalse
from typing import Any, Literal

from outdo.errors import BrokenGraders, GraderError
from outdo.recipe import plugins
from outdo.recipe.reward_names import canonical_reward
from outdo.rewards import rft
from outdo.rewards.arguments import (
    Form,
    Input,
    Inputs,
    form_of,
    group_inputs,
    join_inputs,
    refuse_unknown_args,
    select_inputs,
    single_inputs,
    takes_objects,
    trainer_state,
)
from outdo.rewards.blame import Worst, by_weight, is_failure, settled
from outdo.rewards.calls import Failure, Grades, Judged, Result, Where, call, is_async
from outdo.rewards.registry import GRADERS, Grader
from outdo.types import PART, Grade, Group, Prompt, RewardFunction, Trajectory, Verdict

MAX_GROUPS_IN_FLIGHT = 4  # groups graded in parallel, while the next are sampled
MAX_WAITING_GROUPS = 16  # the same, of rewards that wait for a server
TIMEOUT = 10.0  # seconds
JUDGE = "llm_judge"
JUDGE_SETTINGS = (
    "model",
    "rubric",
    "template",
    "scale",
    "timeout",
    "temperature",
    "base_url",
    "api_key_env",
    "max_tokens",
    "max_cost",
)
ROUNDING = 1e-9  # below pass_threshold that still passes
Waiting = AbstractContextManager[None] | None  # entered while only grades are outstanding

_GRADED: dict[tuple[str, str | int], list[str]] = {}  # a few answers that each reward has graded
REWARDS: dict[str, RewardFunction] = {name: grader.function for name, grader in GRADERS.items()}


@dataclass(frozen=True)
class Reward:
    name: str
    function: RewardFunction
    weight: float = 1.0
    where: Where = "here"  # the thread or process it runs in
    source: str = ""  # the name it was loaded by, for a user's function that is not an object
    form: Form = "many"  # takes the answers of a group or a step, or one answer
    args: Mapping[str, Any] = field(default_factory=dict)  # of `reward_args`

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
    batch: Literal["group", "step"] = "group"  # what a user's function gets in one call
    input: Input = "auto"  # what `completions` of a user's function are
    step: int = 0  # for rewards that depend on the progress of training; both are 0 outside of it
    num_steps: int = 0
    cache: str = ""  # folder of the run, for what rewards keep

    def of(self, prompt: Prompt) -> Rewards:
        """The rewards for answers to this prompt."""
        part = self.by_part.get(prompt.meta.get(PART, ""))
        return replace(part, step=self.step, num_steps=self.num_steps, cache=self.cache) if part else self

    def weights_of(self, prompt: Prompt) -> dict[str, float]:
        """Of each reward for answers to this prompt, by name."""
        return {part.name: part.weight for part in self.of(prompt).parts}

    @property
    def groups_in_flight(self) -> int:
        """How many groups are graded in parallel: more where rewards mostly wait for a server."""
        parts = [reward for rewards in (self, *self.by_part.values()) for reward in rewards.parts]
        waits = any(is_async(part.function) or getattr(part.function, "costly", False) for part in parts)
        return MAX_WAITING_GROUPS if waits else MAX_GROUPS_IN_FLIGHT

    @property
    def needs_play(self) -> bool:
        """Whether an answer can be graded only together with the environment that it was played in."""
        return any(takes_objects(part.function) for part in self.parts)

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
    *,
    args: Mapping[str, Mapping[str, Any]] | None = None,
    batch: Literal["group", "step"] = "group",
    input: Input = "auto",
) -> Rewards:
    """Rewards by name, also of `own`; with `truth`, `gate` and `audit`, at weight 0 if unnamed. `args` has arguments
    for some of them, by name. Raises GraderError."""
    args = args or {}
    names = [_known(name, own) for name in names]
    truth, gate, audit = (_known(name, own) for name in (truth, gate, audit))

    def load(name: str, weight: float) -> Reward:
        return _load(name, weight, own or {}, args.get(_short(name), {}))

    if audit and _short(audit) in map(_short, names):
        raise GraderError(f"audit_reward={audit} is trained on, as reward_funcs has it: name a reward it lacks")
    parts = [load(name, weight) for name, weight in zip(names, weights or [1.0] * len(names), strict=True)]
    full_names = {_short(name): name for name in names}
    for extra in filter(None, (truth, gate, audit)):
        other = full_names.setdefault(_short(extra), extra)
        if _short(extra) not in [part.name for part in parts]:
            parts.append(load(extra, 0.0))
        elif other != extra and extra in REWARDS:
            raise GraderError(f"your own reward {extra!r} has the name of the task's verifier: give it another name")
        elif other != extra and _short(extra) != extra:
            raise GraderError(f"{extra} has the name of another reward of this run, {other}: give it another name")
    if len({part.name for part in parts}) < len(parts):
        raise GraderError(f"reward_funcs names the same reward twice: {', '.join(part.name for part in parts)}")
    settings = _short(truth), max_completion_length, _short(gate), timeout, _short(audit)
    return Rewards(tuple(parts), *settings, pass_threshold, batch=batch, input=input)


def _known(name: str, own: Mapping[str, RewardFunction] | None) -> str:
    """A name of the user's own, or ours for that of another trainer."""
    return name if name in (own or {}) else canonical_reward(name)


def _short(name: str) -> str:
    return name.rpartition("/")[2].removesuffix(".json") if name.endswith(".json") else name.rpartition(":")[2]


def _load(name: str, weight: float, own: Mapping[str, RewardFunction], args: Mapping[str, Any]) -> Reward:
    """Built-in rewards run here, a user's named function in a worker process, a user's object in a thread, and so does
    a named function that takes what was played."""
    if name in REWARDS and name not in own:
        refuse_unknown_args(name, REWARDS[name], args)
        return Reward(name, REWARDS[name], weight, args=args)
    if name.endswith(".json"):
        if args:
            raise GraderError(f"reward_args.{_short(name)}: a grader.json has all its settings in the file")
        return Reward(_short(name), rft.load(name)[0], weight, source=name)
    function = plugins.find(name, {**REWARDS, **own}, "outdo.rewards", GraderError)
    if not callable(function):
        raise GraderError(f"reward {name} is a {type(function).__name__}, not a function")
    if inspect.isasyncgenfunction(function):
        raise GraderError(f"reward {name} is an async generator: `return` a list of all its rewards")
    short = name if name in own else _short(name)
    refuse_unknown_args(short, function, args)
    where = "thread" if name in own or takes_objects(function) else plugins.absolute_name(name)
    source = "" if name in own else name
    return Reward(short, function, weight, where, source, form_of(short, function), args)


def graded(groups: Iterable[Group], rewards: Rewards, waiting: Waiting = None) -> Iterator[Group]:
    """Yields each group once it and those before it are graded, while the next are sampled.

    An error of a grader is raised when everything is sampled: then the sampler is done, and its rollouts can be kept.
    """
    if rewards.batch == "step":
        sampled = list(groups)
        with waiting or nullcontext():
            yield from grade_step(sampled, rewards)
        return
    executor = ThreadPoolExecutor(rewards.groups_in_flight, "grade")
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
    return grade_step([group], rewards)[0]


def grade_step(groups: Sequence[Group], rewards: Rewards) -> list[Group]:
    """The same groups with their grades. A user's function is called once for all groups of a task, in the order of
    their prompts' ids, which does not depend on what was sampled first; built-in rewards see a group at a time."""
    out: dict[int, Group] = {}
    parts = dict.fromkeys(group.prompt.meta.get(PART, "") for group in groups)
    for name in parts:
        places = [i for i, group in enumerate(groups) if group.prompt.meta.get(PART, "") == name]
        places.sort(key=lambda i: groups[i].prompt.id)
        together = [groups[i] for i in places]
        own = rewards.of(together[0].prompt)
        out |= dict(zip(places, _graded_together(together, own), strict=True))
    return [out[i] for i in range(len(groups))]


def _graded_together(groups: Sequence[Group], rewards: Rewards) -> list[Group]:
    """With their grades. No reward gets to see an answer whose environment broke."""
    intact = [replace(group, trajectories=tuple(filterfalse(_broke, group.trajectories))) for group in groups]
    judged = iter(_judged([group for group in intact if group.trajectories], rewards))
    grades = [next(judged).grades if group.trajectories else () for group in intact]
    return [_with_broken(group, own, rewards) for group, own in zip(groups, grades, strict=True)]


def _broke(answer: Trajectory) -> str:
    """Why its environment failed, where it did."""
    return answer.episode.broken if answer.episode else ""


def _with_broken(group: Group, grades: Sequence[Grade], rewards: Rewards) -> Group:
    """The group with the grades of its other answers."""
    own, parts = iter(grades), dict.fromkeys(part.name for part in rewards.parts)
    broken = [Grade(None, "broken", parts, reason) if (reason := _broke(one)) else None for one in group.trajectories]
    return replace(group, grades=tuple(grade or next(own) for grade in broken))


def _judged(groups: Sequence[Group], rewards: Rewards) -> list[Group]:
    if not groups:
        return []
    paid = _judge(rewards.part(rewards.truth), groups, rewards, [None] * len(groups))
    truth = [[_decided(grade, rewards.pass_threshold) for grade in grades] for grades in paid]
    verdicts = [[grade.verdict if grade else "broken" for grade in grades] for grades in truth]
    per_part = [
        truth if part.name == rewards.truth else _judge(part, groups, rewards, verdicts) for part in rewards.parts
    ]
    return [
        replace(group, grades=tuple(_combine(rewards, judged) for judged in zip(*of_parts, strict=True)))
        for group, of_parts in zip(groups, zip(*per_part, strict=True), strict=True)
    ]


def _decided(grade: Grade | None, threshold: float | None) -> Grade | None:
    """With the verdict by the threshold. This is the one place where success is decided by a number of the user's."""
    if grade is None or grade.reward is None or threshold is None or isinstance(grade, Worst):
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


def _judge(
    part: Reward, groups: Sequence[Group], rewards: Rewards, verdicts: Sequence[Sequence[str] | None]
) -> list[Grades]:
    """One reward's grades of each group."""
    inputs = [_inputs(part, group, rewards, seen) for group, seen in zip(groups, verdicts, strict=True)]
    if len(inputs) == 1:
        return [_judge_group(part, inputs[0], rewards)]
    if part.where == "here" or part.form == "one":
        with ThreadPoolExecutor(rewards.groups_in_flight, "grade") as executor:
            return list(executor.map(lambda one: _judge_group(part, one, rewards), inputs))
    joined = select_inputs(part.name, part.function, join_inputs(inputs))
    (result,) = call(part.name, part.function, part.where, part.form, [joined], rewards.timeout * len(inputs))
    if isinstance(result, Failure):
        return [_judge_group(part, one, rewards) for one in inputs]
    ends = list(accumulate(one.count for one in inputs))
    each = [result[end - one.count : end] for one, end in zip(inputs, ends, strict=True)]
    return [_settled(part, judged, one, rewards) for judged, one in zip(each, inputs, strict=True)]


def _judge_group(part: Reward, inputs: Inputs, rewards: Rewards) -> Grades:
    """One reward's grade for each answer. Where the call for the group fails, each answer is graded alone."""
    (result,) = _called(part, [inputs], rewards)
    judged = [result] * inputs.count if isinstance(result, Failure) else result
    return _settled(part, judged, inputs, rewards)


def _called(part: Reward, inputs: Sequence[Inputs], rewards: Rewards) -> list[Result]:
    """The grades of several calls, each of answers to one prompt."""
    select = single_inputs if part.form == "one" else select_inputs
    chosen, seconds = [select(part.name, part.function, one) for one in inputs], rewards.timeout
    if part.form == "one" and not is_async(part.function):
        seconds *= max(one.count for one in inputs)  # one after the other
    return call(part.name, part.function, part.where, part.form, chosen, seconds)


def _settled(part: Reward, judged: Sequence[Judged], inputs: Inputs, rewards: Rewards) -> Grades:
    """With the failures of the reward blamed on their answers, or broken; in the sense of its weight."""
    decides = part.name in (rewards.truth, rewards.gate)
    graded = _GRADED.setdefault((part.name, part.source or id(part.function)), [])
    grades = settled(judged, inputs, lambda several: _called(part, several, rewards), decides, graded)
    return [by_weight(grade, part.weight) for grade in grades]


def _inputs(part: Reward, group: Group, rewards: Rewards, verdicts: Sequence[str] | None) -> Inputs:
    """Every column of a group, in the form that this reward takes."""
    shared = {
        "max_completion_length": rewards.max_completion_length,
        "reward_timeout": rewards.timeout,
        "trainer_state": trainer_state(rewards.step, rewards.num_steps),
        **({"cache_folder": rewards.cache} if rewards.cache and part.where == "here" else {}),
        **part.args,
    }
    as_messages = rewards.input == "messages" or (rewards.input == "auto" and group.prompt.conversational)
    own_lists = part.where != "here" and part.form == "many"
    inputs = group_inputs(group, shared, verdicts, messages=own_lists and as_messages)
    settings = {*part.args, *(JUDGE_SETTINGS if part.name == JUDGE and part.grader else ())}  # not columns of that name
    return replace(inputs, lists={name: values for name, values in inputs.lists.items() if name not in settings})


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
    failed = [grade for grade in counted if grade and is_failure(grade)]
    if failed:
        return Worst(sum(weighted), verdict, parts, truth.reason or failed[0].reason)
    return Grade(sum(weighted), verdict, parts, truth.reason)
