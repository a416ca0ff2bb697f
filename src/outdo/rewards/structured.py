"""Grades JSON that matches a schema, and tool calls. An answer whose thinking part is not closed is none."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from outdo.rewards.answer import RIGHT, after_thinking
from outdo.rewards.schema import BadSchema, canonical, read_json, violation
from outdo.types import Grade


def json_schema(completions: list[str], schema: list[object], **columns: object) -> list[Grade]:
    """1 where the answer is exactly one JSON value and satisfies the row's JSON Schema (draft 2020-12); else 0.

    The answer is the content of the one pair of `<answer>` tags, or the full text without them; in it, the one fenced
    block (``` or ```json), or all of it. The schema is an object or JSON text. A schema that is invalid, has external
    references or takes over half a second to check is broken. See `outdo.rewards.schema` for the bounds of both.
    """
    return [_grade_json(text, row_schema) for text, row_schema in zip(completions, schema, strict=True)]


def tool_call(
    completions: list[str], answer: list[object], output_tools: list[object] | None = None, **columns: object
) -> list[Grade]:
    """1 where the answer makes exactly the gold calls, in any order; else 0.

    The gold is `{"name": …, "arguments": {…}}` or a list of these, as JSON text or not; or OpenAI's format,
    `{"function": …}` with the arguments as JSON text. An answer's calls are in `<tool_call>` tags, one object in each,
    with any prose around; or else the answer is the object or list itself, bare or as in `json_schema`. Arguments are
    compared as JSON: 1 is 1.0, and neither true nor "1". `output_tools` are calls that a server has parsed already, in
    OpenAI's format: where an answer has them, its text is ignored. (A column `tool_calls` counts only as `answer`.)
    """
    parsed = output_tools if output_tools is not None else [None] * len(completions)
    return [_grade_calls(*row) for row in zip(completions, answer, parsed, strict=True)]


def _wrong(reason: object) -> Grade:
    return Grade(0.0, "wrong", reason=str(reason))


def _broken(reason: object) -> Grade:
    return Grade(None, "broken", reason=str(reason))


def _visible(text: str) -> str:
    """The text after the thinking part. Raises ValueError where that is not closed."""
    visible = after_thinking(text)
    if visible is None:
        raise ValueError("no answer: the thinking part is not closed")
    return visible.strip()


def _blocks(text: str, tag: str) -> list[str]:
    """The content of each pair of tags. Raises ValueError for unpaired or nested tags."""
    before, *parts = text.split(f"<{tag}>")
    if f"</{tag}>" in before or text.count(f"</{tag}>") != len(parts) or any(f"</{tag}>" not in part for part in parts):
        raise ValueError(f"unpaired <{tag}> tags")
    return [part.partition(f"</{tag}>")[0].strip() for part in parts]


def _json_part(visible: str) -> str:
    """The part of an answer that should be JSON. Raises ValueError where there are several."""
    blocks = _blocks(visible, "answer")
    if len(blocks) > 1:
        raise ValueError(f"{len(blocks)} <answer> blocks")
    visible = blocks[0] if blocks else visible
    if "```" not in visible:
        return visible
    lines = [line.strip() for line in visible.split("\n")]
    fences = [i for i, line in enumerate(lines) if line.startswith("```")]
    if len(fences) == 2 and lines[fences[0]][3:].strip().lower() in ("", "json") and lines[fences[1]] == "```":
        return "\n".join(lines[fences[0] + 1 : fences[1]]).strip()
    return visible


def _grade_json(text: str, schema: object) -> Grade:
    try:
        violation(None, schema)  # an invalid schema is broken whatever the answer
        problem = violation(read_json(_json_part(_visible(text))), schema)
    except BadSchema as error:
        return _broken(error)
    except ValueError as error:
        return _wrong(f"not one JSON value: {error}")
    return RIGHT if problem is None else _wrong(problem)


def _grade_calls(text: str, gold: object, parsed: object) -> Grade:
    try:
        expected = _parsed_calls(gold)
    except ValueError as error:
        return _broken(f"invalid gold calls: {error}")
    try:
        calls = _written_calls(text, expected.total()) if parsed is None else _parsed_calls(parsed)
    except ValueError as error:
        return _wrong(f"invalid calls: {error}")
    if calls == expected:
        return RIGHT
    return _wrong(f"called {_shown(calls - expected)}, not {_shown(expected - calls)}")


def _shown(calls: Counter[str]) -> str:
    return ", ".join(calls.elements())[:120] or "nothing else"


def _parsed_calls(value: object) -> Counter[str]:
    """Calls given as data, in either format. Raises ValueError, also where there are none."""
    try:
        parsed = read_json(value if isinstance(value, str) else json.dumps(value))
    except (TypeError, RecursionError) as error:
        raise ValueError(str(error)) from None
    calls = []
    for call in parsed if isinstance(parsed, list) else [parsed]:
        inner = call.get("function", call) if isinstance(call, dict) else call
        if isinstance(inner, dict) and isinstance(inner.get("arguments"), str):
            inner = {**inner, "arguments": read_json(inner["arguments"])}
        calls.append(_call(inner))
    if not calls:
        raise ValueError("no call")
    return Counter(calls)


def _written_calls(text: str, count: int) -> Counter[str]:
    """The calls in a model's text. Raises ValueError, also where they are not `count`, before it parses them."""
    visible = _visible(text)
    if "<tool_call>" in visible or "</tool_call>" in visible:
        blocks = _blocks(visible, "tool_call")
        calls: list[Any] = [read_json(block) for block in blocks] if len(blocks) == count else blocks
    else:
        value = read_json(_json_part(visible))
        calls = value if isinstance(value, list) else [value]
    if len(calls) != count:
        raise ValueError(f"{len(calls)} calls, not {count}")
    for call in calls:
        if isinstance(call, dict) and not call.keys() <= {"name", "arguments", "id", "type"}:
            raise ValueError("a call with other keys than name and arguments")
    return Counter(_call(call) for call in calls)


def _call(value: object) -> str:
    """The canonical form of a call. Raises ValueError."""
    name, arguments = (value.get("name"), value.get("arguments")) if isinstance(value, dict) else (None, None)
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        raise ValueError("a call must be an object with a name and an object of arguments")
    return canonical({"name": name, "arguments": arguments})
