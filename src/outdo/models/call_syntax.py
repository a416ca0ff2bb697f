"""How families of models write calls of tools: a reader and a writer for each.

A reader gets what a model wrote: hostile text, read in linear time and without raising. Calls in <think>…</think> are
thoughts and do not count. What looks like a call and cannot be read becomes an error, a message for the model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from outdo.untrusted.parse import parse_json_at

MAX_CALLS = 32  # of one turn; those after them are answered with an error
MAX_NAME = 64
MAX_MARK = 1000  # characters of a calculator's mark
THINK, END_THINK = "<think>", "</think>"
OPEN_TAG, CLOSE_TAG = "<tool_call>", "</tool_call>"
CALCULATOR = "calculator"  # the tool that a mark calls
NAME = re.compile(rf"[\w.\-]{{1,{MAX_NAME}}}", re.ASCII)
_BLANK = re.compile(r"\s*")

Call = dict[str, Any]  # {"name": str, "arguments": dict}, or {"error": a message for the model}
Parsed = tuple[str, list[Call]]  # the text without the calls that could be read, and all calls
Read = Callable[[str, int], tuple[list[Call], int]]  # calls that begin there, and where they end


def _scan(text: str, opening: str, closing: str, read: Read) -> Parsed:
    """Reads the calls after each `opening`, a regular expression; text in <think>…</think> is skipped. After a call
    that cannot be read, the text up to `closing` is skipped."""
    begin = _after_thoughts(text)
    marks = re.compile(f"{THINK}|{opening}")
    calls: list[Call] = []
    outside, kept, position = [], 0, begin
    while match := marks.search(text, position):
        if match[0] == THINK:
            end = text.find(END_THINK, match.end())
            if end < 0:
                break
            position = end + len(END_THINK)
        elif len(calls) >= MAX_CALLS:
            calls.append({"error": f"more than {MAX_CALLS} calls in one message: the others are ignored"})
            break
        else:
            try:
                found, position = read(text, match.end())
                outside.append(text[kept : match.start()])
                kept = position
            except ValueError as error:
                found, position = [{"error": str(error)}], _after_unread(text, match.end(), closing)
            calls += found
    outside.append(text[kept:])
    return ("".join(outside).strip() if kept else text), calls


def _after_thoughts(text: str) -> int:
    """Where they end, if the tag that opens them is not in the text: a prompt may end with it."""
    end, begin = text.find(END_THINK), text.find(THINK)
    return end + len(END_THINK) if end >= 0 and not 0 <= begin < end else 0


def _after_unread(text: str, start: int, closing: str) -> int:
    end = text.find(closing, start)
    return end + len(closing) if end >= 0 else len(text)


def _json_at(text: str, start: int) -> tuple[Any, int]:
    """The JSON value there. Raises ValueError with a reason that is meant for the model."""
    try:
        value, end = parse_json_at(text, start)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"the call is not valid JSON: {error.msg.removesuffix(' at')} at character {error.pos - start + 1} of it"
        ) from None
    except ValueError as error:
        raise ValueError(f"the call cannot be read: {error}") from None
    if "\\ud" in text[start:end].lower():
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("the call has half of a character: \\ud800 to \\udfff come in pairs") from None
    return value, end


def _call_of(value: Any) -> Call:
    """A call from its JSON object. Raises ValueError."""
    if not isinstance(value, dict):
        raise ValueError('a call is a JSON object: {"name": …, "arguments": {…}}')
    name = value.get("name")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ValueError(f"a call needs a `name`: letters, digits, _ . and -, at most {MAX_NAME}")
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):  # some models write the object as text
        arguments = _json_at(arguments, 0)[0]
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise ValueError(f"the arguments of {name} must be a JSON object, such as {{}}")
    return {"name": name, "arguments": arguments}


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _skip(text: str, start: int) -> int:
    """After the white space there."""
    match = _BLANK.match(text, start)
    return match.end() if match else start


# Hermes, Qwen2.5, Qwen3, SmolLM: <tool_call>{"name": …, "arguments": {…}}</tool_call>


def parse_hermes(text: str) -> Parsed:
    return _scan(text, OPEN_TAG, CLOSE_TAG, _read_hermes)


def _read_hermes(text: str, start: int) -> tuple[list[Call], int]:
    value, end = _json_at(text, start)
    end = _skip(text, end)
    if text.startswith(CLOSE_TAG, end):
        end += len(CLOSE_TAG)
    elif end < len(text):
        raise ValueError(f"{CLOSE_TAG} must follow the call's JSON object, and nothing else")
    return [_call_of(value)], end


def render_hermes(name: str, arguments: Mapping[str, Any]) -> str:
    return f"{OPEN_TAG}\n{_dump({'name': name, 'arguments': dict(arguments)})}\n{CLOSE_TAG}"


# Qwen3-Coder: <tool_call><function=name><parameter=key>value</parameter></function></tool_call>


def parse_xml(text: str) -> Parsed:
    return _scan(text, rf"{OPEN_TAG}|(?=<function=)", CLOSE_TAG, _read_xml)


def _read_xml(text: str, start: int) -> tuple[list[Call], int]:
    position = _skip(text, start)
    name, position = _tag(text, position, "function")
    arguments: dict[str, str] = {}
    while text.startswith("<parameter=", position := _skip(text, position)):
        key, position = _tag(text, position, "parameter")
        end = text.find("</parameter>", position)
        if end < 0:
            raise ValueError(f"</parameter> is missing after the parameter {key}")
        if key in arguments:
            raise ValueError(f"the parameter {key} is given twice")
        arguments[key] = text[position:end].removeprefix("\n").removesuffix("\n")
        position = end + len("</parameter>")
    if not text.startswith("</function>", position):
        raise ValueError("</function> is missing after the call's parameters")
    position += len("</function>")
    end = _skip(text, position)
    return [{"name": name, "arguments": arguments}], end + len(CLOSE_TAG) if text.startswith(
        CLOSE_TAG, end
    ) else position


def _tag(text: str, start: int, kind: str) -> tuple[str, int]:
    match = NAME.match(text, start + len(kind) + 2) if text.startswith(f"<{kind}=", start) else None
    if match is None or not text.startswith(">", match.end()):
        raise ValueError(f"<{kind}=name> is expected, with letters, digits, _ . and -, at most {MAX_NAME}")
    return match[0], match.end() + 1


def render_xml(name: str, arguments: Mapping[str, Any]) -> str:
    values = ((key, value if isinstance(value, str) else _dump(value)) for key, value in arguments.items())
    lines = [f"<parameter={key}>\n{value}\n</parameter>" for key, value in values]
    return "\n".join([OPEN_TAG, f"<function={name}>", *lines, "</function>", CLOSE_TAG])


# Llama 3.1 and later: {"name": …, "parameters": {…}} and nothing else, perhaps after <|python_tag|>

PYTHON_TAG = "<|python_tag|>"
_LLAMA_CALL = re.compile(r'\{\s*"(?:type|name|function)"\s*:')
_LLAMA_KEYS = {"parameters", "arguments", "function"}  # an object without any is an answer in JSON


def parse_llama(text: str) -> Parsed:
    begin = _after_thoughts(text)
    if text.startswith(THINK, _skip(text, begin)):
        end = text.find(END_THINK, begin)
        begin = end + len(END_THINK) if end >= 0 else len(text)
    start = _skip(text, begin)
    tagged = text.startswith(PYTHON_TAG, start)
    position = _skip(text, start + len(PYTHON_TAG)) if tagged else start
    if not tagged and not _LLAMA_CALL.match(text, start):
        return text, []
    calls: list[Call] = []
    try:
        while position < len(text) or not calls:
            if len(calls) >= MAX_CALLS:
                calls.append({"error": f"more than {MAX_CALLS} calls in one message: the others are ignored"})
                break
            value, position = _json_at(text, position)
            if not tagged and not calls and not value.keys() & _LLAMA_KEYS:
                return text, []
            calls.append(_call_of(_llama_object(value)))
            position = _skip(text, position)
            if text.startswith((";", PYTHON_TAG), position):
                position = _skip(text, position + (1 if text[position] == ";" else len(PYTHON_TAG)))
    except ValueError as error:
        if calls:
            return text, [*calls, {"error": f"nothing but further calls may follow a call: {error}"}]
        return text, [{"error": str(error)}]
    return text[:begin].strip(), calls


def _llama_object(value: Any) -> Any:
    """Of the two longer forms that Llama writes at times, the plain one."""
    function = value.get("function") if isinstance(value, dict) else None
    if isinstance(function, dict):
        return function
    return {**value, "name": function} if isinstance(function, str) and "name" not in value else value


def render_llama(name: str, arguments: Mapping[str, Any]) -> str:
    return _dump({"name": name, "parameters": dict(arguments)})


# Mistral: [TOOL_CALLS] [{"name": …, "arguments": {…}}], and since 2025 [TOOL_CALLS]name[ARGS]{…}

MISTRAL_TAG, ARGS_TAG, ID_TAG = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
_ID = re.compile(re.escape(ID_TAG) + r"\w{1,64}", re.ASCII)


def parse_mistral(text: str) -> Parsed:
    return _scan(text, re.escape(MISTRAL_TAG), "", _read_mistral)


def _read_mistral(text: str, start: int) -> tuple[list[Call], int]:
    position = _skip(text, start)
    if text.startswith(("[", "{"), position):
        value, end = _json_at(text, position)
        values = value if isinstance(value, list) else [value]
        if not 1 <= len(values) <= MAX_CALLS:
            raise ValueError(f"a list of 1 to {MAX_CALLS} calls must follow {MISTRAL_TAG}")
        return [_call_of(one) for one in values], end
    name = NAME.match(text, position)
    if name is None:
        raise ValueError(f"a list of calls or a name must follow {MISTRAL_TAG}")
    position = name.end()
    if identity := _ID.match(text, position):
        position = identity.end()
    value, end = _json_at(text, position + len(ARGS_TAG) * text.startswith(ARGS_TAG, position))
    return [_call_of({"name": name[0], "arguments": value})], end


def render_mistral(name: str, arguments: Mapping[str, Any]) -> str:
    return f"{MISTRAL_TAG} {_dump([{'name': name, 'arguments': dict(arguments)}])}"


# The calculator's marks of GSM8K: the text ends in <<48/2= and is continued with 24>>


def parse_marks(text: str) -> Parsed:
    """The mark at the very end; it counts in thoughts too, where a model calculates."""
    begin = text.rfind("<<", max(0, len(text) - MAX_MARK))
    expression = text[begin + 2 : -1]
    if begin < 0 or not text.endswith("=") or set(expression) & set("<>=\n"):
        return text, []
    if not expression.strip():
        return text, [{"error": "nothing to calculate: an expression must stand in <<…=, such as <<48/2="}]
    return text, [{"name": CALCULATOR, "arguments": {"expression": expression}}]


def render_mark(name: str, arguments: Mapping[str, Any]) -> str:
    return f"<<{arguments.get('expression', '')}="
