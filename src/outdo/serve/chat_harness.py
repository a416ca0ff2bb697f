"""A harness of the library verifiers: its chat loop `null`, in this process instead of one of its own.

It shows the task's prompt and tools to the model, runs the calls that the model writes, and ends with the first answer
without a call. verifiers finds it by the id `outdo` once `register` was called.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from functools import lru_cache
from typing import Any

import aiohttp
from verifiers import v1
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.harnesses.utils.compaction import bound_tool_message
from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp
from verifiers.v1.runtimes import ProgramResult

__all__ = ["ChatHarness"]  # verifiers looks for a harness here
ID = "outdo"
Wire = dict[str, Any]  # a message as OpenAI's API has it


class ChatConfig(v1.HarnessConfig):  # type: ignore[misc]
    id: str = ID


class ChatHarness(v1.Harness[ChatConfig]):  # type: ignore[misc]
    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_MCP = True
    SUPPORTS_RESUME = True
    SUPPORTS_TOOL_INTERCEPTION = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: Mapping[str, str],
        data: Any,
        tool_interception_url: str | None = None,
    ) -> ProgramResult:
        """Plays until the model answers without a call. Raises for a call of the model that is refused, also where the
        trace was stopped: verifiers knows which of the two it was."""
        system, prompt = self.resolve_prompt(data)
        messages: list[Wire] = [{"role": "system", "content": system}] if system else []
        given = [v1.UserMessage(content=prompt)] if isinstance(prompt, str) else prompt or []
        messages += map(message_to_wire, given)
        specs = {name: {"url": url, "timeout": self.config.tool_timeout} for name, url in mcp_urls.items()}
        async with AsyncExitStack() as stack:
            tools, dispatch, servers = await connect_mcp({"mcpServers": specs}, stack)
            call_tool = _Tools(dispatch, servers, tool_interception_url, secret)
            while True:
                message = await _answer(endpoint, secret, {"model": ctx.model, "messages": messages}, tools)
                messages.append(message)
                if not message.get("tool_calls"):
                    return ProgramResult(exit_code=0, stdout="", stderr="")
                for call in message["tool_calls"]:
                    messages.append(await call_tool(call))


async def _answer(endpoint: str, secret: str, body: Wire, tools: list[Wire]) -> Wire:
    body = {**body, "tools": tools} if tools else body
    message = (await _post(f"{endpoint}/chat/completions", secret, body))["choices"][0]["message"]
    return {key: value for key, value in message.items() if value is not None}


class _Tools:
    """What a model's calls are answered."""

    def __init__(self, dispatch: Mapping[str, Any], servers: Mapping[str, Any], gate: str | None, secret: str) -> None:
        self.dispatch, self.servers, self.gate, self.secret = dispatch, servers, gate, secret

    async def __call__(self, call: Wire) -> Wire:
        name = call["function"]["name"]
        if self.gate:
            decision = await _post(self.gate, self.secret, {"tool_call_id": call["id"], **call["function"]})
            if decision["action"] == "deny":
                return bound_tool_message(decision["message"])
            if decision["action"] == "stop":
                raise RuntimeError(decision["reason"])
        message = {"role": "tool", "tool_call_id": call["id"], "name": name}
        return bound_tool_message({**message, "content": await self._result(name, call["function"]["arguments"])})

    async def _result(self, name: str, arguments: str) -> Any:
        try:
            given = json.loads(arguments or "{}")
        except json.JSONDecodeError as error:
            return f"error: the arguments are not JSON: {error}"
        if not isinstance(given, dict):
            return "error: the arguments must be a JSON object"
        if name not in self.dispatch:
            return f"error: there is no tool {name!r}"
        return await call_mcp(self.servers, self.dispatch, name, given)


async def _post(url: str, secret: str, body: Wire) -> Any:
    headers = {"Authorization": f"Bearer {secret}"}
    async with _session(asyncio.get_running_loop()).post(url, headers=headers, json=body) as reply:
        if reply.status >= 400:
            raise RuntimeError(f"{url} answered {reply.status}: {(await reply.text())[:300]}")
        return await reply.json()


@lru_cache(maxsize=2)
def _session(loop: asyncio.AbstractEventLoop) -> aiohttp.ClientSession:
    """For all answers."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None))


async def close(loop: asyncio.AbstractEventLoop) -> None:
    await _session(loop).close()


def register() -> None:
    """Lets verifiers find this harness by its id."""
    sys.modules.setdefault(f"verifiers.v1.harnesses.{ID}", sys.modules[__name__])
