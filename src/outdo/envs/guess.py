"""The number-guessing game: the model's message has a number, the environment answers `higher` or `lower`."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from outdo.envs.environment import Observation
from outdo.envs.shared import final_text, refuse_no_share
from outdo.tasks import guess
from outdo.types import Message, Prompt

_NUMBER = re.compile(r"[+-]?[0-9]+(?:[.,][0-9]+)*")
MAX_DIGITS = 9


class Guess:
    """Pays 1 for the secret and 0 else. `fewer` is a bonus for guesses that were not needed, on top of the 1; `partial`
    is for a range that was narrowed down without finding the secret, and stays below 1. Raises TaskError."""

    tools: Sequence[Any] = ()

    def __init__(self, fewer: float = 0.0, partial: float = 0.0) -> None:
        refuse_no_share("guess", fewer=fewer, partial=partial)
        self.fewer, self.partial = fewer, partial

    def reset(self, prompt: Prompt) -> Sequence[Message]:
        self.game = self._first = guess.start(prompt)
        return prompt.messages

    def step(self, message: Message) -> Observation:
        self.game, hint = guess.after(self.game, number_in(final_text(message)))
        messages = [{"role": "user", "content": hint}] if hint else []
        return Observation(messages, self._reward(), self.game.done)

    def close(self) -> None: ...

    def _reward(self) -> float:
        size, left = (game.high - game.low + 1 for game in (self._first, self.game))
        if self.game.solved:
            return 1.0 + self.fewer * self.game.guesses / self._first.guesses
        return self.partial * (1 - math.log(left) / math.log(size)) if left < size else 0.0


def number_in(text: str) -> int | None:
    """The only whole number in a text; None where there is none, or several: a list of candidates is no guess."""
    found = _NUMBER.findall(text)
    digits = found[0].lstrip("+-") if len(found) == 1 else ""
    return int(found[0]) if digits.isdigit() and len(digits) <= MAX_DIGITS else None
