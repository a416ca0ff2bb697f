"""Calling a reward function, where it cannot hurt the run.

Built-in graders are called here: they are made not to hang. A user's function that is named (`file.py:function`) runs
in a process that can be killed, on that process's main thread. A function that was handed over as an object runs in a
thread: past its deadline it is left behind, because a thread cannot be killed.
"""

from __future__ import annotations

import inspect
import math
import threading
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from outdo.errors import GraderError, SandboxError
from outdo.recipe import plugins
from outdo.sandbox.pool import Pool
from outdo.types import Grade, RewardFunction

Where = str  # "here", "thread", or the name by which a process finds the function
Judged = list[Grade | None]
_ONE_AT_A_TIME = threading.Lock()  # a user's objects may not be made for several threads


@dataclass(frozen=True)
class Failure:
    """A call that gave no grades, and why."""

    words: str
    alone: bool = True  # whether its answers may fare better one by one


def call(
    name: str,
    function: RewardFunction,
    where: Where,
    arguments: Sequence[Mapping[str, Any]],
    counts: Sequence[int],
    seconds: float,
) -> list[Judged | Failure]:
    """The grades of each set of arguments, which holds so many answers. GraderError alone is passed on."""
    if where == "here":
        return [_called(name, function, columns, n) for columns, n in zip(arguments, counts, strict=True)]
    if where == "thread":
        return [_within(name, function, columns, n, seconds) for columns, n in zip(arguments, counts, strict=True)]
    jobs = [
        ("outdo.rewards.calls:in_process", (where, name, dict(columns), n))
        for columns, n in zip(arguments, counts, strict=True)
    ]
    try:
        replies = _pool().run(jobs, seconds)
    except SandboxError as error:
        raise GraderError(str(error)) from error
    return [
        _unpacked(reply.value) if reply.kind == "value" else Failure(f"{name}: {reply.message}") for reply in replies
    ]


@cache
def _pool() -> Pool:
    return Pool(["outdo.rewards.calls"], slots=8)  # users' functions wait for servers more than they compute


def in_process(where: str, name: str, columns: Mapping[str, Any], n: int) -> Any:
    """The worker's side: finds the function by its name and calls it. Plain values for the way back."""
    judged = _called(name, _function(where), columns, n)
    if isinstance(judged, Failure):
        return [judged.words, judged.alone]
    return [grade and [grade.reward, grade.verdict, dict(grade.parts), grade.reason] for grade in judged]


@cache
def _function(name: str) -> RewardFunction:
    return plugins.find(name, {}, "outdo.rewards", GraderError)


def _unpacked(value: Any) -> Judged | Failure:
    if value and isinstance(value[0], str):
        return Failure(*value)
    return [None if grade is None else Grade(*grade) for grade in value]


def _within(
    name: str, function: RewardFunction, columns: Mapping[str, Any], n: int, seconds: float
) -> Judged | Failure:
    out: list[Judged | Failure | GraderError] = []

    def work() -> None:
        try:
            out.append(_called(name, function, columns, n))
        except GraderError as error:
            out.append(error)

    with _ONE_AT_A_TIME:
        thread = threading.Thread(target=work, name=f"reward {name}", daemon=True)
        thread.start()
        thread.join(seconds)
    if not out:
        return Failure(f"{name}: no verdict within {seconds:g} s")
    if isinstance(out[0], GraderError):
        raise out[0]
    return out[0]


def _called(name: str, function: RewardFunction, columns: Mapping[str, Any], n: int) -> Judged | Failure:
    try:
        values = function(**columns)
    except GraderError:
        raise
    except SandboxError as error:
        raise GraderError(str(error)) from error
    except (Exception, SystemExit) as error:
        return Failure(f"{name} raised {_where(error)}")
    if inspect.iscoroutine(values):
        values.close()  # it is not waited for, and Python need not say so
    if not isinstance(values, (list, tuple)) or len(values) != n:
        got = f"{len(values)} values" if isinstance(values, (list, tuple)) else f"a {type(values).__name__}"
        return Failure(f"{name} returned {got} for {n} completions: return a list of one each", alone=False)
    return [_as_grade(value, name) for value in values]


def _as_grade(value: Any, name: str) -> Grade | None:
    """Numbers as users return them: 1 or more is right, None abstains. Anything else cannot be a reward."""
    if value is None or (isinstance(value, Grade) and (value.reward is None or _is_number(value.reward))):
        return value
    try:
        number = float(value) if not isinstance(value, (str, bytes)) else math.nan
    except Exception:  # a huge integer, a tensor of several values: whatever it is, it is no number
        number = math.nan
    if not math.isfinite(number):
        return Grade(None, "broken", reason=f"{name} returned {value!r:.80}, which is no finite number (or None)")
    return Grade(number, "right" if number >= 1.0 else "wrong")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def _where(error: BaseException) -> str:
    """What a user's function raised, and in which line of theirs."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{place}"
