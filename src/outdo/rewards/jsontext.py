"""Finds the JSON value that a model's text gives as its answer, and other values in the text that contradict it.

    answer_value('Here:\\n```json\\n{"a": 1}\\n```')          # {"a": 1}
    answer_value('```json\\n{"a": 1}\\n```\\nNo: {"a": 2}')    # raises ValueError

The value is the content of `<answer>` tags, or the full text; in it, the fenced JSON, or all of it. All scans are
bounded: a text that would take longer counts as contradictory.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from outdo.rewards.answer import after_thinking
from outdo.rewards.schema import canonical, read_json

MAX_BLOCKS = 20  # fenced or tagged ones that give the same value
MAX_FENCES = 200  # opening and closing ones of a text
MAX_AROUND = 100_000  # characters of a text beside the answer, in which other values are searched
MAX_SCANNED = 200_000  # characters that such a search may read, re-reads included
MAX_OPENINGS = 2_000  # brackets at which a value may start
MAX_SCALARS = 1_000  # numbers or strings
MAX_MALFORMED = 2_000  # characters of an object that is almost JSON
_FENCE = re.compile(r"[ \t]*(`{3,}|~{3,})[ \t]*([A-Za-z0-9_+-]*)[ \t]*(.*)", re.DOTALL)
_LATE_FENCE = re.compile(r".*?(`{3,}|~{3,})(json)()", re.IGNORECASE)  # after other text on its line
_OPENING = re.compile(r"[{\[]")
_OBJECT_SHAPED = re.compile(r"""\{\s*(?:\\*["'“‘`]|/\*|//|#|[A-Za-z_$][\w$-]*\s*:)""")
_DECODER = json.JSONDecoder(parse_int=len, parse_float=len, parse_constant=len)  # only to find where a value ends
_SCALARS: dict[type, re.Pattern[str]] = {  # what a text may give instead of an answer of this type
    str: re.compile(r'"(?:[^"\\\n]|\\.){0,200}"'),
    int: re.compile(r"(?<![\w.])-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"),
    float: re.compile(r"(?<![\w.])-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"),
    bool: re.compile(r"\b(?:true|false)\b"),
    type(None): re.compile(r"\bnull\b"),
}
Read = Callable[[str], Any]  # JSON text to a value; raises ValueError


@dataclass(frozen=True)
class Fence:
    language: str
    content: str
    start: int  # of its opening line in the text
    end: int  # after its closing line


def visible(text: str) -> str:
    """The text after the thinking part. Raises ValueError where that is not closed."""
    rest = after_thinking(text)
    if rest is None:
        raise ValueError("no answer: the thinking part is not closed")
    return rest.strip()


def blocks(text: str, tag: str) -> list[str]:
    """The content of each pair of tags. Raises ValueError for unpaired or nested tags."""
    before, *parts = text.split(f"<{tag}>")
    if f"</{tag}>" in before or text.count(f"</{tag}>") != len(parts) or any(f"</{tag}>" not in part for part in parts):
        raise ValueError(f"unpaired <{tag}> tags")
    return [part.partition(f"</{tag}>")[0].strip() for part in parts]


def answer_value(text: str, read: Read = read_json) -> Any:
    """The one JSON value of a model's text. Raises ValueError where there is none, or several that differ.

    Beside a fenced value, an object that differs is another answer, wherever it stands; after it, so is a value of the
    same type, or a list on lines of its own. Before `<answer>` tags the text may reason with values; after them it may
    not give another. The same value may be given twice.
    """
    if "<" not in text and "```" not in text and "~~~" not in text:
        return read(text.strip())
    with suppress(ValueError, RecursionError):
        return whole_value(text, read)
    shown = visible(text)
    if "answer>" not in (without(shown, fences(shown)) if "```" in shown or "~~~" in shown else shown):
        return read_block(shown, read)
    tagged = blocks(shown, "answer")
    if not tagged:
        return read_block(shown, read)
    value = _single([read_block(block, read) for block in tagged[:MAX_BLOCKS]])
    if len(tagged) > MAX_BLOCKS:
        raise ValueError(f"{len(tagged)} <answer> blocks")
    refuse_others(value, "\n".join(part.partition("</answer>")[2] for part in shown.split("<answer>")[1:]))
    return value


def whole_value(text: str, read: Read = read_json) -> Any:
    """The value of a text that is JSON and nothing else; then tags in it are only text. Raises ValueError."""
    text = text.strip()
    if text[:1] not in ("{", "[", '"'):
        raise ValueError("not JSON from its start")
    return read(text)


def read_block(text: str, read: Read = read_json) -> Any:
    """The JSON value of a text that may fence it. Raises ValueError as `answer_value` does."""
    if "```" not in text and "~~~" not in text:
        return read(text)
    found = fences(text)
    chosen = [fence for fence in found if fence.language == "json"] or [f for f in found if not f.language]
    if not chosen:
        return read(text)
    if len(chosen) > MAX_BLOCKS:
        raise ValueError(f"{len(chosen)} fenced blocks")
    value = _single([read(fence.content) for fence in chosen])
    refuse_others(value, text[: chosen[0].start], kinds=(dict,))
    refuse_others(value, without(text[chosen[0].start :], chosen, chosen[0].start))
    return value


def _single(values: list[Any]) -> Any:
    if len({canonical(value) for value in values}) > 1:
        raise ValueError("several JSON values that differ")
    return values[0]


def fences(text: str) -> list[Fence]:
    """The closed fenced blocks of a text, with lower-case languages. The fence may close on its last line. Raises
    ValueError where there are too many."""
    if text.count("```") + text.count("~~~") > MAX_FENCES:
        raise ValueError(f"more than {MAX_FENCES} fences")
    found: list[Fence] = []
    opened: re.Match[str] | None = None
    lines: list[str] = []
    at = start = 0
    for line in text.splitlines(keepends=True):
        at += len(line)
        bare = line.rstrip()
        if opened is None:
            opened = _FENCE.fullmatch(bare) or _LATE_FENCE.fullmatch(bare)
            if opened is None:
                continue
            start, lines, bare = at - len(line) + opened.start(1), [], opened[3]
            if not bare:
                continue
        if bare.endswith(opened[1]):
            content = [*lines, bare.rstrip(opened[1][0])]
            found.append(Fence(opened[2].lower(), "\n".join(content).strip(), start, at))
            opened = None
        else:
            lines.append(bare)
    return found


def without(text: str, removed: list[Fence], offset: int = 0) -> str:
    """The text around some blocks, whose places count from `offset` before it."""
    ends = [0, *(fence.end - offset for fence in removed)]
    starts = [*(fence.start - offset for fence in removed), len(text)]
    return "\n".join(text[end:start] for end, start in zip(ends, starts, strict=True))


def refuse_others(value: Any, text: str, kinds: tuple[type, ...] = ()) -> None:
    """Raises ValueError where a text gives another value than this: an object or, by default, what has its type, or
    any list on lines of its own."""
    if not text.strip():
        return
    if len(text) > MAX_AROUND:
        raise ValueError(f"more than {MAX_AROUND} characters beside the answer")
    expected = canonical(value)
    for found, start, end in _located(text):
        is_answer = isinstance(found, kinds or (dict, type(value))) or (not kinds and _stands_alone(text, start, end))
        others = [found] if is_answer else _objects(found)
        if any(canonical(other) != expected for other in others):
            raise ValueError("a second JSON value that differs")
    pattern = None if kinds else _SCALARS.get(type(value))
    for number, match in enumerate(pattern.finditer(text) if pattern else ()):
        if number >= MAX_SCALARS or _differs(match[0], value):
            raise ValueError("a second JSON value that differs")


def _stands_alone(text: str, start: int, end: int) -> bool:
    """Whether nothing else is on the lines of a part."""
    before, after = text.rfind("\n", 0, start) + 1, text.find("\n", end)
    return not text[before:start].strip() and not text[end : after if after >= 0 else len(text)].strip()


def _objects(value: Any) -> list[Any]:
    """The outermost objects in lists; none in another value."""
    if isinstance(value, dict):
        return [value]
    return [one for item in value for one in _objects(item)] if isinstance(value, list) else []


def _differs(token: str, value: Any) -> bool:
    try:
        other = read_json(token)
    except ValueError:
        return True
    return type(other) is not type(value) or other != value


class Malformed(dict[str, Any]):
    """Text that starts like an object and is not JSON: a Python dict, comments, an end that is missing."""

    def __init__(self, text: str) -> None:
        super().__init__({"": text})
        self.text = text


def values_in(text: str) -> Iterator[Any]:
    """The outermost objects and lists in a text, also objects that are almost JSON, as Malformed. Raises ValueError
    where finding them takes too long."""
    return (value for value, _, _ in _located(text))


def _located(text: str) -> Iterator[tuple[Any, int, int]]:
    """Each of `values_in` with its place."""
    at = scanned = openings = 0
    while (match := _OPENING.search(text, at)) is not None:
        start, openings = match.start(), openings + 1
        if openings > MAX_OPENINGS or scanned > MAX_SCANNED or len(text) > MAX_AROUND:
            raise ValueError("too much text that looks like JSON")
        try:
            _, end = _DECODER.raw_decode(text, start)
            yield read_json(text[start:end]), start, end
            at = end
            scanned += end - start
            continue
        except json.JSONDecodeError as error:
            unclosed = error.msg.startswith("Unterminated")
            scanned += (len(text) if unclosed else error.pos) - start + 1
        except RecursionError:
            raise ValueError("JSON nested too deep") from None
        except ValueError:  # JSON, but outside the bounds, or with a key twice
            yield Malformed(text[start : start + MAX_MALFORMED]), start, end
            at, scanned = end, scanned + end - start
            continue
        if _OBJECT_SHAPED.match(text, start):
            yield Malformed(text[start : start + MAX_MALFORMED]), start, start + 1
        at = start + 1
