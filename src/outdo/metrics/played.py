"""The signals of answers of several turns: turns, calls of tools and how they fail, loops, copies, and waits.

A move is a call with its result, or a turn without calls with what it was answered. Calls that are part of a turn's
text (`tool_format: marks`) are counted, but are no moves.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple, get_args

from outdo.types import Episode, Failure, Grade, Group, Message, Trajectory

KINDS: tuple[str, ...] = get_args(Failure)
MAX_GOLD_CHARS = 200  # of a gold that may be what a tool returned
LOOP_MOVES = 2  # that repeat earlier ones, at least, in an answer that loops


class Move(NamedTuple):
    """Two that are equal have told the model nothing new."""

    name: str  # of the tool; empty: a turn without calls
    said: str  # the arguments, or the turn's text
    reply: str


class Played(NamedTuple):
    """One answer of several turns."""

    group: Group
    answer: Trajectory
    episode: Episode
    grade: Grade
    moves: list[Move]

    @property
    def called(self) -> bool:
        return self.episode.num_calls > 0

    @property
    def loops(self) -> bool:
        """Whether it was cut off while it did the same again and again."""
        cut = self.episode.out_of_turns or self.answer.finish == "length"
        repeats = len(self.moves) - len({*self.moves}) if cut else 0
        return repeats >= LOOP_MOVES and 2 * repeats >= len(self.moves)


def measure_played(groups: Sequence[Group]) -> dict[str, float | None]:
    """Nothing where all answers have one turn. None: not measured, as calls where no tool was shown."""
    played = [
        Played(group, answer, answer.episode, grade, list(moves_of(answer.episode.messages)))
        for group in groups
        for answer, grade in zip(group.trajectories, group.grades, strict=True)
        if answer.episode
    ]
    if not played:
        return {}
    num_moves = sum(len(one.moves) for one in played)
    num_repeats = sum(len(one.moves) - len({*one.moves}) for one in played)
    return {
        "turns_mean": _mean([one.episode.num_turns for one in played]),
        **_tools(played),
        "repeats": num_repeats / num_moves if num_moves else None,
        "looping": _mean([one.loops for one in played]),
        "out_of_turns": _mean([one.episode.out_of_turns for one in played]),
        "env_broken": _mean([bool(one.episode.broken) for one in played]),
        "env_tokens_mean": _mean([len(one.answer.token_ids) - one.answer.num_tokens for one in played]),
        "env_wait_mean": _mean([one.episode.wait_seconds for one in played]),
    }


def _tools(played: Sequence[Played]) -> dict[str, float | None]:
    shown = [one for one in played if one.episode.num_tools or one.called]
    if not shown:
        return {}
    judged = [one for one in shown if one.episode.num_failed_calls is not None]  # an agent runs its tools itself
    calls = sum(one.episode.num_calls for one in judged)
    failed = sum(one.episode.num_failed_calls or 0 for one in judged)
    kinds = {kind: sum(one.episode.failures.get(kind, 0) for one in judged) for kind in KINDS}
    by_kind = calls and sum(kinds.values()) == failed
    return {
        "tool_calls_mean": _mean([one.episode.num_calls for one in shown]),
        "tool_users": _mean([one.called for one in shown]),
        "tool_advantage": _advantage(shown),
        "tool_calls_failed": failed / calls if calls else None,
        **({f"tool_calls_failed/{kind}": count / calls for kind, count in kinds.items()} if by_kind else {}),
        "copied": _mean([_is_copy(one) for one in shown if one.called]),
        "given_away": _given_away(shown),
    }


def moves_of(messages: Sequence[Message]) -> Iterator[Move]:
    """Those that were answered."""
    turn: Message = {}
    for by_model, part in groupby(messages, lambda message: message["role"] == "assistant"):
        if by_model:
            turn = list(part)[-1]
            continue
        replies = [message["content"] for message in part]
        if not turn:
            continue
        if calls := turn.get("tool_calls"):
            for call, reply in zip(calls, replies, strict=False):
                yield Move(str(call.get("name")), _text(call.get("arguments", call.get("error"))), _text(reply))
        else:
            yield Move("", _text(turn["content"]), _text(replies[0] if len(replies) == 1 else replies))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)


def _advantage(shown: Sequence[Played]) -> float | None:
    """How much more answers with calls are paid than those of the same group without: the mean over groups that have
    both."""
    rewards: dict[int, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    for one in shown:
        if one.grade.reward is not None:
            rewards[id(one.group)][one.called].append(one.grade.reward)
    both = [(without, calling) for without, calling in rewards.values() if without and calling]
    return _mean([statistics.fmean(calling) - statistics.fmean(without) for without, calling in both])


def _is_copy(one: Played) -> bool:
    """Whether half of the answer's text or more is a tool's result, word for word, or half of a result or more."""
    text = one.answer.text.rpartition("</think>")[2].strip()
    replies = (move.reply.strip() for move in one.moves if move.name)
    similar = (reply for reply in replies if 0 < len(reply) <= 2 * len(text) <= 4 * len(reply))
    return any(reply in text or text in reply for reply in similar)


def _given_away(shown: Sequence[Played]) -> float | None:
    """Of the right answers, the share in which a tool returned just the gold to a call that says nothing of the
    problem: the same call got another gold, just so, in an answer to another prompt."""
    right = [(one, gold) for one in shown if one.grade.verdict == "right" and (gold := gold_of(one.group))]
    if len({gold for _, gold in right}) < 2:
        return None
    golds: dict[tuple[str, str], set[str]] = defaultdict(set)
    calls = [{move[:2] for move in one.moves if move.name and move.reply.strip() == gold} for one, gold in right]
    for (_, gold), its_calls in zip(right, calls, strict=True):
        for call in its_calls:
            golds[call].add(gold)
    return _mean([any(len(golds[call]) > 1 for call in its_calls) for its_calls in calls])


def gold_of(group: Group) -> str:
    """The gold as a tool would return it; empty where it has no short text."""
    gold = group.prompt.answer
    if not isinstance(gold, (str, int, float)) or isinstance(gold, bool):
        return ""
    text = f"{gold:.12g}" if isinstance(gold, float) else str(gold).rpartition("####")[2].strip()
    return text if len(text) <= MAX_GOLD_CHARS else ""


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None
