"""Reads an answer in LaTeX as far as that needs no algebra: its normal form, value and base, and if it is evaluated."""

from __future__ import annotations

import re
from fractions import Fraction

from outdo.rewards.answer import NUMBER_WORDS, without_emphasis, without_zeros

MAX_CHARS = 1000  # of an answer

NAME = re.compile(r"\\?[A-Za-z]+(?:_\{?\w+\}?)?(?:\([A-Za-z, ]*\))?'?")
TEXT = re.compile(r"\\(?:text(?:rm|bf|it|sf|tt|normal)?|math(?:rm|bf|it|sf|tt)|mbox|operatorname)\s*\{([^{}]*)\}")
_SPACE = re.compile(r"\s+|(?<!\\)\\[,;:! ]|~|\\(?:left|right|displaystyle|limits)(?![A-Za-z])")
_NUMBER = re.compile(r"[+-]?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?")
_FRACTION = re.compile(r"([+-]?)(?:\\frac\{(-?[0-9]+)\}\{(-?[0-9]+)\}|([0-9]+)/([0-9]+))")
_DELIMITED = re.compile(r"\$\$?([^$]*)\$\$?|\\\((.*?)\\\)|\\\[(.*?)\\\]", re.DOTALL)

_WRAPS = re.compile(r"\\(?:text|textrm|mathrm|mbox)(?![a-z])|[{}() ]")
_IN_BASE = re.compile(r"(-?[0-9A-Z]*(?:\.[0-9A-Z]+)?)(?:_|_?(?:in)?base)([0-9]+|[a-z]+)")
_BASE = re.compile(r"(?<!\^)(?<!\^\{)(?<![0-9.])[0-9]+[)}]*_\{?([0-9]*)")

# Forms of an evaluated number: digits, a fraction, a power, a root.
_N = r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
_ATOM = rf"(?:\\sqrt(?:\[[0-9]+\])?(?:\{{{_N}\}}|[0-9])|{_N}(?:\^(?:\{{[0-9]+\}}|[0-9]))?)"
_HALF = rf"(?:\{{[+-]?{_ATOM}\}}|[0-9])"
_RATIO = rf"(?:{_N}?\\frac{_HALF}{_HALF}|{_ATOM}/{_ATOM})"
_EXPONENT = rf"\^(?:\{{-?(?:{_RATIO}|{_N})\}}|-?[0-9])"
_EVALUATED = re.compile(
    rf"{_N}(?:\\times|\\cdot)10{_EXPONENT}|\([+-]?(?:{_RATIO}|{_N})\){_EXPONENT}|\\sqrt\{{{_RATIO}\}}"
    rf"|{_RATIO}|{_N}{_EXPONENT}|{_ATOM}"
)
_SIGN = re.compile(r"(?<![^=({\[])[+-]")  # at the start of an expression
_UNIT = re.compile(rf"(?:\\cdot|\\times|/)?{TEXT.pattern}(?:\^(?:\{{-?[0-9]\}}|[0-9]))?")
_OPERATION = re.compile(r"[0-9+*!|\u00d7\u00b7\u22c5\u2217\u00f7\u2211\u220f\u222b-]")
_BRACKETED = re.compile(r"(?:\\\{|[(\[])(.*)(?:\\\}|[)\]])")
_HARMLESS = {"\\circ", "\\degree", "\\in", "\\pi", "\\pm"}


def normalized(text: str) -> str:
    """A normal form: without dollars and spacing, and without a sentence around a single formula."""
    text = without_zeros(text) if len(text) > MAX_CHARS else text
    text = without_emphasis(text.strip()) if len(text) <= MAX_CHARS else text
    formulas = _DELIMITED.findall(text[: 4 * MAX_CHARS])
    if len(formulas) == 1 and not any(c.isdigit() for c in _DELIMITED.sub("", text[: 4 * MAX_CHARS])):
        text = "".join(formulas[0])
    text = text.replace("\\$", "").replace("$", "").replace("\u2212", "-").replace("\\dfrac", "\\frac")
    text = text.replace("\\tfrac", "\\frac").strip().removeprefix("\\approx")
    text = _SPACE.sub(" ", text[: MAX_CHARS + 1]).strip().removesuffix(".").strip()
    return re.sub(r"(?<![A-Za-z]) | (?![A-Za-z])", "", text)


def value(latex: str) -> Fraction | None:
    """The value of a plain number or fraction, else None."""
    latex = latex.removesuffix("^\\circ").removesuffix("^{\\circ}")
    if _NUMBER.fullmatch(latex):
        return Fraction(latex.replace(",", ""))
    if fraction := _FRACTION.fullmatch(latex):
        sign, a, b, c, d = fraction.groups()
        top, bottom = int(a or c), int(b or d)
        return None if bottom == 0 else Fraction(-top if sign == "-" else top, bottom)
    return None


def parts(latex: str) -> list[str]:
    """The components of a tuple or an interval; empty where there are brackets inside."""
    inner = latex[1:-1]
    return inner.split(",") if latex[:1] in ("(", "[") and not set(inner) & set("()[]{}") else []


def unnamed(latex: str) -> str:
    """The 5 of `x=5`."""
    left, equals, right = latex.partition("=")
    return right if equals and NAME.fullmatch(left) else latex


def in_base(latex: str) -> tuple[str, int] | None:
    """The digits and the base of `2102_8`, `2102_{\\text{eight}}`, `2102\\text{ (base 8)}`; None for anything else.

    Letters are digits only where the base has them: `2A_2` is twice `A_2`.
    """
    match = _IN_BASE.fullmatch(_bare(latex))
    if not match:
        return None
    digits, named = match.groups()
    base = int(named[:4]) if named.isdigit() else NUMBER_WORDS.get(named, 0)
    letters = [c for c in digits if c.isalpha()]
    fit = all(int(c, 36) < base for c in letters) and (len(letters) < len(digits) or len(digits) > 1)
    return (digits, base) if 2 <= base <= 36 and fit else None


def _bare(latex: str) -> str:
    return _WRAPS.sub("", unnamed(latex)).lstrip("+0")


def same_in_base(gold: str, latex: str) -> bool | None:
    """Whether digits and base are the same; None where neither side has a base.

    The answer may omit the gold's base, which the question states. Where the gold has none, only base ten is right.
    """
    expected, answered = in_base(gold), in_base(latex)
    if expected and answered:
        return expected == answered
    if expected:
        return _bare(latex) == expected[0]
    if answered and value(gold) is not None:
        return answered[1] == 10 and value(answered[0]) == value(gold)
    return None


def bases(latex: str) -> list[str]:
    """The subscripts of the numbers in a formula, which math-verify ignores."""
    return sorted(_BASE.findall(latex))


def is_evaluated(gold: str, latex: str) -> bool:
    """Whether an answer is evaluated, where the gold is a number or a list of them: no `17\\cdot 23` for 391.

    A fraction, a power, a root and `3\\cdot 10^{6}` count as numbers. A gold of five decimals or more is rounded: the
    only exact answer may be an expression.
    """
    expected = [_UNIT.sub("", unnamed(part)).removesuffix("\\%") for part in _listed(gold)]
    if any(value(part) is None or len(part.partition(".")[2]) > 4 for part in expected):
        return True
    return value(latex) is not None or all(map(_is_number, _listed(latex.replace("{,}", ""))))


def _listed(latex: str) -> list[str]:
    if "," not in latex or value(latex) is not None:
        return [latex]
    bracketed = _BRACKETED.fullmatch(latex)
    return (bracketed[1] if bracketed else latex).split(",")


def _is_number(latex: str) -> bool:
    """One number without operations around it; anything else is left to math-verify."""
    latex = _UNIT.sub(lambda unit: unit[1] if any(map(str.isdigit, unit[1])) else "", latex)
    rest = _SIGN.sub("", _EVALUATED.sub("", latex, count=1))
    return not _OPERATION.search(rest) and set(re.findall(r"\\[A-Za-z]+", rest)) <= _HARMLESS
