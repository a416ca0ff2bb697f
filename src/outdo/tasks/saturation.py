"""When an easier task has nothing more to teach. Imports nothing, because the doctor reads runs with it too."""

from __future__ import annotations

from collections.abc import Sequence

WINDOW = 5  # steps over which the informative share is averaged


def is_saturated(informative_shares: Sequence[float], threshold: float) -> bool:
    """Whether fewer than this share of the groups of the last WINDOW steps had any reward spread."""
    last = informative_shares[-WINDOW:]
    return len(last) == WINDOW and sum(last) / WINDOW < threshold
