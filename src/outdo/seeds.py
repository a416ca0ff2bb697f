"""Randomness by name: a seed is a hash of what it is for, so no two uses share one and layout changes nothing."""

from __future__ import annotations

import hashlib


def seed_of(*parts: object) -> int:
    """A 63-bit seed from any values, the same on every machine: `seed_of(run_seed, step, prompt_id, index)`."""
    text = "\x1f".join(repr(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
