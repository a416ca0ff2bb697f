"""The text of an answer: all of it when it is done, and what may be shown of it while it grows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from outdo.models.renderer import Renderer
from outdo.rollout.follower import PARTIAL
from outdo.rollout.sampling import stop_at
from outdo.serve.calls import Specials


@dataclass
class AnswerText:
    """Text that a `stop` ends is cut before it. While it grows, what may still become something else is held back: an
    incomplete character, the beginning of a stop text, and with `marks` all from the first mark of a tool call on."""

    renderer: Renderer
    stop: tuple[str, ...] = ()
    marks: tuple[str, ...] | None = ()  # None: anything may be part of a call
    limit: int | None = None  # tokens; an engine may show more of an answer than it keeps
    specials: Specials = field(default_factory=Specials)
    shown: str = ""  # so far

    def whole(self, ids: Sequence[int]) -> str:
        """Of a done answer."""
        ids = ids[: stop_at(self.renderer.spell, ids, self.stop) or len(ids)]  # an engine may show tokens after it
        text = self._decode(ids)
        ends = [at for at in map(text.find, self.stop) if at >= 0]
        return text[: min(ends)] if ends else text

    def _decode(self, ids: Sequence[int]) -> str:
        if not self.specials.kept.intersection(ids):
            return self.renderer.decode_answers([ids])[0]
        return self.renderer.spell([i for i in ids if i not in self.specials.dropped])

    def grow(self, ids: Sequence[int]) -> str:
        """What these tokens, the first ones of the answer, show beside what is shown already."""
        text = self._safe(self.whole(ids[: self.limit]))
        return self.rest(text) if len(text) > len(self.shown) else ""

    def rest(self, text: str) -> str:
        """What remains to be shown of this text: of the answer, or of its part that is no call."""
        before = self.shown if text.startswith(self.shown) else self.shown.lstrip()  # a content has no margins
        more = text[len(before) :]
        self.shown += more
        return more

    def _safe(self, text: str) -> str:
        if self.marks is None:
            return ""
        starts = [at for at in map(text.find, self.marks) if at >= 0]
        text = text[: min(starts)] if starts else text.rstrip(PARTIAL)
        text = text[: len(text) - max((_overlap(text, word) for word in (*self.stop, *self.marks)), default=0)]
        return text.rstrip() if self.marks else text  # spaces before a call are no content


def _overlap(text: str, word: str) -> int:
    """How many characters at the text's end are the beginning of the word, but not all of it."""
    return next((n for n in range(min(len(word) - 1, len(text)), 0, -1) if text.endswith(word[:n])), 0)
