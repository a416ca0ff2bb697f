"""Plays a conversation through an environment of the plain kind."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from outdo.types import Message, Prompt


def assistant(*texts: str) -> list[Message]:
    return [{"role": "assistant", "content": text} for text in texts]


def play(environment: Any, prompt: Prompt, messages: Iterable[Message]) -> tuple[list[Message], float | None]:
    """The conversation as it went, and the reward. Every message of the model must be one that the environment waits
    for."""
    assert [dict(m) for m in environment.reset(prompt)] == [dict(m) for m in prompt.messages]
    conversation: list[Message] = []
    reward: float | None = None
    done = False
    for message in messages:
        if message["role"] != "assistant":
            continue
        assert not done, "the game was over before"
        seen = environment.step(message)
        conversation += [message, *seen.messages]
        reward, done = (reward if seen.reward is None else seen.reward), seen.done
    environment.close()
    return conversation, reward
