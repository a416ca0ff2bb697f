"""Whether two pieces of LaTeX mean the same, by math-verify. Runs in a worker process only: sympy may take for ever."""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import Any

from math_verify import LatexExtractionConfig, parse, verify
from sympy import Expr, Rational, expand

logging.disable(logging.CRITICAL)  # it warns that its own timeout is off: the pool has one that holds
_CONFIG = (LatexExtractionConfig(),)


@lru_cache(maxsize=1024)
def _parsed(latex: str) -> list[Any]:
    """What math-verify reads; only whole expressions, never a text as a last resort."""
    return parse(f"${latex}$", _CONFIG, fallback_mode="no_fallback", parsing_timeout=None)


def readable(latex: str) -> bool:
    return bool(_parsed(latex))


def equal(gold: str, latex: str) -> bool | None:
    """None where the gold cannot be read."""
    golds, answers = _parsed(gold), _parsed(latex)
    if not golds:
        return None
    if len(golds) == len(answers) == 1 and (seen := _seen(golds[0], answers[0])) is not None:
        return seen
    if "%" not in gold + latex and golds and answers and _far(golds[0], answers[0]):
        return False
    return bool(verify(golds, answers, timeout_seconds=None))


def _far(gold: Any, answer: Any) -> bool:
    """Two numbers that differ in their first digits; math-verify looks at the first decimals of however small ones."""
    if not all(isinstance(side, Expr) and side.is_number and side.is_finite for side in (gold, answer)):
        return False
    x, y = complex(gold.evalf(15)), complex(answer.evalf(15))
    return abs(x - y) > 1e-4 * max(abs(x), abs(y))


def _seen(gold: Any, answer: Any) -> bool | None:
    """Two formulas in the same variables: equal when expanded, or different somewhere. None: that does not tell."""
    variables = sorted(getattr(gold, "free_symbols", ()), key=str)
    if not all(isinstance(side, Expr) and side.is_commutative for side in (gold, answer)) or not variables:
        return None
    if set(variables) != answer.free_symbols:
        return None
    difference = gold - answer
    for places in ((3, 7, 11, 13), (17, 5, 23, 19)):
        at = dict(zip(variables, map(Rational, places), strict=False))
        value = difference.subs(at).evalf(15)
        if value.is_number and value.is_finite and abs(value) > 1e-3 * (1 + abs(gold.subs(at).evalf(15))):
            return False
    return True if expand(difference) == 0 else None


# The parser learns its grammar as it goes: what is read here, before workers are forked, none of them has to learn.
_USUAL = r"""
17 | -3 | 0.25 | \frac{3}{7} | -\frac{2}{5} | 3\frac{1}{2} | \sqrt{2} | 17\sqrt{23} | \frac{\sqrt{3}}{2} |
\frac{1+\sqrt{5}}{2} | 2+3i | x^2+18x+81 | (x+9)^2 | x^{2}-4x+4 | 2x+3y=6 | y=2x+1 | (3,4) | (3, -5, 2) |
[0,1] | (-\infty,3)\cup(5,\infty) | \{1,2,3\} | 13\pi | \pi\cdot 13 | \frac{\pi}{4} | 2\pi r | 45^{\circ} |
90^\circ | \sin x | \cos\left(\frac{\pi}{3}\right) | \log_{2}8 | \ln 2 | e^{2x} | 2^{10} | 2^{-3} | x^{n+1} |
a_{n} | \frac{x+1}{x-1} | \frac{a}{b+c} | 10! | \binom{10}{3} | \pm 2 | x=5 | x\le 3 | x>2 | -1<x<4 | 5\% |
1{,}234 | \text{even} | 12\text{ cm} | \begin{pmatrix}1&2\\3&4\end{pmatrix} | \sum_{k=1}^{n}k | \int_0^1 x dx |
f(x)=x^2 | 4\cdot 10^{5} | 3\times 4 | 6\div 2 | \sqrt[3]{5}
"""


def _learn() -> None:
    for latex in _USUAL.split("|"):
        _parsed(latex.strip())
    for gold, latex in (
        ("2x^{2}", "(x+1)^2"),
        ("2\\sqrt{2}", "\\sqrt{8}"),
        ("(3,4)", "[0,1]"),
        ("\\frac{\\pi}{4}", "0.25"),
    ):
        equal(gold, latex)


_learn()
