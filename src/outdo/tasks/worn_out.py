"""When an easier task is used up. Imports nothing: what draws prompts and what looks at a run agree on it."""

from __future__ import annotations

from collections.abc import Sequence

WINDOW = 5  # steps over which the informative share is averaged


def is_worn_out(shares: Sequence[float], least: float) -> bool:
    """Whether less than that share of the groups of the last steps had any spread; not before a window of them."""
    last = shares[-WINDOW:]
    return len(last) == WINDOW and sum(last) / WINDOW < least
