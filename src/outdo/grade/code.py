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
import secrets
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from outdo.grade.answer import after_thinking
from outdo.grade.jail import Limits
from outdo.grade.sandbox import Forged, Raised, Sandbox, SandboxFailure, require_sandbox, run_program
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
    running: dict[Any, Any] = {}  # equal answers to one problem are run once
    keys = []
    for text, given, name, tests, prompt in zip(completions, *columns_P, strict=True):
        key = (text, id(given), name, tests)
        keys.append(key)
        if key not in running:
            try:
                running[key] = _runners().submit(_judge, text, _problem(given, name, tests, prompt, limits))
            except ValueError as error:
                running[key] = Outcome(0, 0, str(error))
    return [found if isinstance(found := running[key], Outcome) else found.result() for key in keys]


def _problem(cases: Any, entry_point: Any, test: Any, prompt: Any, limits: Limits) -> Problem:
    """The row's columns in order. Raises ValueError for a row that nothing can be judged by."""
    if isinstance(test, str) and test.strip():
        if not isinstance(entry_point, str):
            raise ValueError("`test` needs `entry_point`, the name of the function that it checks")
        return Problem((), entry_point, test, _as_python(str(prompt or "")), limits)
    if not isinstance(cases, Sequence) or isinstance(cases, str) or not cases:
        raise ValueError("there are no cases: give `cases`, or `test` and `entry_point`")
    wanted = {"expected"} if entry_point else {"stdin", "stdout"}
    for i, case in enumerate(cases):
        if not isinstance(case, Mapping) or not wanted <= case.keys():
            raise ValueError(f"cases[{i}] needs {' and '.join(sorted(wanted))}; it is {case!r:.60}")
        if not entry_point and not all(isinstance(case[key], str) for key in wanted):
            raise ValueError(f"cases[{i}]: stdin and stdout are text")
        if not isinstance(case.get("args", []), (list, tuple)) or not isinstance(case.get("kwargs", {}), Mapping):
            raise ValueError(f"cases[{i}]: args is a list and kwargs an object")
    return Problem(cases, str(entry_point or ""), "", _as_python(str(prompt or "")) if entry_point else "", limits)


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
    ends = time.monotonic() + problem.limits.seconds
    try:
        if problem.test:
            return _checked(source, problem, ends)
        return (_called if problem.entry_point else _printed)(source, problem, ends)
    except Forged as error:
        return Outcome(0, total, str(error))


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


def _called(source: str, problem: Problem, ends: float) -> Outcome:
    """A function: each case's value. Where a case ends the process, the next begins with a new one."""
    passed, reason, waiting = 0, "", list(enumerate(problem.cases))
    while waiting:
        try:
            with Sandbox(problem.limits, ends=ends) as sandbox:
                sandbox.ask(op="load", source=source, name=problem.entry_point)
                while waiting:
                    index, case = waiting.pop(0)
                    failure = _failure(sandbox, case)
                    passed += not failure
                    reason = reason or (failure and f"cases[{index}]: {failure}")
                sandbox.ask(op="done")  # whatever else it has said comes to light here
        except Forged:
            raise
        except SandboxFailure as error:
            started = len(waiting) < len(problem.cases)
            reason = reason or (f"cases[{index}]: {error}" if started else str(error))
            if not started or time.monotonic() > ends:
                break
    return Outcome(passed, len(problem.cases), reason)


def _failure(sandbox: Sandbox, case: Mapping[str, Any]) -> str:
    try:
        value = sandbox.call(list(case.get("args", [])), dict(case.get("kwargs", {})))
    except Raised as error:
        return str(error)
    return "" if same(case["expected"], value) else f"it returned {value!r:.60}, which is not right"


def _printed(source: str, problem: Problem, ends: float) -> Outcome:
    """A program: what it prints, line by line; white space at the end of a line and of the whole does not count."""
    passed, reason = 0, ""
    for index, case in enumerate(problem.cases):
        try:
            did = run_program(source, case["stdin"], problem.limits, ends)
            words = did.stderr.strip().splitlines()
            failure = f"it ended with status {did.status}: {''.join(words[-1:])}" if did.status else ""
            failure = failure or ("" if _lines(did.stdout) == _lines(case["stdout"]) else "it printed something else")
        except SandboxFailure as error:
            failure = str(error)
        passed += not failure
        reason = reason or (failure and f"cases[{index}]: {failure}")
    return Outcome(passed, len(problem.cases), reason)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


def _checked(source: str, problem: Problem, ends: float) -> Outcome:
    """HumanEval's form: calls are carried from the sandbox of the tests to that of the answer, and values back."""
    with Sandbox(problem.limits, ends=ends) as judge, Sandbox(problem.limits, ends=ends) as worker:
        calls, nonce = 0, secrets.token_hex(16)
        try:
            worker.ask(op="load", source=source, name=problem.entry_point)
        except SandboxFailure as error:
            return Outcome(0, 1, str(error))
        judge.send(
            {"op": "check", "nonce": nonce, "name": problem.entry_point, "prompt": problem.prompt, "test": problem.test}
        )
        try:
            while (message := judge.receive()).get("call") == nonce:
                calls += 1
                judge.send(_carried(worker, judge.value(message["args"]), judge.value(message["kwargs"])))
            judge.result(message, nonce)
            worker.ask(op="done")
        except SandboxFailure as error:
            return Outcome(0, int(calls > 0), str(error) if calls else f"the tests do not run: {error}")
        return Outcome(int(calls > 0), int(calls > 0), "" if calls else "the tests never call the function")


def _carried(worker: Sandbox, args: Any, kwargs: Any) -> dict[str, Any]:
    try:
        return {"value": worker.call(list(args), kwargs)}
    except Raised as error:
        return {"raised": error.kind, "words": error.words}


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
        return math.isclose(x, y, rel_tol=1e-9, abs_tol=1e-12) or (math.isnan(x) and math.isnan(y))
    except OverflowError:  # an integer past every float
        return False
