"""The grid world: the model's message has one move or several, the environment answers with the map."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from outdo.envs.environment import Observation
from outdo.envs.shared import final_text, refuse_no_share
from outdo.tasks import grid
from outdo.types import Message, Prompt

_MOVE = re.compile(rf"\b(?:{'|'.join(grid.MOVES)})\b", re.IGNORECASE)


class Grid:
    """Pays 1 at the goal and 0 else. `fewer` is a bonus for moves that were not needed, on top of the 1. Raises
    TaskError."""

    tools: Sequence[Any] = ()

    def __init__(self, fewer: float = 0.0) -> None:
        refuse_no_share("grid", fewer=fewer)
        self.fewer = fewer

    def reset(self, prompt: Prompt) -> Sequence[Message]:
        self.world = self._first = grid.start(prompt)
        return prompt.messages

    def step(self, message: Message) -> Observation:
        moves = [move.lower() for move in _MOVE.findall(final_text(message))]
        self.world, seen = grid.after(self.world, moves)
        messages = [{"role": "user", "content": seen}] if seen else []
        reward = 1.0 + self.fewer * self.world.moves / self._first.moves if self.world.solved else 0.0
        return Observation(messages, reward, self.world.done)

    def close(self) -> None: ...
