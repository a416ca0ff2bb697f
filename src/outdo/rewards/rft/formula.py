"""The language of a multi grader's `calculate_output`: arithmetic over the graders' scores.

    formula = term {("+" | "-") term}
    term    = unary {("*" | "/") unary}
    unary   = ("-" | "+") unary | power
    power   = atom ["^" unary]             so -2^2 is -4, 2^-1 is 0.5, and 2^3^2 is 2^9
    atom    = number | name | function "(" formula {"," formula} ")" | "(" formula ")"

Functions: min and max of any number of values, and abs, floor, ceil, exp, sqrt, log (natural) of one. Numbers are
floats. A formula is parsed into closures, without eval; its length and depth are limited against a RecursionError.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from outdo.errors import did_you_mean

MAX_CHARS = 10_000
MAX_DEPTH = 50  # nested parentheses, signs and powers

Evaluate = Callable[[Mapping[str, float]], float]
Operator = Callable[[float, float], float]

_OF_MATH = ("floor", "ceil", "exp", "sqrt", "log")
UNARY: dict[str, Callable[[float], float]] = {"abs": abs, **{name: getattr(math, name) for name in _OF_MATH}}
VARIADIC: dict[str, Callable[[list[float]], float]] = {"min": min, "max": max}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TOKEN = re.compile(rf"\s*(?:((?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|({_NAME.pattern})|([-+*/^(),]))")


class FormulaError(ValueError):
    """A formula that cannot be read (names the column), or that has no finite value for these numbers."""


@dataclass(frozen=True)
class Formula:
    """A parsed formula."""

    names: frozenset[str]  # the graders that it uses
    evaluate: Evaluate

    def __call__(self, values: Mapping[str, float]) -> float:
        """Its value, always finite. Raises FormulaError."""
        return self.evaluate(values)


@dataclass(frozen=True)
class _Token:
    kind: str  # number, name, sign or end
    text: str
    column: int


@dataclass
class _Parser:
    """The parser's state."""

    tokens: list[_Token]
    names: Collection[str]
    used: set[str]
    at: int = 0
    depth: int = 0

    def next(self) -> _Token:
        return self.tokens[self.at]

    def take(self) -> _Token:
        """The next token, which is consumed, unless it is the end."""
        token = self.next()
        self.at += token.kind != "end"
        return token

    def takes(self, *signs: str) -> str | None:
        """The next token's text, consumed, if it is one of these signs."""
        token = self.next()
        return self.take().text if token.kind == "sign" and token.text in signs else None


def can_be_named(key: str) -> bool:
    """Whether a formula can use this name: letters, digits and _, not starting with a digit."""
    return _NAME.fullmatch(key) is not None


def parse(text: str, names: Collection[str]) -> Formula:
    """Parses a formula over these names. Raises FormulaError with the column."""
    if len(text) > MAX_CHARS:
        raise FormulaError(f"the formula has {len(text)} characters; the limit is {MAX_CHARS}")
    parser = _Parser(_tokens(text), names, set())
    evaluate = _sum(parser)
    if parser.next().kind != "end":
        raise _unexpected(parser.next(), "an operator (+ - * / ^)")
    return Formula(frozenset(parser.used), evaluate)


def _tokens(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    at, end = 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None:
            at += len(text[at:]) - len(text[at:].lstrip())
            raise FormulaError(f"column {at + 1}: unexpected character {text[at]!r}")
        kind = ("number", "name", "sign")[(match.lastindex or 1) - 1]
        tokens.append(_Token(kind, match[match.lastindex or 1], match.start(match.lastindex or 1) + 1))
        at = match.end()
    return [*tokens, _Token("end", "", end + 1)]


def _sum(parser: _Parser) -> Evaluate:
    return _chain(parser, _product, {"+": lambda a, b: a + b, "-": lambda a, b: a - b})


def _product(parser: _Parser) -> Evaluate:
    return _chain(parser, _unary, {"*": lambda a, b: a * b, "/": _divide})


def _chain(parser: _Parser, operand: Callable[[_Parser], Evaluate], operators: dict[str, Operator]) -> Evaluate:
    """Operands of one precedence, from left to right. A list, not a tree, so that a long sum is not deep."""
    first = operand(parser)
    rest: list[tuple[Operator, Evaluate]] = []
    while (sign := parser.takes(*operators)) is not None:
        rest.append((operators[sign], operand(parser)))
    if not rest:
        return first

    def evaluate(values: Mapping[str, float]) -> float:
        total = first(values)
        for operator, other in rest:
            total = operator(total, other(values))
            if not math.isfinite(total):
                raise FormulaError("the result is too large")
        return total

    return evaluate


def _unary(parser: _Parser) -> Evaluate:
    parser.depth += 1
    if parser.depth > MAX_DEPTH:
        raise FormulaError(f"column {parser.next().column}: nested more than {MAX_DEPTH} levels deep")
    sign = parser.takes("-", "+")
    inner = _power(parser) if sign is None else _unary(parser)
    parser.depth -= 1
    return inner if sign != "-" else lambda values: -inner(values)


def _power(parser: _Parser) -> Evaluate:
    base = _atom(parser)
    if parser.takes("^") is None:
        return base
    exponent = _unary(parser)
    return lambda values: _apply(math.pow, "{:g}^{:g}", base(values), exponent(values))


def _atom(parser: _Parser) -> Evaluate:
    token = parser.take()
    if token.kind == "number":
        value = float(token.text)
        if not math.isfinite(value):
            raise FormulaError(f"column {token.column}: {token.text} is too large")
        return lambda values: value
    if token.kind == "name":
        return _call(parser, token) if parser.takes("(") else _variable(parser, token)
    if token.text != "(":
        raise _unexpected(token, "a number, a grader's name or '('")
    inner = _sum(parser)
    _close(parser, "')'", token)
    return inner


def _call(parser: _Parser, name: _Token) -> Evaluate:
    arguments = [_sum(parser)]
    while parser.takes(","):
        arguments.append(_sum(parser))
    _close(parser, "',' or ')'", name)
    if name.text in VARIADIC:
        choose = VARIADIC[name.text]
        return lambda values: choose([argument(values) for argument in arguments])
    if name.text not in UNARY:
        functions = ", ".join([*VARIADIC, *UNARY])
        raise FormulaError(f"column {name.column}: unknown function {name.text!r}; the functions are {functions}")
    if len(arguments) > 1:
        raise FormulaError(f"column {name.column}: {name.text} takes one value, not {len(arguments)}")
    return lambda values: _apply(UNARY[name.text], name.text + "({:g})", arguments[0](values))


def _variable(parser: _Parser, token: _Token) -> Evaluate:
    if token.text not in parser.names:
        meant = did_you_mean(token.text, parser.names, "; did you mean {!r}?")
        graders = ", ".join(parser.names) or "none"
        raise FormulaError(f"column {token.column}: unknown grader {token.text!r}; the graders are {graders}{meant}")
    parser.used.add(token.text)
    return lambda values: values[token.text]


def _close(parser: _Parser, wanted: str, opened: _Token) -> None:
    if parser.takes(")") is None:
        raise _unexpected(parser.next(), f"{wanted} to close the parenthesis of column {opened.column}")


def _unexpected(token: _Token, wanted: str) -> FormulaError:
    got = "the end of the formula" if token.kind == "end" else repr(token.text)
    return FormulaError(f"column {token.column}: expected {wanted}, got {got}")


def _divide(a: float, b: float) -> float:
    if b == 0:
        raise FormulaError(f"division of {a:g} by 0")
    return a / b


def _apply(function: Callable[..., float], form: str, *values: float) -> float:
    """The function's value; `form` shows the call in the error where there is none."""
    try:
        return float(function(*values))
    except OverflowError:
        raise FormulaError(f"{form.format(*values)} is too large") from None
    except ValueError:
        raise FormulaError(f"{form.format(*values)} is undefined") from None
