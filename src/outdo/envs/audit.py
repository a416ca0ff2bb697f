"""Audits an environment before training, by play.

A player who deserves full marks, where one is known, must be paid 1; empty messages, garbage, an echo of the prompt and
a list of candidates must not, nor as much as that player; the same play must get the same replies and the same reward;
and nothing of it may raise an error.
"""

from __future__ import annotations

import asyncio
import inspect
import random
import string
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from outdo.envs.environment import MakeEnvironment, Observation
from outdo.envs.factory import find_environment
from outdo.errors import GraderError, describe
from outdo.rewards.audit import (
    ATTACKS,
    BROKEN_SHARE,
    GOLD,
    MARGIN,
    MAX_SECONDS,
    Audit,
    Check,
    attack_check,
    judged_check,
    same_check,
    speed_check,
    timed,
)
from outdo.tasks.task import Task
from outdo.types import Message, Prompt

MAX_TURNS = 100  # of a player who always says the same
Player = Callable[[Prompt], Sequence[Message]]  # the conversation of one, after the prompt


@dataclass(frozen=True)
class Play:
    """How a play went."""

    reward: float | None
    replies: tuple[Message, ...]
    broken: str = ""
    seconds: float = 0.0


@dataclass
class _Record:
    """What is wrong with each play; an empty text: nothing."""

    gold: list[str] = field(default_factory=list)
    attacks: list[str] = field(default_factory=list)
    differing: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


def audit_by_play(
    make: MakeEnvironment, prompts: Sequence[Prompt], solution: Player | None = None, short: bool = False
) -> Audit:
    """Plays every prompt several times; `short`: fewer. Raises GraderError where nothing can be played."""
    record, tested = _Record(), 0
    for prompt in prompts:
        if sum(record.seconds) > MAX_SECONDS and tested:
            break
        _test_prompt(record, make, prompt, solution, short)
        tested += 1
    if record.broken and len(record.broken) == len(record.seconds):
        raise GraderError(f"not one of {len(record.seconds)} plays came to an end; the first: {record.broken[0]}")
    checks = (
        _gold_check(record.gold),
        attack_check(ATTACKS, record.attacks, 0.0),
        same_check("the same play gets the same replies and reward", record.differing),
        judged_check(record.broken, len(record.seconds), BROKEN_SHARE),
        speed_check(record.seconds),
    )
    return timed(checks, record.seconds, tested)


def audit_task(task: Task, prompts: Sequence[Prompt]) -> Audit:
    """Audits the environment that the task names. Raises GraderError where it names none."""
    if not task.environment:
        raise GraderError(
            f"{task.name} is judged by what its environment pays, and names none: a task does with environment=NAME"
        )
    return audit_by_play(find_environment(task.environment), prompts, task.solution)


def play(make: MakeEnvironment, prompt: Prompt, messages: Sequence[Message]) -> Play:
    """Plays the assistant's messages of a conversation, as far as the environment lets them."""
    start = time.perf_counter()
    try:
        reward, replies, done = asyncio.run(
            _play(make, prompt, [one for one in messages if one["role"] == "assistant"])
        )
    except Exception as error:  # of a user's environment
        return Play(None, (), describe(error), time.perf_counter() - start)
    broken = "the environment gave no reward" if done and reward is None else ""
    return Play(reward, replies, broken, time.perf_counter() - start)


async def _play(
    make: MakeEnvironment, prompt: Prompt, messages: Sequence[Message]
) -> tuple[float | None, tuple[Message, ...], bool]:
    environment = make(prompt)
    reward, replies, done = None, list[Message](), False
    try:
        await _completed(environment.reset(prompt))
        for message in messages:
            seen: Observation = await _completed(environment.step(message))
            reward = reward if seen.reward is None else seen.reward
            replies += seen.messages
            done = seen.done
            if done:
                break
        if reward is None and (get_reward := getattr(environment, "get_reward", None)):
            reward = await _completed(get_reward())
    finally:
        await _completed(environment.close())
    return reward, tuple(replies), done


async def _completed(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def _test_prompt(record: _Record, make: MakeEnvironment, prompt: Prompt, solution: Player | None, short: bool) -> None:
    full = float("inf")
    if solution:
        messages = solution(prompt)
        first = _tried(record, make, prompt, messages)
        record.gold.append("" if first.reward is not None and first.reward >= 1 else f"it gets {_shown(first)}")
        full = 1.0 if first.reward is None else first.reward
        _compare(record, "the play that deserves full marks", first, _tried(record, make, prompt, messages))
    for kind, text in _attacks(prompt)[: 2 if short else None]:
        messages = [{"role": "assistant", "content": text}] * MAX_TURNS
        first = _tried(record, make, prompt, messages)
        too_much = first.reward is not None and first.reward >= min(1.0, full) - MARGIN
        record.attacks.append(f"{kind} {text[:40]!r} gets {first.reward:g}" if too_much else "")
        if not short:
            _compare(record, kind, first, _tried(record, make, prompt, messages))


def _attacks(prompt: Prompt) -> list[tuple[str, str]]:
    garbage = "".join(random.Random(0).choices(string.printable, k=200))
    candidates = " ".join(map(str, range(101)))
    return [("an empty message", ""), ("a list", candidates), ("garbage", garbage), ("an echo", prompt.text)]


def _tried(record: _Record, make: MakeEnvironment, prompt: Prompt, messages: Sequence[Message]) -> Play:
    done = play(make, prompt, messages)
    record.seconds.append(done.seconds)
    if done.broken:
        record.broken.append(f"prompt {prompt.id[:40]}: {done.broken}")
    return done


def _compare(record: _Record, kind: str, one: Play, other: Play) -> None:
    if not (one.broken or other.broken) and (one.reward, one.replies) != (other.reward, other.replies):
        record.differing.append(f"{kind} got {_shown(one)} at first, and then {_shown(other)} or other replies")


def _shown(play: Play) -> str:
    return "no reward" if play.reward is None else f"{play.reward:g}"


def _gold_check(gold: Sequence[str]) -> Check:
    if not gold:
        return Check(GOLD, "unknown", "the task has no player who deserves them")
    problems = list(filter(None, gold))
    if problems:
        return Check(GOLD, "failed", f"{len(problems)} of {len(gold)} do not: {problems[0]}")
    return Check(GOLD, "passed", f"{len(gold)} played")
