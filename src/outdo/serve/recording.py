"""What each session sampled, token by token: an agent's calls become a trajectory that a learner can train on.

A session is what one agent does for one answer. Its calls name it by a key, in a header or in the address.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from outdo.seeds import seed_of
from outdo.serve.errors import ApiError
from outdo.types import Finish, Message, Segment, Trajectory

KEY = re.compile(r"[A-Za-z0-9._~-]{1,128}")
MAX_CALLS = 1000  # of a session


@dataclass(frozen=True)
class Call:
    """One answer to one prompt, as it was sampled."""

    prompt_ids: tuple[int, ...]
    segment: Segment
    finish: Finish
    text: str  # as the agent saw it, without its tool calls
    prompt_text: str | None = None  # of a completion: what `prompt_ids` were encoded from, if it was text
    messages: tuple[Message, ...] = ()  # of a chat
    tools: tuple[Any, ...] = ()
    reply: Message | None = None  # of a chat: the answer as a message
    turn: str = ""  # the engine's name for it

    @property
    def all_ids(self) -> tuple[int, ...]:
        return self.prompt_ids + self.segment.token_ids


@dataclass
class Session:
    """The calls of one agent, in the order in which they were made; None: not answered yet, or failed."""

    key: str
    seed: int | None = None  # of its answers: the same calls get the same answers. None: random
    max_calls: int = MAX_CALLS
    max_tokens: int | None = None  # of its trajectory after the prompt; calls that run side by side may exceed it
    exhausted: bool = False  # a call was refused, or its answer cut off, because a limit was reached
    out_of_calls: bool = False  # that limit is the one of calls
    num_open: int = 0  # calls that are being answered
    waited: float = 0.0  # seconds that the agent waited for them
    since: float = field(default_factory=time.monotonic)  # when it began or ended to wait
    slots: list[Call | None] = field(default_factory=list)
    closed: bool = False

    @property
    def calls(self) -> list[Call]:
        return [call for call in self.slots if call is not None]

    @contextmanager
    def answering(self) -> Iterator[None]:
        """The agent waits for the model."""
        if not self.num_open:
            self.since = time.monotonic()
        self.num_open += 1
        try:
            yield
        finally:
            self.num_open -= 1
            if not self.num_open:
                now = time.monotonic()
                self.waited, self.since = self.waited + now - self.since, now

    @property
    def idle_seconds(self) -> float:
        """How long the agent has not waited for the model; 0 while it does."""
        return 0.0 if self.num_open else time.monotonic() - self.since

    def begin(self, n: int) -> int:
        """Reserves places for `n` answers; returns the first."""
        if len(self.slots) + n > self.max_calls:
            self.exhausted = self.out_of_calls = True
            reason = f"this session has made {len(self.slots):,} calls: at most {self.max_calls:,}"
            raise ApiError(reason, status=429, code="session_limit")
        self.slots += [None] * n
        return len(self.slots) - n

    def room(self, prompt_ids: tuple[int, ...], limit: int) -> int:
        """How many tokens the answer to this prompt may have of those `limit`. Raises ApiError where none remain."""
        if self.max_tokens is None:
            return limit
        unanswered = Call(prompt_ids, Segment((), ()), "stop", "")
        used = len(session_trajectory([*self.calls, unanswered])[1].token_ids)
        if used >= self.max_tokens:
            self.exhausted = True
            reason = f"this session has {used:,} tokens: at most {self.max_tokens:,}"
            raise ApiError(reason, status=429, code="session_limit")
        return min(limit, self.max_tokens - used)

    def seed_at(self, place: int, given: int | None) -> int:
        """For the call there. A seed that the agent gave is one part of it: else all agents that give the same would
        get the same answers."""
        if self.seed is None:
            return secrets.randbits(62) if given is None else given
        return seed_of(self.seed, place, given)


class Recorder:
    """The sessions that are open. A call that names another is refused."""

    def __init__(self, max_calls: int = MAX_CALLS, max_tokens: int | None = None) -> None:
        self.max_calls, self.max_tokens = max_calls, max_tokens
        self._sessions: dict[str, Session] = {}

    def open(self, key: str | None = None, seed: int | None = None) -> Session:
        """A new session; without a key it gets one that nobody can guess."""
        key = secrets.token_urlsafe(24) if key is None else key
        if not KEY.fullmatch(key):
            raise ValueError(f"session {key!r:.60}: at most 128 letters, digits and . _ ~ -")
        if key in self._sessions:
            raise ValueError(f"session {key} is open already")
        self._sessions[key] = Session(key, seed, self.max_calls, self.max_tokens)
        return self._sessions[key]

    def find(self, key: str) -> Session:
        """Raises ApiError."""
        if key not in self._sessions:
            raise ApiError("no such session is open here", status=404, code="unknown_session")
        return self._sessions[key]

    def close(self, key: str) -> list[Call]:
        """The session's calls. Later ones are refused."""
        session = self._sessions.pop(key)
        session.closed = True
        return session.calls


def session_trajectory(calls: Sequence[Call]) -> tuple[tuple[int, ...], Trajectory]:
    """The first call's prompt, and all that was sampled after it.

    A call whose prompt begins with an earlier call's prompt and answer continues that text: what the prompt adds is a
    segment that is not trained on. Any other call begins a branch, a segment with a prompt of its own. Raises
    ValueError where there is no call.
    """
    if not calls:
        raise ValueError("the agent made no call: there is nothing to train on")
    segments = tuple(segment for _, segment in _placed(calls))
    last = calls[-1]
    tool_calls = last.reply.get("tool_calls") if last.reply else None
    return calls[0].prompt_ids, Trajectory(segments, last.text, last.finish, tool_calls)


def segments_of(calls: Sequence[Call]) -> list[tuple[int, ...]]:
    """Which of that trajectory's segments are of each call: its own last, and before it what its prompt adds."""
    places: list[tuple[int, ...]] = [()] * len(calls)
    for place, (number, _) in enumerate(_placed(calls)):
        places[number] += (place,)
    return places


def _placed(calls: Sequence[Call]) -> list[tuple[int, Segment]]:
    """The segments of all branches, one branch after another, each with the number of its call."""
    branches: list[list[tuple[int, Segment]]] = []
    ends: list[tuple[int, ...]] = []  # of each branch: all its tokens, from its prompt on
    for number, call in enumerate(calls):
        ids = call.prompt_ids
        place = max(
            (i for i, end in enumerate(ends) if ids[: len(end)] == end), key=lambda i: len(ends[i]), default=None
        )
        if place is None:
            own = replace(call.segment, prompt_ids=ids if branches else None)
            branches.append([(number, own)])
            ends.append(call.all_ids)
            continue
        if added := ids[len(ends[place]) :]:
            branches[place].append((number, Segment(added, version=call.segment.version, trained=False)))
        branches[place].append((number, call.segment))
        ends[place] = call.all_ids
    return [each for branch in branches for each in branch]
