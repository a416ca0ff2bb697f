"""Grades the tasks of reasoning-gym (`tasks/gym.py`) by the library's scorers, in long-lived sandboxes.

Importing the library takes seconds, so each of a few threads keeps a sandbox that has imported it, and grades each
answer in a fork of it (`referee.py`): side effects of one answer are gone before the next.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from outdo.errors import GraderError
from outdo.rewards import referee
from outdo.rewards.answer import RIGHT, final_answers, without_echoes
from outdo.sandbox.execute import ExecutionError, Raised, Sandbox, require_sandbox
from outdo.sandbox.jail import Limits
from outdo.types import Grade

TIMEOUT = 10.0  # seconds for one answer
_START_SECONDS = 60.0  # to import the library and create a generator
_MAX_ANSWER_CHARS = 2**15
_LIMITS = Limits(seconds=30 * 86_400.0, memory_mb=4096, packages=True)  # as long as the run


def reasoning_gym(completions: list[str], gym: Sequence[Any], **columns: Any) -> list[Grade]:
    """1 where the final answer gets full marks from the generator's scorer and has the required form; else 0."""
    return [_grade(score, partial=False) for score in _scores(completions, gym, **columns)]


def reasoning_gym_partial(completions: list[str], gym: Sequence[Any], **columns: Any) -> list[Grade]:
    """The generator's own score, with partial credit; right only at full marks."""
    return [_grade(score, partial=True) for score in _scores(completions, gym, **columns)]


def _grade(scored: Grade | list[Any], partial: bool) -> Grade:
    if isinstance(scored, Grade):
        return scored
    score, reason = scored
    if score >= 1:
        return RIGHT
    return Grade(score if partial else 0.0, "wrong", reason=reason)


def _scores(
    completions: list[str],
    gym: Sequence[Any],
    answer: Sequence[Any] = (),
    prompts: Sequence[str] = (),
    reward_timeout: float = TIMEOUT,
    **columns: object,
) -> list[Grade | list[Any]]:
    """For each completion a score and a reason, or a grade where there is nothing to score."""
    if find_spec("reasoning_gym") is None:
        raise GraderError("reward reasoning_gym needs reasoning-gym: pip install 'outdo[gym]'")
    require_sandbox()
    texts = without_echoes(completions, [[{"content": prompt}] for prompt in prompts])
    golds = list(answer) or [None] * len(texts)
    running: dict[Any, Grade | Future[Grade | list[Any]]] = {}  # equal answers to one problem are scored once
    keys = []
    for text, row, gold in zip(texts, gym, golds, strict=True):
        answers = set(final_answers(text))
        final = answers.pop() if len(answers) == 1 else None
        key = (final, len(answers), id(row))
        keys.append(key)
        if key in running:
            continue
        if not isinstance(row, Mapping) or not {"name", "options", "entry"} <= row.keys():
            running[key] = Grade(None, "broken", reason=f"`gym` must have name, options and entry; it is {row!r:.60}")
        elif final is None or len(final) > _MAX_ANSWER_CHARS:
            reason = "the final answer is too long" if final else f"{len(answers)} final answers, not one"
            running[key] = Grade(0.0, "wrong", reason=reason)
        else:
            args = [row["name"], row["options"], row["entry"], gold if gold is None else str(gold)]
            running[key] = _threads().submit(_judge, args, final, reward_timeout)
    return [done if isinstance(done := running[key], Grade) else done.result() for key in keys]


@cache
def _threads() -> ThreadPoolExecutor:
    """One thread per core, for the life of the process: a sandbox dies with the thread that started it."""
    return ThreadPoolExecutor(os.cpu_count() or 1, "reasoning_gym")


_local = threading.local()  # each thread's sandbox
_open: set[Sandbox] = set()


def _judge(args: list[Any], final: str, seconds: float) -> Grade | list[Any]:
    """A score and a reason; broken where the sandbox fails, and the next answer gets a new one."""
    try:
        sandbox = _sandbox()
        sandbox.deadline = time.monotonic() + _START_SECONDS
        sandbox.call([*args[:2], {}, None, None], {})  # creates the generator once for all forks
        try:
            score, reason = sandbox.fork([*args, final], seconds)
            return [float(score), str(reason)[:200]]
        except Raised as error:  # caused by the answer
            return [0.0, f"the scorer failed: {error}"]
    except (ExecutionError, OSError, ValueError, TypeError) as error:
        _end(getattr(_local, "sandbox", None))
        _local.sandbox = None
        return Grade(None, "broken", reason=f"reasoning_gym/{args[0]} cannot be scored: {error}"[:300])


def _sandbox() -> Sandbox:
    sandbox: Sandbox | None = getattr(_local, "sandbox", None)
    if sandbox is None:
        sandbox = _local.sandbox = Sandbox(_LIMITS, deadline=time.monotonic() + _START_SECONDS)
        _open.add(sandbox)
        sandbox.load([Path(referee.__file__).read_text(encoding="utf-8")], "referee")
    return sandbox


def _end(sandbox: Sandbox | None) -> None:
    if sandbox in _open:
        _open.discard(sandbox)
        sandbox.__exit__()


@atexit.register
def _end_all() -> None:
    for sandbox in list(_open):
        _end(sandbox)
