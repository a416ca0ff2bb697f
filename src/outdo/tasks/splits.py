"""Which problems are held out: decided by a hash of the problem, so that none is ever in both splits."""

from __future__ import annotations

from outdo.seeds import seed_of

HELD_OUT = 0.1  # the share of problems
_TENTHS, _PARTS = 10, 10**6


def belongs(key: object, split: str, share: float = HELD_OUT) -> bool:
    """Whether a problem may appear in this split, whatever the run's seed. Other splits must have other problems.

    A larger share holds out the problems of a smaller one and more.
    """
    number = seed_of("held out", key)
    rank = number % _TENTHS * _PARTS + number // _TENTHS % _PARTS  # uniform, and its first tenth is number % 10 == 0
    is_held_out = rank < round(share * _TENTHS * _PARTS)
    return is_held_out == (split == "test") if split in ("train", "test") else True
