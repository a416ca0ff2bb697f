"""Judges a normalized answer against a normalized gold: by text, by base, and then by their trees."""

from __future__ import annotations

import re
from collections.abc import Iterator

from outdo.rewards.maths.approx import differ
from outdo.rewards.maths.atoms import set_in_words
from outdo.rewards.maths.bases import same_in_base
from outdo.rewards.maths.compare import Comparison, UndecidedError
from outdo.rewards.maths.notation import MAX_CHARS, NotMathsError
from outdo.rewards.maths.parser import parse
from outdo.rewards.maths.question import Question
from outdo.rewards.maths.tree import Node, rational, same_number
from outdo.rewards.units import canonical_unit

_CHOICE = re.compile(r"(?:\\text\{)?(?:\(([A-Ja-j])\)|([A-J])(?:[.:)]|\\text\{[.:)]\}))\}?(.*)", re.DOTALL)
_WORDS = re.compile(r"[^a-z]+")


def judge(gold: str, latex: str, comparison: Comparison) -> str:
    """Why the answer is wrong; empty where it is right. Raises UndecidedError where that needs algebra."""
    if gold == latex:
        return ""
    if not latex or len(latex) > MAX_CHARS:
        return "empty" if not latex else "too long"
    if (same := same_in_base(gold, latex)) is not None:
        return "" if same else "another number, or another base"
    if _same_words(gold, latex):
        return ""
    try:
        expected = read(gold)
    except (NotMathsError, RecursionError):
        return "not the text of the gold"
    why = ""
    for answered in _readings(latex, expected, comparison.question):
        if isinstance(answered, str):
            why = why or answered
        elif _safe(comparison, expected, answered):
            return ""
        else:
            why = comparison.reasons[-1] if comparison.reasons else "not equal"
    return why


def _safe(comparison: Comparison, gold: Node, node: Node) -> bool:
    try:
        return comparison.same(gold, node)
    except (ArithmeticError, RecursionError):
        return False


def read(latex: str, grouped: bool = True, units: bool = True, letter: str = "") -> Node:
    """The tree of an answer, which may be one of several choices: `(B)`, `(B) 12`."""
    if latex.isalpha() and (named := set_in_words(latex)):
        return named
    choice = _CHOICE.fullmatch(latex)
    if choice and not choice[3].startswith(("=", "^", "_", "'", "(", ",", "\\c", "+", "-", "/")):
        letter_, content = choice[1] or choice[2], choice[3].strip()
        inside = (parse(content, grouped, units, letter),) if content else ()
        if any(part.op in ("list", "rel") for part in inside):
            if latex[1] == ":":  # `A:B=1`
                return parse(latex, grouped, units, letter)
            raise NotMathsError("more than the text of one choice")
        return Node("choice", inside, letter_)
    return parse(latex, grouped, units, letter)


def _readings(latex: str, gold: Node, question: Question) -> Iterator[Node | str]:
    """The answer's tree; then other readings that the gold gives reason for."""
    letter = gold.name[0] if gold.op == "qty" and re.fullmatch(r"[A-Za-z](?:\^\d)?", gold.name) else ""
    if not letter and latex[-1].isalpha() and canonical_unit(latex[-1]) in question.units:
        letter = latex[-1]
    try:
        yield read(latex, letter=letter)
        if gold.op in ("list", "tuple", "set"):
            yield read(latex, grouped=False)
        if any(part.op == "sym" for part in gold.walk()):
            yield read(latex, units=False)
    except (NotMathsError, RecursionError) as error:
        yield f"cannot read it: {error}"


def _same_words(gold: str, latex: str) -> bool:
    """Whether both are the same words, in a text or bare; a single letter keeps its case."""
    one, other = (re.sub(r"\\text\{([^{}]*)\}", r" \1 ", side) for side in (gold, latex))
    if re.search(r"[^A-Za-z\s'.-]", one + other):
        return False
    one, other = ("".join(side.split()).strip(".") for side in (one, other))
    if one == other:
        return True
    text = "\\text" in gold + latex or len(one) > 4
    return len(one) > 1 and text and one.lower() == other.lower() and (text or one[1:] == other[1:])


def without_algebra(question: Question) -> Comparison:
    """Decides what numbers and rough values decide; raises UndecidedError for the rest."""
    return Comparison(_same_numbers, _undecided, question)


def _same_numbers(gold: Node, node: Node) -> bool:
    x, y = rational(gold), rational(node)
    if x is not None and y is not None:
        return same_number(gold, node, x, y)
    if differ(gold, node):
        return False
    raise UndecidedError


def _undecided(gold: Node, node: Node) -> bool:
    raise UndecidedError
