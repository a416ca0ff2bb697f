"""Equality of two LaTeX expressions, by math-verify. Runs only in worker processes: sympy may run forever."""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import Any

from math_verify import LatexExtractionConfig, parse, verify
from sympy import Expr, Rational, expand

logging.disable(logging.CRITICAL)  # math-verify warns that its own timeout is off; the pool's replaces it
_CONFIG = (LatexExtractionConfig(),)


@lru_cache(maxsize=1024)
def _parsed(latex: str) -> list[Any]:
    """math-verify's parse of a full expression, without its fallback to plain text."""
    return parse(f"${latex}$", _CONFIG, fallback_mode="no_fallback", parsing_timeout=None)


def readable(latex: str) -> bool:
    return bool(_parsed(latex))


def equal(gold: str, latex: str) -> bool | None:
    """None where the gold cannot be parsed."""
    golds, answers = _parsed(gold), _parsed(latex)
    if not golds:
        return None
    if len(golds) == len(answers) == 1 and (verdict := _compare_formulas(golds[0], answers[0])) is not None:
        return verdict
    if "%" not in gold + latex and golds and answers and _differ(golds[0], answers[0]):
        return False
    return bool(verify(golds, answers, timeout_seconds=None))


def _differ(gold: Any, answer: Any) -> bool:
    """Whether two numbers differ in their first digits; math-verify compares decimals, even of tiny numbers."""
    if not all(isinstance(side, Expr) and side.is_number and side.is_finite for side in (gold, answer)):
        return False
    x, y = complex(gold.evalf(15)), complex(answer.evalf(15))
    return abs(x - y) > 1e-4 * max(abs(x), abs(y))


def _compare_formulas(gold: Any, answer: Any) -> bool | None:
    """Formulas in the same variables: True where equal when expanded, False where values differ, else None."""
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


# The parser caches its grammar lazily: parsing these before the workers are forked saves each of them the time.
_COMMON = r"""
17 | -3 | 0.25 | \frac{3}{7} | -\frac{2}{5} | 3\frac{1}{2} | \sqrt{2} | 17\sqrt{23} | \frac{\sqrt{3}}{2} |
\frac{1+\sqrt{5}}{2} | 2+3i | x^2+18x+81 | (x+9)^2 | x^{2}-4x+4 | 2x+3y=6 | y=2x+1 | (3,4) | (3, -5, 2) |
[0,1] | (-\infty,3)\cup(5,\infty) | \{1,2,3\} | 13\pi | \pi\cdot 13 | \frac{\pi}{4} | 2\pi r | 45^{\circ} |
90^\circ | \sin x | \cos\left(\frac{\pi}{3}\right) | \log_{2}8 | \ln 2 | e^{2x} | 2^{10} | 2^{-3} | x^{n+1} |
a_{n} | \frac{x+1}{x-1} | \frac{a}{b+c} | 10! | \binom{10}{3} | \pm 2 | x=5 | x\le 3 | x>2 | -1<x<4 | 5\% |
1{,}234 | \text{even} | 12\text{ cm} | \begin{pmatrix}1&2\\3&4\end{pmatrix} | \sum_{k=1}^{n}k | \int_0^1 x dx |
f(x)=x^2 | 4\cdot 10^{5} | 3\times 4 | 6\div 2 | \sqrt[3]{5}
"""
_PAIRS = (("2x^{2}", "(x+1)^2"), ("2\\sqrt{2}", "\\sqrt{8}"), ("(3,4)", "[0,1]"), ("\\frac{\\pi}{4}", "0.25"))
for _latex in _COMMON.split("|"):
    _parsed(_latex.strip())
for _pair in _PAIRS:
    equal(*_pair)
