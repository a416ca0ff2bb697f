"""Grades JSON that matches a schema, and tool calls. An answer whose thinking part is not closed is none."""

from __future__ import annotations

from collections import Counter

from outdo.rewards.answer import RIGHT
from outdo.rewards.jsontext import answer_value
from outdo.rewards.schema import BadSchema, refuse_bad_schema, violation
from outdo.rewards.toolcall import contradicts, given_calls, written_calls
from outdo.types import Grade


def json_schema(completions: list[str], schema: list[object], **columns: object) -> list[Grade]:
    """1 where the answer is exactly one JSON value and satisfies the row's JSON Schema (draft 2020-12); else 0.

    The answer is the content of `<answer>` tags, or the full text without them; in it, the fenced block (``` or
    ```json), or all of it. Another value in the text that differs is a second answer (`outdo.rewards.jsontext`). The
    schema is an object or JSON text, and its formats are checked. A schema that is invalid, has external references or
    cannot be checked within half a second for plain values is broken; one that only this answer makes slow is violated.
    See `outdo.rewards.schema` for the bounds of both.
    """
    return [_grade_json(text, row_schema) for text, row_schema in zip(completions, schema, strict=True)]


def tool_call(
    completions: list[str], answer: list[object], completion_tools: list[object] | None = None, **columns: object
) -> list[Grade]:
    """1 where the answer makes exactly the gold calls, in any order; else 0.

    The gold is `{"name": …, "arguments": {…}}` or a list of these, as JSON text or not. An answer's calls are in
    `<tool_call>` tags, with any prose around; or else the answer is the object or list itself, bare or as in
    `json_schema`. Both may have `parameters` for `arguments`, arguments as JSON text, and OpenAI's wrappers. A call
    outside the tags or beside the answer is one too many. Arguments are compared as JSON: 1 is 1.0, and neither true
    nor "1". `completion_tools` are calls that a server has parsed from the answer: its text may then have no others. No
    column of the data is taken for them.
    """
    parsed = completion_tools if completion_tools is not None else [None] * len(completions)
    return [_grade_calls(*row) for row in zip(completions, answer, parsed, strict=True)]


def _wrong(reason: object) -> Grade:
    return Grade(0.0, "wrong", reason=str(reason))


def _broken(reason: object) -> Grade:
    return Grade(None, "broken", reason=str(reason))


def _grade_json(text: str, schema: object) -> Grade:
    try:
        refuse_bad_schema(schema)  # broken whatever the answer
        problem = violation(answer_value(text), schema)
    except BadSchema as error:
        return _broken(error)
    except ValueError as error:
        return _wrong(f"not one JSON value: {error}")
    return RIGHT if problem is None else _wrong(problem)


def _grade_calls(text: str, gold: object, parsed: object) -> Grade:
    try:
        expected = given_calls(gold)
    except ValueError as error:
        return _broken(f"invalid gold calls: {error}")
    try:
        calls = written_calls(text, expected.total()) if parsed is None else given_calls(parsed)
    except ValueError as error:
        return _wrong(f"invalid calls: {error}")
    if calls != expected:
        return _wrong(f"called {_shown(calls - expected)}, not {_shown(expected - calls)}")
    if parsed is not None and contradicts(text, calls):
        return _wrong("the text has other calls than those parsed from it")
    return RIGHT


def _shown(calls: Counter[str]) -> str:
    return ", ".join(calls.elements())[:120] or "nothing else"
