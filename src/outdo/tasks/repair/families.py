"""Families of small functions: what each must do, one that does it, and bugs that it may have.

{k} and {m} are numbers that are drawn for each problem. A bug is a piece of the source, and what stands there instead;
no bug makes a function run forever.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Range = tuple[int, int]


@dataclass(frozen=True)
class Family:
    task: str
    source: str
    bugs: tuple[tuple[str, str], ...]
    draw: Callable[[random.Random, int, int], Any]  # an argument
    k: Range
    m: Range = (0, 0)


def _numbers(low: int, high: int, most: int = 9) -> Callable[[random.Random, int, int], list[int]]:
    return lambda rng, k, m: [rng.randint(low, high) for _ in range(rng.randint(0, most))]


def _around(rng: random.Random, k: int, m: int) -> list[int]:
    """Numbers of which many are multiples of k, and some are m."""
    return [rng.choice((k * rng.randint(-3, 9), m, rng.randint(-20, 60))) for _ in range(rng.randint(0, 8))]


def _words(rng: random.Random, k: int, m: int) -> str:
    return " ".join("".join(rng.choices("abeilmnorstu", k=rng.randint(1, 10))) for _ in range(rng.randint(0, 7)))


def _letters(rng: random.Random, k: int, m: int) -> str:
    return "".join(rng.choice("abcdexyzu") * rng.randint(1, 5) for _ in range(rng.randint(0, 7)))


def _sentence(rng: random.Random, k: int, m: int) -> str:
    return "".join(rng.choice("abcdefghijklmnopqrstuvwxyz ,.7") for _ in range(rng.randint(0, 14)))


def _spans(rng: random.Random, k: int, m: int) -> list[list[int]]:
    starts = [rng.randint(0, 40) for _ in range(rng.randint(0, 6))]
    return [[start, start + rng.randint(0, 9)] for start in starts]


FAMILIES: dict[str, Family] = {
    "sum_divisible": Family(
        "takes a list of whole numbers and returns the sum of those that are divisible by {k} and greater than {m}",
        """
def sum_divisible(values):
    total = 0
    for value in values:
        if value % {k} == 0 and value > {m}:
            total += value
    return total
""",
        (("value > {m}", "value >= {m}"), (" and ", " or "), ("total += value", "total += 1")),
        lambda rng, k, m: _around(rng, k, m - m % k),
        (2, 9),
        (0, 20),
    ),
    "count_words": Family(
        "takes a text and returns how many of its words have at least {k} and at most {m} letters",
        """
def count_words(text):
    count = 0
    for word in text.split():
        if {k} <= len(word) <= {m}:
            count += 1
    return count
""",
        (("{k} <= len", "{k} < len"), ("<= {m}", "< {m}"), ("text.split()", "text")),
        _words,
        (1, 5),
        (5, 9),
    ),
    "rotate": Family(
        "takes a list and returns it with its first {k} values moved to the end, in their order, where a list that is "
        "shorter is gone through again; the values that are smaller than {m} are left out before",
        """
def rotate(values):
    kept = [value for value in values if value >= {m}]
    if not kept:
        return []
    shift = {k} % len(kept)
    return kept[shift:] + kept[:shift]
""",
        (
            ("{k} % len(kept)", "{k}"),
            ("kept[shift:] + kept[:shift]", "kept[-shift:] + kept[:-shift]"),
            ("    if not kept:\n        return []\n", ""),
            (">= {m}", "> {m}"),
        ),
        _numbers(0, 20),
        (1, 9),
        (0, 9),
    ),
    "ranked": Family(
        "takes a list of whole numbers and returns the {k}. largest of its different values below {m}, or None where "
        "there are fewer",
        """
def ranked(values):
    ordered = sorted(set(value for value in values if value < {m}), reverse=True)
    if len(ordered) < {k}:
        return None
    return ordered[{k} - 1]
""",
        (("sorted(set(", "sorted(list("), ("{k} - 1", "{k} - 2"), ("value < {m}", "value <= {m}")),
        lambda rng, k, m: [rng.randint(m - 6, m + 2) for _ in range(rng.randint(0, 12))],
        (2, 5),
        (5, 30),
    ),
    "window_sums": Family(
        "takes a list of whole numbers and returns the list of the sums of every {k} neighbours, where a sum above {m} "
        "counts as {m}",
        """
def window_sums(values):
    sums = []
    for start in range(len(values) - {k} + 1):
        total = sum(values[start:start + {k}])
        sums.append(min(total, {m}))
    return sums
""",
        ((" - {k} + 1", " - {k}"), ("start + {k}", "start + {k} - 1"), ("min(total, {m})", "max(total, {m})")),
        _numbers(0, 9, 12),
        (2, 6),
        (9, 30),
    ),
    "shift_letters": Family(
        "takes a text and moves each of the letters a to z on by {k} in the alphabet, after z comes a again; other "
        "signs stay, and of the result only the first {m} signs are returned",
        """
def shift_letters(text):
    signs = []
    for sign in text:
        if "a" <= sign <= "z":
            sign = chr((ord(sign) - ord("a") + {k}) % 26 + ord("a"))
        signs.append(sign)
    return "".join(signs[:{m}])
""",
        ((" % 26", ""), ("+ {k})", "- {k})"), ('"a" <= sign <= "z"', "sign"), ("signs[:{m}]", "signs[:{m} - 1]")),
        _sentence,
        (1, 12),
        (4, 12),
    ),
    "digit_sum": Family(
        "takes a whole number and returns the sum of its digits in base {k}, times {m}",
        """
def digit_sum(number):
    total = 0
    while number > 0:
        total += number % {k}
        number //= {k}
    return {m} * total
""",
        (("number > 0", "number >= {k}"), ("total += ", "total = "), ("{m} * total", "{m} + total")),
        lambda rng, k, m: rng.choice((rng.randint(0, 9), rng.randint(0, 5000))),
        (2, 16),
        (2, 9),
    ),
    "runs": Family(
        "takes a text and returns the list of the letters that stand at least {k} times in a row, once for each such "
        "row, and not more than {m} of them",
        """
def runs(text):
    found, length = [], 0
    for place, letter in enumerate(text):
        if place > 0 and text[place - 1] == letter:
            length += 1
        else:
            length = 1
        if length == {k}:
            found.append(letter)
    return found[:{m}]
""",
        (("length == {k}", "length >= {k}"), ("length = 1", "length = 0"), ("found[:{m}]", "found")),
        _letters,
        (2, 4),
        (1, 4),
    ),
    "count_pairs": Family(
        "takes a list of whole numbers and returns how many pairs of its values, each pair counted once, differ by "
        "exactly {k} and have a sum of at most {m}",
        """
def count_pairs(values):
    count = 0
    for i in range(len(values)):
        for j in range(i + 1, len(values)):
            if abs(values[i] - values[j]) == {k} and values[i] + values[j] <= {m}:
                count += 1
    return count
""",
        (
            ("range(i + 1, len(values))", "range(len(values))"),
            ("abs(values[i] - values[j])", "values[j] - values[i]"),
            ("<= {m}", "< {m}"),
        ),
        lambda rng, k, m: [rng.randint(max(0, m // 2 - 4), m // 2 + 4) for _ in range(rng.randint(0, 9))],
        (1, 4),
        (8, 24),
    ),
    "pieces": Family(
        "takes a list and returns it cut into pieces of {k} values, the last of which may be shorter; every {m}. piece "
        "is reversed",
        """
def pieces(values):
    cut = []
    for start in range(0, len(values), {k}):
        piece = values[start:start + {k}]
        if (len(cut) + 1) % {m} == 0:
            piece = piece[::-1]
        cut.append(piece)
    return cut
""",
        (("len(cut) + 1", "len(cut)"), ("range(0, len(values), {k})", "range(0, len(values) - {k}, {k})")),
        _numbers(0, 9, 14),
        (2, 5),
        (2, 3),
    ),
    "points": Family(
        "takes a text in small letters and returns its points: {k} for each vowel (a, e, i, o, u), {m} for each other "
        "letter, and none for other signs",
        """
def points(text):
    total = 0
    for sign in text:
        if sign in "aeiou":
            total += {k}
        elif sign.isalpha():
            total += {m}
    return total
""",
        (('"aeiou"', '"aeio"'), ("elif sign.isalpha():", "else:"), ("total += {m}", "total = {m}")),
        _sentence,
        (2, 9),
        (1, 8),
    ),
}

# These are in the out-of-distribution split alone.
UNSEEN: dict[str, Family] = {
    "merge": Family(
        "takes a list of [start, end] and returns it sorted, with those merged that overlap or are at most {k} apart",
        """
def merge(spans):
    merged = []
    for start, end in sorted(spans):
        if merged and start - merged[-1][1] <= {k}:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    return merged
""",
        (("max(merged[-1][1], end)", "end"), ("sorted(spans)", "spans"), ("<= {k}", "< {k}")),
        _spans,
        (1, 6),
    ),
    "longest_rise": Family(
        "takes a list of whole numbers and returns the length of its longest stretch in which each value is at least "
        "{k} more than the one before",
        """
def longest_rise(values):
    best = length = 0
    for place, value in enumerate(values):
        if place > 0 and value >= values[place - 1] + {k}:
            length += 1
        else:
            length = 1
        best = max(best, length)
    return best
""",
        (("length = 1", "length = 0"), (">= values", "> values"), ("best = max(best, length)", "best = length")),
        _numbers(0, 12),
        (1, 5),
    ),
    "replace_every": Family(
        "takes a list of whole numbers and returns it with every {k}. value replaced by {m}",
        """
def replace_every(values):
    out = []
    for place, value in enumerate(values, 1):
        out.append({m} if place % {k} == 0 else value)
    return out
""",
        (("enumerate(values, 1)", "enumerate(values)"), ("place % {k} == 0", "place == {k}")),
        _numbers(0, 9, 12),
        (2, 6),
        (0, 9),
    ),
}
