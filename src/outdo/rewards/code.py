"""Grades code by running it in the sandbox against tests that it never sees.

Three forms, by the columns of the row:

    entry_point, cases: [{"args": […], "kwargs": {…}, "expected": …}]    a function, called once for each case
    cases: [{"stdin": "…", "stdout": "…"}]                               a program, run once for each case
    entry_point, test: "def check(candidate): …"                         HumanEval's

Expected values never enter the sandbox: inputs go in, values come out, and the comparison is made here, between plain
values. HumanEval's `check` runs in a sandbox of its own; its candidate forwards calls to the sandbox of the answer.

An answer's exceptions, NaN and infinity reach that `check` only where it expects them (`checks.py`). Which block of an
answer is its code is decided in the sandbox (`sandbox/sources.py`), and what results may be beyond plain values in
`sandbox/values.py`.

Not covered: functions tested by how they change their arguments, or that take or return functions.
"""

from __future__ import annotations

import ast
import math
import os
import reprlib
import secrets
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cache, lru_cache
from typing import Any

from outdo.rewards.blocks import code_blocks, source_of
from outdo.rewards.checks import Expected, expected_by, has_nan
from outdo.sandbox import inside
from outdo.sandbox.execute import ExecutionError, Forged, Raised, Sandbox, printable, require_sandbox, run_program
from outdo.sandbox.jail import Limits
from outdo.types import Grade

TIMEOUT = 10.0  # seconds for all the cases of one answer
MAX_SOURCE_CHARS = 2**18
_REAL = (int, float, Fraction, Decimal)


@dataclass(frozen=True)
class Problem:
    """The tests of an answer, and its limits."""

    cases: Sequence[Mapping[str, Any]]
    entry_point: str
    test: str
    prompt: str  # Python code before the answer, or empty
    preamble: str  # the same before the test: a function without a body has one here
    limits: Limits


@dataclass(frozen=True)
class Outcome:
    passed: int
    total: int  # 0: there are no valid tests
    reason: str = ""  # the first failure


def code(completions: list[str], **columns: Any) -> list[Grade]:
    """1 where the code passes every case; else 0. The code is the last block that defines the function, or all text."""
    return [_grade(o, float(o.passed == o.total)) for o in _outcomes(completions, **columns)]


def code_fraction(completions: list[str], **columns: Any) -> list[Grade]:
    """The fraction of cases that the code passes; right only where it passes all."""
    return [_grade(o, o.passed / max(1, o.total)) for o in _outcomes(completions, **columns)]


def _grade(outcome: Outcome, reward: float) -> Grade:
    if not outcome.total:
        return Grade(None, "broken", reason=outcome.reason)
    right, passed = outcome.passed == outcome.total, f"{outcome.passed} of {outcome.total} cases passed"
    return Grade(reward, "right" if right else "wrong", reason=passed if right else f"{passed}; {outcome.reason}")


@cache
def runners() -> ThreadPoolExecutor:
    """As many sandboxes in parallel as there are cores, over all calls."""
    return ThreadPoolExecutor(os.cpu_count() or 1, "sandbox")


def _outcomes(
    completions: list[str],
    prompts: Sequence[str] = (),
    cases: Sequence[Any] = (),
    entry_point: Sequence[Any] = (),
    test: Sequence[Any] = (),
    reward_timeout: float = TIMEOUT,
    **columns: object,
) -> list[Outcome]:
    require_sandbox()
    limits = Limits(reward_timeout)
    columns_P = [list(column) or [None] * len(completions) for column in (cases, entry_point, test, prompts)]
    problems: dict[Any, Problem | Outcome] = {}  # the answers to one problem share its columns
    running: dict[Any, Future[Outcome]] = {}  # equal answers to one problem are run once
    outcomes: list[Outcome | Future[Outcome]] = []
    for text, row in zip(completions, zip(*columns_P, strict=True), strict=True):
        key = tuple(map(id, row))
        if key not in problems:
            expected, name, check, prompt = row
            problems[key] = read_problem(expected, name, check, prompt, limits)
        problem = problems[key]
        if isinstance(problem, Problem) and (text, key) not in running:
            running[text, key] = runners().submit(judge, text, problem)
        outcomes.append(running[text, key] if isinstance(problem, Problem) else problem)
    return [done if isinstance(done, Outcome) else done.result() for done in outcomes]


def read_problem(cases: Any, entry_point: Any, test: Any, prompt: Any, limits: Limits) -> Problem | Outcome:
    """The problem of a row, or an outcome that says why its columns are not valid."""
    try:
        name, python = _name(entry_point), _as_python(str(prompt or ""))
        if isinstance(test, str) and test.strip():
            if not name:
                raise ValueError("`test` needs `entry_point`, the name of the function that it checks")
            return Problem((), name, test, *python, limits)
        if not isinstance(cases, Sequence) or isinstance(cases, (str, bytes)) or not cases:
            raise ValueError("no cases: give `cases`, or `test` and `entry_point`")
        parsed = [(_call if name else _run)(case, f"cases[{i}]") for i, case in enumerate(cases)]
        return Problem(parsed, name, "", *(python if name else ("", "")), limits)
    except (ValueError, TypeError, RecursionError) as error:
        return Outcome(0, 0, str(error))


def _name(entry_point: Any) -> str:
    entry_point = entry_point.replace("().", ".") if isinstance(entry_point, str) else entry_point
    parts = str(entry_point or "").split(".")
    if entry_point and (len(parts) > 2 or not all(map(str.isidentifier, parts))):
        raise ValueError(f"entry_point must be a function name or Class.method, not {entry_point!r:.60}")
    return str(entry_point or "")


def _call(case: Any, where: str) -> Mapping[str, Any]:
    """One call of a function, checked strictly: only plain values can be sent and compared."""
    if not isinstance(case, Mapping) or "expected" not in case:
        raise ValueError(f"{where} needs `expected`; it is {case!r:.60}")
    args, kwargs = case.get("args") or [], case.get("kwargs") or {}
    if not isinstance(args, (list, tuple)) or not isinstance(kwargs, Mapping) or not all(map(_is_text, kwargs)):
        raise ValueError(f"{where}: args must be a list and kwargs an object")
    call = {"args": list(args), "kwargs": dict(kwargs), "expected": case["expected"]}
    try:
        size = len(inside.encode(call))
    except (TypeError, RecursionError):
        raise ValueError(f"{where} holds a value that is not plain, or is nested too deep") from None
    if size > inside.MAX_FRAME_BYTES:
        raise ValueError(f"{where} is larger than {inside.MAX_FRAME_BYTES} bytes")
    return call


def _run(case: Any, where: str) -> Mapping[str, Any]:
    """One run of a program."""
    if not isinstance(case, Mapping) or not (_is_text(case.get("stdin")) and _is_text(case.get("stdout"))):
        raise ValueError(f"{where} needs `stdin` and `stdout`, both text; it is {case!r:.60}")
    if len(case["stdout"].encode("utf-8", "replace")) > Limits.output:
        raise ValueError(f"{where}: stdout exceeds the {Limits.output} bytes that a program may print")
    return case


def _is_text(value: Any) -> bool:
    return type(value) is str


def judge(text: str, problem: Problem) -> Outcome:
    """Runs the code of an answer against the tests."""
    total = 1 if problem.test else len(problem.cases)
    blocks = [block for block in code_blocks(text) if block.strip()]
    if not blocks or sum(map(len, blocks)) > MAX_SOURCE_CHARS:
        return Outcome(0, total, "too much code" if blocks else "no code in the answer")
    deadline = time.monotonic() + problem.limits.seconds
    try:
        if problem.test:
            return _run_check(blocks, problem, deadline)
        return (_run_function if problem.entry_point else _run_programs)(blocks, problem, deadline)
    except Forged as error:
        return Outcome(0, total, str(error))
    except OSError as error:  # out of processes, memory or descriptors: not the answer's fault
        return Outcome(0, 0, f"cannot start a sandbox: {error}")


@lru_cache(maxsize=1024)
def _as_python(prompt: str) -> tuple[str, str]:
    """A prompt that is Python (HumanEval's) or its last fenced block where that is, and the same with a body.

    It may end after the head of a function, which has no body then. Empty for prose.
    """
    for text in (prompt, source_of(prompt)):
        for body in ("", "\n    pass\n"):
            try:
                if len(text) <= MAX_SOURCE_CHARS and "def " in text:
                    ast.parse(text + body)
                    return text, text + body
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                continue
    return "", ""


def _run_function(blocks: list[str], problem: Problem, deadline: float) -> Outcome:
    try:
        results = call_each(blocks, problem.entry_point, problem.cases, problem.limits, deadline, problem.prompt)
    except ExecutionError as error:
        if isinstance(error, Forged):
            raise
        return Outcome(0, len(problem.cases), str(error))
    failures = [_failure(case["expected"], value) for case, value in zip(problem.cases, results, strict=True)]
    reason = next((f"cases[{index}]: {failure}" for index, failure in enumerate(failures) if failure), "")
    return Outcome(failures.count(""), len(failures), reason)


def call_each(
    blocks: list[str], name: str, cases: Sequence[Mapping[str, Any]], limits: Limits, deadline: float, prompt: str = ""
) -> list[Any]:
    """Calls a function in the sandbox once for each case; what it returned, or the ExecutionError that it ended with. A
    case that ends the process gets the next a new one. Raises ExecutionError where the function cannot be loaded."""
    results: list[Any] = []
    while len(results) < len(cases):
        calls = len(results)
        try:
            with Sandbox(limits, deadline=deadline) as sandbox:
                sandbox.load(blocks, name, prompt)
                while len(results) < len(cases):
                    calls += 1
                    results.append(_called(sandbox, cases[len(results)]))
                sandbox.request(op="done")  # reveals any forged reply still in the pipe
        except Forged:
            raise
        except ExecutionError as error:
            if not calls:
                raise
            if len(results) < calls:
                results.append(error)
            if time.monotonic() > deadline:
                results += [error] * (len(cases) - len(results))
    return results


def _called(sandbox: Sandbox, case: Mapping[str, Any]) -> Any:
    try:
        return sandbox.call(case.get("args") or [], case.get("kwargs") or {})
    except Raised as error:
        return error


def _failure(expected: Any, value: Any) -> str:
    """Why a case is not passed; "" where it is."""
    if isinstance(value, ExecutionError):
        return str(value)
    return "" if same(expected, value) else f"returned {_shown(value)}, not the expected value"


def _shown(value: Any) -> str:
    try:
        return f"{reprlib.repr(value):.60}"
    except ValueError:  # an integer too long for Python to write in decimal
        return "a very large integer"


def _run_programs(blocks: list[str], problem: Problem, deadline: float) -> Outcome:
    """Runs a program once for each case. White space at the end of a line and of the output is ignored."""
    passed, reason = 0, ""
    for index, case in enumerate(problem.cases):
        try:
            result = run_program(blocks, case["stdin"], problem.limits, deadline)
            last_line = printable("".join(result.stderr.strip().splitlines()[-1:]), 200)
            failure = f"exited with status {result.status}: {last_line}" if result.status else ""
            failure = failure or ("" if _lines(result.stdout) == _lines(case["stdout"]) else "printed something else")
        except ExecutionError as error:
            failure = str(error)
        passed += not failure
        reason = reason or (failure and f"cases[{index}]: {failure}")
    return Outcome(passed, len(problem.cases), reason)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


def _run_check(blocks: list[str], problem: Problem, deadline: float) -> Outcome:
    """HumanEval: forwards calls from the sandbox of the tests to that of the answer, and values back.

    The tests run up to their first call before the answer is loaded, so that it cannot make them look broken. From then
    on all time spent is the answer's.
    """
    with (
        Sandbox(problem.limits, deadline=deadline) as judge,
        Sandbox(problem.limits, deadline=deadline) as worker,
        ExitStack() as ending,
    ):
        ending.callback(judge.end)  # both end at the same time
        nonce = secrets.token_hex(16)
        try:
            message = _first_call(judge, nonce, problem)
        except ExecutionError as error:
            return Outcome(0, 0, f"the tests fail before they call the function: {error}")
        if message is None:
            return Outcome(0, 0, "the tests never call the function")
        judge.deadline = worker.deadline = time.monotonic() + problem.limits.seconds
        try:
            worker.load(blocks, problem.entry_point, problem.prompt)
            while message.get("call") == nonce:
                judge.send(_forward(worker, judge, message, expected_by(problem.test)))
                message = judge.receive()
            judge.result(message, nonce)
            worker.request(op="done")
        except ExecutionError as error:
            return Outcome(0, 1, str(error))
        return Outcome(1, 1)


def _first_call(judge: Sandbox, nonce: str, problem: Problem) -> dict[str, Any] | None:
    """Starts the tests; None where they end without a call."""
    judge.send(
        {"op": "check", "nonce": nonce, "name": problem.entry_point, "prompt": problem.preamble, "test": problem.test}
    )
    message = judge.receive()
    if message.get("call") == nonce:
        return message
    judge.result(message, nonce)
    return None


def _forward(worker: Sandbox, judge: Sandbox, message: dict[str, Any], expected: Expected) -> dict[str, Any]:
    """The reply of the answer to a call of the tests. Raises ExecutionError for one that they must not see."""
    args, kwargs = message.get("args"), message.get("kwargs")
    if not isinstance(judge.value(args), tuple) or not isinstance(judge.value(kwargs), dict):
        raise Forged("a call without arguments")
    try:
        encoded, value = worker.forward(args, kwargs)
    except Raised as error:
        kinds = expected.passes(error.kinds)
        if not kinds:
            raise
        reply = {"raised": kinds, "message": error.message}
        return reply if error.encoded_args is None else {**reply, "args": error.encoded_args}
    if reason := expected.refuses(value):
        raise ExecutionError(f"the code {reason}, which the tests do not expect")
    return {"value": encoded, "has_nan": has_nan(value)}


def same(expected: Any, value: Any) -> bool:
    """Python's equality of plain values, with three differences.

    True is not 1. Numbers may differ in the last digits. A tuple equals an expected list, because JSON has no tuples.
    """
    if isinstance(expected, bool) or isinstance(value, bool):
        return expected is value
    if isinstance(expected, _REAL) and isinstance(value, _REAL):
        return _same_number(expected, value)
    if isinstance(expected, (list, tuple)) and isinstance(value, (list, tuple)):
        compatible = isinstance(expected, list) or isinstance(value, tuple)
        return compatible and len(expected) == len(value) and all(map(same, expected, value))
    if isinstance(expected, dict) and isinstance(value, dict):
        return expected.keys() == value.keys() and all(same(expected[key], value[key]) for key in expected)
    if isinstance(expected, (set, frozenset)) and isinstance(value, (set, frozenset)):
        return expected == value
    return type(expected) is type(value) and bool(expected == value)


def _same_number(expected: Any, value: Any) -> bool:
    """Equal, or equal but for rounding: relative to the expected value, or near 0 where that is 0."""
    if isinstance(expected, int) and isinstance(value, int):
        return expected == value
    try:
        x, y = float(expected), float(value)
        close = math.isclose(x, y, rel_tol=1e-9) or (x == 0 and abs(y) < 1e-12)
        if isinstance(expected, int) or isinstance(value, int):  # integers have no last digits to round
            return bool(expected == value) or (close and 0 < abs(expected - value) < 1e-3)
        return close or (math.isnan(x) and math.isnan(y))
    except (OverflowError, TypeError):  # an integer beyond the range of floats, or a Decimal less a float
        return bool(expected == value)
