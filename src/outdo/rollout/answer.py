"""An answer of several turns while it is played: the conversation so far, and the tokens that it is made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from outdo.envs.environment import Environment, Observation
from outdo.models.bridge import Bridge
from outdo.types import Episode, Finish, Message, Origin, Prompt, Segment, Trajectory


class Audience(Protocol):
    """Follows an answer while it is played."""

    def writing(self, token_ids: list[int]) -> None:
        """What the model generates, so far. Called from the engine's thread."""

    def written(self, token_ids: Sequence[int]) -> None:
        """All of it."""

    def turn(self, message: Message) -> None:
        """The model's turn, before the environment answers it."""

    def answered(self, message: Message, observation: Observation, inserted: str) -> None:
        """What the environment answers the message; or inserts into it, and the model continues it."""


@dataclass(eq=False)
class Answer:
    """`messages` and `origins` grow with every turn and observation, `segments` with every generation."""

    prompt: Prompt
    index: int
    seed: int
    bridge: Bridge | None = None
    environment: Environment | None = None
    is_open: bool = False
    start: tuple[int, ...] = ()
    messages: list[Message] = field(default_factory=list)  # the conversation from its start
    num_first: int = 0  # of those are the prompt's
    segments: list[Segment] = field(default_factory=list)
    turn_ids: list[int] = field(default_factory=list)  # of the model's turn so far, with what was inserted into it
    inserted: list[tuple[int, int]] = field(default_factory=list)  # into that turn: from where to where in its text
    first: int = 0  # segment of that turn
    origins: list[Origin] = field(default_factory=list)  # of the messages after the prompt's
    num_new: int = 0  # of those are the environment's last
    text: str = ""  # of the last turn
    is_done: bool = False  # by the environment's word
    num_turns: int = 0
    num_calls: int = 0
    num_failed_calls: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    num_tools: int = 0
    out_of_turns: bool = False
    wait_seconds: float = 0.0
    reward: float | None = None
    finish: Finish = "stop"
    broken: str = ""

    def add_context(self, token_ids: tuple[int, ...]) -> None:
        """The environment's tokens: inserted into the model's turn, or its messages after it."""
        self.segments.append(Segment(token_ids, trained=False))
        if self.turn_ids:
            return
        if self.num_new:
            self.origins[-self.num_new] = self.origins[-self.num_new]._replace(segments=(self.first,))
        self.first = len(self.segments)

    def drop_inserted(self, num_tokens: int) -> None:
        """What was inserted last."""
        del self.turn_ids[-num_tokens:]
        self.inserted.pop()

    def add_message(self, message: Message, text: str) -> None:
        """The model's turn has ended."""
        self.text = text
        self.messages.append(message)
        self.origins.append(Origin(tuple(range(self.first, len(self.segments))), tuple(self.inserted)))
        self.num_turns += 1
        self.turn_ids, self.inserted, self.first = [], [], len(self.segments)

    def add_messages(self, observation: Observation) -> None:
        self.messages += observation.messages
        self.num_new = len(observation.messages)
        self.origins += [Origin(failed=place in observation.failed) for place in range(self.num_new)]

    def trajectory(self, prompt_ids: tuple[int, ...], version: int) -> Trajectory:
        """As it ended, in a group with this prompt."""
        segments = self.segments or [Segment((), (), version)]
        if self.start and self.start != prompt_ids:
            segments = [replace(segments[0], prompt_ids=self.start), *segments[1:]]
        first = tuple(self.messages[: self.num_first])
        episode = Episode(
            messages=tuple(self.messages[self.num_first :]),
            num_turns=self.num_turns,
            num_calls=self.num_calls,
            num_failed_calls=self.num_failed_calls,
            failures=dict(self.failures),
            num_tools=self.num_tools,
            out_of_turns=self.out_of_turns,
            wait_seconds=self.wait_seconds,
            reward=self.reward,
            broken=self.broken,
            environment=getattr(self.environment, "environment", self.environment),
            origins=tuple(self.origins),
            start=first if first != tuple(self.prompt.messages) else (),
        )
        return Trajectory(tuple(segments), self.text, self.finish, episode=episode)
