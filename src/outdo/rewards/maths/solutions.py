"""The names and values of several solutions: `x=1\\text{ or }x=-2`, `\\{1,-2\\}`, `1\\pm\\sqrt{2}`, `x=3,y=4`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from outdo.rewards.maths.phrasing import names_a_quantity
from outdo.rewards.maths.question import Question
from outdo.rewards.maths.tree import Node, joined, negated

_ARGUMENTS = ("num", "tuple", "rel", "neg")
MAX_SOLUTIONS = 24


@dataclass(frozen=True)
class Solutions:
    names: tuple[Node | None, ...]
    values: tuple[Node, ...]

    @property
    def is_system(self) -> bool:
        """Whether they are the values of different unknowns."""
        bases = {_base(name) for name in self.names}
        return None not in self.names and len(bases) == len(self.names) > 1


def _base(name: Node | None) -> object:
    return name and (name.args[0].key if name.op == "sub" and name.args[1].value is not None else name.key)


def is_name(node: Node, question: str = "") -> bool:
    """Whether the left side of an equation only names the answer: `x_1`, `f(2)`, `P(X=2)`, `\\text{Area}`, `AB`."""
    if node.op in ("sym", "sub", "accent") or (node.op == "fn" and node.name.startswith(("call", "prime"))):
        return True
    if node.op == "text":
        return names_a_quantity(node.name, question)
    if node.op == "tuple":
        return all(part.op in ("sym", "sub") for part in node.args)
    if node.op == "fn" and node.name == "abs":
        return is_name(node.args[0]) and node.args[0].op == "mul"
    if node.op == "ratio":
        return all(is_name(part) for part in node.args)
    if node.op == "div":
        return all(map(_is_differential, node.args)) or all(map(_is_length, node.args))
    if node.op != "mul":
        return False
    first, *rest = node.args
    if first.op in ("fn", "div") and len(rest) == 1:
        return is_name(first) and (is_name(rest[0]) or rest[0].value is not None)
    if first.op == "text":
        return is_name(first, question) and all(part.op == "sym" for part in rest)
    if first.op not in ("sym", "sub"):
        return False
    applied = len(rest) == 1 and (rest[0].op in _ARGUMENTS or (rest[0].name in "xtn" and first.name not in "xyzabc"))
    capitals = all(part.op == "sym" and part.name.isupper() for part in node.args)
    return applied or capitals or (len(rest) == 1 and rest[0].op == "accent")


def _is_length(node: Node) -> bool:
    """A side or a figure by the names of its points: `AB`, `S_{ABC}`, `|AB|`."""
    if node.op == "mul":
        return all(part.op == "sym" and part.name.isupper() for part in node.args)
    if node.op == "fn" and node.name == "abs":
        return _is_length(node.args[0])
    return node.op in ("sub", "accent") and any(part.name.isupper() for part in node.walk())


def _is_differential(node: Node) -> bool:
    """The `d` or the `dx` of a derivative."""
    first = node.args[0] if node.op == "mul" and len(node.args) == 2 else node
    return first.op == "sym" and first.name == "d"


def split_name(node: Node, question: str = "") -> tuple[Node | None, Node]:
    """The name and the value of `x=5`; no name for anything else."""
    if node.op == "rel" and node.name == "=" and is_name(node.args[0], question):
        return node.args[0], node.args[1]
    return None, node


def solutions(node: Node, question: str = "") -> Solutions | None:
    """Several solutions, else None."""
    name, node = split_name(node, question)
    if name and name.op == "tuple" and node.op == "tuple" and len(name.args) == len(node.args):
        return Solutions(name.args, node.args)
    if node.op in ("list", "set"):
        pairs = [split_name(part, question) for part in node.args]
    elif any(part.op == "pm" for part in node.walk()) and node.op in ("pm", "add", "div", "mul", "neg"):
        pairs = [(None, node)]
    else:
        return None
    spread = [(own or name, value) for own, part in pairs for value in _signs(part)]
    if len(spread) > MAX_SOLUTIONS:
        return None
    spread = _grouped(spread)
    return Solutions(tuple(own for own, _ in spread), tuple(value for _, value in spread))


def _grouped(pairs: list[tuple[Node | None, Node]]) -> list[tuple[Node | None, Node]]:
    """`p=5,q=2;p=7,q=2` as two pairs."""
    names = [name and name.key for name, _ in pairs]
    period = len(set(names))
    if None in names or not 1 < period < len(names) or len(names) % period:
        return pairs
    groups = [pairs[i : i + period] for i in range(0, len(pairs), period)]
    if any({name and name.key for name, _ in group} != set(names) for group in groups):
        return pairs
    tuples = [in_order(Solutions(*(tuple(side) for side in zip(*group, strict=True)))) for group in groups]
    return [(None, Node("tuple", values, "()")) for values in tuples]


def is_point(node: Node, question: Question) -> bool:
    """Whether a tuple may lack its brackets, as `3,4` for `(3,4)`: not where it is an interval."""
    finite = not any(part.name == "inf" for part in node.walk())
    return finite and not (len(node.args) == 2 and question.asks_for_interval)


def by_name(several: Solutions) -> tuple[Node, ...]:
    named = sorted(zip(several.names, several.values, strict=True), key=lambda pair: repr(pair[0] and pair[0].key))
    return tuple(value for _, value in named)


def in_order(several: Solutions) -> tuple[Node, ...]:
    """The values of different unknowns as a tuple has them: by names where these are neighbours in the alphabet, such
    as x and y; else as written."""
    letters = sorted(name.name for name in several.names if name and name.op == "sym" and len(name.name) == 1)
    first = ord(letters[0]) if letters else 0
    if [ord(letter) - first for letter in letters] != list(range(len(several.names))):
        return several.values
    named = sorted(zip(several.names, several.values, strict=True), key=lambda pair: pair[0].name if pair[0] else "")
    return tuple(value for _, value in named)


def _signs(node: Node) -> list[Node]:
    """Both values of an expression with one kind of `\\pm`."""
    if not any(part.op == "pm" for part in node.walk()):
        return [node]
    return [_signed(node, plus) for plus in (True, False)]


def _signed(node: Node, plus: bool) -> Node:
    args = tuple(_signed(arg, plus) for arg in node.args)
    if node.op == "pm":
        return args[0] if plus == (node.name == "\\pm") else negated(args[0])
    return joined("add", *args) if node.op == "add" else replace(node, args=args)
