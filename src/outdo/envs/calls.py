"""One call of a tool: arguments that the model wrote are validated, the function runs up to a deadline, and what it
returns becomes text. Whatever goes wrong is an error message to the model."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from outdo.envs.environment import ToolResult
from outdo.envs.threads import Lane, Overdue, run
from outdo.errors import describe, did_you_mean
from outdo.rewards.schema import read_json, violation
from outdo.types import Failure

MAX_CHARS = 8_000  # of a result; of a longer one the middle is left out
TIMEOUT = 10.0  # seconds

_SIMPLE_KEYS = {"type", "properties", "required"}
_SIMPLE_TYPES: dict[str, tuple[type, ...]] = {
    **{"string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,)},
}
_ARGUMENT = re.compile(r"^at \$\['(\w+)'\]: ")


class CallError(Exception):
    """Why a call has no result, in words for the model."""


class Direct:
    """A tool of ours that is awaited on the event loop itself: it is quick, or waits without blocking. Cancelled at
    its deadline."""

    def __init__(self, function: Callable[..., str]) -> None:
        self.function = function

    async def __call__(self, **arguments: Any) -> str:
        return self.function(**arguments)


async def call_tool(
    function: Callable[..., Any],
    schema: Mapping[str, Any],
    arguments: Any,
    timeout: float = TIMEOUT,
    *,
    lane: Lane | None = None,
    max_chars: int = MAX_CHARS,
) -> ToolResult:
    """What a call answers the model; never raises for what the model or the function does. `schema` is the tool's, as a
    chat template shows it. With `lane`, a sync function runs in that thread."""
    try:
        valid = valid_arguments(schema, arguments)
    except CallError as error:
        return failure("arguments", str(error), max_chars)
    try:
        if isinstance(function, Direct):
            value = await _on_this_loop(function(**valid), timeout)
        else:
            value = await run(partial(function, **valid), seconds=timeout, lane=lane)
        text = result_text(value)
    except Overdue as error:
        return failure("timeout", str(error), max_chars)
    except CallError as error:
        return failure("raised", str(error), max_chars)
    except Exception as error:
        return failure("raised", describe(error, max_chars), max_chars)
    return ToolResult(shortened(text, max_chars))


def failure(kind: Failure, message: str, max_chars: int = MAX_CHARS) -> ToolResult:
    return ToolResult(shortened(f"Error: {message}", max_chars), kind)


async def _on_this_loop(work: Awaitable[str], seconds: float) -> str:
    try:
        async with asyncio.timeout(seconds) as deadline:
            return await work
    except TimeoutError:
        if deadline.expired():
            raise Overdue(f"timed out after {seconds:g} s") from None
        raise


def valid_arguments(schema: Mapping[str, Any], arguments: Any) -> dict[str, Any]:
    """The arguments as plain JSON values, 1.0 as 1. Raises CallError with what is wrong and what is expected."""
    function = schema.get("function", schema)
    parameters = function.get("parameters") or {}
    properties = parameters.get("properties") or {}
    expected = f"{function['name']} takes {_signature(properties, parameters.get('required') or ())}"
    try:
        valid = read_json(json.dumps({} if arguments is None else arguments))
    except (ValueError, TypeError, RecursionError) as error:
        raise CallError(f"the arguments are not JSON: {str(error)[:200]}. {expected}") from None
    if not isinstance(valid, dict):
        raise CallError(f"the arguments must be an object of names and values. {expected}")
    for name in valid:
        if name not in properties and not parameters.get("additionalProperties"):
            meant = did_you_mean(name, properties)
            raise CallError(f"unexpected argument {name[:80]!r}{meant}. {expected}")
    for name in parameters.get("required") or ():
        if name not in valid:
            raise CallError(f"the argument {name!r} is missing. {expected}")
    if not _has_simple_types(valid, parameters) and (reason := violation(valid, with_null(parameters))):
        reason = _ARGUMENT.sub(lambda match: f"the argument {match[1]!r} does not fit: ", reason)
        raise CallError(f"{reason}. {expected}")
    return valid


def _has_simple_types(arguments: Mapping[str, Any], parameters: Mapping[str, Any]) -> bool:
    """Whether each argument has the simple type that its schema asks for, and that is all that is asked for. The usual
    case, seen much quicker than by a validator."""
    if not parameters.keys() <= _SIMPLE_KEYS:
        return False
    schemas = [parameters["properties"][name] for name in arguments]
    return all(
        schema.keys() <= {"type", "description"} and type(value) in _SIMPLE_TYPES.get(str(schema.get("type")), ())
        for value, schema in zip(arguments.values(), schemas, strict=True)
    )


def _signature(properties: Mapping[str, Any], required: Any) -> str:
    """The parameters in words: `query (string), k (integer, optional)`."""
    parts = [f"{name} ({_type(one)}{'' if name in required else ', optional'})" for name, one in properties.items()]
    return ", ".join(parts) or "no arguments"


def _type(schema: Any) -> str:
    if not isinstance(schema, Mapping):
        return "any value"
    if "enum" in schema:
        return f"one of {', '.join(json.dumps(value) for value in schema['enum'])}"
    if "anyOf" in schema:
        return " or ".join(map(_type, schema["anyOf"]))
    text = " or ".join(_types(schema.get("type", "any value")))
    if "items" in schema:
        text = f"{text} of {_type(schema['items'])}"
    return f"{text} or null" if schema.get("nullable") else text


def with_null(schema: Any) -> Any:
    """The schema in the standard's words: transformers writes `nullable` for a type that may be None."""
    if isinstance(schema, list):
        return [with_null(one) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    plain = {key: _with_null_below(key, value) for key, value in schema.items() if key != "nullable"}
    if schema.get("nullable") is not True:
        return plain
    if "enum" in plain or "type" not in plain:
        return {"anyOf": [plain, {"type": "null"}]}
    return {**plain, "type": [*_types(plain["type"]), "null"]}


def _types(kind: str | Sequence[str]) -> Sequence[str]:
    return (kind,) if isinstance(kind, str) else kind


def _with_null_below(key: str, value: Any) -> Any:
    if key in ("properties", "$defs", "definitions") and isinstance(value, Mapping):  # its keys are names
        return {name: with_null(one) for name, one in value.items()}
    return value if key in ("enum", "const", "default", "required") else with_null(value)


def result_text(value: Any) -> str:
    """What a tool returned, as text: text as it is, nothing for None, JSON for numbers, lists and dicts, and what an
    object of another class shows of itself. Raises CallError for bytes, and for an object that shows nothing."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, (bytes, bytearray, memoryview)):
        raise CallError("the tool returned bytes, which are not text")
    if isinstance(value, (bool, int, float, list, tuple, dict)):
        try:
            return json.dumps(value, ensure_ascii=False, default=result_text)
        except (ValueError, TypeError, RecursionError) as error:
            raise CallError(f"the tool returned what cannot be written as JSON: {str(error)[:200]}") from None
    shows_nothing = all(getattr(type(value), name) is getattr(object, name) for name in ("__str__", "__repr__"))
    if shows_nothing or hasattr(value, "__next__"):
        raise CallError(f"the tool returned an object of the class {type(value).__name__}, which is not text")
    return str(value)


def shortened(text: str, max_chars: int) -> str:
    """At most about so many characters, without the middle of a longer text. Characters that no encoding has are
    replaced; control characters stay."""
    if len(text) > max_chars:
        head, tail = max_chars * 3 // 4, max_chars // 4
        cut = f"\n… {len(text):,} characters, {len(text) - head - tail:,} of them cut here …\n"
        text = text[:head] + cut + text[len(text) - tail :]
    return text.encode("utf-8", "replace").decode("utf-8")
