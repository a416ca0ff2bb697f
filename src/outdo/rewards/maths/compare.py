"""Whether an answer means the gold and is worked out like it, by the trees of both.

Values are compared by a function that may be unable to decide without algebra; it then raises UndecidedError.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from outdo.rewards.maths.forms import arithmetic_left, has_form_of, is_evaluated, is_expanded, num_unreduced, numbers_of
from outdo.rewards.maths.quantities import percents, quantities
from outdo.rewards.maths.question import Question
from outdo.rewards.maths.regions import Region, mirrored, region, zero_form
from outdo.rewards.maths.solutions import Solutions, by_name, in_order, is_name, is_point, solutions
from outdo.rewards.maths.times import is_time, same_time
from outdo.rewards.maths.tree import Node, is_plain, joined, mentions, negated, rational

_EXPRESSIONS = {
    *("num", "sym", "const", "sub", "accent", "add", "mul", "div", "neg", "pow", "root", "mixed", "fn", "big"),
    "percent",
}
_NOT_VALUES = {"inf", "empty", "reals", "integers", "naturals", "rationals", "complexes"}
_ROUNDED_DECIMALS = 4  # a gold with more of them is rounded: the exact answer may be an expression
_SETS = ("set", "list")


class UndecidedError(Exception):
    """Needs algebra."""


@dataclass(frozen=True)
class Comparison:
    """`equal`: whether two formulas have the same value; `proportional`: whether one is a multiple of the other."""

    equal: Callable[[Node, Node], bool]
    proportional: Callable[[Node, Node], bool]
    question: Question
    reasons: list[str] = field(default_factory=list, compare=False)  # why formulas of equal value were refused

    def same(self, gold: Node, node: Node) -> bool:
        if gold.key == node.key:
            return True
        for rule in _RULES:
            verdict = rule(self, gold, node)
            if verdict is not None:
                return verdict
        return self._same_value(gold, node)

    def _same_value(self, gold: Node, node: Node) -> bool:
        """Formulas: equal, worked out, and not the question's own."""
        if not (_is_expression(gold) and _is_expression(node)):
            return False
        if not _is_worked_out(gold, node):
            return self._refused("not evaluated")
        if not self.equal(gold, node):
            return self._refused("not equal")
        if self._given_back(gold, node):
            return self._refused("given in the question")
        return self._has_form(gold, node) or self._refused("not in the form of the gold")

    def _refused(self, reason: str) -> bool:
        self.reasons.append(reason)
        return False

    def _given_back(self, gold: Node, node: Node) -> bool:
        """Whether it is a formula of the question, in signs or in words (`the square root of 144`).

        A plain number may be, where no other form of it is asked for.
        """
        if rational(gold) is not None and not is_plain(node) and numbers_of(node) <= self.question.numbers:
            return True
        if node.op == "num" and gold.op != "num" and self.question.asks_to_convert:
            return node.value in self.question.numbers
        return node.key in self.question.keys and not (is_plain(node) and not self.question.asks_to_convert)

    def _has_form(self, gold: Node, node: Node) -> bool:
        """Whether it has the gold's form, where the question asks for one or has a formula with another."""
        if has_form_of(node, gold, strict=True):
            return True
        if rational(gold) is not None and self.question.asks_to_convert and not is_plain(node):
            return False
        if self.question.asks_to_convert and num_unreduced(node) > num_unreduced(gold):
            return False
        simple = self.question.asks_to_simplify or any(tree.op == "big" for tree in self.question.formulas)
        if self.question.asks_to_expand or (simple and not has_form_of(node, gold, strict=False)):
            return False
        candidates = [tree for tree in self.question.formulas if tree.key != gold.key and _is_expression(tree)]
        return not any(
            self.equal(gold, tree)
            for tree in candidates
            if not is_plain(tree) and not has_form_of(node, gold, is_expanded(tree) != is_expanded(gold))
        )


def _is_expression(node: Node) -> bool:
    return all(part.op in _EXPRESSIONS and part.name not in _NOT_VALUES for part in node.walk())


def _is_worked_out(gold: Node, node: Node) -> bool:
    if any(part.op == "big" for part in node.walk()) and not any(part.op == "big" for part in gold.walk()):
        return False
    if rational(gold) is None:
        return arithmetic_left(node) <= arithmetic_left(gold)
    rounded = gold.op == "num" and len(gold.name.partition(".")[2]) > _ROUNDED_DECIMALS
    return is_evaluated(node) or (rounded and rational(node) is None and not arithmetic_left(node))


# Rules: a verdict, or None where a rule does not apply.


def _choices(self: Comparison, gold: Node, node: Node) -> bool | None:
    if "choice" not in (gold.op, node.op):
        return None
    if gold.op == node.op:
        return gold.name == node.name and (not (gold.args and node.args) or self.same(gold.args[0], node.args[0]))
    whole, other = (gold, node) if gold.op == "choice" else (node, gold)
    if other.name == whole.name and other.op in ("sym", "text", "const"):
        return True
    if not whole.args:
        return False
    return self.same(whole.args[0], node) if whole is gold else self.same(gold, whole.args[0])


def _equations(self: Comparison, gold: Node, node: Node) -> bool | None:
    gold_is, node_is = _is_equation(gold), _is_equation(node)
    text = self.question.text
    if not gold_is and not node_is:
        return None
    if gold_is and not node_is:
        if node.op in ("rel", "list"):
            return None if node.op == "list" else False
        left, right = gold.args[0], gold.args[-1]
        return self.same(right, node) if is_name(left, text) else is_name(right, text) and self.same(left, node)
    if not gold_is:
        if gold.op == "list" or (gold.op == "rel" and gold.name != "in"):
            return None if gold.op == "list" else False
        return _chain(self, gold, node)
    if len(gold.args) != 2:
        return False
    left, right = gold.args
    if is_name(left, text) and len(node.args) > 1:
        sides = node.args if node.args[0].key == left.key else node.args[::-1]
        if sides[0].key == left.key and not mentions(left, sides[1:]):
            return all(self.same(right, side) for side in sides[1:])
        if is_name(node.args[0], text) and not mentions(node.args[0], node.args[1:]):
            return False
        if rational(right) is not None:
            return False
    return len(node.args) == 2 and _same_equation(self, gold, node)


def _is_equation(node: Node) -> bool:
    return node.op == "rel" and set(node.name.split()) in ({"="}, {"~"})


def _chain(self: Comparison, gold: Node, node: Node) -> bool:
    """`x=\\frac{10}{2}=5`: a name may come first; all other sides are equal, and the last is worked out."""
    first, *rest = node.args if not is_name(node.args[-1]) else node.args[::-1]
    named = is_name(first, self.question.text) and not (first.op == "sym" and mentions(first, (gold,)))
    asked = first.key in self.question.whole_keys and rational(first) is None
    unknowns = [part.name for part in first.args] if first.op == "tuple" else []
    if named and all(len(name) == 1 for name in unknowns) and unknowns != sorted(unknowns):
        return False
    if first.op == "ratio" and rest[-1].op == "ratio" and len(first.args) != len(rest[-1].args):
        return False
    sides = rest if named or asked else list(node.args)
    values = all(_is_expression(side) and _is_expression(gold) and self.equal(gold, side) for side in sides[:-1])
    return values and self.same(gold, sides[-1])


def _same_equation(self: Comparison, gold: Node, node: Node) -> bool:
    if node.key in self.question.keys or not all(_is_expression(side) for side in (*gold.args, *node.args)):
        return False
    differences = [joined("add", side.args[0], negated(side.args[1])) for side in (gold, node)]
    if arithmetic_left(node) > arithmetic_left(gold) or not self.proportional(*differences):
        return False
    solved = is_name(gold.args[0]) and not (is_name(node.args[0]) or is_name(node.args[1]))
    asked = [tree for tree in self.question.formulas if _is_equation(tree) and len(tree.args) == 2]
    zeros = [joined("add", tree.args[0], negated(tree.args[1])) for tree in asked if tree.key != gold.key]
    return not (solved and any(self.proportional(differences[0], zero) for zero in zeros))


def _memberships(self: Comparison, gold: Node, node: Node) -> bool | None:
    inside = [side.args[1] if _is_membership(side) else side for side in (gold, node)]
    if inside[0] is gold and inside[1] is node:
        return None
    if inside[0] is not gold and inside[1] is not node and gold.args[0].key != node.args[0].key:
        return False
    if inside[1] is not node and inside[1].op == "set" and len(inside[1].args) == 1 and inside[0].op != "set":
        return self.same(inside[0], inside[1].args[0])
    return self.same(*inside)


def _is_membership(node: Node) -> bool:
    return node.op == "rel" and node.name == "in" and node.args[0].op in ("sym", "sub", "tuple")


def _times(self: Comparison, gold: Node, node: Node) -> bool | None:
    if not {gold.op, node.op} & {"time", "ratio"}:
        return None
    if gold.op == "time" or node.op == "time" or (is_time(gold) and not self.question.mentions_ratio):
        return same_time(gold, node)
    if gold.op == node.op == "ratio":
        first, second = gold.args[0], node.args[0]
        return len(gold.args) == len(node.args) and all(
            _is_worked_out(g, n) and self.equal(joined("mul", g, second), joined("mul", n, first))
            for g, n in zip(gold.args, node.args, strict=True)
        )
    ratio, other = (gold, node) if gold.op == "ratio" else (node, gold)
    asked = self.question.mentions_ratio or not self.question.text
    if len(ratio.args) != 2 or is_time(ratio) or (ratio is node and not asked):
        return False
    quotient = Node("div", ratio.args)
    return self.same(quotient, other) if ratio is gold else self.same(other, quotient)


def _same_regions(self: Comparison, gold: Node, node: Node) -> bool | None:
    one, other = region(gold), region(node)
    if one is None or other is None or (one.plain and other.plain):
        return None
    if one.plain and self.question.asks_for_point:
        return False
    given = node.op == "rel" and {node.key, mirrored(node).key} & self.question.keys
    if given or (one.solved and not other.solved):
        return False
    if one.variable and other.variable and one.variable.key != other.variable.key:
        return False
    return _equal_pieces(self, one, other)


def _inequalities(self: Comparison, gold: Node, node: Node) -> bool | None:
    """Inequalities in several unknowns: the same difference of the sides."""
    one, other = zero_form(gold), zero_form(node)
    if one is None or other is None or region(gold) is not None:
        return None
    if one.op != other.op or node.key in self.question.keys or arithmetic_left(node) > arithmetic_left(gold):
        return False
    return all(map(_is_expression, (one.args[0], other.args[0]))) and self.equal(one.args[0], other.args[0])


def _equal_pieces(self: Comparison, one: Region, other: Region) -> bool:
    return len(one.pieces) == len(other.pieces) and all(
        (p.with_low, p.with_high) == (q.with_low, q.with_high) and self.same(p.low, q.low) and self.same(p.high, q.high)
        for p, q in zip(one.pieces, other.pieces, strict=True)
    )


def _several(self: Comparison, gold: Node, node: Node) -> bool | None:
    golds, nodes = solutions(gold, self.question.text), solutions(node, self.question.text)
    if golds is None and nodes is None:
        return None
    if any(side.name in _NOT_VALUES for side in (gold, node)):
        return False
    if (golds and golds.is_system) or (nodes and nodes.is_system):
        return _same_system(self, (gold, golds), (node, nodes))
    for side, other in ((gold, node), (node, gold)):
        if side.op == "tuple" and other.op == "list":
            plain = side.name == "()" and other.name == "," and len(side.args) == len(other.args)
            return (
                plain
                and is_point(side, self.question)
                and all(self.same(g, n) for g, n in zip(gold.args, node.args, strict=True))
            )
    return _same_values(self, *(s.values if s else (side,) for s, side in ((golds, gold), (nodes, node))))


def _same_system(self: Comparison, gold: tuple[Node, Solutions | None], node: tuple[Node, Solutions | None]) -> bool:
    """The values of several unknowns; a tuple or a list has them in order."""
    both = [several and {repr(name and name.key) for name in several.names} for _, several in (gold, node)]
    systems = all(several and several.is_system for _, several in (gold, node))
    if (systems and both[0] != both[1]) or (not systems and "or" in (gold[0].name, node[0].name)):
        return False
    values = []
    for tree, several in (gold, node):
        if several and several.is_system:
            values.append(by_name(several) if systems else in_order(several))
        elif several and tree.op == "list" and not any(several.names):
            values.append(several.values)
        else:
            values.append(tree.args if tree.op == "tuple" and tree.name == "()" else ())
    return len(values[0]) == len(values[1]) > 0 and all(self.same(g, n) for g, n in zip(*values, strict=True))


def _same_values(self: Comparison, golds: tuple[Node, ...], nodes: tuple[Node, ...]) -> bool:
    """In any order, each once."""
    if len(golds) != len(nodes):
        return False
    rest = list(nodes)
    for gold in golds:
        place = next((i for i, node in enumerate(rest) if self.same(gold, node)), None)
        if place is None:
            return False
        del rest[place]
    return True


def _tuples(self: Comparison, gold: Node, node: Node) -> bool | None:
    kinds = {gold.op, node.op}
    if not kinds & {"tuple", "matrix"}:
        return None
    shapes = [_shape(side) for side in (gold, node)]
    if None in shapes or len(gold.args) != len(node.args):
        return False
    vectors = [shape in ("()", "column") for shape in shapes]
    lists = len(gold.args) > 2 and kinds == {"tuple"} and {*shapes} <= {"()", "[]"}
    if shapes[0] != shapes[1] and not all(vectors) and not lists:
        return False
    return all(self.same(g, n) for g, n in zip(gold.args, node.args, strict=True))


def _shape(node: Node) -> str | None:
    if node.op == "tuple":
        return node.name
    return None if node.op != "matrix" else "column" if node.name.endswith(" 1") and len(node.args) > 1 else node.name


def _words(self: Comparison, gold: Node, node: Node) -> bool | None:
    if "text" not in (gold.op, node.op):
        return None
    one, other = (side.name if side.op in ("text", "sym", "const") else "" for side in (gold, node))
    return bool(one) and (one == other or (len(one) > 1 and one.lower() == other.lower()))


_RULES: tuple[Callable[[Comparison, Node, Node], bool | None], ...] = (
    _choices,
    _equations,
    _memberships,
    _times,
    _same_regions,
    _inequalities,
    _several,
    _tuples,
    quantities,
    percents,
    _words,
)
