"""Equality of two formulas by algebra. Runs only in worker processes: sympy may run forever."""

from __future__ import annotations

from typing import Any

import sympy
from sympy import Expr, Float, Rational, Symbol

from outdo.rewards.maths.compare import Comparison
from outdo.rewards.maths.judge import judge
from outdo.rewards.maths.question import question
from outdo.rewards.maths.tree import Node, rational, same_number

_PLACES = ((3, 7, 11, 13, 29), (17, 5, 23, 19, 2), (-3, 4, -7, 6, -2), (2, -5, 3, -11, 4))
_DIGITS = 60
_TOLERANCE = Float("1e-40", _DIGITS)
_FUNCTIONS: dict[str, Any] = {
    **{
        name: getattr(sympy, name)
        for name in ("sin", "cos", "tan", "sec", "csc", "cot", "sinh", "cosh", "tanh", "coth")
    },
    **{"arcsin": sympy.asin, "arccos": sympy.acos, "arctan": sympy.atan, "arccot": sympy.acot, "exp": sympy.exp},
    **{"ln": sympy.log, "lg": lambda x: sympy.log(x, 10), "log": lambda x, base=10: sympy.log(x, base)},
    **{"abs": sympy.Abs, "floor": sympy.floor, "ceil": sympy.ceiling, "factorial": sympy.factorial},
    **{"gcd": lambda *parts: sympy.gcd(parts), "lcm": lambda *parts: sympy.lcm(parts)},
    **{"binom": sympy.binomial, "max": sympy.Max, "min": sympy.Min},
    **{"Re": sympy.re, "Im": sympy.im, "arg": sympy.arg},
}
_CONSTANTS = {"pi": sympy.pi, "e": sympy.E, "i": sympy.I, "inf": sympy.oo}


def equal(gold: str, latex: str, asked: str) -> str:
    """Why the answer is wrong; empty where it is right."""
    return judge(gold, latex, Comparison(_same, _proportional, question(asked)))


def _converted(node: Node) -> Expr:
    """The formula for sympy; what it does not know becomes a symbol of its own."""
    if node.value is not None:
        return Rational(node.value.numerator, node.value.denominator)
    if node.op == "const":
        return _CONSTANTS[node.name]
    if node.op in ("sym", "sub", "accent", "big", "text"):
        return Symbol(repr(node.key), real=True)
    args = [_converted(arg) for arg in node.args]
    if node.op == "fn":
        if node.name in _FUNCTIONS:
            return _FUNCTIONS[node.name](*args)
        return sympy.Function(node.name)(*args)
    return _OPERATIONS[node.op](*args)


_OPERATIONS: dict[str, Any] = {
    "add": sympy.Add,
    "mul": sympy.Mul,
    "neg": lambda x: -x,
    "div": lambda x, y: x / y,
    "mixed": lambda x, y: x + y,
    "percent": lambda x: x / 100,
    "pow": lambda x, y: x**y,
    "root": lambda x, index: sympy.real_root(x, index) if x.is_number and index % 2 == 1 else sympy.root(x, index),
}


def _same(gold: Node, node: Node) -> bool:
    x, y = rational(gold), rational(node)
    if x is not None and y is not None:
        return same_number(gold, node, x, y)
    one, other = _converted(gold), _converted(node)
    if one == other:
        return True
    if one.free_symbols != other.free_symbols:
        other, one = sympy.simplify(other), sympy.simplify(one)
        if one.free_symbols != other.free_symbols:
            return False
    if not one.free_symbols:
        return _same_constant(gold, node, one, other)
    return _same_everywhere(one, other)


def _same_constant(gold: Node, node: Node, one: Expr, other: Expr) -> bool:
    x, y = one.evalf(_DIGITS), other.evalf(_DIGITS)
    if not (x.is_number and y.is_number and x.is_finite and y.is_finite):
        return False
    difference, scale = abs(x - y), max(abs(x), abs(y))
    if difference <= _TOLERANCE * scale:
        return True
    for side in (side.args[0] if side.op == "neg" else side for side in (gold, node)):
        digits = side.name.replace(".", "").lstrip("0")
        if side.op == "num" and "." in side.name and len(digits) >= 6:  # rounded
            places = len(side.name.partition(".")[2])
            return bool(difference <= Rational(1, 2 * 10**places) and difference <= scale / 10**6)
    return False


def _same_everywhere(one: Expr, other: Expr) -> bool:
    """Equal at every place where both are real, and at two places at least; exactly where they are rational."""
    difference, symbols = one - other, sorted(one.free_symbols, key=str)
    if difference == 0 or sympy.expand(difference) == 0:
        return True
    agreed = 0
    for places in _PLACES:
        at = {symbol: Rational(places[i % 5] + i // 5, 1 + i // 5) for i, symbol in enumerate(symbols)}
        exact = difference.subs(at)
        if exact.is_Rational:
            if exact != 0:
                return False
            agreed += 1
            continue
        value, scale = exact.evalf(_DIGITS), one.subs(at).evalf(_DIGITS)
        if not (value.is_number and value.is_finite and scale.is_number and scale.is_finite):
            continue
        real = not one.has(sympy.I) and not other.has(sympy.I)
        if real and not (scale.is_real or abs(sympy.im(scale)) < _TOLERANCE):
            continue
        if abs(value) > _TOLERANCE * (1 + abs(scale)):
            return False
        agreed += 1
    return agreed > 1


def _proportional(gold: Node, node: Node) -> bool:
    one, other = _converted(gold), _converted(node)
    if not one.free_symbols or one.free_symbols != other.free_symbols:
        return False
    ratio: Any = sympy.simplify(one / other)
    return bool(ratio.is_number and ratio.is_finite and ratio != 0)


# Sympy imports and caches much on first use: doing that before the workers are forked saves each of them the time.
_COMMON = (
    ("x^2+18x+81", "(x+9)^2"),
    ("2\\sqrt{2}", "\\sqrt{8}"),
    ("\\frac{\\pi}{4}", "\\arctan 1"),
    ("\\sin 2x", "2\\sin x\\cos x"),
    ("2x+3y=6", "4x+6y=12"),
    ("\\frac{x+1}{x-1}", "1+\\frac{2}{x-1}"),
    ("2+3i", "(3i+2)"),
    ("\\ln 8", "3\\ln 2"),
)
for _pair in _COMMON:
    equal(*_pair, "")
