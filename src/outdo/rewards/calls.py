"""Calls a reward function where it cannot hurt the run.

Built-in graders run here: they are written not to hang. A user's named function (`file.py:function`) runs on the main
thread of a process that can be killed, a function passed as an object in a thread, abandoned past its deadline. Async
functions passed as objects share one event loop and run concurrently.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import threading
import traceback
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cache
from typing import Any

from outdo.errors import GraderError, SandboxError, describe
from outdo.recipe import plugins
from outdo.rewards.arguments import Form, Inputs
from outdo.sandbox.pool import Pool
from outdo.types import Grade, RewardFunction

Where = str  # "here", "thread", or the name by which a worker process loads the function
LOAD_SECONDS = 120.0  # for the import of a user's module, beside the time of a call
MAX_CONCURRENT = 64  # calls of async objects in flight
_GRACE_SECONDS = 1.0  # for a coroutine to end after its deadline, before its loop counts as blocked
_THREAD_LOCK = threading.Lock()  # a user's object may not be thread-safe


@dataclass(frozen=True)
class Failure:
    """A call that returned no grades, and why."""

    message: str
    retry_alone: bool = True  # False: the number of values was wrong, and may be right by chance for one answer
    abandoned: bool = False  # it may still run, in a thread


Judged = Grade | Failure | None  # of one answer
Grades = list[Grade | None]
Result = list[Judged] | Failure  # of one call


def is_async(function: Callable[..., Any]) -> bool:
    call = getattr(function, "__call__", None)  # noqa: B004  # it may be an object
    return inspect.iscoroutinefunction(inspect.unwrap(function)) or inspect.iscoroutinefunction(call)


def call(
    name: str, function: RewardFunction, where: Where, form: Form, inputs: Sequence[Inputs], seconds: float
) -> list[Result]:
    """The grades of each call's answers, or why there are none. Raises nothing but GraderError."""
    if where == "here":
        return [_called(name, function, form, one) for one in inputs]
    if where == "thread" and is_async(function):
        return _LOOP.run(name, function, form, inputs, seconds)
    if where == "thread":
        return [_in_thread(name, function, form, one, seconds) for one in inputs]
    jobs = [("outdo.rewards.calls:in_process", (where, name, form, one)) for one in inputs]
    try:
        replies = _pool().run(jobs, seconds)
    except SandboxError as error:
        raise GraderError(str(error)) from error
    except OSError as error:  # a new worker was killed before it got its job
        return [Failure(f"{name}: the worker process died: {error}")] * len(inputs)
    return [_unpack(reply.value) if reply.kind == "value" else Failure(f"{name}: {reply.message}") for reply in replies]


@cache
def _pool() -> Pool:
    # Users' functions mostly wait for servers; eight workers that import torch at once take long on few cores.
    return Pool(["outdo.rewards.calls"], slots=8, load_seconds=LOAD_SECONDS)


def in_process(where: str, name: str, form: Form, inputs: Inputs) -> Any:
    """Runs in a worker: loads the function by its name and calls it. Returns plain values."""
    grades = _called(name, _function(where), form, inputs)
    if isinstance(grades, Failure):
        return [grades.message, grades.retry_alone]
    return [_packed(grade) for grade in grades]


def _packed(grade: Judged) -> Any:
    if isinstance(grade, Failure):
        return [grade.message]
    return grade and [grade.reward, grade.verdict, dict(grade.parts), grade.reason]


@cache
def _function(name: str) -> RewardFunction:
    return plugins.find(name, {}, "outdo.rewards", GraderError)


in_process.load = _function  # type: ignore[attr-defined]


def _unpack(value: Any) -> Result:
    if value and isinstance(value[0], str):
        return Failure(*value)
    return [None if one is None else Failure(*one) if len(one) == 1 else Grade(*one) for one in value]


def _in_thread(name: str, function: RewardFunction, form: Form, inputs: Inputs, seconds: float) -> Result:
    out: list[Result | GraderError] = []

    def work() -> None:
        try:
            out.append(_called(name, function, form, inputs))
        except GraderError as error:
            out.append(error)
        finally:
            if hasattr(_THREADS, "loop"):
                _THREADS.loop.close()

    with _THREAD_LOCK:
        thread = threading.Thread(target=work, name=f"reward {name}", daemon=True)
        thread.start()
        thread.join(seconds)
    if not out:
        return Failure(f"{name}: timed out after {seconds:g} s", abandoned=True)
    if isinstance(out[0], GraderError):
        raise out[0]
    return out[0]


class _Loop:
    """An event loop on a thread of its own, for async objects: their sessions and clients belong to one loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._free = threading.BoundedSemaphore(MAX_CONCURRENT)

    def run(
        self, name: str, function: RewardFunction, form: Form, inputs: Sequence[Inputs], seconds: float
    ) -> list[Result]:
        """The results in order; the calls run concurrently, whoever made them."""
        late = Failure(f"{name}: timed out after {seconds:g} s", abandoned=True)
        futures = [self._submit(_awaited(name, function, form, one, seconds), seconds) for one in inputs]
        results: list[Result] = []
        for future in futures:
            try:
                results.append(future.result(seconds + _GRACE_SECONDS) if future else late)
            except TimeoutError:  # it blocks the loop: the next calls get another
                self._abandon()
                results.append(late)
        return results

    def _submit(self, work: Any, seconds: float) -> Future[Result] | None:
        free = self._free
        if not free.acquire(timeout=seconds + _GRACE_SECONDS):
            work.close()
            self._abandon()
            return None
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="async rewards", daemon=True).start()
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        future.add_done_callback(lambda _: free.release())
        return future

    def _abandon(self) -> None:
        with self._lock:
            self._loop, self._free = None, threading.BoundedSemaphore(MAX_CONCURRENT)


_LOOP = _Loop()


async def _awaited(name: str, function: RewardFunction, form: Form, inputs: Inputs, seconds: float) -> Result:
    if form == "one":
        calls = [asyncio.wait_for(_completed(function(**each)), seconds) for each in inputs.of_each()]
        return _each_grade(name, await asyncio.gather(*calls, return_exceptions=True), inputs, seconds)
    try:
        values = await asyncio.wait_for(_completed(function(**inputs.arguments())), seconds)
    except TimeoutError:
        return Failure(f"{name}: timed out after {seconds:g} s")
    except GraderError:
        raise
    except (Exception, SystemExit) as error:
        return Failure(f"{name} raised {_describe(error)}{_hint(error, inputs)}")
    return _as_grades(name, values, inputs.count)


def _called(name: str, function: RewardFunction, form: Form, inputs: Inputs) -> Result:
    try:
        if form == "one":
            return _each_grade(name, _called_for_each(function, inputs), inputs)
        values: Any = function(**inputs.arguments())
        if inspect.isawaitable(values):
            values = _own_loop().run_until_complete(_completed(values))
        return _as_grades(name, values, inputs.count)
    except GraderError:
        raise
    except SandboxError as error:
        raise GraderError(str(error)) from error
    except (Exception, SystemExit) as error:
        return Failure(f"{name} raised {_describe(error)}{_hint(error, inputs)}")


def _called_for_each(function: RewardFunction, inputs: Inputs) -> list[Any]:
    """What a function of one answer returns for each, or the error that it raises."""
    values: list[Any] = []
    for arguments in inputs.of_each():
        try:
            values.append(function(**arguments))
        except (GraderError, SandboxError):
            raise
        except (Exception, SystemExit) as error:
            values.append(error)
    waiting = [index for index, value in enumerate(values) if inspect.isawaitable(value)]
    if waiting:
        results = _own_loop().run_until_complete(_gathered([values[index] for index in waiting]))
        for index, result in zip(waiting, results, strict=True):
            values[index] = result
    return values


async def _gathered(values: Sequence[Awaitable[Any]]) -> list[Any]:
    return await asyncio.gather(*values, return_exceptions=True)


_THREADS = threading.local()


def _own_loop() -> asyncio.AbstractEventLoop:
    """The event loop of this thread, which stays open: a client of an earlier call may belong to it."""
    if not hasattr(_THREADS, "loop"):
        _THREADS.loop = asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = _THREADS.loop
    return loop


async def _completed(values: Any) -> Any:
    return await values


def _each_grade(name: str, values: Sequence[Any], inputs: Inputs, seconds: float = 0.0) -> list[Judged]:
    """The grades of values that a function of one answer returned or raised."""
    grades: list[Judged] = []
    for value in values:
        if isinstance(value, GraderError):
            raise value
        if isinstance(value, BaseException):
            late = isinstance(value, TimeoutError) and seconds
            why = f"{name}: timed out after {seconds:g} s" if late else f"{name} raised {_describe(value)}"
            grades.append(Failure(why))
        else:
            grades.append(_as_grade(value, name))
    return grades


def _as_grades(name: str, values: Any, n: int) -> Result:
    """The values that a function returned for n answers, as grades. Lists, tuples, tensors, arrays and other
    sequences are accepted."""
    if getattr(values, "ndim", None) == 2 and values.shape[-1] == 1:  # a reward model's column of scores
        values = values.reshape(-1)
    ordered = isinstance(values, Iterable) and not isinstance(values, (str, bytes, Mapping, set, frozenset))
    if not ordered or getattr(values, "ndim", 1) != 1:
        returned = f"an array of shape {tuple(values.shape)}" if hasattr(values, "shape") else _with_article(values)
        return Failure(f"{name} returned {returned} for {n} completions: return a list of one each", retry_alone=False)
    if hasattr(values, "tolist"):
        values = values.tolist()
    values = list(values)
    if len(values) != n:
        returned = f"{len(values)} values"
        return Failure(f"{name} returned {returned} for {n} completions: return a list of one each", retry_alone=False)
    return [_as_grade(value, name) for value in values]


def _with_article(value: Any) -> str:
    return f"a {type(value).__name__}"


def _as_grade(value: Any, name: str) -> Judged:
    """A user's value: 1 or more is right, None abstains. Anything but a finite number is a failure."""
    reward = value.reward if isinstance(value, Grade) else value
    if reward is None or (isinstance(value, Grade) and isinstance(reward, (int, float)) and math.isfinite(reward)):
        return value
    try:
        number = float(value) if not isinstance(value, (str, bytes)) else math.nan
    except Exception:  # a huge integer, a tensor of several values
        number = math.nan
    if not math.isfinite(number):
        return Failure(f"{name} returned {value!r:.80}: return a finite number or None")
    return Grade(number, "right" if number >= 1.0 else "wrong")


def _describe(error: BaseException) -> str:
    """What a user's function raised, and in which line."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return f"{describe(error)}{place}"


def _hint(error: BaseException, inputs: Inputs) -> str:
    """Where a function expects the other form of completions."""
    completions = inputs.lists.get("completions")
    first, message = completions[0] if completions else None, describe(error)
    if isinstance(error, TypeError) and isinstance(first, str) and "string ind" in message:
        return ". The completions are text, as the prompts are; reward_input=messages passes lists of messages"
    expects_text = any(word in message for word in ("list", "dict", "string"))
    if isinstance(error, (TypeError, AttributeError)) and isinstance(first, list) and expects_text:
        return (
            ". The completions are lists of messages, as the prompts are: read completion[0]['content'], or set "
            "reward_input=text"
        )
    return ""
