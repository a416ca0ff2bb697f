"""Verifiers for planning games. Expressions go through a parser of our own; nothing is passed to `eval`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

from outdo.rewards.answer import RIGHT, final_answers
from outdo.types import Grade

_TOKEN = re.compile(r"\s*([0-9]{1,9}|[-+*/()])")
_SIGNS = str.maketrans({"×": "*", "⋅": "*", "·": "*", "∙": "*", "÷": "/", "∕": "/", "−": "-", "[": "(", "]": ")"})
_COMMANDS = {"\\times": "*", "\\cdot": "*", "\\div": "/", "\\left(": "(", "\\right)": ")"}
_WRAPS = [("**", "**"), ("`", "`"), ("\\(", "\\)"), ("$", "$")]  # around an expression
_FRACTION = re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")
_SPELLING = re.compile(r"[^-+*/() 0-9]|\*\*")  # anything but a plain expression
_RESULT = re.compile(r"\s*-?[0-9]{1,9}\s*\.?\s*")
_MAX_CHARS, _MAX_DEPTH = 500, 50


def countdown(
    completions: list[str], numbers: list[Sequence[int]], target: list[int], **columns: object
) -> list[Grade]:
    """1 for an expression that uses exactly the given numbers and equals the target; else 0.

    `×`, `÷` and `−` are signs, too, and the value may follow an equals sign.
    """
    return [_judge(*row) for row in zip(completions, numbers, target, strict=True)]


def _judge(text: str, given: Sequence[int], target: int) -> Grade:
    if not isinstance(target, int) or isinstance(given, str) or not all(isinstance(n, int) for n in given):
        return Grade(None, "broken", reason=f"numbers={given!r:.40} and target={target!r:.40} are not integers")
    answers = set(final_answers(text))
    if len(answers) != 1:
        return Grade(0.0, "wrong", reason=f"{len(answers)} final answers, not one")
    try:
        value, used = _solution(answers.pop())
    except ValueError as error:
        return Grade(0.0, "wrong", reason=str(error))
    if Counter(used) != Counter(given):
        return Grade(0.0, "wrong", reason=f"uses {sorted(used)}, not {sorted(given)}")
    if value != target:
        return Grade(0.0, "wrong", reason=f"equals {value}, not {target}")
    return RIGHT


def _solution(text: str) -> tuple[Fraction, list[int]]:
    """The value and the numbers of an expression in any of its spellings. Raises ValueError.

    Signs may be those of print or LaTeX (`×`, `÷`, `\\times`), and the value may follow: `3+4*5=23`.
    """
    if len(text) > _MAX_CHARS:
        raise ValueError(f"the expression has over {_MAX_CHARS} characters")
    if not _SPELLING.search(text):
        return evaluate(text)
    text = text.strip().translate(_SIGNS)
    for opening, closing in _WRAPS:
        if text.startswith(opening) and text.endswith(closing):
            text = text[len(opening) : -len(closing)]
    for command, sign in _COMMANDS.items():
        text = text.replace(command, sign)
    text = _FRACTION.sub(r"((\1)/(\2))", text)
    expression, equals, result = text.partition("=")
    value, used = evaluate(expression)
    if equals and not (_RESULT.fullmatch(result) and value == int(result.strip().removesuffix("."))):
        raise ValueError(f"the expression equals {value}, not {result.strip()[:20]!r}")
    return value, used


def evaluate(text: str) -> tuple[Fraction, list[int]]:
    """The value of an expression of integers with + - * / and brackets, and the numbers in it."""
    if len(text) > _MAX_CHARS:
        raise ValueError(f"the expression has over {_MAX_CHARS} characters")
    tokens, end = [], 0
    while match := _TOKEN.match(text, end):
        tokens.append(match[1])
        end = match.end()
    if text[end:].strip() or not tokens:
        raise ValueError(f"cannot parse {text[end : end + 20]!r} in the expression")
    parser = _Parser(tokens)
    value = parser.sum(0)
    if parser.tokens:
        raise ValueError(f"unexpected {parser.tokens[0]!r}")
    return value, [int(token) for token in tokens if token.isdigit()]


class _Parser:
    """Sums of products of numbers and brackets."""

    def __init__(self, tokens: Sequence[str]) -> None:
        self.tokens = list(tokens)

    def sum(self, depth: int) -> Fraction:
        value = self.product(depth)
        while self.tokens and self.tokens[0] in "+-":
            sign = 1 if self.tokens.pop(0) == "+" else -1
            value += sign * self.product(depth)
        return value

    def product(self, depth: int) -> Fraction:
        value = self.atom(depth)
        while self.tokens and self.tokens[0] in "*/":
            if self.tokens.pop(0) == "*":
                value *= self.atom(depth)
            elif (divisor := self.atom(depth)) == 0:
                raise ValueError("divides by zero")
            else:
                value /= divisor
        return value

    def atom(self, depth: int) -> Fraction:
        if not self.tokens:
            raise ValueError("the expression is incomplete")
        token = self.tokens.pop(0)
        if token.isdigit():
            return Fraction(int(token))
        if token != "(" or depth > _MAX_DEPTH:
            raise ValueError(f"expected a number, got {token!r}")
        value = self.sum(depth + 1)
        if not self.tokens or self.tokens.pop(0) != ")":
            raise ValueError("unclosed bracket")
        return value
