"""New word problems from old ones: other numbers in the question, and all that follows from them computed again.

The solution must show its sums as GSM8K's do, `<<48/2=24>>`. A number of the question is changed only where it can be
followed: it stands there once, in digits, a sum uses it, and nothing else in the problem has its value. All that the
solution says must be such numbers, results of sums before, or numbers that the question gives in words ("twice", "a
dozen", "an hour"), which stay. Where one of them cannot be traced the problem is left alone: a wrong solution teaches
worse than none.

Not covered: what the words imply of a number, such as that a day has 24 hours. New numbers are of the old ones' size.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from outdo.grade.games import evaluate

TRIES = 20  # draws of new numbers for each variant that is asked for
SMALLEST = 4  # of the numbers that are changed: a smaller one often counts what the text then names
LARGEST = 1_000_000
KNOWN = frozenset({7, 12, 24, 30, 31, 52, 60, 100, 360, 365, 1000, *range(1900, 2101)})  # measures and years: they stay
WORDS = {
    "1/2": "half",
    "1": "one once single each a an",
    "2": "two twice double doubled doubles half halves halved pair pairs couple both second",
    "3": "three thrice triple triples tripled third thirds",
    "4": "four quarter quarters fourth fourths quadruple month months",
    "5": "five fifth fifths weekday weekdays nickel nickels",
    "6": "six sixth sixths",
    "7": "seven seventh week weeks weekly daily",
    "8": "eight eighth eighths",
    "9": "nine ninth ninths",
    "10": "ten tenth tenths dime dimes",
    "11": "eleven",
    "12": "twelve twelfth dozen dozens year years yearly annual annually foot feet inch inches",
    "13": "thirteen",
    "14": "fourteen",
    "15": "fifteen",
    "16": "sixteen",
    "18": "eighteen",
    "20": "twenty",
    "24": "day days",
    "25": "quarter quarters",
    "30": "thirty month months",
    "40": "forty",
    "50": "fifty",
    "52": "year years weekly",
    "60": "sixty hour hours minute minutes",
    "100": "hundred percent percentage % dollar dollars cents meter meters century",
    "365": "year years day days",
    "1000": "thousand kilometer kilometers kilogram kilograms km kg",
}
_SAID: dict[str, list[Fraction]] = {}
for _value, _words in WORDS.items():
    for _word in _words.split():
        _SAID.setdefault(_word, []).append(Fraction(_value))

_MARK = re.compile(r"<<([^<>=]*)=([^<>=]*)>>")
_NUMBER = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d*\.\d+|\d+")
_BEFORE = re.compile(r"[\w/:.,]$")  # of a fraction, a time, a name
_AFTER = re.compile(r"[\w/:]|[.,]\d|-\w|\s*[ap]\.?m\b")  # and of 2-point shots
_WORD = re.compile(r"[a-z]+|%")

Changes = Mapping[Fraction, Fraction]  # old values, and the new ones


@dataclass(frozen=True)
class _Plan:
    """What of a problem can change: its numbers, whether each is a percentage, and the sums that follow."""

    free: dict[Fraction, bool]
    sums: tuple[tuple[str, Fraction], ...]  # each as written, and its result
    stays: frozenset[Fraction]  # the question's other numbers, and what either says in words


def renumbered(question: str, solution: str, count: int, rng: random.Random) -> list[tuple[str, str]]:
    """Up to `count` others: the question and the solution, marks and all. None where they cannot be followed."""
    plan = _plan(question, solution)
    found: dict[str, str] = {}
    for _ in range(TRIES * count if plan else 0):
        assert plan
        drawn = {value: _drawn(int(value), percent, rng) for value, percent in plan.free.items()}
        if changes := _followed(drawn, plan):
            found[_put(question, drawn)] = _put(solution, changes)
        if len(found) == count:
            break
    return list(found.items())


def _plan(question: str, solution: str) -> _Plan | None:
    sums = tuple(_sums(solution))
    if not sums or sums[-1][1] != _number(solution.rpartition("####")[2].strip()):
        return None
    if any(_evaluated(text) != result for text, result in sums):
        return None
    given, said = _numbers(question), _said(question)
    used = {value for text, _ in sums for value in _numbers(text)}
    taken = KNOWN | said | {result for _, result in sums}
    free = {
        value: percent
        for value, percent in _changeable(question)
        if value in used and value not in taken and given.count(value) == 1
    }
    known = {*given, *said, Fraction(1)}
    if not free or not _is_traced(solution, known):
        return None
    return _Plan(free, sums, frozenset(known - set(free) | _said(solution)))


def _is_traced(solution: str, known: set[Fraction]) -> bool:
    """Whether every number in it is known, or the result of a sum before it."""
    place, results = 0, set(known)
    for match in _MARK.finditer(solution):
        if not results.issuperset(_numbers(solution[place : match.start()] + " " + match[1])):
            return False
        results.update(_numbers(match[2]))
        place = match.end()
    return results.issuperset(_numbers(solution[place:]))


def _changeable(question: str) -> Iterator[tuple[Fraction, bool]]:
    """Its whole numbers that stand alone, and whether each is a percentage."""
    for match in _NUMBER.finditer(question):
        value, after = _number(match[0]), question[match.end() :]
        alone = not _BEFORE.search(question[: match.start()][-1:]) and not _AFTER.match(after)
        if value is not None and alone and value.denominator == 1 and SMALLEST <= value <= LARGEST:
            yield value, after.lstrip().startswith(("%", "percent"))


def _drawn(old: int, percent: bool, rng: random.Random) -> Fraction:
    """Another number like it: as round, and from half of it to twice it."""
    if percent:
        return Fraction(rng.randrange(5, 100, 5) if old % 5 == 0 and old < 100 else old)
    unit = next(u for u in (1000, 500, 100, 50, 10, 5, 1) if u == 1 or (old % u == 0 and old >= 2 * u))
    return Fraction(unit * rng.randint(max(2, math.ceil(old / (2 * unit))), max(3, 2 * old // unit)))


def _followed(drawn: Changes, plan: _Plan) -> Changes | None:
    """What becomes of every value. None where nothing changes, where a result is no longer of its kind (whole, above
    zero), or where two values can no longer be told apart, or could not be before."""
    changes = dict(drawn)
    for text, old in plan.sums:
        new = _evaluated(_put(text, changes))
        if new is None or abs(new) > LARGEST or (new <= 0) != (old <= 0) or (new < 1) != (old < 1):
            return None
        if new.denominator != 1 and (old.denominator == 1 or (100 * new).denominator != 1):
            return None
        if changes.setdefault(old, new) != new:
            return None
    moved = {old for old, new in changes.items() if old != new}
    if not moved or moved & plan.stays or len(set(changes.values())) < len(changes):
        return None
    return changes


def _put(text: str, changes: Changes) -> str:
    """The text with new numbers, each written as the old one was."""

    def put(match: re.Match[str]) -> str:
        old = _number(match[0])
        new = changes.get(old, old) if old is not None else None
        return match[0] if new is None or new == old else _written(new, match[0])

    return _NUMBER.sub(put, text)


def _written(value: Fraction, like: str) -> str:
    comma = "," if "," in like else ""
    cents = re.search(r"\.\d\d$", like) is not None
    return f"{float(value):{comma}.2f}" if cents else f"{float(value):{comma}.10g}"


def _sums(solution: str) -> Iterator[tuple[str, Fraction]]:
    """Its sums and their results; 0 for a result that is no number."""
    for match in _MARK.finditer(solution):
        yield match[1], _number(match[2].strip()) or Fraction(0)


def _evaluated(text: str) -> Fraction | None:
    """A sum's value, None where it is not one of numbers, + - * / and brackets."""
    try:
        return evaluate(_NUMBER.sub(lambda match: f"({Fraction(match[0].replace(',', ''))})", text))[0]
    except ValueError:
        return None


def _said(text: str) -> set[Fraction]:
    """What its words say of numbers."""
    return {value for word in _WORD.findall(text.lower()) for value in _SAID.get(word, ())}


def _numbers(text: str) -> list[Fraction]:
    return [value for match in _NUMBER.finditer(text) if (value := _number(match[0])) is not None]


@lru_cache(maxsize=20_000)
def _number(text: str) -> Fraction | None:
    return Fraction(text.replace(",", "")) if len(text) < 12 and _NUMBER.fullmatch(text) else None
