"""Which problems are held out: decided by a hash of the problem, so that none is ever in both splits."""

from __future__ import annotations

from outdo.seeds import seed_of

HELD_OUT_EVERY = 10  # one problem in so many


def is_held_out(key: object) -> bool:
    """True for one problem in ten, which training never sees. Does not depend on the run's seed."""
    return seed_of("held out", key) % HELD_OUT_EVERY == 0


def belongs(key: object, split: str) -> bool:
    """Whether a problem may appear in this split. Splits other than train and test must have other problems."""
    return is_held_out(key) == (split == "test") if split in ("train", "test") else True
