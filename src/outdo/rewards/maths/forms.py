"""In which form an answer is written: evaluated, simplified, expanded, factored."""

from __future__ import annotations

from fractions import Fraction
from math import gcd

from outdo.rewards.maths.tree import Node, is_plain, rational

_COMPUTED = {"binom", "factorial", "floor", "ceil", "gcd", "lcm", "max", "min", "det", "abs", "norm"}
_MAX_RADICAND = 10**8
_SMALL_POWERS = {Fraction(2), Fraction(3), Fraction(1, 2), Fraction(1, 3)}


def is_evaluated(node: Node) -> bool:
    """One number: digits, a fraction, a power, a root or `3\\cdot 10^{6}`, without further operations."""
    node = _unsigned(node)
    if node.op in ("num", "mixed"):
        return True
    if node.op == "percent":
        return is_evaluated(node.args[0])
    if node.op == "div":
        return not node.name and all(_is_half(part) for part in node.args) and not _shares_factor(*node.args)
    if node.op == "pow":
        return _is_ratio(node.args[0]) and _is_ratio(node.args[1])
    if node.op == "root":
        return _is_ratio(node.args[0]) and node.args[1].op == "num"
    if node.op == "mul" and len(node.args) == 2:
        first, second = node.args
        return first.op == "num" and second.op == "pow" and second.args[0].value == 10 and _is_ratio(second.args[1])
    return False


def _unsigned(node: Node) -> Node:
    return node.args[0] if node.op == "neg" else node


def _is_ratio(node: Node) -> bool:
    node = _unsigned(node)
    return node.op == "num" or (node.op == "div" and all(_unsigned(part).op == "num" for part in node.args))


def _is_half(node: Node) -> bool:
    """A part of a fraction that counts as a number: digits, a whole power of them, or their root."""
    node = _unsigned(node)
    if node.op == "pow":
        return node.args[0].op == "num" and node.args[1].op == "num"
    if node.value is not None:
        return "." not in node.name
    return node.op == "root" and all(part.op == "num" for part in node.args)


def _shares_factor(top: Node, bottom: Node) -> bool:
    """Whether a fraction of powers can be reduced: `\\frac{12^2}{12}`."""
    x, y = rational(top), rational(bottom)
    return "pow" in (top.op, bottom.op) and x is not None and y is not None and gcd(int(x), int(y)) > 1


def arithmetic_left(node: Node) -> int:
    """How many operations on plain numbers remain to be worked out: `2\\cdot 3\\pi`, `x+1+1`, `\\binom{5}{2}x`."""
    return sum(map(_is_left, node.walk()))


def _is_left(node: Node) -> bool:
    if node.op == "mul":
        return sum(_unsigned(part).op in ("num", "mixed") for part in node.args) > 1 or _has(node, 0, 1)
    if node.op == "add":
        return sum(rational(part) is not None for part in node.args) > 1 or _has(node, 0)
    if node.op == "fn" and node.name in _COMPUTED:
        return all(rational(part) is not None for part in node.args)
    return node.op == "big"


def _has(node: Node, *values: int) -> bool:
    """Whether a part changes nothing, or everything: `x+0`, `1x`."""
    return any(part.value in values for part in node.args)


def has_form_of(node: Node, gold: Node, strict: bool) -> bool:
    """Whether an answer that equals the gold is also in its form: as simple; if `strict`, as expanded or factored."""
    if rational(gold) is not None:
        return is_plain(node)
    if not _functions(node) <= _functions(gold) or _has_decimals(node) > _has_decimals(gold):
        return False
    if num_unreduced(node) > num_unreduced(gold):
        return False
    if _unreduced_roots(node) > _unreduced_roots(gold) or _roots_below(node) > _roots_below(gold):
        return False
    if not any(part.op == "sym" for part in gold.walk()) and len(_terms(node)) > len(_terms(gold)):
        return False
    if strict and gold.op == "add" and node.op != "add":
        return False
    if strict and is_expanded(gold):
        return is_expanded(node) and len(_terms(node)) <= len(_terms(gold))
    if strict and (factors := num_factors(gold)) > 1:
        return _unsigned(node).op != "add" and num_factors(node) >= factors
    return _size(node) <= 1.5 * _size(gold) + 3


def numbers_of(node: Node) -> set[Fraction]:
    """The numbers that are written in it, without the exponents of squares, cubes and their roots."""
    if node.value is not None:
        return {node.value}
    small = node.op in ("pow", "root") and rational(node.args[1]) in _SMALL_POWERS
    args = node.args[:1] if small else node.args
    return {value for arg in args for value in numbers_of(arg)}


def num_unreduced(node: Node) -> int:
    """How many powers of numbers and fractions with a common factor remain."""
    return sum(map(_is_unreduced, node.walk()))


def _is_unreduced(node: Node) -> bool:
    if node.op == "pow":
        return rational(node) is not None
    if node.op == "mul":
        return _cancels(node) or any(gcd(_content(node), _content(p.args[1])) > 1 for p in node.args if p.op == "div")
    if node.op != "div":
        return False
    top, bottom = (_content(part) for part in node.args)
    return bottom != 0 and (bottom == 1 or gcd(top, bottom) > 1 or _cancels(node))


def _cancels(node: Node) -> bool:
    """Whether a base that is not a number is both above and below the line: `2x^2\\cdot x^{-1}`."""
    above, below = _bases(node)
    return not above.isdisjoint(below)


def _bases(node: Node) -> tuple[set[object], set[object]]:
    """The bases of a product, and those of its divisors."""
    if node.op in ("neg", "mul"):
        parts = [_bases(part) for part in node.args]
        return set[object]().union(*(a for a, _ in parts)), set[object]().union(*(b for _, b in parts))
    if node.op == "div":
        (above, below), (divided, divisors) = map(_bases, node.args)
        return above | divisors, below | divided
    if rational(node) is not None:
        return set(), set()
    if node.op != "pow":
        return {node.key}, set()
    exponent = rational(node.args[1])
    base: set[object] = {node.args[0].key}
    return (set(), base) if exponent is not None and exponent < 0 else (base, set())


def _content(node: Node) -> int:
    """The whole number that a product is a multiple of; 0 where none is written."""
    node = _unsigned(node)
    if node.value is not None:
        return int(node.value) if node.value.denominator == 1 else 0
    if node.op == "add":
        return gcd(*map(_content, node.args))
    factors = [part.value for part in node.args if part.value is not None] if node.op == "mul" else []
    return int(factors[0]) if factors and factors[0].denominator == 1 else 1


def _functions(node: Node) -> set[str]:
    return {part.name or part.op for part in node.walk() if part.op in ("fn", "big")}


def _has_decimals(node: Node) -> bool:
    return any(part.op == "num" and "." in part.name for part in node.walk())


def _unreduced_roots(node: Node) -> int:
    roots = sum(part.op == "root" and not _is_reduced(part) for part in node.walk())
    return roots + sum(part.op == "pow" and _is_root(part) for part in node.walk())


def _is_root(power: Node) -> bool:
    base, exponent = map(rational, power.args)
    return base is not None and exponent is not None and exponent.denominator != 1


def _is_reduced(root: Node) -> bool:
    """Whether no factor can be taken out of a root of a whole number."""
    inside, index = root.args[0].value, root.args[1].value
    if rational(root.args[0]) is not None and root.args[0].op != "num":
        return False
    if inside is None or index is None:
        return True
    if inside.denominator != 1 or index.denominator != 1 or not 1 < inside <= _MAX_RADICAND or not 2 <= index <= 64:
        return False
    power, base = int(index), 2
    while base**power <= inside:
        if inside % base**power == 0:
            return False
        base += 1
    return True


def _roots_below(node: Node) -> int:
    return sum(part.op == "div" and any(p.op == "root" for p in part.args[1].walk()) for part in node.walk())


def _terms(node: Node) -> tuple[Node, ...]:
    return node.args if node.op == "add" else (node,)


def is_expanded(node: Node) -> bool:
    """A sum of products without sums in them, and without powers of products."""
    return not any(_is_compact(part) for term in _terms(node) for part in term.walk())


def _is_compact(node: Node) -> bool:
    return node.op == "add" or (node.op == "pow" and node.args[0].op == "mul")


def num_factors(node: Node) -> int:
    """How many factors that are not plain numbers a product has, with their multiplicity."""
    if node.op in ("neg", "div"):
        return num_factors(node.args[0])
    if node.op == "mul":
        return sum(map(num_factors, node.args))
    exponent = node.args[1].value if node.op == "pow" else None
    if exponent is not None and exponent.denominator == 1 and 0 < exponent <= 1000:
        return int(exponent) * num_factors(node.args[0])
    return int(rational(node) is None)


def _size(node: Node) -> int:
    return sum(1 for _ in node.walk())
