"""The reward of an answer that was played: what its environment or its agent paid."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from outdo.rewards.blame import worst
from outdo.types import Episode, Grade

NOT_PLAYED = "the answer was not played: set environment_factory or agent"
CUT = "cut off before the environment paid anything"


def environment(
    completions: list[str], episodes: Sequence[Episode | None] = (), finish: Sequence[str] = (), **columns: object
) -> list[Grade]:
    """What the environment paid, 1 or more is right; the worst of the group, at most 0, where an answer was cut off.

    That is one which reached a limit before the environment gave a reward.
    """
    n = len(completions)
    ends = [*zip(episodes or [None] * n, finish or ["stop"] * n, strict=True)]
    grades = [None if _was_cut(*end) else _grade(end[0]) for end in ends]
    paid = [grade.reward for grade in grades if grade and grade.reward is not None]
    return [grade or replace(worst(paid, CUT, decides=True), failed=False) for grade in grades]


def _was_cut(episode: Episode | None, finish: str) -> bool:
    return episode is not None and episode.reward is None and finish == "length"


def _grade(episode: Episode | None) -> Grade:
    if episode is None:
        return Grade(None, "broken", reason=NOT_PLAYED)
    if episode.reward is None:
        return Grade(None, "broken", reason="it was played without a reward: its environment or agent must give one")
    paid = _number(episode.reward)
    if not math.isfinite(paid):
        return Grade(None, "broken", reason=f"the environment's reward is {episode.reward!r:.40}, not a finite number")
    return Grade(paid, "right" if paid >= 1 else "wrong")


def _number(value: Any) -> float:
    try:
        return math.nan if isinstance(value, (str, bytes)) else float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan
