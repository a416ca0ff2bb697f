"""Code that is judged by running it, in the sandbox, against tests that it never sees.

Three forms, by the columns that a row has:

    entry_point, cases: [{"args": […], "kwargs": {…}, "expected": …}]    a function, called once for each case
    cases: [{"stdin": "…", "stdout": "…"}]                               a program, run once for each case
    entry_point, test: "def check(candidate): …"                         HumanEval's

Expected values stay on this side: inputs go in, values come out, and the comparison is made here, between plain values.
HumanEval's `check` runs in a sandbox of its own, and the candidate it is given only passes calls on to the other one.

Not covered: functions that are judged by what they do to their arguments, or that take or return anything but plain
values (numbers, text, bytes, None, lists, tuples, dicts and sets of them).
"""

from __future__ import annotations

import ast
import math
import os
import re
import reprlib
import secrets
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from outdo.rewards.answer import after_thinking
from outdo.sandbox import inside
from outdo.sandbox.execute import ExecutionError, Forged, Raised, Sandbox, printable, require_sandbox, run_program
from outdo.sandbox.jail import Limits
from outdo.types import Grade

SECONDS = 10.0  # for all the cases of one answer
_LONGEST = 2**18  # characters of a source
_FENCE = re.compile(r"^[ \t]*```.*$", re.MULTILINE)


@dataclass(frozen=True)
class Problem:
    """What an answer is run against, and for how long."""

    cases: Sequence[Mapping[str, Any]]
    entry_point: str
    test: str
    prompt: str  # Python that stands before the answer and the test, or nothing
    limits: Limits


@dataclass(frozen=True)
class Outcome:
    passed: int
    total: int  # 0: there was nothing to judge by
    reason: str = ""  # of the first failure


def code(completions: list[str], **columns: Any) -> list[Grade]:
    """1 where the code passes every case; else 0. The code is the answer's last fenced block, or all of it."""
    return [_grade(o, float(o.passed == o.total)) for o in _outcomes(completions, **columns)]


def code_fraction(completions: list[str], **columns: Any) -> list[Grade]:
    """The share of the cases that the code passes; right only where it passes all."""
    return [_grade(o, o.passed / max(1, o.total)) for o in _outcomes(completions, **columns)]


def _grade(outcome: Outcome, reward: float) -> Grade:
    if not outcome.total:
        return Grade(None, "broken", reason=outcome.reason)
    passed = f"{outcome.passed} of {outcome.total} cases passed"
    if outcome.passed == outcome.total:
        return Grade(reward, "right", reason=passed)
    return Grade(reward, "wrong", reason=f"{passed}; {outcome.reason}")


@cache
def _runners() -> ThreadPoolExecutor:
    """As many sandboxes at once as there are cores, whoever asks."""
    return ThreadPoolExecutor(os.cpu_count() or 1, "sandbox")


def _outcomes(
    completions: list[str],
    prompts: Sequence[str] = (),
    cases: Sequence[Any] = (),
    entry_point: Sequence[Any] = (),
    test: Sequence[Any] = (),
    reward_timeout: float = SECONDS,
    **columns: object,
) -> list[Outcome]:
    require_sandbox()
    limits = Limits(reward_timeout)
    columns_P = [list(column) or [None] * len(completions) for column in (cases, entry_point, test, prompts)]
    problems: dict[Any, Problem | Outcome] = {}  # the answers to one problem share its columns
    running: dict[Any, Future[Outcome]] = {}  # equal answers to one problem are run once
    outcomes: list[Outcome | Future[Outcome]] = []
    for text, row in zip(completions, zip(*columns_P, strict=True), strict=True):
        which = tuple(map(id, row))
        if which not in problems:
            problems[which] = _problem(row, limits)
        problem = problems[which]
        if isinstance(problem, Problem) and (text, which) not in running:
            running[text, which] = _runners().submit(_judge, text, problem)
        outcomes.append(running[text, which] if isinstance(problem, Problem) else problem)
    return [found if isinstance(found, Outcome) else found.result() for found in outcomes]


def _problem(row: tuple[Any, ...], limits: Limits) -> Problem | Outcome:
    """The row's columns in order, or why nothing can be judged by them."""
    cases, entry_point, test, prompt = row
    try:
        name, python = _name(entry_point), _as_python(str(prompt or ""))
        if isinstance(test, str) and test.strip():
            if not name:
                raise ValueError("`test` needs `entry_point`, the name of the function that it checks")
            return Problem((), name, test, python, limits)
        if not isinstance(cases, Sequence) or isinstance(cases, (str, bytes)) or not cases:
            raise ValueError("there are no cases: give `cases`, or `test` and `entry_point`")
        read = [(_call if name else _run)(case, f"cases[{i}]") for i, case in enumerate(cases)]
        return Problem(read, name, "", python if name else "", limits)
    except (ValueError, TypeError, RecursionError) as error:
        return Outcome(0, 0, str(error))


def _name(entry_point: Any) -> str:
    parts = str(entry_point or "").split(".")
    if entry_point and (len(parts) > 2 or not all(map(str.isidentifier, parts))):
        raise ValueError(f"entry_point is the name of a function, or Class.method; it is {entry_point!r:.60}")
    return str(entry_point or "")


def _call(case: Any, where: str) -> Mapping[str, Any]:
    """One call of a function, read strictly: what is no plain value cannot be sent, nor compared."""
    if not isinstance(case, Mapping) or "expected" not in case:
        raise ValueError(f"{where} needs expected; it is {case!r:.60}")
    args, kwargs = case.get("args") or [], case.get("kwargs") or {}
    if not isinstance(args, (list, tuple)) or not isinstance(kwargs, Mapping) or not all(map(_is_text, kwargs)):
        raise ValueError(f"{where}: args is a list and kwargs an object")
    call = {"args": list(args), "kwargs": dict(kwargs), "expected": case["expected"]}
    try:
        size = len(inside.encode(call))
    except (TypeError, RecursionError):
        raise ValueError(f"{where} holds something that is not a plain value, or too deep") from None
    if size > inside.MAX_FRAME_BYTES:
        raise ValueError(f"{where} is larger than {inside.MAX_FRAME_BYTES} bytes")
    return call


def _run(case: Any, where: str) -> Mapping[str, Any]:
    """One run of a program."""
    if not isinstance(case, Mapping) or not (_is_text(case.get("stdin")) and _is_text(case.get("stdout"))):
        raise ValueError(f"{where} needs stdin and stdout, which are text; it is {case!r:.60}")
    if len(case["stdout"].encode("utf-8", "replace")) > Limits.output:
        raise ValueError(f"{where}: stdout is more than the {Limits.output} bytes that a program may print")
    return case


def _is_text(value: Any) -> bool:
    return type(value) is str


def _judge(text: str, problem: Problem) -> Outcome:
    total = 1 if problem.test else len(problem.cases)
    source = source_of(text)
    if not source.strip() or len(source) > _LONGEST:
        return Outcome(0, total, "no code in the answer" if not source.strip() else "too much code")
    if problem.entry_point:
        whole = re.search(
            rf"^(?:async )?(?:def|class) {re.escape(problem.entry_point.partition('.')[0])}\b", source, re.M
        )
        glue = "\n\n" if whole else ""  # a body goes on where the prompt stops
        source = problem.prompt + glue + source
    deadline = time.monotonic() + problem.limits.seconds
    try:
        if problem.test:
            return _checked(source, problem, deadline)
        return (_called if problem.entry_point else _printed)(source, problem, deadline)
    except Forged as error:
        return Outcome(0, total, str(error))
    except OSError as error:  # no process, no memory or no descriptor left: not the answer's doing
        return Outcome(0, 0, f"no sandbox could be started: {error}")


def source_of(text: str) -> str:
    """The code of an answer: its last fenced block, else what its answer tags hold, else all of it."""
    text = after_thinking(text) or ""
    fences = list(_FENCE.finditer(text))
    if fences:
        opening = fences[-2] if len(fences) % 2 == 0 else fences[-1]
        return text[opening.end() : fences[-1].start() if len(fences) % 2 == 0 else len(text)].removeprefix("\n")
    _, opened, rest = text.partition("<answer>")
    inside, closed, _ = rest.rpartition("</answer>")
    return inside if opened and closed else text


@lru_cache(maxsize=1024)
def _as_python(prompt: str) -> str:
    """A prompt that is Python (HumanEval's), or its last fenced block that is; nothing where it is prose."""
    for text in (prompt, source_of(prompt)):
        try:
            if len(text) <= _LONGEST and "def " in text:
                ast.parse(text)
                return text
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
    return ""


def _called(source: str, problem: Problem, deadline: float) -> Outcome:
    """A function: each case's value. Where a case ends the process, the next begins with a new one."""
    passed, reason, waiting = 0, "", list(enumerate(problem.cases))
    while waiting:
        try:
            with Sandbox(problem.limits, deadline=deadline) as sandbox:
                sandbox.request(op="load", source=source, name=problem.entry_point)
                while waiting:
                    index, case = waiting.pop(0)
                    failure = _failure(sandbox, case)
                    passed += not failure
                    reason = reason or (failure and f"cases[{index}]: {failure}")
                sandbox.request(op="done")  # whatever else it has said comes to light here
        except Forged:
            raise
        except ExecutionError as error:
            started = len(waiting) < len(problem.cases)
            reason = reason or (f"cases[{index}]: {error}" if started else str(error))
            if not started or time.monotonic() > deadline:
                break
    return Outcome(passed, len(problem.cases), reason)


def _failure(sandbox: Sandbox, case: Mapping[str, Any]) -> str:
    try:
        value = sandbox.call(case["args"], case["kwargs"])
    except Raised as error:
        return str(error)
    return "" if same(case["expected"], value) else f"it returned {_shown(value)}, which is not right"


def _shown(value: Any) -> str:
    try:
        return f"{reprlib.repr(value):.60}"
    except ValueError:  # a number that Python does not write in decimal
        return "a very long number"


def _printed(source: str, problem: Problem, deadline: float) -> Outcome:
    """A program: what it prints, line by line; white space at the end of a line and of the whole does not count."""
    passed, reason = 0, ""
    for index, case in enumerate(problem.cases):
        try:
            did = run_program(source, case["stdin"], problem.limits, deadline)
            failure = f"it ended with status {did.status}: {_last_line(did.stderr)}" if did.status else ""
            failure = failure or ("" if _lines(did.stdout) == _lines(case["stdout"]) else "it printed something else")
        except ExecutionError as error:
            failure = str(error)
        passed += not failure
        reason = reason or (failure and f"cases[{index}]: {failure}")
    return Outcome(passed, len(problem.cases), reason)


def _last_line(text: str) -> str:
    return printable("".join(text.strip().splitlines()[-1:]), 200)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


def _checked(source: str, problem: Problem, deadline: float) -> Outcome:
    """HumanEval's form: calls are carried from the sandbox of the tests to that of the answer, and values back.

    The tests run up to their first call before the answer does anything, so nothing that it does can make them look
    broken. From then on all the time that is spent is the answer's.
    """
    with Sandbox(problem.limits, deadline=deadline) as judge, Sandbox(problem.limits, deadline=deadline) as worker:
        nonce = secrets.token_hex(16)
        try:
            message = _first_call(judge, nonce, problem)
        except ExecutionError as error:
            return Outcome(0, 0, f"the tests do not run: {error}")
        if message is None:
            return Outcome(0, 0, "the tests never call the function")
        judge.deadline = worker.deadline = time.monotonic() + problem.limits.seconds
        try:
            worker.request(op="load", source=source, name=problem.entry_point)
            while message.get("call") == nonce:
                judge.send(_carried(worker, judge.value(message.get("args")), judge.value(message.get("kwargs"))))
                message = judge.receive()
            judge.result(message, nonce)
            worker.request(op="done")
        except ExecutionError as error:
            return Outcome(0, 1, str(error))
        return Outcome(1, 1)


def _first_call(judge: Sandbox, nonce: str, problem: Problem) -> dict[str, Any] | None:
    """Starts the tests; None where they end without a call."""
    judge.send(
        {"op": "check", "nonce": nonce, "name": problem.entry_point, "prompt": problem.prompt, "test": problem.test}
    )
    message = judge.receive()
    if message.get("call") == nonce:
        return message
    judge.result(message, nonce)
    return None


def _carried(worker: Sandbox, args: Any, kwargs: Any) -> dict[str, Any]:
    if not isinstance(args, tuple) or not isinstance(kwargs, dict):
        raise Forged("a call without arguments")
    try:
        return {"value": worker.call(list(args), kwargs)}
    except Raised as error:
        return {"raised": error.kind, "message": error.message}


def same(expected: Any, value: Any) -> bool:
    """Python's equality between plain values, with three differences.

    True is not 1. Floats may differ in the last digits. A tuple is equal to a list where the list is expected, because
    JSON has no tuples.
    """
    if isinstance(expected, bool) or isinstance(value, bool):
        return expected is value
    if isinstance(expected, (int, float)) and isinstance(value, (int, float)):
        return _same_number(expected, value)
    if isinstance(expected, (list, tuple)) and isinstance(value, (list, tuple)):
        alike = isinstance(expected, list) or isinstance(value, tuple)
        return alike and len(expected) == len(value) and all(map(same, expected, value))
    if isinstance(expected, dict) and isinstance(value, dict):
        return expected.keys() == value.keys() and all(same(expected[key], value[key]) for key in expected)
    return type(expected) is type(value) and bool(expected == value)


def _same_number(x: float, y: float) -> bool:
    if isinstance(x, int) and isinstance(y, int):
        return x == y
    try:
        near = math.isclose(x, y, rel_tol=1e-9, abs_tol=1e-12)
        if isinstance(x, int) or isinstance(y, int):  # a whole number has no last digits to differ in
            return x == y or (near and 0 < abs(x - y) < 1e-3)
        return near or (math.isnan(x) and math.isnan(y))
    except OverflowError:  # an integer past every float
        return False
