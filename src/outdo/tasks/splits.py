"""Which problems are held out: decided by a hash of the problem, so that none is ever in both splits."""

from __future__ import annotations

from outdo.seeds import seed_of

HELD_OUT_EVERY = 10  # one problem in so many


def belongs(key: object, split: str) -> bool:
    """Whether a problem may appear in this split, whatever the run's seed. Other splits must have other problems."""
    is_held_out = seed_of("held out", key) % HELD_OUT_EVERY == 0
    return is_held_out == (split == "test") if split in ("train", "test") else True
