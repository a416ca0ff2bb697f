"""What an answer in LaTeX says, as far as it can be seen without algebra: one spelling of it, the number that it is,
the base of that number, and whether it is worked out.
"""

from __future__ import annotations

import re
from fractions import Fraction

from outdo.rewards.answer import NUMBER_WORDS, without_emphasis

LONGEST = 1000  # characters of an answer

NAME = re.compile(r"\\?[A-Za-z]+(?:_\{?\w+\}?)?(?:\([A-Za-z, ]*\))?'?")
TEXT = re.compile(r"\\(?:text(?:rm|bf|it|sf|tt|normal)?|math(?:rm|bf|it|sf|tt)|mbox|operatorname)\s*\{([^{}]*)\}")
_SPACE = re.compile(r"\s+|(?<!\\)\\[,;:! ]|~|\\(?:left|right|displaystyle|limits)(?![A-Za-z])")
_NUMBER = re.compile(r"[+-]?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?")
_FRACTION = re.compile(r"([+-]?)(?:\\frac\{(-?[0-9]+)\}\{(-?[0-9]+)\}|([0-9]+)/([0-9]+))")
_DELIMITED = re.compile(r"\$\$?([^$]*)\$\$?|\\\((.*?)\\\)|\\\[(.*?)\\\]", re.DOTALL)

_WRAPS = re.compile(r"\\(?:text|textrm|mathrm|mbox)(?![a-z])|[{}() ]")
_IN_BASE = re.compile(r"(-?[0-9A-Z]*(?:\.[0-9A-Z]+)?)(?:_|_?(?:in)?base)([0-9]+|[a-z]+)")
_BASE = re.compile(r"(?<!\^)(?<!\^\{)(?<![0-9.])[0-9]+[)}]*_\{?([0-9]*)")

# A number in one of the forms that nothing is left to do in but what the form says: a fraction, a power, a root.
_N = r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
_ATOM = rf"(?:\\sqrt(?:\[[0-9]+\])?(?:\{{{_N}\}}|[0-9])|{_N}(?:\^(?:\{{[0-9]+\}}|[0-9]))?)"
_HALF = rf"(?:\{{[+-]?{_ATOM}\}}|[0-9])"
_RATIO = rf"(?:{_N}?\\frac{_HALF}{_HALF}|{_ATOM}/{_ATOM})"
_EXPONENT = rf"\^(?:\{{-?(?:{_RATIO}|{_N})\}}|-?[0-9])"
_WORKED_OUT = re.compile(
    rf"{_N}(?:\\times|\\cdot)10{_EXPONENT}|\([+-]?(?:{_RATIO}|{_N})\){_EXPONENT}|\\sqrt\{{{_RATIO}\}}"
    rf"|{_RATIO}|{_N}{_EXPONENT}|{_ATOM}"
)
_SIGN = re.compile(r"(?<![^=({\[])[+-]")  # at the beginning of something
_UNIT = re.compile(rf"(?:\\cdot|\\times|/)?{TEXT.pattern}(?:\^(?:\{{-?[0-9]\}}|[0-9]))?")
_OPERATION = re.compile(r"[0-9+*!|\u00d7\u00b7\u22c5\u2217\u00f7\u2211\u220f\u222b-]")
_BRACKETED = re.compile(r"(?:\\\{|[(\[])(.*)(?:\\\}|[)\]])")
_HARMLESS = {"\\circ", "\\degree", "\\in", "\\pi", "\\pm"}


def squeezed(text: str) -> str:
    """One spelling of what is written in many: no dollars, no spacing. A sentence around one formula is left away."""
    text = without_emphasis(text.strip()) if len(text) <= LONGEST else text
    formulas = _DELIMITED.findall(text[: 4 * LONGEST])
    if len(formulas) == 1 and not any(c.isdigit() for c in _DELIMITED.sub("", text[: 4 * LONGEST])):
        text = "".join(formulas[0])
    text = text.replace("\\$", "").replace("$", "").replace("\u2212", "-").replace("\\dfrac", "\\frac")
    text = text.replace("\\tfrac", "\\frac").strip().removeprefix("\\approx")
    text = _SPACE.sub(" ", text[: LONGEST + 1]).strip().removesuffix(".").strip()
    return re.sub(r"(?<![A-Za-z]) | (?![A-Za-z])", "", text)


def value(latex: str) -> Fraction | None:
    """The number that is written there, where it is one of the plain kinds."""
    latex = latex.removesuffix("^\\circ").removesuffix("^{\\circ}")
    if _NUMBER.fullmatch(latex):
        return Fraction(latex.replace(",", ""))
    if fraction := _FRACTION.fullmatch(latex):
        sign, a, b, c, d = fraction.groups()
        top, bottom = int(a or c), int(b or d)
        return None if bottom == 0 else Fraction(-top if sign == "-" else top, bottom)
    return None


def parts(latex: str) -> list[str]:
    """The components of a pair, a triple, an interval; nothing where there is a bracket inside."""
    inner = latex[1:-1]
    return inner.split(",") if latex[:1] in ("(", "[") and not set(inner) & set("()[]{}") else []


def unnamed(latex: str) -> str:
    """Of `x=5` the 5."""
    left, equals, right = latex.partition("=")
    return right if equals and NAME.fullmatch(left) else latex


def in_base(latex: str) -> tuple[str, int] | None:
    """The digits and the base of `2102_8`, `2102_{\\text{eight}}`, `2102\\text{ (base 8)}`; None for anything else.

    Letters are digits only where the base has them: `2A_2` is twice `A_2`.
    """
    found = _IN_BASE.fullmatch(_bare(latex))
    if not found:
        return None
    digits, named = found.groups()
    base = int(named[:4]) if named.isdigit() else NUMBER_WORDS.get(named, 0)
    letters = [c for c in digits if c.isalpha()]
    fit = all(int(c, 36) < base for c in letters) and (len(letters) < len(digits) or len(digits) > 1)
    return (digits, base) if 2 <= base <= 36 and fit else None


def _bare(latex: str) -> str:
    return _WRAPS.sub("", unnamed(latex)).lstrip("+0")


def same_in_base(gold: str, latex: str) -> bool | None:
    """Digit by digit and in the same base; None where neither side has one.

    A gold's base may be left unsaid, because the question has said it. A base where the gold has none is wrong, unless
    it is ten.
    """
    want, got = in_base(gold), in_base(latex)
    if want and got:
        return want == got
    if want:
        return _bare(latex) == want[0]
    if got and value(gold) is not None:
        return got[1] == 10 and value(got[0]) == value(gold)
    return None


def bases(latex: str) -> list[str]:
    """What stands below the numbers of a formula. math-verify reads over it."""
    return sorted(_BASE.findall(latex))


def worked_out(gold: str, latex: str) -> bool:
    """Whether an answer does the sum, where the gold is a number or some of them: no `17\\cdot 23` for 391.

    A fraction, a power, a root and `3\\cdot 10^{6}` are numbers. A gold of five decimals or more is a rounded one, for
    which there may be no other exact answer than an expression.
    """
    wanted = [_UNIT.sub("", unnamed(part)).removesuffix("\\%") for part in _listed(gold)]
    if any(value(part) is None or len(part.partition(".")[2]) > 4 for part in wanted):
        return True
    return value(latex) is not None or all(map(_is_number, _listed(latex.replace("{,}", ""))))


def _listed(latex: str) -> list[str]:
    if "," not in latex or value(latex) is not None:
        return [latex]
    bracketed = _BRACKETED.fullmatch(latex)
    return (bracketed[1] if bracketed else latex).split(",")


def _is_number(latex: str) -> bool:
    """One number, and around it nothing that computes; whatever else is there is for math-verify to read."""
    latex = _UNIT.sub(lambda unit: unit[1] if any(map(str.isdigit, unit[1])) else "", latex)
    rest = _SIGN.sub("", _WORKED_OUT.sub("", latex, count=1))
    return not _OPERATION.search(rest) and set(re.findall(r"\\[A-Za-z]+", rest)) <= _HARMLESS
