"""The language of a multi grader's `calculate_output`: arithmetic over the graders' names, and nothing else.

    formula = term {("+" | "-") term}
    term    = unary {("*" | "/") unary}
    unary   = ("-" | "+") unary | power
    power   = atom ["^" unary]             so -2^2 is -4, 2^-1 is 0.5, and 2^3^2 is 2^9
    atom    = number | name | function "(" formula {"," formula} ")" | "(" formula ")"

Functions: min and max of any number of values, and abs, floor, ceil, exp, sqrt, log (natural) of one. Numbers are
floats. Nothing is handed to Python's eval: a formula is read once into closures and run as often as needed. Its length
and its depth are bounded, so that no formula ends in a RecursionError.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from outdo.errors import did_you_mean

LONGEST = 10_000  # characters
DEEPEST = 50  # parentheses, signs and powers inside each other

Run = Callable[[Mapping[str, float]], float]
Join = Callable[[float, float], float]

ONE: dict[str, Callable[[float], float]] = {
    "abs": abs,
    "floor": math.floor,
    "ceil": math.ceil,
    "exp": math.exp,
    "sqrt": math.sqrt,
    "log": math.log,
}
MANY: dict[str, Callable[[list[float]], float]] = {"min": min, "max": max}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TOKEN = re.compile(rf"\s*(?:((?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|({_NAME.pattern})|([-+*/^(),]))")


class FormulaError(ValueError):
    """A formula that cannot be read (says at which column), or that has no finite value for these numbers."""


@dataclass(frozen=True)
class Formula:
    """A formula, read."""

    text: str
    names: frozenset[str]  # what it needs values for
    run: Run

    def __call__(self, values: Mapping[str, float]) -> float:
        """Its value, always finite. Raises FormulaError."""
        return self.run(values)


@dataclass(frozen=True)
class _Token:
    kind: str  # number, name, sign or end
    text: str
    column: int


@dataclass
class _Reading:
    """Where the parser stands. The only thing here that changes."""

    tokens: list[_Token]
    known: Collection[str]
    used: set[str]
    at: int = 0
    depth: int = 0

    def next(self) -> _Token:
        return self.tokens[self.at]

    def take(self) -> _Token:
        """The next token, and on to the one behind it. The end stays the end."""
        token = self.next()
        self.at += token.kind != "end"
        return token

    def takes(self, *signs: str) -> str | None:
        """The sign that stands next, taken, if it is one of these."""
        token = self.next()
        return self.take().text if token.kind == "sign" and token.text in signs else None


def can_be_named(key: str) -> bool:
    """Whether a formula can name it: letters, digits and _, no digit first."""
    return _NAME.fullmatch(key) is not None


def parse(text: str, names: Collection[str]) -> Formula:
    """Reads a formula over these names. Raises FormulaError with the column."""
    if len(text) > LONGEST:
        raise FormulaError(f"the formula is {len(text)} characters long; at most {LONGEST} are read")
    reading = _Reading(_tokens(text), names, set())
    run = _sum(reading)
    if reading.next().kind != "end":
        raise _unexpected(reading.next(), "an operator (+ - * / ^)")
    return Formula(text, frozenset(reading.used), run)


def _tokens(text: str) -> list[_Token]:
    found: list[_Token] = []
    at = 0
    end = len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None:
            at += len(text[at:]) - len(text[at:].lstrip())
            raise FormulaError(f"column {at + 1}: {text[at]!r} means nothing here")
        kind = ("number", "name", "sign")[(match.lastindex or 1) - 1]
        found.append(_Token(kind, match[match.lastindex or 1], match.start(match.lastindex or 1) + 1))
        at = match.end()
    return [*found, _Token("end", "", end + 1)]


def _sum(reading: _Reading) -> Run:
    return _chain(reading, _product, {"+": lambda a, b: a + b, "-": lambda a, b: a - b})


def _product(reading: _Reading) -> Run:
    return _chain(reading, _unary, {"*": lambda a, b: a * b, "/": _divide})


def _chain(reading: _Reading, part: Callable[[_Reading], Run], signs: dict[str, Join]) -> Run:
    """Parts joined by signs of one rank, from left to right. A list, not a tree: a long sum is not a deep one."""
    first = part(reading)
    rest: list[tuple[Join, Run]] = []
    while (sign := reading.takes(*signs)) is not None:
        rest.append((signs[sign], part(reading)))
    if not rest:
        return first

    def run(values: Mapping[str, float]) -> float:
        total = first(values)
        for join, other in rest:
            total = _finite(join(total, other(values)))
        return total

    return run


def _unary(reading: _Reading) -> Run:
    _deeper(reading)
    sign = reading.takes("-", "+")
    inner = _power(reading) if sign is None else _unary(reading)
    reading.depth -= 1
    return inner if sign != "-" else lambda values: -inner(values)


def _power(reading: _Reading) -> Run:
    base = _atom(reading)
    if reading.takes("^") is None:
        return base
    exponent = _unary(reading)
    return lambda values: _raised(base(values), exponent(values))


def _atom(reading: _Reading) -> Run:
    token = reading.take()
    if token.kind == "number":
        value = float(token.text)
        if not math.isfinite(value):
            raise FormulaError(f"column {token.column}: {token.text} is too large")
        return lambda values: value
    if token.kind == "name":
        return _call(reading, token) if reading.takes("(") else _variable(reading, token)
    if token.text != "(":
        raise _unexpected(token, "a number, a grader's name or '('")
    inner = _sum(reading)
    _close(reading, "')'", token)
    return inner


def _call(reading: _Reading, name: _Token) -> Run:
    arguments = [_sum(reading)]
    while reading.takes(","):
        arguments.append(_sum(reading))
    _close(reading, "',' or ')'", name)
    if name.text in MANY:
        choose = MANY[name.text]
        return lambda values: choose([argument(values) for argument in arguments])
    if name.text not in ONE:
        known = ", ".join([*MANY, *ONE])
        raise FormulaError(f"column {name.column}: there is no function {name.text!r}; there are {known}")
    if len(arguments) > 1:
        raise FormulaError(f"column {name.column}: {name.text} takes one value, not {len(arguments)}")
    return lambda values: _applied(name.text, arguments[0](values))


def _variable(reading: _Reading, token: _Token) -> Run:
    if token.text not in reading.known:
        meant = did_you_mean(token.text, reading.known, "; did you mean {!r}?")
        known = ", ".join(reading.known) or "none"
        raise FormulaError(f"column {token.column}: no grader is called {token.text!r}, there are {known}{meant}")
    reading.used.add(token.text)
    return lambda values: values[token.text]


def _close(reading: _Reading, wanted: str, opened: _Token) -> None:
    if reading.takes(")") is None:
        raise _unexpected(reading.next(), f"{wanted} for the one opened at column {opened.column}")


def _deeper(reading: _Reading) -> None:
    reading.depth += 1
    if reading.depth > DEEPEST:
        raise FormulaError(f"column {reading.next().column}: nested more than {DEEPEST} deep")


def _unexpected(token: _Token, wanted: str) -> FormulaError:
    got = "the formula ends" if token.kind == "end" else f"{token.text!r} stands"
    return FormulaError(f"column {token.column}: {got} where {wanted} should be")


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise FormulaError("the result is too large")
    return value


def _divide(a: float, b: float) -> float:
    if b == 0:
        raise FormulaError(f"{a:g} is divided by 0")
    return a / b


def _raised(base: float, exponent: float) -> float:
    try:
        return math.pow(base, exponent)
    except OverflowError:
        raise FormulaError(f"{base:g}^{exponent:g} is too large") from None
    except ValueError:
        raise FormulaError(f"{base:g}^{exponent:g} has no value") from None


def _applied(name: str, value: float) -> float:
    try:
        return float(ONE[name](value))
    except OverflowError:
        raise FormulaError(f"{name}({value:g}) is too large") from None
    except ValueError:
        raise FormulaError(f"{name}({value:g}) has no value") from None
