"""Reads tool calls: those of the gold, those that a server has parsed, and those in a model's text.

A call is `{"name": …, "arguments": {…}}`, also with `parameters` for `arguments`, with the arguments as JSON text, or
in OpenAI's wrappers: `{"type": "function", "function": {…}}`, `{"tool_calls": […]}` and `{"function_call": {…}}`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from contextlib import suppress
from functools import lru_cache
from typing import Any

from outdo.rewards.answer import after_thinking
from outdo.rewards.jsontext import Malformed, answer_value, blocks, read_block, values_in, visible, whole_value
from outdo.rewards.schema import canonical, children, read_json

_CALL_KEYS = frozenset({"name", "arguments", "parameters", "id", "type", "index"})
_WRAPPER_KEYS = frozenset({"function", "id", "type", "index"})
_MESSAGE_KEYS = frozenset({"tool_calls", "function_call", "role", "content", "refusal"})
_TYPES = ("function", "tool_call", "function_call", "tool_use")
_WORDS = "name|tool|function|action|call|command|method|recipient|arg|param|input"
_CALL_WORD = re.compile(_WORDS, re.IGNORECASE)  # in a key of an object that is a call in one of many formats
_CALL_KEY = re.compile(rf"""(?:{_WORDS})\w*\\*["'”’`]?\s*:""", re.IGNORECASE)  # in text that is almost JSON
_ESCAPED = re.compile(r"\\u([0-9a-fA-F]{4})")
_WRITTEN_CALL = re.compile(r"(?<![\w.])[A-Za-z_][\w.]*\(\s*[A-Za-z_]\w*\s*=(?!=)")  # as Python writes it: `pay(sum=9)`
_OTHER_TAGS = re.compile(r"</?(?:tool_call|function|invoke)|\baction input:", re.IGNORECASE)  # calls in other formats


def given_calls(value: object) -> Counter[str]:
    """Calls given as data, of the gold or from a server. Raises ValueError, also where there are none."""
    try:
        return Counter(_given(value if isinstance(value, str) else json.dumps(value)))
    except (TypeError, RecursionError) as error:
        raise ValueError(str(error)) from None


@lru_cache(maxsize=1024)
def _given(text: str) -> tuple[str, ...]:
    calls = tuple(_calls(read_json(text), strict=False))
    if not calls:
        raise ValueError("no call")
    return calls


def written_calls(text: str, count: int) -> Counter[str]:
    """The calls in a model's text. Raises ValueError, also where there are certainly more than `count`, before it
    parses them, and where a call stands outside the `<tool_call>` tags or beside the answer."""
    with suppress(ValueError, RecursionError):
        return Counter(_calls(whole_value(text)))
    shown = visible(text)
    if "<tool_call>" in shown or "</tool_call>" in shown:
        inner = blocks(shown, "tool_call")
        if len(inner) > count:
            raise ValueError(f"{len(inner)} calls, not {count}")
        _refuse_calls("\n".join(part.rpartition("</tool_call>")[2] for part in shown.split("<tool_call>")))
        return Counter(call for block in inner for call in _calls(read_block(block)))
    value = answer_value(text)
    if any(mark in shown for mark in ("```", "~~~", "<answer>")):  # else the value is all of the text
        _refuse_calls(shown, expected=canonical(value))
    return Counter(_calls(value))


def contradicts(text: str, calls: Counter[str]) -> bool:
    """Whether a text has calls that are not these, which a server has parsed from it."""
    shown = (after_thinking(text) or "").strip()
    try:
        _refuse_calls(shown)
    except ValueError:
        try:
            return written_calls(text, calls.total()) != calls
        except ValueError:
            return True
    return False


def _refuse_calls(text: str, expected: str | None = None) -> None:
    """Raises ValueError where a text has a call; `expected`, a value's canonical form, may stand there once."""
    if _OTHER_TAGS.search(text) or (expected is None and _WRITTEN_CALL.search(text)):
        raise ValueError("a call outside the <tool_call> tags")
    for value in values_in(text):
        if not _has_call(value):
            continue
        if expected is None or isinstance(value, Malformed) or canonical(value) != expected:
            raise ValueError("a second call, outside the tags or beside the answer")
        expected = None


def _has_call(value: Any) -> bool:
    """Whether a value has, or is, an object that looks like a call, valid or not: by one of its keys. The definition of
    a tool, with a description and a schema, is none."""
    level = [value]
    while level:
        level = [one for one in level if not _is_definition(one)]
        if any(isinstance(one, dict) and _looks_like_call(one) for one in level):
            return True
        level = [child for one in level for child in children(one)]
    return False


def _looks_like_call(value: dict[str, Any]) -> bool:
    if isinstance(value, Malformed):
        return _CALL_KEY.search(_ESCAPED.sub(lambda match: chr(int(match[1], 16)), value.text)) is not None
    return any(map(_CALL_WORD.search, value))


def _is_definition(value: Any) -> bool:
    inner = value.get("function", value) if isinstance(value, dict) else None
    schema = inner.get("parameters") if isinstance(inner, dict) and "description" in inner else None
    return isinstance(schema, dict) and schema.get("type") == "object" and isinstance(schema.get("properties"), dict)


def _calls(value: Any, strict: bool = True) -> list[str]:
    """The canonical form of each call in a value. Raises ValueError; with `strict`, also for keys that calls lack."""
    if isinstance(value, dict) and value.keys() & {"tool_calls", "function_call"}:
        given = [value[key] for key in ("tool_calls", "function_call") if value.get(key) is not None]
        if len(given) != 1:
            raise ValueError("a message with both `tool_calls` and `function_call`")
        if strict and not (value.keys() <= _MESSAGE_KEYS and not value.get("content") and not value.get("refusal")):
            raise ValueError("a message with calls and other keys or content")
        if strict and value.get("role", "assistant") != "assistant":
            raise ValueError("the calls of another role")
        value = given[0]
    return [_call(call, strict) for call in (value if isinstance(value, list) else [value])]


def _call(value: Any, strict: bool) -> str:
    inner = value
    if isinstance(value, dict) and isinstance(value.get("function"), dict):
        inner = value["function"]
        _refuse_keys(value, _WRAPPER_KEYS, strict)
        if strict and "type" in inner:
            raise ValueError("a function with a `type`")
    if isinstance(inner, dict):
        _refuse_keys(inner, _CALL_KEYS, strict)
    name = inner.get("name") if isinstance(inner, dict) else None
    if not isinstance(name, str) or not name:
        raise ValueError("a call must be an object with a name and an object of arguments")
    arguments = [_arguments(inner[key]) for key in ("arguments", "parameters") if key in inner]
    forms = {canonical({"name": name, "arguments": one}) for one in arguments}
    if len(forms) != 1:
        raise ValueError("`arguments` and `parameters` that differ" if forms else "a call without arguments")
    return forms.pop()


def _refuse_keys(value: dict[str, Any], allowed: frozenset[str], strict: bool) -> None:
    if strict and not value.keys() <= allowed:
        raise ValueError("a call with other keys than name and arguments")
    if strict and value.get("type", "function") not in _TYPES:
        raise ValueError(f"a call of type {str(value['type'])[:40]!r}")
    if strict and any(isinstance(value.get(key), (dict, list)) for key in ("id", "index")):
        raise ValueError("a call whose `id` or `index` is a container")


def _arguments(value: Any) -> dict[str, Any]:
    arguments = read_json(value) if isinstance(value, str) else value
    if not isinstance(arguments, dict):
        raise ValueError("a call must be an object with a name and an object of arguments")
    return arguments
