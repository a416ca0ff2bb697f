"""Shows an answer of several turns while it is played: what the model writes, its calls, and their results.

All of it is untrusted: only what `printable` returns may reach a terminal.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from outdo.envs.environment import Observation
from outdo.models.call_syntax import OPEN_TAG, PYTHON_TAG
from outdo.models.tool_formats import ToolFormat
from outdo.types import Message
from outdo.untrusted.terminal import printable

Show = Callable[[str], None]
PARTIAL = "\ufffd"  # a tokenizer decodes incomplete or invalid bytes to this
CALL, RESULT, FAILED = "→ ", "← ", "✗ "
INDENT = "    "
MAX_CHARS = 2000  # of a result, or of an argument


@dataclass
class Typist:
    """Shows a text while its tokens arrive. An incomplete character is held back until all its bytes are there, and so
    is all from where `holds` says that a call may begin."""

    decode: Callable[[Sequence[int]], str]
    show: Show
    holds: Callable[[str], int] = len
    text: str = ""  # shown so far, before `printable`

    def __call__(self, token_ids: Sequence[int], done: bool = False) -> None:
        text = self.decode(token_ids)
        if not done:
            text = text.rstrip(PARTIAL)
            text = text[: self.holds(text)]
        self.add(text[len(self.text) :])

    def add(self, text: str) -> None:
        if text:
            self.show(printable(text))
            self.text += text

    def end_line(self) -> None:
        if self.text and not self.text.endswith("\n"):
            self.add("\n")


@dataclass
class Follower:
    """The audience of one answer: `show` gets the model's text, `note` the calls and results, a line or more each.
    `messages` are those that are complete, for a conversation that is interrupted."""

    decode: Callable[[Sequence[int]], str]
    tool_format: ToolFormat
    show: Show
    note: Show
    messages: list[Message] = field(default_factory=list)
    token_ids: tuple[int, ...] = ()  # the model's last, while some of them may be held back
    before: str = ""  # of the model's turn, where it was continued

    def __post_init__(self) -> None:
        self.typist = self._typist()

    def _typist(self) -> Typist:
        return Typist(self.decode, self.show, len if self.tool_format.inline else self._call_start)

    def writing(self, token_ids: list[int]) -> None:
        self.typist(token_ids)

    def written(self, token_ids: Sequence[int]) -> None:
        self.typist(token_ids, done=self.tool_format.inline)
        self.token_ids = tuple(token_ids)
        if self.tool_format.inline:  # what follows continues it
            self._continue("")

    def turn(self, message: Message) -> None:
        calls = [] if self.tool_format.inline else message.get("tool_calls") or []
        if not calls:
            self.end()
            return
        self.token_ids = ()
        content, shown = str(message["content"]), self.typist.text.strip()
        if content.startswith(shown):
            self.typist.add(content[len(shown) :])
        for call in calls:
            self._note(CALL + indented(call_text(call)))

    def answered(self, message: Message, observation: Observation, inserted: str) -> None:
        if inserted:
            self.show(printable(inserted))
            self._continue(inserted)
            return
        self.messages += [message, *observation.messages]
        for place, each in enumerate(observation.messages):
            sign = FAILED if place in observation.failed else RESULT
            self._note(sign + indented(shortened(str(each.get("content", "")))))
        self.typist, self.before = self._typist(), ""

    def end(self) -> None:
        """Shows what was held back, since it is no call, or was cut off."""
        if self.token_ids and not self.tool_format.inline:
            self.typist(self.token_ids, done=True)
        self.token_ids = ()

    @property
    def text(self) -> str:
        """Of the model's turn, as far as it was shown."""
        return self.before + self.typist.text

    def _continue(self, inserted: str) -> None:
        self.before, self.typist = self.text + inserted, self._typist()

    def _note(self, text: str) -> None:
        self.typist.end_line()
        self.note(printable(f"{text}\n"))

    def _call_start(self, text: str) -> int:
        """Where a call begins, or may begin."""
        if text.lstrip().startswith("{"):
            return len(text) - len(text.lstrip())
        marks = (*self.tool_format.special, OPEN_TAG, PYTHON_TAG)
        starts = [text.find(mark) for mark in marks if mark in text]
        longest = max((size for mark in marks for size in range(1, len(mark)) if text.endswith(mark[:size])), default=0)
        return min([*starts, len(text) - longest])


def call_text(call: Mapping[str, Any]) -> str:
    """name(key=value, …); a value of several lines is below it."""
    if "error" in call:
        return "(a call that cannot be read)"
    short, long = [], list[str]()
    for key, value in dict(call.get("arguments") or {}).items():
        is_block = isinstance(value, str) and "\n" in value
        short.append(f"{key}=…" if is_block else f"{key}={shortened(json.dumps(value, ensure_ascii=False))}")
        long += [shortened(value)] if is_block else []
    return "\n".join([f"{call.get('name')}({', '.join(short)})", *long])


def indented(text: str) -> str:
    """All lines but the first."""
    return text.strip("\n").replace("\n", f"\n{INDENT}")


def shortened(text: str) -> str:
    return text if len(text) <= MAX_CHARS else f"{text[:MAX_CHARS]} … ({len(text) - MAX_CHARS:,} more characters)"
