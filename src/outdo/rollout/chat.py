"""A conversation with a model: its turns, which of them fit the context, and answers shown while they are generated.

A model's output is untrusted: only what `printable` returns may reach a terminal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from outdo.errors import TaskError
from outdo.models.load import Policy
from outdo.models.renderer import TOOLS
from outdo.rollout import make_sampler
from outdo.rollout.follower import Follower, Show, Typist
from outdo.types import Message, Prompt, SampleParams, Trajectory

if TYPE_CHECKING:
    from outdo.models.bridge import Bridge
    from outdo.rollout.episodes import EpisodeSampler
    from outdo.rollout.play import EnvironmentPlay


@dataclass(frozen=True)
class Reply:
    text: str
    finish: Literal["stop", "length", "interrupted"]
    forgotten: int = 0  # oldest turns, dropped because the context is full
    out_of_turns: bool = False  # it was ended by a limit of turns or calls, not of tokens
    broken: str = ""  # why its environment failed


@dataclass
class Conversation:
    """The turns so far. An answer depends on `seed` and the number of its turn. With `play` the model has tools, and an
    answer is all that happens until it needs none."""

    policy: Policy
    params: SampleParams
    system: str | None = None
    seed: int = 0
    tools: Sequence[Mapping[str, Any]] = ()  # that the chat template shows; nobody runs them
    play: EnvironmentPlay | None = None
    turns: list[tuple[str, tuple[Message, ...]]] = field(default_factory=list)  # message, what followed
    count: int = 0

    def __post_init__(self) -> None:
        limit = min(self.params.max_completion_length, self.policy.context // 2)
        self.params = replace(self.params, max_completion_length=limit)
        self.sampler = make_sampler(self.policy, rows=1, watch=self._watch, play=self.play)

    def _watch(self, token_ids: list[int]) -> None:
        if not self.play:  # else the answer's follower watches
            self.typist(token_ids)

    @property
    def has_template(self) -> bool:
        return self.policy.renderer.has_template

    def reset(self) -> None:
        self.turns.clear()

    def ask(self, text: str, show: Show, note: Show | None = None) -> Reply:
        """The answer, shown while it is generated; `note` gets calls and their results. An interrupt ends it and keeps
        what was generated.

        Turns that no longer fit are dropped, oldest first. Raises TaskError where the text alone does not fit, and
        ModelError where the chat template refuses it; the conversation is then unchanged.
        """
        text = text.encode(errors="replace").decode()  # a terminal may pass invalid bytes
        prompt, dropped = self._fit_context(text)
        del self.turns[:dropped]
        self.count += 1
        answer, said = self._played(prompt, show, note or show) if self.play else self._generated(prompt, show)
        self.turns.append((text, said))
        content = str(said[-1]["content"])
        if answer is None:
            return Reply(content, "interrupted", dropped)
        episode = answer.episode
        out_of_turns, broken = (episode.out_of_turns, episode.broken) if episode else (False, "")
        return Reply(answer.text, answer.finish, dropped, out_of_turns, broken)

    def _generated(self, prompt: Prompt, show: Show) -> tuple[Trajectory | None, tuple[Message, ...]]:
        """An answer of one turn, and its message; no answer where it was interrupted."""
        self.typist = typist = Typist(self._decode, show)
        try:
            (group,) = self.sampler.sample([prompt], 1, self.params, self.seed)
        except KeyboardInterrupt:
            return None, (_assistant(typist.text),)
        (answer,) = group.trajectories
        typist(answer.token_ids, done=True)
        return answer, (_assistant(answer.text),)

    def _decode(self, token_ids: Sequence[int]) -> str:
        tokens = [token for token in token_ids if token not in self.policy.renderer.eos_ids]
        decode = self.policy.renderer.tokenizer.decode
        return decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def _played(self, prompt: Prompt, show: Show, note: Show) -> tuple[Trajectory | None, tuple[Message, ...]]:
        """An answer of several turns, and its messages. Of one that was interrupted, up to the last results."""
        sampler, bridge = self._player(prompt)
        follower = Follower(bridge.text, sampler.tool_format, show, note)
        try:
            (group,) = replace(sampler, audience=follower).sample([prompt], 1, self.params, self.seed)
        except KeyboardInterrupt:
            return None, (*follower.messages, _assistant(follower.text))
        (answer,) = group.trajectories
        assert answer.episode
        follower.end()
        return answer, answer.episode.messages or (_assistant(""),)

    def _fit_context(self, text: str) -> tuple[Prompt, int]:
        """The prompt of the next turn, and how many of the oldest turns it leaves out."""
        room = self.policy.context - self.params.max_completion_length
        for dropped in range(len(self.turns) + 1):
            meta = {TOOLS: list(self.tools)} if self.tools else {}
            prompt = Prompt(f"turn {self.count}", self._messages(self.turns[dropped:], text), meta=meta)
            length = self._length(prompt)
            if length <= room:
                return prompt, dropped
        raise TaskError(
            f"the message has {length:,} tokens, and {room:,} fit beside an answer of "
            f"{self.params.max_completion_length:,}: shorten it, or lower max_completion_length"
        )

    def _length(self, prompt: Prompt) -> int:
        if self.play is None:
            return len(self.policy.renderer.encode(prompt))
        return len(self._player(prompt)[1].conversation(prompt.messages))

    def _player(self, prompt: Prompt) -> tuple[EpisodeSampler, Bridge]:
        """Who plays, and what encodes the conversation with the tools."""
        from outdo.rollout.episodes import EpisodeSampler

        assert self.play and isinstance(self.sampler, EpisodeSampler)
        return self.sampler, self.sampler.bridge(self.play.tools_of(prompt))

    def _messages(self, turns: Sequence[tuple[str, tuple[Message, ...]]], text: str) -> tuple[Message, ...]:
        system = [{"role": "system", "content": self.system}] if self.system else []
        earlier = [message for said, answer in turns for message in (_user(said), *answer)]
        return (*system, *earlier, _user(text))


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}
