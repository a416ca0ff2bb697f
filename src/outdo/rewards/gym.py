"""The tasks of reasoning-gym (`tasks/gym.py`), judged by its scorers in sandboxes that live on.

Importing the library takes seconds, so each of a few threads has a sandbox that has done it, and each answer is judged
in a fork of that (`referee.py` says how): what one answer does is gone before the next.
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
from outdo.rewards.answer import final_answers, without_echoes
from outdo.sandbox.execute import ExecutionError, Raised, Sandbox, require_sandbox
from outdo.sandbox.jail import Limits
from outdo.types import Grade

SECONDS = 10.0  # for one answer
_STARTING = 60.0  # for the library to be imported, and for a generator to be made
_LONGEST = 2**15  # characters of an answer
_LIMITS = Limits(seconds=30 * 86_400.0, memory_mb=4096, packages=True)  # it lives as long as the run


def reasoning_gym(completions: list[str], gym: Sequence[Any], **columns: Any) -> list[Grade]:
    """1 where the final answer gets full marks from the generator's scorer and keeps the task's form; else 0."""
    return [_grade(found, partial=False) for found in _scores(completions, gym, **columns)]


def reasoning_gym_partial(completions: list[str], gym: Sequence[Any], **columns: Any) -> list[Grade]:
    """The generator's own score, for answers that are right in part too; right only at full marks."""
    return [_grade(found, partial=True) for found in _scores(completions, gym, **columns)]


def _grade(found: Grade | list[Any], partial: bool) -> Grade:
    if isinstance(found, Grade):
        return found
    score, reason = found
    if score >= 1:
        return Grade(1.0, "right")
    return Grade(score if partial else 0.0, "wrong", reason=reason)


def _scores(
    completions: list[str],
    gym: Sequence[Any],
    answer: Sequence[Any] = (),
    prompts: Sequence[str] = (),
    reward_timeout: float = SECONDS,
    **columns: object,
) -> list[Grade | list[Any]]:
    """For each completion a score and a reason, or a grade where there is nothing to score."""
    if find_spec("reasoning_gym") is None:
        raise GraderError("reward reasoning_gym needs reasoning-gym: pip install 'outdo[gym]'")
    require_sandbox()
    texts = without_echoes(completions, [[{"content": prompt}] for prompt in prompts])
    golds = list(answer) or [None] * len(texts)
    running: dict[Any, Grade | Future[Grade | list[Any]]] = {}  # equal answers to one problem are judged once
    keys = []
    for text, row, gold in zip(texts, gym, golds, strict=True):
        found = set(final_answers(text))
        final = found.pop() if len(found) == 1 else None
        key = (final, len(found), id(row))
        keys.append(key)
        if key in running:
            continue
        if not isinstance(row, Mapping) or not {"name", "options", "entry"} <= row.keys():
            running[key] = Grade(None, "broken", reason=f"`gym` is {row!r:.60}, not name, options and entry")
        elif final is None or len(final) > _LONGEST:
            why = "a final answer that is too long" if final else f"{len(found)} final answers, not one"
            running[key] = Grade(0.0, "wrong", reason=why)
        else:
            args = [row["name"], row["options"], row["entry"], gold if gold is None else str(gold)]
            running[key] = _threads().submit(_judge, args, final, reward_timeout)
    return [done if isinstance(done := running[key], Grade) else done.result() for key in keys]


@cache
def _threads() -> ThreadPoolExecutor:
    """One for each core, for as long as the program runs: a sandbox dies with the thread that started it."""
    return ThreadPoolExecutor(os.cpu_count() or 1, "reasoning_gym")


_own = threading.local()  # each thread's sandbox
_open: set[Sandbox] = set()


def _judge(args: list[Any], final: str, seconds: float) -> Grade | list[Any]:
    """Broken where the sandbox fails; it is a new one that the next answer gets."""
    try:
        sandbox = _sandbox()
        sandbox.deadline = time.monotonic() + _STARTING
        sandbox.call([*args[:2], {}, None, None], {})  # the generator is made here, once for all forks
        try:
            score, reason = sandbox.fork([*args, final], seconds)
            return [float(score), str(reason)[:200]]
        except Raised as error:  # the answer did it
            return [0.0, f"the scorer came to no end: {error}"]
    except (ExecutionError, OSError, ValueError, TypeError) as error:
        _end(getattr(_own, "sandbox", None))
        _own.sandbox = None
        return Grade(None, "broken", reason=f"reasoning_gym/{args[0]} cannot be judged: {error}"[:300])


def _sandbox() -> Sandbox:
    sandbox: Sandbox | None = getattr(_own, "sandbox", None)
    if sandbox is None:
        sandbox = _own.sandbox = Sandbox(_LIMITS, deadline=time.monotonic() + _STARTING)
        _open.add(sandbox)
        sandbox.request(op="load", source=Path(referee.__file__).read_text(encoding="utf-8"), name="referee")
    return sandbox


def _end(sandbox: Sandbox | None) -> None:
    if sandbox in _open:
        _open.discard(sandbox)
        sandbox.__exit__()


@atexit.register
def _end_all() -> None:
    for sandbox in list(_open):
        _end(sandbox)
