"""Which problems are trained on and which are held out: decided by the problem itself, so the two can never meet."""

from __future__ import annotations

from outdo.seeds import seed_of

HELD_OUT = 10  # one problem in so many is held out


def is_held_out(key: object) -> bool:
    """True for the tenth of all problems that training never sees. The same everywhere, whatever the seed."""
    return seed_of("held out", key) % HELD_OUT == 0


def belongs(key: object, split: str) -> bool:
    """Whether a problem may appear in this split. Splits other than train and test are made of other problems."""
    return is_held_out(key) == (split == "test") if split in ("train", "test") else True
