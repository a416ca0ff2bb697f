"""Rules for values with a unit, angles and percentages. Each gives a verdict, or None where it does not apply."""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

from outdo.rewards.answer import NUMBER_WORDS
from outdo.rewards.maths.forms import arithmetic_left, is_evaluated, num_unreduced
from outdo.rewards.maths.question import Question
from outdo.rewards.maths.tree import Node, number, rational
from outdo.rewards.units import canonical_unit

if TYPE_CHECKING:
    from outdo.rewards.maths.compare import Comparison


def quantities(self: Comparison, gold: Node, node: Node) -> bool | None:
    if "qty" not in (gold.op, node.op) and not _is_aside(node):
        return None
    if _is_aside(node):
        spoken = NUMBER_WORDS.get(node.args[-1].name.lower())
        return spoken is not None and rational(node.args[0]) == spoken and self.same(gold, node.args[0])
    if gold.op == "qty" and node.op == "percent":
        return canonical_unit(gold.name) == "%" and self.same(gold.args[0], node.args[0])
    if gold.op == "percent" and canonical_unit(node.name) != "%":
        return False
    (x, unit), (y, answered) = (_unit(side) for side in (gold, node))
    if (unit == "degree" and answered in ("", "rad") and _of_pi(y)) or (
        answered == "degree" and unit in ("", "rad") and _of_pi(x)
    ):
        return _same_angle(self, (x, unit), (y, answered))
    if "%" in (unit, answered):
        return self.same(*(_with_percent(*pair) for pair in ((x, unit), (y, answered))))
    return _allowed(self.question, unit, answered) and self.same(x, y)


def _of_pi(node: Node) -> bool:
    return node.op in ("const", "mul", "div", "neg") and any(part.name == "pi" for part in node.walk())


def _same_angle(self: Comparison, gold: tuple[Node, str], node: tuple[Node, str]) -> bool:
    """`45^{\\circ}` and `\\frac{\\pi}{4}`, where the question asks for an angle in any unit."""
    turns = [_turns(*side) for side in (gold, node)]
    return self.question.asks_for_angle and None not in turns and turns[0] == turns[1]


def _turns(value: Node, unit: str) -> Fraction | None:
    """The multiple of pi, worked out: 1/4 for both."""
    if unit == "degree":
        degrees = rational(value) if is_evaluated(value) else None
        return degrees and degrees / 180
    if arithmetic_left(value) or num_unreduced(value):
        return None
    return rational(_without_pi(value))


def _without_pi(node: Node) -> Node:
    """The formula with 1 in place of pi, which is its multiple where pi is a factor."""
    if node.op == "const" and node.name == "pi":
        return number(1)
    if node.op in ("neg", "mul"):
        return replace(node, args=tuple(map(_without_pi, node.args)))
    return replace(node, args=(_without_pi(node.args[0]), *node.args[1:])) if node.op == "div" else node


def _is_aside(node: Node) -> bool:
    return node.op == "mul" and len(node.args) == 2 and node.args[1].op == "text"


def _unit(node: Node) -> tuple[Node, str]:
    if node.op != "qty":
        return node, ""
    unit = canonical_unit(node.name)
    known = unit is not None and not unit.startswith("/")
    return node.args[0], unit if known and unit else f"? {node.name.lower()}"


def _with_percent(node: Node, unit: str) -> Node:
    return Node("percent", (node,)) if unit == "%" else Node("qty", (node,), unit) if unit else node


def _allowed(question: Question, unit: str, answered: str) -> bool:
    """An answer may omit the unit. Where the gold has none, any in the list will do, unless the question names one."""
    if not answered or unit == answered:
        return True
    if unit:
        return False
    if answered.startswith("?"):
        words = re.findall(r"[a-z]+", answered)
        return bool(words) and all(word in question.nouns and word not in NUMBER_WORDS for word in words)
    return not question.units or answered in question.units


def percents(self: Comparison, gold: Node, node: Node) -> bool | None:
    """`5\\%` is 0.05; where the question speaks of percent, it may stand for a gold of 5. A gold of `5\\%` may be
    answered by 5 where the question is not known, too."""
    golds, nodes = gold.op == "percent", node.op == "percent"
    if not golds and not nodes:
        return None
    if golds and nodes:
        return self.same(gold.args[0], node.args[0])
    known, percent = bool(self.question.text), self.question.mentions_percent
    if nodes:
        value = rational(gold)
        bare = value is not None and abs(value) >= 1 and percent
        return self.same(gold, node.args[0]) if bare else None
    if percent or not known:
        if self.same(gold.args[0], node):
            return True
        return None if not known else False
    return None
