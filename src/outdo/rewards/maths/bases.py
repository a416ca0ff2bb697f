"""Numbers in a base, compared digit by digit: `2102_8`."""

from __future__ import annotations

import re
from fractions import Fraction

from outdo.rewards.answer import NUMBER_WORDS

_NAME = re.compile(r"\\?[A-Za-z]+(?:_\{?\w+\}?)?(?:\([A-Za-z, ]*\))?'?")
_WRAPS = re.compile(r"\\(?:text|textrm|mathrm|mbox)(?![a-z])|[{}() ]")
_IN_BASE = re.compile(r"(-?[0-9A-Z]*(?:\.[0-9A-Z]+)?)(?:_|_?(?:in)?base)([0-9]+|[a-z]+)")
_DIGITS = re.compile(r"-?[0-9]+(?:\.[0-9]+)?")


def unnamed(latex: str) -> str:
    """The 5 of `x=5`."""
    left, equals, right = latex.partition("=")
    return right if equals and _NAME.fullmatch(left) else latex


def in_base(latex: str) -> tuple[str, int] | None:
    """The digits and the base of `2102_8`, `2102_{\\text{eight}}`, `2102\\text{ (base 8)}`; None for anything else.

    Letters are digits only where the base has them: `2A_2` is twice `A_2`.
    """
    match = _IN_BASE.fullmatch(_bare(latex))
    if not match:
        return None
    digits, named = match.groups()
    base = int(named[:4]) if named.isdigit() else NUMBER_WORDS.get(named, 0)
    letters = [c for c in digits if c.isalpha()]
    fit = all(int(c, 36) < base for c in letters) and (len(letters) < len(digits) or len(digits) > 1)
    return (digits, base) if 2 <= base <= 36 and fit else None


def _bare(latex: str) -> str:
    return _WRAPS.sub("", unnamed(latex)).lstrip("+0")


def same_in_base(gold: str, latex: str) -> bool | None:
    """Whether digits and base are the same; None where neither side has a base.

    The answer may omit the gold's base, which the question states. Where the gold has none, only base ten is right.
    """
    expected, answered = in_base(gold), in_base(latex)
    if expected and answered:
        return expected == answered
    if expected:
        return _bare(latex) == expected[0]
    if answered and (_DIGITS.fullmatch(gold) or _DIGITS.fullmatch(_bare(gold))):
        return answered[1] == 10 and bool(_DIGITS.fullmatch(answered[0])) and Fraction(answered[0]) == Fraction(gold)
    return None
