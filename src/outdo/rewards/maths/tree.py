"""Formulas as trees, exactly as they are written: nothing is worked out.

Two spellings of the same operations have the same key: `\\frac{a}{b}` and `a/b`, `2\\cdot x` and `2x`, `b+a` and `a+b`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import gcd
from typing import Any

_SORTED = {"add", "mul", "set", "union", "inter"}
_MAX_BITS = 4096  # of a number that is evaluated here


@dataclass(frozen=True)
class Node:
    """An operation and its arguments; `name`: of a symbol, a function, a relation, a unit or brackets."""

    op: str
    args: tuple[Node, ...] = ()
    name: str = ""
    value: Fraction | None = None  # of a number

    @cached_property
    def key(self) -> Any:
        """Equal for two nodes that are written alike, but for the order where it does not matter."""
        keys: Any = tuple(arg.key for arg in self.args)
        if self.op in _SORTED:
            keys = tuple(sorted(keys, key=repr))
        return (self.op, "" if self.op == "num" else self.name, self.value, keys)

    def walk(self) -> Iterator[Node]:
        yield self
        for arg in self.args:
            yield from arg.walk()


def number(value: Fraction | int, text: str = "") -> Node:
    return Node("num", name=text or str(value), value=Fraction(value))


def negated(node: Node) -> Node:
    return node.args[0] if node.op == "neg" else Node("neg", (node,))


def joined(op: str, *nodes: Node) -> Node:
    """A sum or a product, without sums in sums."""
    parts = tuple(part for node in nodes for part in (node.args if node.op == op else (node,)))
    return parts[0] if len(parts) == 1 else Node(op, parts)


def rational(node: Node) -> Fraction | None:
    """The exact value of arithmetic on plain numbers; None for anything else, and for what would be too large."""
    if node.op == "num":
        return node.value
    if node.op not in _ARITHMETIC:
        return None
    values = [rational(arg) for arg in node.args]
    if any(value is None or _bits(value) > _MAX_BITS for value in values):
        return None
    return _ARITHMETIC[node.op]([value for value in values if value is not None])


def _bits(value: Fraction) -> int:
    return value.numerator.bit_length() + value.denominator.bit_length()


def _product(values: list[Fraction]) -> Fraction | None:
    if sum(map(_bits, values)) > _MAX_BITS:
        return None
    total = Fraction(1)
    for value in values:
        total *= value
    return total


def _power(values: list[Fraction]) -> Fraction | None:
    base, exponent = values
    if exponent.denominator != 1 or abs(exponent) * _bits(base) > _MAX_BITS or (base == 0 and exponent <= 0):
        return None
    return base ** int(exponent)


_ARITHMETIC = {
    "neg": lambda values: -values[0],
    "add": lambda values: sum(values, Fraction(0)) if sum(map(_bits, values)) <= _MAX_BITS else None,
    "mul": _product,
    "div": lambda values: values[0] / values[1] if values[1] else None,
    "mixed": lambda values: values[0] + values[1],
    "percent": lambda values: values[0] / 100,
    "pow": _power,
}


def mentions(name: Node, nodes: tuple[Node, ...]) -> bool:
    """Whether a symbol occurs in any of the trees."""
    return name.op == "sym" and any(part.key == name.key for node in nodes for part in node.walk())


def is_plain(node: Node) -> bool:
    """A number with nothing left to do: an integer, a decimal, a mixed number, a fraction in lowest terms."""
    node = node.args[0] if node.op == "neg" else node
    if node.op in ("num", "mixed"):
        return True
    if node.op != "div":
        return False
    top, bottom = (part.args[0] if part.op == "neg" else part for part in node.args)
    if top.op != "num" or bottom.op != "num" or top.value is None or bottom.value is None:
        return False
    whole = top.value.denominator == bottom.value.denominator == 1
    return whole and bottom.value > 1 and gcd(int(top.value), int(bottom.value)) == 1


def same_number(gold: Node, node: Node, x: Fraction, y: Fraction) -> bool:
    """Exact equality; to six digits where one is a decimal and the other has no finite decimal, such as 1/3."""
    if x == y:
        return True
    decimals = [side.op == "num" and "." in side.name and "(" not in side.name for side in map(_bare, (gold, node))]
    endless = [pow(10, 400, value.denominator) != 0 for value in (x, y)]
    rounded = (decimals[0] and endless[1]) or (decimals[1] and endless[0])
    return rounded and abs(x - y) <= abs(x) / 10**6


def _bare(node: Node) -> Node:
    return node.args[0] if node.op in ("neg", "percent") else node
