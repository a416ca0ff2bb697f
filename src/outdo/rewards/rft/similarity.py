"""How alike two texts are, in [0, 1], by the measures that OpenAI's text_similarity graders name. Pure Python.

All take (input, reference) and are deterministic. Words are runs of letters, digits and _; a sign is a word of its own
for bleu, gleu and meteor, and is dropped for rouge. rouge and meteor ignore case.

Long texts: only the first MOST_WORDS of each text are compared, and for fuzzy_match the first MOST_CHARACTERS. What
lies beyond counts as unlike: it stays in every denominator, so that padding can lower a score and never raise it, and a
megabyte takes well under a second.

Libraries differ in details that OpenAI does not publish; each docstring says what is computed here. `cosine` means the
cosine of two embeddings there, for evals only and never in training: it is not here.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from functools import partial

MOST_WORDS = 20_000
MOST_CHARACTERS = 50_000
_WORD = re.compile(r"\w+")
_WORD_OR_SIGN = re.compile(r"\w+|[^\w\s]")


def fuzzy_match(input: str, reference: str) -> float:
    """2 LCS / (|input| + |reference|) over characters, case and all: rapidfuzz's `ratio`. Two empty texts are alike."""
    total = len(input) + len(reference)
    return 2 * _common(input[:MOST_CHARACTERS], reference[:MOST_CHARACTERS]) / total if total else 1.0


def bleu(input: str, reference: str) -> float:
    """BP · (p1 p2 p3 p4)^(1/4), as sacrebleu scores a sentence.

    p_n is the share of the input's n-grams that the reference has, each as often at most. Orders that the input is too
    short for are left out. Where an order matches nothing, the k-th such p_n is 1 / (2^k · its n-grams); where no
    word matches, the score is 0. BP = exp(1 - |reference| / |input|) for an input that is shorter, else 1.
    """
    words, others = _WORD_OR_SIGN.findall(input), _WORD_OR_SIGN.findall(reference)
    if not words or not _matches(words, others, 1):
        return 0.0
    logs: list[float] = []
    halvings = 0
    for n in range(1, min(4, len(words)) + 1):
        total = len(words) - n + 1
        matches = float(_matches(words, others, n))
        if not matches:
            halvings += 1
            matches = 0.5**halvings
        logs.append(math.log(matches / total))
    brevity = min(0.0, 1 - len(others) / len(words))
    return math.exp(brevity + sum(logs) / len(logs))


def gleu(input: str, reference: str) -> float:
    """Google BLEU: the 1- to 4-grams that both have, divided by those of the text that has more."""
    words, others = _WORD_OR_SIGN.findall(input), _WORD_OR_SIGN.findall(reference)
    most = max(_count(words), _count(others))
    return sum(_matches(words, others, n) for n in range(1, 5)) / most if most else 0.0


def meteor(input: str, reference: str) -> float:
    """F (1 - 0.5 (chunks / m)^3), F = 10 P R / (R + 9 P), P = m / |input|, R = m / |reference|.

    m counts the words that both have; a chunk is a run of them that stands together in both texts. Words match as they
    are, without stems and synonyms (those need downloads). Each takes the place behind the last match if it can, else
    the first that is free. The same text twice scores just under 1: one word 0.5, ten words 0.9995.
    """
    words, others = _WORD_OR_SIGN.findall(input.lower()), _WORD_OR_SIGN.findall(reference.lower())
    places = _aligned(words[:MOST_WORDS], others[:MOST_WORDS])
    m = sum(place >= 0 for place in places)
    if not m:
        return 0.0
    before = [-2, *places[:-1]]
    chunks = sum(place >= 0 and (last < 0 or place != last + 1) for last, place in zip(before, places, strict=True))
    precision, recall = m / len(words), m / len(others)
    return 10 * precision * recall / (recall + 9 * precision) * (1 - 0.5 * (chunks / m) ** 3)


def rouge(input: str, reference: str, n: int) -> float:
    """ROUGE-n: F1 of the n-grams. 0 where a text has fewer than n words."""
    words, others = _WORD.findall(input.lower()), _WORD.findall(reference.lower())
    return _f1(_matches(words, others, n), len(words) - n + 1, len(others) - n + 1)


def rouge_l(input: str, reference: str) -> float:
    """ROUGE-L: F1 of the longest common subsequence of words."""
    words, others = _WORD.findall(input.lower()), _WORD.findall(reference.lower())
    return _f1(_common(words[:MOST_WORDS], others[:MOST_WORDS]), len(words), len(others))


METRICS: dict[str, Callable[[str, str], float]] = {
    "fuzzy_match": fuzzy_match,
    "bleu": bleu,
    "gleu": gleu,
    "meteor": meteor,
    **{f"rouge_{n}": partial(rouge, n=n) for n in range(1, 6)},
    "rouge_l": rouge_l,
}


def _f1(matches: int, ours: int, theirs: int) -> float:
    return 2 * matches / (ours + theirs) if ours > 0 and theirs > 0 else 0.0


def _count(words: Sequence[str]) -> int:
    """How many 1- to 4-grams a text has."""
    return sum(max(0, len(words) - n + 1) for n in range(1, 5))


def _matches(words: Sequence[str], others: Sequence[str], n: int) -> int:
    """The n-grams of both texts' first MOST_WORDS words, each counted as often as it stands in both."""
    return (_ngrams(words[:MOST_WORDS], n) & _ngrams(others[:MOST_WORDS], n)).total()


def _ngrams(words: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(zip(*(words[start:] for start in range(n)), strict=False))


def _common(a: Sequence[Hashable], b: Sequence[Hashable]) -> int:
    """The length of the longest common subsequence: Hyyrö's bit-parallel count, len(b) steps on a len(a)-bit number."""
    places: dict[Hashable, int] = {}
    for index, value in enumerate(a):
        places[value] = places.get(value, 0) | 1 << index
    full = (1 << len(a)) - 1
    row = full  # a 0 bit is where the subsequence grows
    for value in b:
        if value in places:
            hit = row & places[value]
            row = ((row + hit) | (row - hit)) & full
    return len(a) - row.bit_count()


def _aligned(words: Sequence[str], others: Sequence[str]) -> list[int]:
    """For each word, its place in the other text, or -1. No place is given twice."""
    free: dict[str, list[int]] = {}
    for place in range(len(others) - 1, -1, -1):
        free.setdefault(others[place], []).append(place)  # the first place last, to be popped
    taken = bytearray(len(others) + 1)
    places: list[int] = []
    last = -2
    for word in words:
        stack = free.get(word, [])
        while stack and taken[stack[-1]]:
            stack.pop()
        following = 0 <= last + 1 < len(others) and others[last + 1] == word and not taken[last + 1]
        last = last + 1 if following else stack[-1] if stack else -2
        places.append(max(last, -1))
        if last >= 0:
            taken[last] = 1
    return places
