"""Reads a text that is one number, however formatted, with a unit or a lead-in at most.

What may stand beside the number is listed: units, currencies and counted nouns (`units.py`), a few lead-ins (`The
answer is`, `x =`), the same number in words, and nouns of the question. Anything else makes it no plain number.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from fractions import Fraction
from functools import lru_cache
from itertools import takewhile
from typing import NamedTuple

from outdo.rewards.units import COUNTED, CURRENCIES, canonical_unit
from outdo.rewards.vocabulary import NEVER_NOUNS, is_open_class, words_value

MAX_ANSWER_CHARS = 200
_MAX_DIGITS = 4000  # of a number, once zeros at its ends are removed: Python refuses to parse more than 4300
_MAX_WORDS, _MAX_LEAD_WORDS = 6, 8  # of a noun phrase, and of a lead-in

_PLAIN = re.compile(r"[+-]?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)?(?:\.[0-9]+)?")
_UNWRAPPED = re.compile(r"[+-]?\$? ?[0-9][0-9.,]*(?: ?[A-Za-z%][A-Za-z%/ -]*)?")
_SPACES = "\u00a0\u2009\u202f"  # no-break and thin: they group digits, as a space does not
_BEFORE = re.compile(r"([+-]?)\s*(Rs\.(?=[0-9])|[^0-9+-]{0,16}?)\s*([+-]?)\s*(?=\.?[0-9])")
_NUMBER = re.compile(
    rf"(?:([0-9]{{1,3}}(?:([.'’{_SPACES}])[0-9]{{3}})(?:\2[0-9]{{3}})*),([0-9]{{1,2}}|[0-9]{{4,}})"  # 1.234,50
    rf"|([0-9]{{1,3}}(?:(,|\{{,\}}|,\\!|\\,|['’{_SPACES}])[0-9]{{3}})(?:\5[0-9]{{3}})*)(?:\.([0-9]+))?"  # 1,234.50
    r"|([0-9]*)(?:\.([0-9]+))?)(?![0-9]|[.,][0-9])"
)
_NOT_DIGITS = re.compile(r"[^0-9]+")
_DIGIT_RUN = re.compile(r"[0-9][0-9,]*(?:\.[0-9]+)?|\.[0-9]+")
_MORE_DIGITS = re.compile(r"[.,][0-9]")  # after a number: it is not one
_EMPHASIS = re.compile(r"(\*{1,3}|`)([^*`]+)\1(\.?)")
_EMPHASISED = re.compile(r"(?<![^\s(:])(\*{1,3}|_{2}|`)(?!\s)([^*`]+?)\1(?![^\s.,:;)])")
_WRAPS = [  # around a number
    *(('"', '"'), ("'", "'"), ("\\(", "\\)"), ("\\[", "\\]"), ("$$", "$$"), ("$", "$"), ("{", "}")),
    *((f"\\{command}{{", "}") for command in ("boxed", "text", "textbf", "mathrm", "mathbf", "mathit", "bf")),
]
_WIDE = {ord("０") + i: str(i) for i in range(10)} | {ord("．"): ".", ord("，"): ",", ord("％"): "%", ord("＄"): "$"}
_SIGNS = {ord(c): "-" for c in "\u2212\uff0d\ufe63"} | {ord("＋"): "+", ord("＝"): "=", ord("："): ":"}
_SAME = str.maketrans(_WIDE | _SIGNS)  # characters that are others in another width

_VARIABLE = re.compile(  # x, x_1, \theta, f(2)
    r"(?:[A-Za-z]|\\(?:alpha|beta|gamma|delta|theta|phi|lambda|mu|rho|sigma|tau|omega|Delta))"
    r"(?:_(?:[A-Za-z0-9]|\{[A-Za-z0-9]{1,8}\}))?(?:\([A-Za-z0-9]{1,2}\))?"
)
_LEAD_END = re.compile(r"\s*(?:[=:]|\b(?:is equal to|equals|is|are|was)\b:?)\s*")
_MAX_LEAD_CHARS = 80
_OPENING = re.compile(
    r"(?:so|thus|hence|therefore)\b,?\s*|it(?:['’]s| is) (?=[$\\0-9])|there (?:are|is) (?=[0-9])|(?:a|the) total of "
    r"|(?:the )?(?:final )?answer (?=[$\\0-9])",
    re.IGNORECASE,
)
_SPOKEN_SIGN = re.compile(r"(?:minus|negative)\s+(?=[$0-9.])", re.IGNORECASE)
_NAMES = {  # of a lead-in, as in `The total cost is`
    *("answer", "result", "total", "sum", "solution", "value", "amount", "cost", "price", "number", "count", "ans"),
    *("area", "volume", "length", "width", "height", "distance", "time", "speed", "profit", "average", "mean"),
}
_LEAD_WORDS = _NAMES | {"the", "final", "my", "our", "correct", "numeric", "numerical", "of"}
_JOINS = {  # between the words of a noun phrase
    *("of", "the", "per", "a", "an", "his", "her", "its", "their", "this", "each"),
    *("in", "on", "at", "for"),
}
_FIRST_JOINS = {
    "in",
    "on",
    "at",
    "for",
    "per",
    "a",
    "an",
    "each",
}  # those that may stand right after a number, before a noun
_ADJECTIVES = {"more", "additional", "extra", "remaining", "full", "whole", "new", "total"}  # before a noun, or alone
_COMPARED = {"more", "longer", "older", "taller"}
_TAILS = {  # after a unit or a noun, or alone: they say whose or when
    *("left", "remaining", "total", "altogether", "overall", "each", "apiece", "combined", "today", "now"),
    *("old", "long", "tall", "wide", "high", "deep", "away", "apart", "worth"),
    *_COMPARED,
}
_SHARES = {  # after a percent sign
    *("discount", "increase", "decrease", "profit", "interest", "chance", "probability", "likelihood", "markup", "tax"),
    *("tip", "raise", "growth", "gain", "loss", "humidity"),
}
_TAIL_PAIRS = (["in", "total"], ["in", "all"], ["left", "over"])
_WORD = re.compile(r"[A-Za-z]+(?:['’-][A-Za-z]+)*")
_DIVIDED_BY_NAME = re.compile(r"\s*(?:/|per\b)\s*[A-Zgml](?![A-Za-z])")  # `42/N` is a formula, `42/h` is not
_POSSESSIVE = re.compile(r"([a-z]s)['’]$")
_TEXT = re.compile(r"\\(?:text|textbf|textrm|mathrm|mbox)\s*\{([^{}]*)\}")
_PERCENT = re.compile(r"[%％]|per\s?cent|percent|prozent|pourcent|porcent|procent|proz", re.IGNORECASE)
_DEGREES = {"degree", "°C", "°F"}
_MAX_LAST_CHARS = 1000
_COUNTED_UNITS = frozenset(COUNTED.values())
_MULTIPLYING = {"pair", "pairs", "times"}  # nouns that count only where the question asks how many of them
_ASKED = re.compile(r"\b(?:how many|number of)\s(?:[a-z-]+\s)?(pairs?|times)\b|\bhow (often)\b", re.IGNORECASE)
_MAX_QUESTION_CHARS = 100_000
_HOW_MANY = re.compile(
    r"\bhow many (?:more |total |additional )?((?:square |cubic )?[a-z]+(?: per [a-z]+)?)\b", re.IGNORECASE
)
_OTHER_QUESTIONS = re.compile(r"\b(?:how much|how (?!many\b)[a-z]+|what|which|when)\b", re.IGNORECASE)


class Reading(NamedTuple):
    value: Fraction
    unit: str  # canonical, "" without one
    nouns: frozenset[str] = frozenset()  # lower-case words that only the question can justify


def number(text: str) -> Fraction | None:
    """The exact value of a text that is one number, else None; `1,234.50`, `$5`, `x = 7`, `12.` and `5 km` are."""
    reading = read(text)
    return reading.value if reading and not reading.nouns else None


def read(text: str) -> Reading | None:
    """The number in a text with its unit, and the words beside it that are not listed; None where it is not one."""
    text = text.strip()
    if len(text) <= MAX_ANSWER_CHARS:
        return _read(text)
    text = without_zeros(text)
    return _read.__wrapped__(text) if len(text) <= _MAX_DIGITS else None  # too long to be cached


def without_zeros(text: str) -> str:
    """The text without zeros that do not change its number: those before it, and those that end its decimals."""
    match = _DIGIT_RUN.search(text)
    if not match or _MORE_DIGITS.match(text, match.end()):
        return text
    whole, point, decimals = match[0].partition(".")
    decimals = decimals.rstrip("0")
    whole = whole if "," in whole else whole.lstrip("0") or "0"
    return text[: match.start()] + whole + (point + decimals if decimals else "") + text[match.end() :]


def without_emphasis(text: str) -> str:
    """The 5 of Markdown's `**5**`, `*5*` and `` `5` ``."""
    emphasised = _EMPHASIS.fullmatch(text)
    return emphasised[2].strip() + emphasised[3] if emphasised else text


@lru_cache(maxsize=2**16)
def _read(text: str) -> Reading | None:
    bare = text.removesuffix(".")
    if _PLAIN.fullmatch(bare) and bare[-1:].isdigit():
        return Reading(_fraction(bare.replace(",", "")), "")
    if _UNWRAPPED.fullmatch(bare):  # nothing to remove
        return _number_with_unit(bare, frozenset())
    if len(text) > _MAX_DIGITS:
        return None
    text, nouns = _without_lead_in(_bare(text.translate(_SAME)))
    return _number_with_unit(_bare(text), nouns)


def _fraction(decimal: str) -> Fraction:
    return Fraction(decimal) if "." in decimal else Fraction(int(decimal))  # three times as fast


def _bare(text: str) -> str:
    """The text without what is around all of it: emphasis, formula signs, a final full stop."""
    text = _EMPHASISED.sub(r"\2", text.strip())
    for _ in range(3):
        text = text.strip().removesuffix(".").strip() if not text.endswith("..") else text
        for opening, closing in _WRAPS:
            inner = text[len(opening) : -len(closing)]
            if text.startswith(opening) and text.endswith(closing) and inner and _is_one(inner):
                text = inner
    return text.strip()


def _is_one(inner: str) -> bool:
    """Whether brackets around this text are a pair, not those of two parts of it."""
    return not any(sign in inner.replace("\\$", "") for sign in ("$", "\\(", "\\[")) and inner.count(
        "{"
    ) == inner.count("}")


def _without_lead_in(text: str) -> tuple[str, frozenset[str]]:
    """The text after `The answer is`, `Total:` or `x =`, and the words of the lead-in that are not listed."""
    nouns: frozenset[str] = frozenset()
    for _ in range(2):
        text = _OPENING.sub("", text, count=1) if text[:1].isalpha() else text
        end = _LEAD_END.search(text[:_MAX_LEAD_CHARS])
        if not end:
            break
        lead = _bare(_TEXT.sub(r" \1 ", text[: end.start()]))
        if lead and not _VARIABLE.fullmatch(lead):
            words = lead.lower().split()
            others = frozenset(word for word in words if word not in _LEAD_WORDS)
            if len(words) > _MAX_LEAD_WORDS or not (others or _NAMES.intersection(words)) or not _are_nouns(others):
                break
            nouns |= others
        text = _bare(text[end.end() :])
    return _SPOKEN_SIGN.sub("-", text, count=1) if text[:1] in "mMnN" else text, nouns


def _are_nouns(words: Collection[str]) -> bool:
    return all(_WORD.fullmatch(word) and is_open_class(word) for word in words)


def _number_with_unit(text: str, nouns: frozenset[str]) -> Reading | None:
    before = _BEFORE.match(text)
    match = before and _NUMBER.match(text, before.end())
    if not before or not match or (before[1] and before[3]):
        return None
    currency = canonical_unit(before[2])
    whole = match[1] or match[4] or match[7] or ""
    decimals = match[3] or match[6] or match[8] or ""
    if not whole + decimals or currency is None or (currency and currency not in CURRENCIES):
        return None
    value = _fraction(f"{before[1]}{before[3]}{_NOT_DIGITS.sub('', whole) or 0}{decimals and '.'}{decimals}")
    rest = _without_same(text[match.end() :], value)
    beside = None if rest is None else _beside(rest, currency)
    return beside and Reading(value, beside[0], beside[1] | nouns)


def _without_same(text: str, value: Fraction) -> str | None:
    """The text after a number, without the same number in brackets, or without brackets around all of it."""
    before, opening, rest = text.partition("(")
    inner, closing, after = rest.partition(")")
    if not opening:
        return text
    if not closing or "(" in after or ")" in after:
        return None
    if _spoken(inner.strip().lower()) == value:
        return f"{before} {after}"
    return None if before.strip() or after.strip() else inner


def _spoken(text: str) -> Fraction | None:
    """The value of a number in digits or in words."""
    if _PLAIN.fullmatch(text) and text[-1:].isdigit():
        return _fraction(text.replace(",", ""))
    sign, *words = re.split(r"[\s-]+", text) if len(text) <= MAX_ANSWER_CHARS else [""]
    negative = sign in ("minus", "negative")
    value = words_value(words if negative else [sign, *words])
    return None if value is None else Fraction(-value if negative else value)


def _beside(text: str, currency: str) -> tuple[str, frozenset[str]] | None:
    """The unit in the text after a number, and its words that are not listed; None where it may change the number."""
    words = [_POSSESSIVE.sub(r"\1", word) for word in _TEXT.sub(r" \1 ", text).split()]
    lower = [word.lower() for word in words]
    if lower[:1] == ["times"] and lower[1:] and lower[1] in _COMPARED:  # `5 times more`
        return None
    while lower and (lower[-1] in _TAILS or lower[-2:] in _TAIL_PAIRS):
        del lower[-2 if lower[-2:] in _TAIL_PAIRS else -1 :]
    if len(lower) > 1 and lower[-1] in _SHARES and canonical_unit(" ".join(words[: len(lower) - 1])) == "%":
        return "%", frozenset()
    first = sum(1 for _ in takewhile(_ADJECTIVES.__contains__, lower))
    words, lower = words[first : len(lower)], lower[first:]
    unit = canonical_unit(" ".join(words))
    if unit is not None and (not currency or unit in ("", currency) or unit.startswith("/")):
        times = frozenset({"times"} if "times" in lower else ())
        return None if _DIVIDED_BY_NAME.match(text) else (unit or currency, times)
    if unit is not None and unit not in _COUNTED_UNITS:  # `$5 kg`
        return None
    if unit is None and "of" in lower[1:]:  # `square meters of land`
        of = lower.index("of", 1)
        unit = canonical_unit(" ".join(words[:of]))
        if unit and not currency and unit != "%":
            words, lower = words[of + 1 :], lower[of + 1 :]
    nouns = _noun_phrase(words, lower)
    return None if nouns is None else (currency or unit or "", nouns)


def _noun_phrase(words: list[str], lower: list[str]) -> frozenset[str] | None:
    """The words of a noun phrase that are not listed; None where it may change a number before it.

    A unit in it follows a preposition or an article, or comes first and precedes one.
    """
    if not 0 < len(lower) <= _MAX_WORDS or lower[0] in _JOINS - _FIRST_JOINS or lower[-1] in _JOINS:
        return None
    others = set[str]()
    for i, word in enumerate(lower):
        if word in _JOINS or word in COUNTED:
            continue
        neighbour = lower[i - 1] if i else " ".join(lower[1:2])
        is_unit = _WORD.fullmatch(word) and canonical_unit(words[i]) not in (None, "%")
        if neighbour not in _JOINS or word in NEVER_NOUNS or not is_unit:
            others.add(word)
    return frozenset(others) if _are_nouns(others) else None


def asked_for(reading: Reading, question: str) -> bool:
    """Whether an answer's unit may be the one that the question asks for: no cents for `how many dollars?`.

    Only the last question is read, and only where it asks nothing but how many of a unit.
    """
    if not reading.unit or reading.unit in _COUNTED_UNITS:
        return True
    asked = _asked_unit(question[-_MAX_LAST_CHARS:])
    ours = reading.unit.partition("/")[0]
    return "" in (asked, ours) or ours == asked or {ours, asked} <= _DEGREES or (ours, asked) == ("£", "lb")


@lru_cache(maxsize=4096)
def _asked_unit(question: str) -> str:
    """The unit that the last question asks how many of; empty where that is a noun, or it asks something else, too."""
    end = question.rfind("?")
    start = max(question.rfind(sign, 0, end) for sign in ".?!\n") if end >= 0 else len(question)
    last = question[start + 1 :]
    found = _HOW_MANY.findall(last) if not _OTHER_QUESTIONS.search(last) else []
    units = {(canonical_unit(phrase) or "").partition("/")[0] for phrase in found}
    return units.pop() if len(units) == 1 and not units & _COUNTED_UNITS else ""


def same_kind(unit: str, expected: str) -> bool:
    """Whether an answer may have this unit where the gold has that one; nouns are not compared."""
    return unit == expected or not unit or not expected or bool(_COUNTED_UNITS.intersection((unit, expected)))


def justified(reading: Reading, gold: Reading, question: str) -> bool:
    """Whether the question or the gold has the words that are not listed, and the percent sign."""
    if "%" in reading.unit and "%" not in gold.unit and not _PERCENT.search(question):
        return False
    return all(noun in gold.nouns or _in_question(noun, question) for noun in reading.nouns)


def _in_question(noun: str, question: str) -> bool:
    if noun not in _MULTIPLYING:
        return bool(_forms(noun) & _words(question))
    asked = {("times" if often else word.lower())[:4] for word, often in _ASKED.findall(question[:_MAX_QUESTION_CHARS])}
    return noun[:4] in asked


def _forms(noun: str) -> set[str]:
    """A noun, its possible singulars and plurals."""
    stems = {noun, noun.removesuffix("s"), noun.removesuffix("es"), noun.removesuffix("'s"), noun.replace("’", "'")}
    return stems | {f"{noun}s", f"{noun}es"} | ({f"{noun[:-3]}y"} if noun.endswith("ies") else set())


@lru_cache(maxsize=256)
def _words(question: str) -> frozenset[str]:
    return frozenset(word.lower() for word in _WORD.findall(question[:_MAX_QUESTION_CHARS]))
