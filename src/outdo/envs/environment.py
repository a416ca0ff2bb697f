"""The seam: an environment answers what the model says, turn by turn."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from outdo.types import Failure, Message, Prompt


@dataclass(frozen=True)
class Observation:
    """An environment's answer to one message. Without messages and not done, the model continues its own turn."""

    messages: Sequence[Message] = ()  # shown to the model: of roles user, tool or system
    reward: float | None = None  # of the answer so far; the last one that is not None counts
    done: bool = False
    num_calls: int = 0  # of tools in this turn
    num_failed_calls: int = 0
    failed: Sequence[int] = ()  # which of the messages are error messages in place of a call's result
    failures: Mapping[str, int] = field(default_factory=dict)  # where known: how many of each `Failure`
    out_of_turns: bool = False  # done because a limit was reached, not because the model was
    inserted: str = ""  # text that continues the model's own turn, as the result of a calculator's mark does


class Environment(Protocol):
    """One for each answer. Methods may be async; those that are not run in threads. `close` is called whatever happens,
    once. An exception of `reset` or `step` makes the answer *broken*, never wrong."""

    tools: Sequence[Mapping[str, Any]]  # JSON schemas of the functions that the model may call; empty: none

    def reset(self, prompt: Prompt) -> Sequence[Message] | Awaitable[Sequence[Message]]:
        """What the model is shown first: the prompt's messages, or others."""

    def step(self, message: Message) -> Observation | Awaitable[Observation]:
        """Answers the model's message: {"role": "assistant", "content": text, "tool_calls": [...] where it has any}.
        A call is {"name": str, "arguments": dict}; one that could not be parsed is {"error": str}."""

    def close(self) -> Awaitable[None] | None: ...


MakeEnvironment = Callable[[Prompt], Environment]  # a new one for each answer to a prompt


@dataclass(frozen=True)
class ToolResult:
    """What a tool returned, as text for the model."""

    text: str
    failure: Failure | None = None  # then the text is an error message

    @property
    def failed(self) -> bool:
        return self.failure is not None


@dataclass(frozen=True)
class Tool:
    """A function that the model may call. `schema` is what a chat template shows: {"type": "function", …}. `make` gives
    what is called, sync or async, with the arguments by name: a new one for each answer where it has a state, and one
    that is closed afterwards where it has a `close`."""

    name: str
    schema: Mapping[str, Any]
    make: Callable[[], Callable[..., Any]]
