"""Calls a reward function where it cannot hurt the run.

Built-in graders run here: they are written not to hang. A user's named function (`file.py:function`) runs on the main
thread of a process that can be killed, a function passed as an object in a thread, abandoned past its deadline.
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

Columns = Mapping[str, Any]  # the arguments of one call
Where = str  # "here", "thread", or the name by which a worker process loads the function
Grades = list[Grade | None]
_THREAD_LOCK = threading.Lock()  # a user's object may not be thread-safe


@dataclass(frozen=True)
class Failure:
    """A call that returned no grades, and why."""

    message: str
    retry_alone: bool = True  # whether its answers may succeed one by one


def call(
    name: str, function: RewardFunction, where: Where, arguments: Sequence[Columns], counts: list[int], seconds: float
) -> list[Grades | Failure]:
    """The grades of each set of arguments, which holds `counts` answers. Raises nothing but GraderError."""
    calls = list(zip(arguments, counts, strict=True))
    if where == "here":
        return [_called(name, function, columns, n) for columns, n in calls]
    if where == "thread":
        return [_in_thread(name, function, columns, n, seconds) for columns, n in calls]
    jobs = [("outdo.rewards.calls:in_process", (where, name, dict(columns), n)) for columns, n in calls]
    try:
        replies = _pool().run(jobs, seconds)
    except SandboxError as error:
        raise GraderError(str(error)) from error
    return [_unpack(reply.value) if reply.kind == "value" else Failure(f"{name}: {reply.message}") for reply in replies]


@cache
def _pool() -> Pool:
    return Pool(["outdo.rewards.calls"], slots=8)  # users' functions mostly wait for servers


def in_process(where: str, name: str, columns: Columns, n: int) -> Any:
    """Runs in a worker: loads the function by its name and calls it. Returns plain values."""
    grades = _called(name, _function(where), columns, n)
    if isinstance(grades, Failure):
        return [grades.message, grades.retry_alone]
    return [grade and [grade.reward, grade.verdict, dict(grade.parts), grade.reason] for grade in grades]


@cache
def _function(name: str) -> RewardFunction:
    return plugins.find(name, {}, "outdo.rewards", GraderError)


def _unpack(value: Any) -> Grades | Failure:
    if value and isinstance(value[0], str):
        return Failure(*value)
    return [None if grade is None else Grade(*grade) for grade in value]


def _in_thread(name: str, function: RewardFunction, columns: Columns, n: int, seconds: float) -> Grades | Failure:
    out: list[Grades | Failure | GraderError] = []

    def work() -> None:
        try:
            out.append(_called(name, function, columns, n))
        except GraderError as error:
            out.append(error)

    with _THREAD_LOCK:
        thread = threading.Thread(target=work, name=f"reward {name}", daemon=True)
        thread.start()
        thread.join(seconds)
    if not out:
        return Failure(f"{name}: timed out after {seconds:g} s")
    if isinstance(out[0], GraderError):
        raise out[0]
    return out[0]


def _called(name: str, function: RewardFunction, columns: Columns, n: int) -> Grades | Failure:
    try:
        values = function(**columns)
    except GraderError:
        raise
    except SandboxError as error:
        raise GraderError(str(error)) from error
    except (Exception, SystemExit) as error:
        return Failure(f"{name} raised {_describe(error)}")
    if inspect.iscoroutine(values):
        values.close()  # silences Python's warning that it was never awaited
    if not isinstance(values, (list, tuple)) or len(values) != n:
        returned = f"{len(values)} values" if isinstance(values, (list, tuple)) else f"a {type(values).__name__}"
        return Failure(f"{name} returned {returned} for {n} completions: return a list of one each", retry_alone=False)
    return [_as_grade(value, name) for value in values]


def _as_grade(value: Any, name: str) -> Grade | None:
    """A user's value: 1 or more is right, None abstains. Anything but a finite number is broken."""
    reward = value.reward if isinstance(value, Grade) else value
    if reward is None or (isinstance(value, Grade) and isinstance(reward, (int, float)) and math.isfinite(reward)):
        return value
    try:
        number = float(value) if not isinstance(value, (str, bytes)) else math.nan
    except Exception:  # a huge integer, a tensor of several values
        number = math.nan
    if not math.isfinite(number):
        return Grade(None, "broken", reason=f"{name} returned {value!r:.80}: return a finite number or None")
    return Grade(number, "right" if number >= 1.0 else "wrong")


def _describe(error: BaseException) -> str:
    """What a user's function raised, and in which line."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{place}"
