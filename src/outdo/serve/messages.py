"""OpenAI's messages and tools as a chat template takes them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from outdo.errors import did_you_mean
from outdo.serve.errors import ApiError, clean
from outdo.serve.fields import refuse, shown
from outdo.types import Message
from outdo.untrusted.parse import MAX_PROMPT_CHARS, is_deep, parse_json

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
MAX_MESSAGES = 10_000
MAX_TOOLS = 512
NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")


def read_messages(given: Any) -> tuple[Message, ...]:
    if not isinstance(given, (list, tuple)) or not given:
        refuse("messages", "a list of messages, one at least", given)
    if len(given) > MAX_MESSAGES:
        raise ApiError(f"messages: {len(given):,} of them, and at most {MAX_MESSAGES:,} are read", param="messages")
    messages = tuple(_message(message, f"messages[{index}]") for index, message in enumerate(given))
    if (size := sum(len(message["content"]) for message in messages)) > MAX_PROMPT_CHARS:
        raise ApiError(f"messages: {size:,} characters, and at most {MAX_PROMPT_CHARS:,} are read", param="messages")
    return messages


def _message(message: Any, where: str) -> Message:
    if not isinstance(message, Mapping):
        refuse(where, "an object with a role and a content", message)
    given = message.get("role")
    role = ROLES.get(given) if isinstance(given, str) else None
    if role is None:
        near = did_you_mean(given, ROLES) if isinstance(given, str) else ""
        raise ApiError(f"{where}.role: must be one of {', '.join(ROLES)}, and is {shown(given)}{near}", param=where)
    calls = message.get("tool_calls") if role == "assistant" else None
    read: dict[str, Any] = {"role": role, "content": _content(message.get("content"), where, optional=bool(calls))}
    if calls:
        read["tool_calls"] = _calls(calls, f"{where}.tool_calls")
    for name in ("name", "tool_call_id", "reasoning_content"):
        value = message.get(name)
        if value is not None:
            read[name] = clean(value) if isinstance(value, str) else refuse(f"{where}.{name}", "text", value)
    return read


def _content(content: Any, where: str, optional: bool) -> str:
    if content is None and optional:
        return ""
    if isinstance(content, str):
        return clean(content)
    if not isinstance(content, (list, tuple)):
        refuse(f"{where}.content", "text, or a list of parts of type text", content)
    return "".join(_part(part, f"{where}.content[{index}]") for index, part in enumerate(content))


def _part(part: Any, where: str) -> str:
    if not isinstance(part, Mapping):
        refuse(where, "an object with a type", part)
    if part.get("type") != "text":
        raise ApiError(f"{where}: only parts of type text are read, and this is {shown(part.get('type'))}", param=where)
    text = part.get("text")
    return clean(text) if isinstance(text, str) else refuse(f"{where}.text", "text", text)


def _calls(calls: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(calls, (list, tuple)):
        refuse(where, "a list of calls", calls)
    return [_call(call, f"{where}[{index}]") for index, call in enumerate(calls)]


def _call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        refuse(where, "an object with a function that has a name", call)
    arguments = function.get("arguments", "{}")
    if isinstance(arguments, str):
        try:
            arguments = parse_json(arguments)
        except ValueError as error:
            raise ApiError(f"{where}.function.arguments: not JSON: {error}", param=where) from None
    if not isinstance(arguments, Mapping) or is_deep(arguments):
        refuse(f"{where}.function.arguments", "a JSON object in text", arguments)
    named = {"id": clean(call["id"])} if isinstance(call.get("id"), str) else {}
    return {**named, "type": "function", "function": {"name": clean(function["name"]), "arguments": dict(arguments)}}


def read_tools(given: Any, choice: Any) -> tuple[Mapping[str, Any], ...]:
    """The tools to show: none where `tool_choice` is none."""
    if given is not None and not isinstance(given, (list, tuple)):
        refuse("tools", "a list of functions", given)
    tools = tuple(_tool(tool, f"tools[{index}]") for index, tool in enumerate(given or ()))
    if len(tools) > MAX_TOOLS:
        raise ApiError(f"tools: {len(tools):,} of them, and at most {MAX_TOOLS} are shown", param="tools")
    names = [tool["function"]["name"] for tool in tools]
    if doubled := next((name for index, name in enumerate(names) if name in names[:index]), None):
        raise ApiError(f"tools: two of them are named {doubled}", param="tools")
    if choice not in (None, "none", "auto"):
        raise ApiError(
            "tool_choice: auto and none are supported: the model cannot be forced to call a tool; say in the prompt "
            f"that it must (got {shown(choice)})",
            param="tool_choice",
        )
    return () if choice == "none" else tools


def _tool(tool: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(tool, Mapping) or tool.get("type") != "function" or not isinstance(tool.get("function"), Mapping):
        refuse(where, 'an object {"type": "function", "function": {"name": …, "parameters": …}}', tool)
    function = tool["function"]
    name, parameters = function.get("name"), function.get("parameters")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        refuse(f"{where}.function.name", "letters, digits and _ . -, 128 at most", name)
    if parameters is not None and not isinstance(parameters, Mapping):
        refuse(f"{where}.function.parameters", "a JSON schema, which is an object", parameters)
    if not isinstance(function.get("description") or "", str):
        refuse(f"{where}.function.description", "text", function["description"])
    if is_deep(parameters):
        raise ApiError(f"{where}.function.parameters: nested too deeply", param=where)
    return _cleaned({"type": "function", "function": {key: function[key] for key in function if key != "strict"}})


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, Mapping):
        return {clean(str(key)): _cleaned(each) for key, each in value.items()}
    return [_cleaned(each) for each in value] if isinstance(value, Sequence) else value
