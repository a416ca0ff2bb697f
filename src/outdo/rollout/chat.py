"""A conversation with a model: its turns, which of them fit the context, and answers shown while they are generated.

A model's output is untrusted: only what `printable` returns may reach a terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from outdo.errors import TaskError
from outdo.models.load import Policy
from outdo.models.renderer import TOOLS, Renderer
from outdo.rollout import make_sampler
from outdo.types import Message, Prompt, SampleParams
from outdo.untrusted.terminal import printable

Show = Callable[[str], None]
PARTIAL = "\ufffd"  # a tokenizer decodes incomplete or invalid bytes to this


@dataclass
class Typist:
    """Shows an answer while its tokens arrive. An incomplete character is held back until all its bytes are there."""

    renderer: Renderer
    show: Show
    text: str = ""  # shown so far, before `printable`

    def __call__(self, ids: Sequence[int], done: bool = False) -> None:
        ids = [token for token in ids if token not in self.renderer.eos_ids]
        text = self.renderer.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        text = text if done else text.rstrip(PARTIAL)
        if len(text) > len(self.text):
            self.show(printable(text[len(self.text) :]))
            self.text = text


@dataclass(frozen=True)
class Reply:
    text: str
    finish: Literal["stop", "length", "interrupted"]
    forgotten: int = 0  # oldest turns, dropped because the context is full


@dataclass
class Conversation:
    """The turns so far. An answer depends on `seed` and the number of its turn."""

    policy: Policy
    params: SampleParams
    system: str | None = None
    seed: int = 0
    tools: Sequence[Mapping[str, Any]] = ()  # functions that the model may call, for the chat template
    turns: list[tuple[str, str]] = field(default_factory=list)  # message, answer
    count: int = 0

    def __post_init__(self) -> None:
        limit = min(self.params.max_completion_length, self.policy.context // 2)
        self.params = replace(self.params, max_completion_length=limit)
        self.sampler = make_sampler(self.policy, rows=1, watch=self._watch)

    def _watch(self, ids: list[int]) -> None:
        self.typist(ids)

    @property
    def has_template(self) -> bool:
        return self.policy.renderer.has_template

    def reset(self) -> None:
        self.turns.clear()

    def ask(self, text: str, show: Show) -> Reply:
        """The answer, shown while it is generated. An interrupt ends it and keeps what was generated.

        Turns that no longer fit are dropped, oldest first. Raises TaskError where the text alone does not fit, and
        ModelError where the chat template refuses it; the conversation is then unchanged.
        """
        text = text.encode(errors="replace").decode()  # a terminal may pass invalid bytes
        prompt, dropped = self._fit_context(text)
        del self.turns[:dropped]
        self.typist = typist = Typist(self.policy.renderer, show)
        self.count += 1
        try:
            (group,) = self.sampler.sample([prompt], 1, self.params, self.seed)
        except KeyboardInterrupt:
            self.turns.append((text, typist.text))
            return Reply(typist.text, "interrupted", dropped)
        (answer,) = group.trajectories
        typist(answer.token_ids, done=True)
        self.turns.append((text, answer.text))
        return Reply(answer.text, answer.finish, dropped)

    def _fit_context(self, text: str) -> tuple[Prompt, int]:
        """The prompt of the next turn, and how many of the oldest turns it leaves out."""
        room = self.policy.context - self.params.max_completion_length
        for dropped in range(len(self.turns) + 1):
            meta = {TOOLS: list(self.tools)} if self.tools else {}
            prompt = Prompt(f"turn {self.count}", self._messages(self.turns[dropped:], text), meta=meta)
            length = len(self.policy.renderer.encode(prompt))
            if length <= room:
                return prompt, dropped
        raise TaskError(
            f"the message has {length:,} tokens, and {room:,} fit beside an answer of "
            f"{self.params.max_completion_length:,}: shorten it, or lower max_completion_length"
        )

    def _messages(self, turns: Sequence[tuple[str, str]], text: str) -> tuple[Message, ...]:
        system = [("system", self.system)] if self.system else []
        earlier = [pair for message, answer in turns for pair in (("user", message), ("assistant", answer))]
        return tuple({"role": role, "content": content} for role, content in [*system, *earlier, ("user", text)])
