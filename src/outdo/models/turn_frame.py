"""What a chat template writes around messages, found by rendering a conversation whose contents are replaced by marks.

Two conversations have the same shape if they agree in everything that a template can see but the words: the roles, the
number of calls, which texts of the template's own code occur in the contents (as </think> does), blank contents, and
white space at the ends of the new contents. What is between the words is then the same, and is a frame.
"""

from __future__ import annotations

import ast
import json
import re
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from outdo.models.message_form import Shown

MAX_LITERALS = 500  # of a template's code; with more, no two conversations count as of one shape
MAX_PIECES = 33  # of a content
MAX_SPACE = 8  # characters of white space at either end of a new content
_NASTY = " \"\\\n\té<&>'/{} "  # shows how a template escapes
_BLOCK = re.compile(r"\{[%{](.*?)[%}]\}", re.DOTALL)
_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")
_MARKUP = re.compile(r"(?=.*[<>\[\]{}|/#@=])(?=.*[A-Za-z])", re.DOTALL)  # words of prose decide nothing
_USUAL = frozenset({"role", "content", "name", "tool_calls", "tool_call_id"})

Escape = Callable[[str], str]
Pieces = tuple[str | None, ...]  # of a content: texts that are part of the shape, and None for words
Shape = tuple[Any, ...]


def _plain(text: str) -> str:
    return text


def _json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _ascii_json(text: str) -> str:
    return json.dumps(text)[1:-1]


ESCAPES: tuple[Escape, ...] = (_plain, _json, _ascii_json)


@dataclass(frozen=True)
class Frame:
    """The text after an answer: `end` ends its turn, then come `texts`, with the new contents between them."""

    end: str  # a token that ends an answer; empty where the template has none
    texts: tuple[str, ...]  # one more than escapes
    escapes: tuple[Escape, ...]  # how each content is written that is not blank

    def contents(self, new: Sequence[Shown]) -> list[str]:
        """What comes between the texts."""
        words = [content for message in new if (content := message["content"].strip())]
        return [escape(each) for escape, each in zip(self.escapes, words, strict=True)]


@dataclass(frozen=True)
class Disguised:
    """A message with marks in place of its words."""

    message: Shown
    marks: tuple[str, ...]


class Shapes:
    """The shapes of conversations under one template. What spells one of the `tokens` is a word like others."""

    def __init__(self, template: str, tokens: Collection[str]) -> None:
        found = {text for text in literals(template) if not any(token in text for token in tokens)}
        self.cacheable = len(found) <= MAX_LITERALS
        known = "|".join(map(re.escape, sorted(found, key=len, reverse=True)))
        self._pattern = re.compile(known) if known and self.cacheable else None
        self._pieces = lru_cache(maxsize=8192)(self._split)
        self._mark = f"x{secrets.token_hex(8)}n"  # a word that occurs nowhere else

    def of(self, before: Sequence[Shown], answer: Shown, new: Sequence[Shown]) -> Shape | None:
        """None: of no other conversation's shape."""
        if not self.cacheable or any(message["role"] == "assistant" for message in new):
            return None
        earlier = [self._shape(message) for message in before]
        names = tuple(call["function"]["name"] for call in answer.get("tool_calls") or ())
        later = [self._new_shape(message) for message in new]
        shape = self._shape(answer)
        if shape is None or None in earlier or None in later:
            return None
        return tuple(earlier), shape, names, tuple(later)

    def _shape(self, message: Shown) -> Shape | None:
        pieces = self._pieces(message["content"])
        more = tuple((key, repr(value)) for key, value in message.items() if key not in _USUAL)
        return (message["role"], pieces, len(message.get("tool_calls") or ()), more) if pieces else None

    def _new_shape(self, message: Shown) -> Shape | None:
        content, name = message["content"], message.get("name")
        if not content.strip():
            return (message["role"], name, content) if len(content) <= MAX_SPACE else None
        lead, trail = _ends(content)
        if max(len(lead), len(trail)) > MAX_SPACE or self._pieces(content) != (None,):
            return None
        return message["role"], name, lead, trail, True

    def _split(self, content: str | None) -> Pieces:
        """Empty: of too many pieces."""
        if content is None or not content.strip():
            return (content,)
        text, pieces, position = content.strip(), list[str | None](), 0
        for match in self._pattern.finditer(text) if self._pattern else ():
            pieces += [*_words(text[position : match.start()]), match[0]]
            position = match.end()
            if len(pieces) > MAX_PIECES:
                return ()
        return (*pieces, *_words(text[position:]))

    def disguise(self, message: Shown, numbers: Iterator[int]) -> Disguised:
        """The words of the content, and the arguments of calls, are replaced. A content of too many pieces stays."""
        marks: list[str] = []

        def mark() -> str:
            marks.append(f"{self._mark}{next(numbers)}e")
            return marks[-1]

        content = message["content"]
        if content is not None and self._pieces(content):
            content = "".join(mark() if piece is None else piece for piece in self._pieces(content))
        disguised = {**message, "content": content}
        if calls := message.get("tool_calls"):
            disguised["tool_calls"] = [_disguised_call(call, mark()) for call in calls]
        return Disguised(disguised, tuple(marks))

    def disguise_new(self, message: Shown, numbers: Iterator[int]) -> Disguised:
        """A mark at either end of the words, and between them what templates may escape."""
        content = message["content"]
        if not content.strip():
            return Disguised(message, ())
        (lead, trail), marks = _ends(content), tuple(f"{self._mark}{next(numbers)}e" for _ in range(2))
        return Disguised({**message, "content": f"{lead}{marks[0]}{_NASTY}{marks[1]}{trail}"}, marks)


def _ends(content: str) -> tuple[str, str]:
    """White space at the begin and the end."""
    return content[: len(content) - len(content.lstrip())], content[len(content.rstrip()) :]


def _words(text: str) -> list[str | None]:
    return [None] if text.strip() else [text] if text else []


def _disguised_call(call: Mapping[str, Any], mark: str) -> dict[str, Any]:
    function, arguments = call["function"], {"a": mark}
    written = json.dumps(arguments) if isinstance(function["arguments"], str) else arguments
    return {**call, "function": {**function, "arguments": written}}


def literals(template: str) -> set[str]:
    """The texts in a template's code that it may search contents for."""
    found = set()
    for block in _BLOCK.findall(template):
        for quoted in _QUOTED.findall(block):
            with suppress(ValueError, SyntaxError):
                found.add(str(ast.literal_eval(quoted)).strip())
    return {text for text in found if _MARKUP.match(text)}


def cut(before: str, text: str, answer: Disguised, new_mark: str | None, ends: Sequence[str]) -> tuple[str, str] | None:
    """The token that ends the answer's turn, if any, and the text after it. `before` is the rendered prompt of the
    answer. None: the template rewrites what came before, or drops words of the answer."""
    if not text.startswith(before):
        return None
    region, content = text[len(before) :], (answer.message["content"] or "").strip()
    if any(mark not in region for mark in answer.marks) or _dense(content) not in _dense(region):
        return None
    stops = [region.rfind(mark) + len(mark) for mark in answer.marks]
    stops += [at + len(content)] if (at := region.find(content)) >= 0 else []
    if not stops:
        return None
    limit = region.find(new_mark, max(stops)) if new_mark else len(region)
    found = [(i, token) for token in ends if 0 <= (i := region.find(token, max(stops))) < limit]
    if found:
        position, token = min(found)
        return token, region[position + len(token) :]
    if answer.message.get("tool_calls"):
        return None  # where the call ends cannot be seen
    return "", region[max(stops) :]


def _dense(text: str) -> str:
    return "".join(text.split())


def frame_of(tail: tuple[str, str], new: Sequence[Disguised]) -> Frame | None:
    """None: the template does with a new content what no escape does."""
    end, text = tail
    texts, escapes, position = [], [], 0
    for message in new:
        if not message.marks:
            continue
        first, last = message.marks
        begin, stop = text.find(first, position), text.find(last, position) + len(last)
        if begin < 0 or text.count(first) != 1 or text.count(last) != 1:
            return None
        written, words = text[begin:stop], f"{first}{_NASTY}{last}"
        escape = next((each for each in ESCAPES if each(words) == written), None)
        if escape is None:
            return None
        texts.append(text[position:begin])
        escapes.append(escape)
        position = stop
    return Frame(end, (*texts, text[position:]), tuple(escapes))
