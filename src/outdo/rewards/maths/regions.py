"""Sets of real numbers, as inequalities and as intervals: `-1<x\\le 4` is `(-1,4]`."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from outdo.rewards.maths.approx import approximate
from outdo.rewards.maths.tree import Node, is_plain, joined, negated, number, rational

INFINITY = Node("const", name="inf")
_MIRRORED = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}


@dataclass(frozen=True)
class Piece:
    low: Node
    high: Node
    with_low: bool
    with_high: bool


@dataclass(frozen=True)
class Region:
    """Pieces in ascending order. `variable`: of inequalities. `plain`: brackets alone, which may mean a point."""

    pieces: tuple[Piece, ...]
    variable: Node | None = None
    plain: bool = False
    solved: bool = True  # not `2x<6`


REALS = Region((Piece(negated(INFINITY), INFINITY, False, False),))


def region(node: Node) -> Region | None:
    """The set that a node describes, else None."""
    reader = _READERS.get(node.op)
    return reader(node) if reader else None


def _ordered(pieces: list[Piece], variable: Node | None) -> Region:
    places = [_place(piece.low) for piece in pieces]
    if any(place is None for place in places):
        return Region(tuple(pieces), variable)
    order = sorted(range(len(pieces)), key=lambda i: places[i] or 0.0)
    return Region(tuple(pieces[i] for i in order), variable)


def _place(node: Node) -> float | None:
    if node.key == INFINITY.key:
        return float("inf")
    if node.key == negated(INFINITY).key:
        return float("-inf")
    value = approximate(node)
    return None if value is None or any(part.op == "sym" for part in node.walk()) else value.real


def _of_relation(node: Node) -> Region | None:
    names, sides = node.name.split(), list(node.args)
    if names == ["in"] and sides[0].op == "sym":
        inner = region(sides[1])
        return inner and Region(inner.pieces, sides[0])
    if names == ["!="] and sides[0].op == "sym":
        return _without([sides[1]], sides[0])
    if not set(names) <= set(_MIRRORED):
        return None
    if names[0] in (">", ">="):
        names, sides = [_MIRRORED[name] for name in reversed(names)], sides[::-1]
    if any(name not in ("<", "<=") for name in names):
        return None
    if len(sides) == 2 and (linear := _of_linear(names, sides)):
        return linear
    closed = [name == "<=" for name in names]
    if len(sides) == 3 and sides[1].op == "sym":
        return Region((Piece(sides[0], sides[2], *closed),), sides[1])
    if len(sides) == 2 and sides[0].op == "sym" and sides[1].op != "sym":
        return Region((Piece(negated(INFINITY), sides[1], False, closed[0]),), sides[0])
    if len(sides) == 2 and sides[1].op == "sym":
        return Region((Piece(sides[0], INFINITY, closed[0], False),), sides[1])
    return None


def _of_linear(names: list[str], sides: list[Node]) -> Region | None:
    """`-x<-1`, `2x<6`: a multiple of a symbol against a number."""
    for place in (0, 1):
        (factor, symbol), bound = _multiple(sides[place]), rational(sides[1 - place])
        if symbol is None or not factor or factor == 1 or bound is None or not is_plain(sides[1 - place]):
            continue
        end, closed = number(bound / factor), names[0] == "<="
        below = (place == 0) == (factor > 0)
        ends = (negated(INFINITY), end, False, closed) if below else (end, INFINITY, closed, False)
        return Region((Piece(*ends),), symbol, solved=factor == -1)
    return None


def _multiple(node: Node) -> tuple[Fraction, Node | None]:
    if node.op == "neg":
        factor, symbol = _multiple(node.args[0])
        return -factor, symbol
    if node.op == "mul" and len(node.args) == 2 and node.args[1].op == "sym":
        return rational(node.args[0]) or Fraction(0), node.args[1]
    return (Fraction(1), node) if node.op == "sym" else (Fraction(0), None)


def mirrored(node: Node) -> Node:
    """`b>a` for `a<b`."""
    names = [_MIRRORED.get(name, name) for name in reversed(node.name.split())]
    return Node(node.op, node.args[::-1], " ".join(names))


def zero_form(node: Node) -> Node | None:
    """`a<b` as the difference `a-b` under the name of its relation; None for anything else."""
    if node.op != "rel" or node.name not in _MIRRORED or len(node.args) != 2:
        return None
    low, high = node.args if node.name in ("<", "<=") else node.args[::-1]
    return Node("<=" if "=" in node.name else "<", (joined("add", low, negated(high)),))


def _of_tuple(node: Node) -> Region | None:
    if len(node.args) != 2:
        return None
    low, high = node.args
    infinite = INFINITY.key in (low.key, high.key) or low.key == negated(INFINITY).key
    outward = node.name[0] == "]" or node.name[1] == "["
    return Region((Piece(low, high, node.name[0] == "[", node.name[1] == "]"),), plain=not (infinite or outward))


def _of_union(node: Node) -> Region | None:
    pieces, variable = list[Piece](), None
    for part in node.args:
        inner = _points(part) if part.op == "set" else region(part)
        if inner is None or (inner.variable and variable and inner.variable.key != variable.key):
            return None
        pieces += inner.pieces
        variable = variable or inner.variable
    return _ordered(pieces, variable)


def _points(node: Node) -> Region:
    return Region(tuple(Piece(part, part, True, True) for part in node.args))


def _of_list(node: Node) -> Region | None:
    if any(part.op != "rel" or "=" in part.name.split() for part in node.args):
        return None
    if node.name == "or":
        return _of_union(node)
    if all(part.name == "!=" for part in node.args):
        first = node.args[0].args[0]
        same = first.op == "sym" and all(part.args[0].key == first.key for part in node.args)
        return _without([part.args[1] for part in node.args], first) if same else None
    inner = [region(part) for part in node.args]
    if node.name != "and" or len(inner) != 2 or not (inner[0] and inner[1]):
        return None
    lows = [i for i in inner if i and i.pieces[0].high.key == INFINITY.key]
    highs = [i for i in inner if i and i.pieces[0].low.key == negated(INFINITY).key]
    if len(lows) != 1 or len(highs) != 1 or lows[0].variable != highs[0].variable:
        return None
    low, high = lows[0].pieces[0], highs[0].pieces[0]
    return Region((Piece(low.low, high.high, low.with_low, high.with_high),), lows[0].variable)


def _without(points: list[Node], variable: Node | None) -> Region:
    """The real numbers but for some points."""
    ends = [piece.low for piece in _ordered([Piece(point, point, True, True) for point in points], None).pieces]
    bounds = [negated(INFINITY), *ends, INFINITY]
    pieces = [Piece(low, high, False, False) for low, high in pairwise(bounds)]
    return Region(tuple(pieces), variable)


def _of_such(node: Node) -> Region | None:
    subject, condition = node.args
    if subject.op == "rel" and subject.name == "in" and subject.args[1].name == "reals":
        subject = subject.args[0]
    inner = region(condition)
    same = inner and inner.variable and inner.variable.key == subject.key
    return Region(inner.pieces) if inner and same else None


def _of_minus(node: Node) -> Region | None:
    reals, points = node.args
    return _without(list(points.args), None) if reals.name == "reals" and points.op == "set" else None


def _of_constant(node: Node) -> Region | None:
    return {"reals": REALS, "empty": Region(())}.get(node.name)


_READERS = {
    "rel": _of_relation,
    "tuple": _of_tuple,
    "union": _of_union,
    "list": _of_list,
    "such": _of_such,
    "minus": _of_minus,
    "const": _of_constant,
}
