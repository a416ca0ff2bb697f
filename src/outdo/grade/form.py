"""Rewards for how an answer is written, not for what it says."""

from __future__ import annotations

import re

_FORM = re.compile(
    r"\s*<think>(?:(?!</?(?:think|answer)>).)*</think>\s*<answer>(?:(?!</?(?:think|answer)>).)*</answer>\s*", re.DOTALL
)


def format(completions: list[str], **columns: object) -> list[float]:
    """1 for `<think>…</think><answer>…</answer>`, each tag once, nothing before, between or after; else 0."""
    return [float(_FORM.fullmatch(text) is not None) for text in completions]


def overlong(
    completions: list[str],
    completion_ids: list[tuple[int, ...]],
    max_completion_length: int,
    **columns: object,
) -> list[float]:
    """DAPO's soft penalty: 0 up to four fifths of the limit, then falling linearly to -1 at the limit."""
    if max_completion_length < 1:
        raise ValueError(f"overlong needs max_completion_length, which is {max_completion_length}")
    buffer = max(1, max_completion_length // 5)
    soft = max_completion_length - buffer
    return [-min(1.0, max(0.0, (len(ids) - soft) / buffer)) for ids in completion_ids]
