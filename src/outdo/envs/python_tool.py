"""The tool `python`: the model's code in the sandbox, one interpreter for each answer, which keeps what it defines.

It starts with the first call and ends with the answer. A call that takes too long, or that ends its interpreter, gets
an error message that says so, and the next call a new interpreter. Code never runs outside of the sandbox.
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

from outdo.envs.calls import MAX_CHARS, CallError, Direct
from outdo.envs.environment import Tool
from outdo.envs.threads import run
from outdo.envs.tools import tool_of
from outdo.errors import ToolError
from outdo.sandbox.execute import ExecutionError, Forged, Sandbox, require_sandbox
from outdo.sandbox.jail import Limits

START_SECONDS = 60.0  # for the interpreter to start, which is not the model's time
CPU_CALLS = 20  # how many calls' seconds of CPU time one interpreter has: its threads may stay busy between calls
MAX_STARTING = 8  # interpreters that start at once
LOST = "What was defined before is lost: the next call gets a new interpreter."
NOTE = "The last call took too long: what was defined before is lost, and this is a new interpreter.\n"
_STARTING = threading.BoundedSemaphore(MAX_STARTING)


def python(code: str) -> str:
    """Runs Python code and returns what it prints, and the value of its last line where that is an expression.
    Variables and functions are kept for later calls. There is no network.

    Args:
        code: The code to run

    Returns:
        What the code printed, and the value of its last line
    """
    raise NotImplementedError("runs in the sandbox alone: PythonSession")


def make_python_tool(seconds: float = 5.0, memory_mb: int = 512, packages: bool = False) -> Tool:
    """The tool. Raises SandboxError where there is no sandbox, and ToolError for limits that are none."""
    if not 0 < seconds <= 3600:
        raise ToolError(f"tools: python: seconds={seconds:g}: more than 0, and at most 3600")
    if memory_mb < 32:
        raise ToolError(f"tools: python: memory_mb={memory_mb}: the interpreter alone needs 32")
    require_sandbox()
    limits = Limits(CPU_CALLS * seconds, memory_mb, packages=packages)
    return tool_of(python, lambda: PythonSession(limits, seconds))


class PythonSession(Direct):
    """The interpreter of one answer."""

    def __init__(self, limits: Limits, seconds: float) -> None:
        self.limits, self.seconds = limits, seconds
        self._sandbox: Sandbox | None = None
        self._lock = threading.Lock()  # one call at a time; an abandoned one may still be ending
        self._is_lost = self._is_closed = False

    async def __call__(self, **arguments: Any) -> str:
        try:
            return str(await run(self._run, arguments["code"], seconds=None))
        except asyncio.CancelledError:  # at the deadline of all tools
            self._is_lost = True
            if sandbox := self._sandbox:
                sandbox.destroy("took too long")
            raise

    def close(self) -> None:
        self._is_closed = True
        if sandbox := self._sandbox:
            sandbox.destroy("was closed")
        with self._lock:
            self._stop()

    def _run(self, code: str) -> str:
        """Blocks. Raises CallError."""
        with self._lock:
            note = NOTE if self._is_lost else ""
            if self._is_lost:
                self._stop()
            printed, value, error = self._reply(code)
            self._is_lost = False
        lines = [printed.rstrip("\n")] if printed else []
        if error:
            raise CallError("\n".join([f"{note}the code raised an exception", *lines, error]))
        return note + "\n".join([*lines, value] if value else lines)

    def _reply(self, code: str) -> tuple[str, str, str]:
        """What it printed, its value and its error. Raises CallError where the interpreter has ended."""
        try:
            sandbox = self._started()
            sandbox.deadline = time.monotonic() + self.seconds
            return _texts(sandbox.request(op="run", code=code, limit=MAX_CHARS))
        except ExecutionError as error:
            is_late = self._sandbox is not None and time.monotonic() >= self._sandbox.deadline
            self._stop()
            why = f"the code ran longer than {self.seconds:g} s" if is_late else f"the interpreter has ended: {error}"
            raise CallError(f"{why}. {LOST}") from error

    def _started(self) -> Sandbox:
        """The interpreter, once it answers."""
        if self._is_closed:
            raise ExecutionError("the answer has ended")
        if self._sandbox is None:
            with _STARTING:
                self._sandbox = Sandbox(self.limits, deadline=time.monotonic() + START_SECONDS)
                self._sandbox.request(op="run", code="", limit=MAX_CHARS)
        return self._sandbox

    def _stop(self) -> None:
        if self._sandbox is not None:
            self._sandbox.__exit__()
        self._sandbox = None


def _texts(reply: Any) -> tuple[str, str, str]:
    """A reply is what the code says it is: it must at least be three texts."""
    if not isinstance(reply, list) or len(reply) != 3 or not all(isinstance(text, str) for text in reply):
        raise Forged("a reply that is not three texts")
    printed, value, error = reply
    return printed, value, error
