"""Answers a model's calls: an environment of nothing but tools, and what other environments with tools build on."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from outdo.envs.calls import TIMEOUT, call_tool, failure
from outdo.envs.environment import MakeEnvironment, Observation, Tool, ToolResult
from outdo.envs.threads import Lane, run
from outdo.errors import did_you_mean
from outdo.types import Message, Prompt

MAX_CALLS = 32  # in one turn; further ones are answered with an error message
CLOSE_SECONDS = 10.0


class ToolEnvironment:
    """One for each answer: runs the calls of every message, those of one message concurrently. A message without calls
    is the last; so is one after `max_tool_calling_iterations` with calls (0: no limit), whose own are not run."""

    def __init__(
        self, tools: Sequence[Tool], *, max_tool_calling_iterations: int = 0, tool_timeout: float = TIMEOUT
    ) -> None:
        self.tools: Sequence[Mapping[str, Any]] = [tool.schema for tool in tools]
        self._tools = {tool.name: tool for tool in tools}
        self._functions: dict[str, Callable[..., Any]] = {}  # of this answer, made with the first call
        self._limit, self._seconds = max_tool_calling_iterations, tool_timeout
        self._num_turns = 0  # with calls

    async def reset(self, prompt: Prompt) -> Sequence[Message]:
        return prompt.messages

    async def step(self, message: Message) -> Observation:
        calls = message.get("tool_calls") or ()
        if not calls or (self._limit and self._num_turns >= self._limit):
            return Observation(reward=await self.get_reward(), done=True, out_of_turns=bool(calls))
        self._num_turns += 1
        results = await asyncio.gather(*map(self._answer, range(len(calls)), calls))
        messages = [_message(call, result) for call, result in zip(calls, results, strict=True)]
        failed = tuple(place for place, result in enumerate(results) if result.failed)
        failures: Counter[str] = Counter(result.failure for result in results if result.failure)
        return Observation(
            messages, num_calls=len(calls), num_failed_calls=len(failed), failed=failed, failures=failures
        )

    async def get_reward(self) -> float | None:
        """The environment's own, when the answer has ended, in whatever way."""
        return None

    async def close(self) -> None:
        """Closes every tool that has a `close`; raises what the first of them raised."""
        closing = [
            run(function.close, seconds=CLOSE_SECONDS, lane=self._lane(name))
            for name, function in self._functions.items()
            if hasattr(function, "close")
        ]
        self._functions = {}
        for result in await asyncio.gather(*closing, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result

    def _lane(self, name: str) -> Lane | None:
        """The thread that a tool's function runs in; None: any."""
        return None

    async def _answer(self, place: int, call: Mapping[str, Any]) -> ToolResult:
        if place >= MAX_CALLS:
            return failure("too_many", f"more than {MAX_CALLS} calls in one turn: this one was not run")
        if "error" in call:
            return failure("malformed", str(call["error"]))
        name = str(call.get("name"))
        tool = self._tools.get(name)
        if tool is None:
            known = f"the tools are {', '.join(self._tools)}" if self._tools else "there are no tools"
            return failure("unknown", f"there is no tool {name[:80]!r}{did_you_mean(name, self._tools)}: {known}")
        if name not in self._functions:
            self._functions[name] = tool.make()
        return await call_tool(
            self._functions[name], tool.schema, call.get("arguments"), self._seconds, lane=self._lane(name)
        )


def _message(call: Mapping[str, Any], result: ToolResult) -> Message:
    message = {"role": "tool", "name": str(call.get("name") or "unknown"), "content": result.text}
    return {**message, "tool_call_id": call["id"]} if "id" in call else message


def with_tools(
    tools: Sequence[Tool], *, max_tool_calling_iterations: int = 0, tool_timeout: float = TIMEOUT
) -> MakeEnvironment:
    """An environment of these tools for every answer to any prompt."""
    limits: dict[str, Any] = {"max_tool_calling_iterations": max_tool_calling_iterations, "tool_timeout": tool_timeout}
    return lambda prompt: ToolEnvironment(tools, **limits)
