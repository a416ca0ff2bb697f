"""Reads the tokens of an answer as a tree. What is not in the grammar is refused, never skipped."""

from __future__ import annotations

import re
from functools import lru_cache

from outdo.rewards.maths.atoms import REVERSED, Atoms, decimal
from outdo.rewards.maths.notation import MAX_CHARS, NotMathsError, is_number, tokens
from outdo.rewards.maths.tree import Node, joined, negated, number
from outdo.rewards.units import canonical_unit

RELATIONS = {
    **{"=": "=", "<": "<", ">": ">", "\\le": "<=", "\\ge": ">=", "\\ne": "!=", "\\in": "in", "\\approx": "~"},
    **{"\\equiv": "mod", "\\notin": "notin", "\\to": "to", "\\ll": "<<", "\\gg": ">>", "\\subset": "subset"},
    **{"\\sim": "~~", "\\cong": "cong", "\\parallel": "parallel", "\\perp": "perp", "\\implies": "implies"},
}
_SETS = {"\\cup": "union", "\\cap": "inter", "\\setminus": "minus"}
_JOINTS = {",": ",", ";": ",", "\\text{or}": "or", "\\lor": "or", "\\text{and}": "and", "\\land": "and"}
_OPERATORS = {"+", "-", "\\pm", "\\mp"}
_COMMAS, _OPENING, _CLOSING = (",", ";"), ("(", "{", "\\{"), (")", "}", "\\}")
_BEFORE_INTERVAL = {*_SETS, *_JOINTS, "=", ":", "(", "{", "\\in"}
_AFTER_INTERVAL = {*_SETS, *_JOINTS, ")", "}"}
_MAX_INTERVAL = 200  # tokens
_STOPS = {",", ";", ")", "]", "}", "\\}", "\\rangle", "\\\\", "&", ":", "\\rfloor", "\\rceil", "\\mid", "\\rVert"}
_STOPS |= {REVERSED["["]}
_CURRENCIES = ("\\$", "€", "£", "¥", "₹", "¢", "₩", "₽", "₺", "₪")


_TIME = re.compile(r"(\d{1,2}):([0-5]\d)(?::([0-5]\d))?(?:(?:\\text\{)?([AaPp])\.?\s?[Mm]\.?\}?)")


@lru_cache(maxsize=2**13)
def parse(latex: str, grouped: bool = True, units: bool = True, letter: str = "") -> Node:
    """The tree of a normalized answer. Raises NotMathsError for what is not in the grammar.

    `units`: letters at the end may be a unit, `12cm`; a single letter only where it is `letter`.
    """
    if len(latex) > MAX_CHARS:
        raise NotMathsError("too long")
    if time := _TIME.fullmatch(latex):
        return Node("time", tuple(number(int(part)) for part in time.groups()[:3] if part), (time[4] or "").lower())
    found = _with_reversed(tokens(latex, grouped))
    reader = _Reader(_with_units(found, letter) if units else found)
    node = reader.answers()
    if reader.peek():
        raise NotMathsError(f"unexpected {reader.peek()!r}")
    return node


def _with_reversed(found: list[str]) -> list[str]:
    """The outward brackets of open ends, `]2,7[` and `[2,7[`, as tokens of their own."""
    out = list(found)
    for start, token in enumerate(found):
        before = found[start - 1] if start else ""
        if token not in ("[", "]") or (before and before not in _BEFORE_INTERVAL):
            continue
        end = _end_of_interval(found, start)
        if end and (token == "]" or found[end] == "["):
            out[start] = REVERSED["]"] if token == "]" else token
            out[end] = REVERSED["["] if found[end] == "[" else found[end]
    return out


def _end_of_interval(found: list[str], start: int) -> int:
    """The first square bracket behind two ends; 0 where there is none, or more follows it than another set."""
    depth, commas = 0, 0
    for place in range(start + 1, min(len(found), start + _MAX_INTERVAL)):
        token = found[place]
        if token in ("[", "]") and not depth:
            after = found[place + 1 : place + 2]
            is_end = not after or after[0] in _AFTER_INTERVAL
            return place if commas == 1 and found[place - 1] not in _COMMAS and is_end else 0
        depth += (token in _OPENING) - (token in _CLOSING)
        commas += not depth and token in _COMMAS
    return 0


def _with_units(found: list[str], letter: str) -> list[str]:
    """Letters behind a value, up to the end or a comma, as a text where they spell a unit."""
    out: list[str] = []
    ends = [i for i, token in enumerate(found) if token in _JOINTS] + [len(found)]
    start = 0
    for end in ends:
        out += _with_unit(found[start:end], letter) + found[end : end + 1]
        start = end + 1
    return out


def _with_unit(segment: list[str], letter: str) -> list[str]:
    for place in range(max(1, len(segment) - 12), len(segment)):
        before, suffix = segment[place - 1], segment[place:]
        if not (is_number(before) or before in ("}", ")", "\\pi", "%")) or not suffix[0].isalpha():
            continue
        named = (len(suffix) > 1 and suffix[1].isalpha()) or "/" in suffix
        text = "".join(suffix).replace("{", "").replace("}", "")
        if (named or text == letter or (letter and text[0] == letter and text[1:2] == "^")) and canonical_unit(text):
            return [*segment[:place], f"\\text{{{text}}}"]
    return segment


class _Reader(Atoms):
    # Lists and relations

    def answers(self) -> Node:
        """One or several answers, with a comma, `and` or `or` between them."""
        items, joints = [self.relation()], set[str]()
        while joint := self._joint():
            joints.add(joint)
            items.append(self.relation())
        return items[0] if len(items) == 1 else Node("list", tuple(items), " ".join(sorted(joints)))

    def _joint(self) -> str:
        joint = _JOINTS.get(self.peek(), "")
        if joint:
            self.next()
            if joint == "," and self.peek() in ("\\text{or}", "\\text{and}"):
                joint = _JOINTS[self.next()]
        return joint

    def relation(self) -> Node:
        sides, names = [self.set_operation()], list[str]()
        while self.peek() in RELATIONS:
            names.append(RELATIONS[self.next()])
            sides.append(self.set_operation())
        node = Node("rel", tuple(sides), " ".join(names)) if names else sides[0]
        return Node("modulo", (node, self.argument())) if self.take("\\pmod") else node

    def set_operation(self) -> Node:
        node = self.ratio()
        while self.peek() in _SETS:
            node = joined(_SETS[self.next()], node, self.ratio()) if self.peek() != "\\setminus" else self._minus(node)
        return node

    def _minus(self, node: Node) -> Node:
        self.next()
        return Node("minus", (node, self.ratio()))

    def ratio(self) -> Node:
        parts = [self.sum()]
        while self.peek() in (":", "\\text{to}") and not self.builder and self.peek(1) not in RELATIONS:
            self.next()
            parts.append(self.sum())
        if len(parts) == 1:
            return parts[0]
        return Node("ratio", tuple(parts))

    # Arithmetic

    def sum(self) -> Node:
        terms = [self.term(self.take("+", "-", "\\pm", "\\mp"))]
        while self.peek() in _OPERATORS:
            terms.append(self.term(self.next()))
        return joined("add", *terms)

    def term(self, sign: str = "") -> Node:
        node = self._quantity(self.product())
        if sign in ("\\pm", "\\mp"):
            return Node("pm", (node,), sign)
        if sign != "-":
            return node
        return Node("qty", (negated(node.args[0]),), node.name) if node.op == "qty" else negated(node)

    def product(self) -> Node:
        node = self._signed_factor()
        while True:
            token = self.peek()
            if token in ("\\cdot", "\\times", "*") and not self._is_unit(1):
                self.next()
                node = joined("mul", node, self._signed_factor())
            elif token in ("/", "\\div") and not self._is_unit(1):
                name = "÷" if self.next() == "\\div" else ""  # an operation; a slash may be that of a fraction
                node = Node("div", (node, self._signed_factor()), name)
            elif token == " " or (token and self._starts_factor(token)):
                if token == " ":
                    return self._mixed(node)
                node = self._beside(node)
            else:
                return node

    def _signed_factor(self) -> Node:
        return negated(self._signed_factor()) if self.take("-") else self.power()

    def _beside(self, node: Node) -> Node:
        """A factor without a sign before it: after a number, a proper fraction makes it mixed."""
        fraction = self.peek() == "\\frac"
        factor = self.power()
        first = factor.args[0] if factor.op == "pow" else factor
        if is_number_node(first) and self.tokens[self.place - 1] not in (")", "]", "}"):
            raise NotMathsError("two numbers side by side")
        if fraction and node.op == "num" and factor.op == "percent" and _is_proper(node, factor.args[0]):
            return Node("percent", (Node("mixed", (node, factor.args[0])),))
        if fraction and node.op == "num" and factor.op == "div" and _is_proper(node, factor):
            return Node("mixed", (node, factor))
        return joined("mul", node, factor)

    def _mixed(self, node: Node) -> Node:
        """`1 1/2`, the only two numbers that may stand side by side."""
        self.next()
        top, slash, bottom = self.next(), self.take("/"), self.peek()
        if not slash or not is_number(bottom):
            raise NotMathsError("two numbers side by side")
        self.next()
        fraction = Node("div", (decimal(top), decimal(bottom)))
        if node.op != "num" or not _is_proper(node, fraction):
            raise NotMathsError("two numbers side by side")
        return Node("mixed", (node, fraction))

    def _starts_factor(self, token: str) -> bool:
        if token in _STOPS or token in RELATIONS or token in _OPERATORS or token in _SETS or token == "}":
            return False
        if token in _CURRENCIES:
            return False
        if token == "|":
            return not self.bars
        return not (
            token.startswith(("\\text{", "\\end{", "\\pmod", "\\bmod")) or token in ("\\land", "\\lor", "^", "_")
        )

    def power(self) -> Node:
        node = self.postfix(self.atom())
        while self.peek() == "^":
            self.next()
            node = self.postfix(self._raised(node))
        return node

    def _raised(self, node: Node) -> Node:
        if self.take("\\circ"):
            return Node("qty", (node,), "degree")
        if self.peek() == "{" and self.peek(1) == "\\circ" and self.peek(2) == "}":
            self.place += 3
            return Node("qty", (node,), "degree")
        exponent = self.argument(whole=True)
        if exponent.op == "prime":
            return Node("fn", (node,), "prime" + exponent.name)
        return Node("pow", (node, exponent))

    def postfix(self, node: Node) -> Node:
        while True:
            if self.take("!"):
                node = Node("fn", (node,), "factorial")
            elif node.op != "percent" and self.take("%"):
                node = Node("percent", (node,))
            elif self.peek() == "_" and node.op in ("num", "sym", "fn"):
                self.next()
                under = self.argument(whole=True)
                node = Node("sub", (node, under)) if node.op != "num" else Node("based", (node, under))
            elif self.peek() == "'" and node.op in ("sym", "sub"):
                self.next()
                node = Node("fn", (node,), "prime")
            else:
                return node

    # Units

    def _is_unit(self, ahead: int) -> bool:
        token = self.peek(ahead)
        return token.startswith("\\text{") and token not in ("\\text{or}", "\\text{and}", "\\text{to}")

    def _quantity(self, node: Node) -> Node:
        """The value with the unit behind it: words in the list, and no others."""
        text, start = "", self.place
        while self._is_unit(0) or (self.peek() in ("/", "\\cdot", "*", "\\times") and self._is_unit(1)):
            if not self._is_unit(0):
                text += "*" if self.next() != "/" else "/"
            text += f" {self.next()[6:-1]}"
            if self.peek() == "^":
                self.next()
                exponent = self.argument()
                text += f"^{exponent.args[0].name if exponent.op == 'neg' else exponent.name}"
                text = text if exponent.op != "neg" else re.sub(r"\^(\w+)$", r"^-\1", text)
        if not text and self.peek() in _CURRENCIES:
            text = self.next().removeprefix("\\")
        if not text or start == self.place:
            return node
        name = "degree" if text.strip() in ("deg", "degrees", "degree") else text.strip()
        if node.op == "qty":
            if node.name == "degree" and text.strip() in ("C", "F"):
                return Node("qty", node.args, f"°{text.strip()}")
            raise NotMathsError("two units")
        return Node("qty", (node,), name)


def is_number_node(node: Node) -> bool:
    return node.op in ("num", "based")


def _is_proper(whole: Node, fraction: Node) -> bool:
    if fraction.op != "div":
        return False
    top, bottom = fraction.args
    values = (whole.value, top.value, bottom.value)
    if any(value is None or value.denominator != 1 for value in values):
        return False
    return 0 < top.value < bottom.value  # type: ignore[operator]
