"""Code that is corrected after its failures were seen: the model's message has a function, the environment runs the
visible tests in the sandbox and answers with those that fail. Other tests decide, in a sandbox of their own.

Not covered: a function that is tested by what it does to its arguments.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from outdo.envs.environment import Observation
from outdo.errors import SandboxError, TaskError
from outdo.rewards.blocks import code_blocks
from outdo.rewards.code import MAX_SOURCE_CHARS, Outcome, Problem, call_each, judge, read_problem, runners, same
from outdo.sandbox.execute import ExecutionError, Raised, require_sandbox
from outdo.sandbox.jail import Limits
from outdo.tasks.repair import ATTEMPTS
from outdo.tasks.repair.problems import feedback, raised, returned
from outdo.types import Message, Prompt

SECONDS = 5.0
AGAIN = "Answer with the whole function in a Python block."


class Repair:
    """Pays 1 where the last attempt passes the visible tests and all hidden ones, and 0 else; with `partial`, the share
    of all tests that it passes. `seconds` is for the visible ones of an attempt, and again for the hidden ones. Raises
    TaskError, and SandboxError where code cannot be run."""

    blocking = True
    tools: Sequence[Any] = ()

    def __init__(self, partial: bool = False, seconds: float = SECONDS) -> None:
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds > 0:
            raise TaskError(f"environment_args.seconds={seconds!r:.40}: repair takes a number above 0")
        require_sandbox()
        self.partial, self.limits = partial, Limits(seconds)

    def reset(self, prompt: Prompt) -> Sequence[Message]:
        row = prompt.meta
        self.name = str(row.get("entry_point") or "")
        self.visible = self._problem(prompt, "visible", None)
        self.hidden = self._problem(prompt, "cases", row.get("test"))
        try:
            self.attempts = int(row.get("max_attempts") or ATTEMPTS)
        except (TypeError, ValueError):
            raise TaskError(f"repair: max_attempts={row['max_attempts']!r:.40} is not a whole number") from None
        return prompt.messages

    def step(self, message: Message) -> Observation:
        self.attempts -= 1
        content = message.get("content")
        text = content if isinstance(content, str) else ""
        problem, passed = runners().submit(self._try_visible, text).result()
        if problem and self.attempts > 0:
            return Observation([{"role": "user", "content": problem}], reward=0.0)
        if problem and not self.partial:
            return Observation(reward=0.0, done=True)
        hidden: Outcome = runners().submit(judge, text, self.hidden).result()
        if not hidden.total:
            raise SandboxError(f"repair: {hidden.reason}")
        share = (passed + hidden.passed) / (len(self.visible.cases) + hidden.total)
        return Observation(reward=share if self.partial else float(share == 1), done=True)

    def close(self) -> None: ...

    def _problem(self, prompt: Prompt, column: str, test: Any) -> Problem:
        found = read_problem(prompt.meta.get(column), self.name, test, None, self.limits)
        if isinstance(found, Outcome) or not self.name:
            reason = found.reason if isinstance(found, Outcome) else "no entry_point, the name of the function"
            raise TaskError(f"repair: prompt {prompt.id!r:.60}, column {column}: {reason}")
        return found

    def _try_visible(self, text: str) -> tuple[str, int]:
        """What the model is shown of the visible tests, nothing where all are passed; and how many are."""
        blocks = [block for block in code_blocks(text) if block.strip()]
        if not blocks or sum(map(len, blocks)) > MAX_SOURCE_CHARS:
            return f"{'Too much code.' if blocks else 'No code.'} {AGAIN}", 0
        cases, deadline = self.visible.cases, time.monotonic() + self.limits.seconds
        try:
            values = call_each(blocks, self.name, cases, self.limits, deadline)
        except ExecutionError as error:
            return f"The function cannot be run: {error}. {AGAIN}", 0
        failures = [_failure(case["expected"], value) for case, value in zip(cases, values, strict=True)]
        return feedback(self.name, cases, failures) if any(failures) else "", failures.count("")


def _failure(expected: Any, value: Any) -> str:
    if isinstance(value, Raised):
        return raised(value.kind, value.message)
    if isinstance(value, ExecutionError):
        return str(value)
    return "" if same(expected, value) else returned(value)
