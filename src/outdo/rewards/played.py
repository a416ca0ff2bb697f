"""The reward of an answer that was played: what its environment paid."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from outdo.types import Episode, Grade

NOT_PLAYED = "the answer was not played in an environment: set environment_factory"


def environment(completions: list[str], episodes: Sequence[Episode | None] = (), **columns: object) -> list[Grade]:
    """What the environment paid; 1 or more is right."""
    return [_grade(episode) for episode in episodes or [None] * len(completions)]


def _grade(episode: Episode | None) -> Grade:
    if episode is None:
        return Grade(None, "broken", reason=NOT_PLAYED)
    if episode.reward is None:
        return Grade(None, "broken", reason="the environment gave no reward")
    paid = _number(episode.reward)
    if not math.isfinite(paid):
        return Grade(None, "broken", reason=f"the environment's reward is {episode.reward!r:.40}, not a finite number")
    return Grade(paid, "right" if paid >= 1 else "wrong")


def _number(value: Any) -> float:
    try:
        return math.nan if isinstance(value, (str, bytes)) else float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan
