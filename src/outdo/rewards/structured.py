"""Answers that a program reads: JSON that fits a schema, calls of tools, and one label out of several.

The thinking part never counts, and a thought that is never closed leaves no answer.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from outdo.rewards.answer import after_thinking, final_answers
from outdo.rewards.schema import BadSchema, canonical, read_json, violation
from outdo.types import Grade

_LONGEST_LABEL = 200  # characters
_QUOTES = ('""', "''", "``", "“”", "‘’", "«»")


def json_schema(completions: list[str], schema: list[object], **columns: object) -> list[Grade]:
    """1 where the answer is exactly one JSON value and satisfies the row's JSON Schema (draft 2020-12); else 0.

    The answer is what the one pair of `<answer>` tags holds, or the whole text without them; in it, the one fenced
    block (``` or ```json), or all of it. The schema is an object or JSON text. One that is invalid, refers outside
    itself or cannot be checked in half a second is broken. See `outdo.rewards.schema` for the bounds of both.
    """
    return [_fits(text, wanted) for text, wanted in zip(completions, schema, strict=True)]


def tool_call(
    completions: list[str], answer: list[object], output_tools: list[object] | None = None, **columns: object
) -> list[Grade]:
    """1 where the answer makes exactly the gold calls, in any order; else 0.

    The gold is `{"name": …, "arguments": {…}}` or a list of such, as JSON text or not; so is OpenAI's shape, which is
    `{"function": …}` with its arguments as JSON text. An answer's calls stand in `<tool_call>` tags, an object in each,
    with any prose around; or else the answer is the object or list itself, bare or as in `json_schema`. Arguments are
    equal as JSON: 1 is 1.0, and neither true nor "1". `output_tools` are the calls that a server has parsed already, in
    OpenAI's shape: where an answer's is not None, its text is not read. (A `tool_calls` that comes with the data is
    gold, and is read only where it is given as `answer`.)
    """
    parsed = output_tools if output_tools is not None else [None] * len(completions)
    return [_calls(*row) for row in zip(completions, answer, parsed, strict=True)]


def label(
    completions: list[str], answer: list[object], labels: list[object] | None = None, **columns: object
) -> list[Grade]:
    """1 where the final answer is the gold label and nothing else; else 0.

    The final answer is in `<answer>` tags, after `####` or in `\\boxed{}`, or else it is the whole text. Case, one pair
    of quotes around and one full stop after do not count; look-alikes from other alphabets do. `labels` lists those
    that a row allows: a gold that is not among them, or two that read the same, is broken.
    """
    allowed = labels if labels is not None else [None] * len(completions)
    return [_label(*row) for row in zip(completions, answer, allowed, strict=True)]


def _right() -> Grade:
    return Grade(1.0, "right")


def _wrong(reason: object) -> Grade:
    return Grade(0.0, "wrong", reason=str(reason))


def _broken(reason: object) -> Grade:
    return Grade(None, "broken", reason=str(reason))


def _said(text: str) -> str:
    """What is said to the reader. Raises ValueError where the text ends in a thought."""
    said = after_thinking(text)
    if said is None:
        raise ValueError("no answer: the thinking part has no end")
    return said.strip()


def _blocks(text: str, tag: str) -> list[str]:
    """What stands in each pair of tags. Raises ValueError for a tag without its other half, or inside another pair."""
    before, *parts = text.split(f"<{tag}>")
    if f"</{tag}>" in before or text.count(f"</{tag}>") != len(parts) or any(f"</{tag}>" not in part for part in parts):
        raise ValueError(f"<{tag}> tags that do not pair up")
    return [part.partition(f"</{tag}>")[0].strip() for part in parts]


def _json_part(said: str) -> str:
    """The part of what is said that should be JSON. Raises ValueError where there are several."""
    blocks = _blocks(said, "answer")
    if len(blocks) > 1:
        raise ValueError(f"{len(blocks)} answers")
    said = blocks[0] if blocks else said
    if "```" not in said:
        return said
    lines = [line.strip() for line in said.split("\n")]
    fences = [i for i, line in enumerate(lines) if line.startswith("```")]
    if len(fences) == 2 and lines[fences[0]][3:].strip().lower() in ("", "json") and lines[fences[1]] == "```":
        return "\n".join(lines[fences[0] + 1 : fences[1]]).strip()
    return said


def _fits(text: str, schema: object) -> Grade:
    try:
        violation(None, schema)  # a bad schema is broken whatever the answer
        where = violation(read_json(_json_part(_said(text))), schema)
    except BadSchema as error:
        return _broken(error)
    except ValueError as error:
        return _wrong(f"not one JSON value: {error}")
    return _right() if where is None else _wrong(where)


def _calls(text: str, gold: object, parsed: object) -> Grade:
    try:
        want = _packed_calls(gold)
    except ValueError as error:
        return _broken(f"the gold calls cannot be read: {error}")
    try:
        got = _written_calls(text, want.total()) if parsed is None else _packed_calls(parsed)
    except ValueError as error:
        return _wrong(f"no such calls: {error}")
    if got == want:
        return _right()
    return _wrong(f"called {_shown(got - want)}, not {_shown(want - got)}")


def _shown(calls: Counter[str]) -> str:
    return ", ".join(calls.elements())[:120] or "nothing else"


def _packed_calls(value: object) -> Counter[str]:
    """Calls that a program wrote down, in either shape. Raises ValueError, also where there are none."""
    try:
        read = read_json(value if isinstance(value, str) else json.dumps(value))
    except (TypeError, RecursionError) as error:
        raise ValueError(str(error)) from None
    calls = []
    for call in read if isinstance(read, list) else [read]:
        inner = call.get("function", call) if isinstance(call, dict) else call
        if isinstance(inner, dict) and isinstance(inner.get("arguments"), str):
            inner = {**inner, "arguments": read_json(inner["arguments"])}
        calls.append(_call(inner))
    if not calls:
        raise ValueError("no call at all")
    return Counter(calls)


def _written_calls(text: str, count: int) -> Counter[str]:
    """The calls that a model wrote. Raises ValueError, also where they are not `count`: a flood is not parsed."""
    said = _said(text)
    if "<tool_call>" in said or "</tool_call>" in said:
        blocks = _blocks(said, "tool_call")
        read: list[Any] = [read_json(block) for block in blocks] if len(blocks) == count else blocks
    else:
        value = read_json(_json_part(said))
        read = value if isinstance(value, list) else [value]
    if len(read) != count:
        raise ValueError(f"{len(read)} calls, not {count}")
    for call in read:
        if isinstance(call, dict) and not call.keys() <= {"name", "arguments", "id", "type"}:
            raise ValueError("a call with more than a name and arguments")
    return Counter(_call(call) for call in read)


def _call(value: object) -> str:
    """One call in a form that is equal where the calls are. Raises ValueError."""
    name, arguments = (value.get("name"), value.get("arguments")) if isinstance(value, dict) else (None, None)
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        raise ValueError("a call is an object with a name and an object of arguments")
    return canonical({"name": name, "arguments": arguments})


def _label(text: str, gold: object, allowed: object) -> Grade:
    want = _read_label(gold)
    if want is None:
        return _broken(f"the gold label {str(gold)[:40]!r} is not one")
    known = None
    if allowed is not None:
        if not isinstance(allowed, (list, tuple)):
            return _broken(f"labels is a {type(allowed).__name__}, not a list")
        known = {_read_label(one) for one in allowed}
        if want not in known or None in known or len(known) < len({str(one) for one in allowed}):
            return _broken("labels without the gold, or two of them that read the same")
    try:
        found = final_answers(text) or [_said(text)]
    except ValueError as error:
        return _wrong(error)
    got = {_read_label(answer) for answer in set(found)}
    if got == {want}:
        return _right()
    if len(got) > 1:
        return _wrong(f"{len(found)} final answers that disagree")
    outside = known is not None and not got <= known
    return _wrong(f"answered {found[-1][:40]!r}, " + ("which is none of the labels" if outside else f"not {gold!r}"))


def _read_label(value: object) -> tuple[bool, str] | None:
    """A label without its case and trimmings. Whether it is ASCII is part of it: casefold turns look-alikes into it."""
    text = "" if value is None else str(value).strip()
    if len(text) > _LONGEST_LABEL:
        return None
    text = text.removesuffix(".").strip()
    if len(text) > 1 and text[0] + text[-1] in _QUOTES:
        text = text[1:-1].strip().removesuffix(".").strip()
    return (text.isascii(), text.casefold()) if text else None
