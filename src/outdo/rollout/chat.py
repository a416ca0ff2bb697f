"""A conversation with a model: its turns, what of them it can still see, and an answer that is shown as it grows.

What a model writes is text of a stranger: `printable` is all of it that may reach a terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from outdo.errors import TaskError
from outdo.models.load import Policy
from outdo.models.renderer import Renderer
from outdo.rollout import make_sampler
from outdo.types import Message, Prompt, SampleParams

Show = Callable[[str], None]
PARTIAL = "\ufffd"  # what a tokenizer makes of bytes that are no character, or not yet
TURNING = {*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C}  # marks that reorder what is read


def printable(text: str) -> str:
    """The text with control characters, escapes and marks that reorder text shown as what they are, not obeyed."""
    return "".join(_shown(c) for c in text)


def _shown(c: str) -> str:
    code = ord(c)
    if c in "\n\t":
        return c
    if code < 0x20:
        return chr(0x2400 + code)  # the picture of it, as ␛ for escape
    if code == 0x7F:
        return "␡"
    if 0x80 <= code < 0xA0 or code in TURNING or 0xD800 <= code < 0xE000:
        return f"<U+{code:04X}>"
    return c


@dataclass
class Typist:
    """Shows an answer while its tokens come. A character whose bytes are not all there yet is waited for."""

    renderer: Renderer
    show: Show
    text: str = ""  # what has been shown, before it was made printable

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
    forgotten: int = 0  # turns at the start that the model does not see any more


@dataclass
class Conversation:
    """The turns so far. `seed` and the number of a turn decide its answer."""

    policy: Policy
    params: SampleParams
    system: str | None = None
    seed: int = 0
    turns: list[tuple[str, str]] = field(default_factory=list)  # what was said, and the answer
    count: int = 0

    def __post_init__(self) -> None:
        self.params = replace(
            self.params, max_completion_length=min(self.params.max_completion_length, self.policy.context // 2)
        )
        self.sampler = make_sampler(self.policy, rows=1, watch=self._watch)

    def _watch(self, ids: list[int]) -> None:
        self.typist(ids)

    @property
    def has_template(self) -> bool:
        return self.policy.renderer.has_template

    def reset(self) -> None:
        self.turns.clear()

    def ask(self, text: str, show: Show) -> Reply:
        """The answer, shown as it grows. An interrupt ends it, and what there is of it is kept.

        Turns that do not fit any more are dropped, the oldest first. Raises TaskError where the text alone does not
        fit, and ModelError where the chat template refuses it; the conversation is then as it was.
        """
        text = text.encode(errors="replace").decode()  # a terminal may hand over bytes that are no character
        prompt, dropped = self._fitted(text)
        del self.turns[:dropped]
        self.typist = typist = Typist(self.policy.renderer, show)
        self.count += 1
        try:
            (group,) = self.sampler.sample([prompt], 1, self.params, self.seed)
        except KeyboardInterrupt:
            self.turns.append((text, typist.text))
            return Reply(typist.text, "interrupted", dropped)
        completion = group.trajectories[0]
        typist(completion.token_ids, done=True)
        self.turns.append((text, completion.text))
        return Reply(completion.text, completion.finish, dropped)

    def _fitted(self, text: str) -> tuple[Prompt, int]:
        """The prompt of the next turn, and how many turns had to be left out of it."""
        room = self.policy.context - self.params.max_completion_length
        for dropped in range(len(self.turns) + 1):
            prompt = Prompt(f"turn {self.count}", self._messages(self.turns[dropped:], text))
            length = len(self.policy.renderer.encode(prompt))
            if length <= room:
                return prompt, dropped
        raise TaskError(
            f"that is {length:,} tokens, and {room:,} fit beside an answer of {self.params.max_completion_length:,}: "
            "say less, or lower max_completion_length"
        )

    def _messages(self, turns: Sequence[tuple[str, str]], text: str) -> tuple[Message, ...]:
        system = [("system", self.system)] if self.system else []
        said = [pair for said, answer in turns for pair in (("user", said), ("assistant", answer))]
        return tuple({"role": role, "content": content} for role, content in [*system, *said, ("user", text)])
