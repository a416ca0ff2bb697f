"""Similarity of two texts, in [0, 1], by the metrics of OpenAI's text_similarity graders. Pure Python.

All take (input, reference) and are deterministic. Words are runs of letters, digits and _; a punctuation mark is a word
for bleu, gleu and meteor, and is dropped for rouge. rouge and meteor ignore case.

Only the first MAX_WORDS of each text are compared, for fuzzy_match the first MAX_CHARS. The rest is different: it
stays in every denominator, so that padding never raises a score, and a megabyte takes well under a second.

Libraries differ in details that OpenAI does not publish; each docstring defines what is computed here. Not covered:
`cosine`, which compares embeddings and which OpenAI supports only for evals.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from functools import partial

MAX_WORDS = 20_000
MAX_CHARS = 50_000
_WORD = re.compile(r"\w+")
_WORD_OR_MARK = re.compile(r"\w+|[^\w\s]")


def fuzzy_match(input: str, reference: str) -> float:
    """2 LCS / (|input| + |reference|) over characters, case-sensitive: rapidfuzz's `ratio`. Two empty texts score 1."""
    total = len(input) + len(reference)
    return 2 * _lcs_length(input[:MAX_CHARS], reference[:MAX_CHARS]) / total if total else 1.0


def bleu(input: str, reference: str) -> float:
    """BP · (p1 p2 p3 p4)^(1/4), as sacrebleu scores a sentence.

    p_n is the share of the input's n-grams that occur in the reference, with clipped counts. Orders that the input is
    too short for are skipped. The k-th order without a match has p_n = 1 / (2^k · its n-grams); if no word matches, the
    score is 0. BP = exp(1 - |reference| / |input|) if the input is shorter, else 1.
    """
    words, others = _WORD_OR_MARK.findall(input), _WORD_OR_MARK.findall(reference)
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
    """Google BLEU: the number of shared 1- to 4-grams, divided by that of the text with more of them."""
    words, others = _WORD_OR_MARK.findall(input), _WORD_OR_MARK.findall(reference)
    larger = max(sum(max(0, len(text) - n + 1) for n in range(1, 5)) for text in (words, others))
    return sum(_matches(words, others, n) for n in range(1, 5)) / larger if larger else 0.0


def meteor(input: str, reference: str) -> float:
    """F (1 - 0.5 (chunks / m)^3), F = 10 P R / (R + 9 P), P = m / |input|, R = m / |reference|.

    m is the number of matched words; a chunk is a run of them that is contiguous in both texts. Words match exactly,
    without stems and synonyms (which need downloads). Each is matched to the position after the last match if possible,
    else to the first free one. Equal texts score just under 1: one word 0.5, ten words 0.9995.
    """
    words, others = _WORD_OR_MARK.findall(input.lower()), _WORD_OR_MARK.findall(reference.lower())
    places = _aligned(words[:MAX_WORDS], others[:MAX_WORDS])
    m = sum(place >= 0 for place in places)
    if not m:
        return 0.0
    before = [-2, *places[:-1]]
    chunks = sum(place >= 0 and (last < 0 or place != last + 1) for last, place in zip(before, places, strict=True))
    precision, recall = m / len(words), m / len(others)
    return 10 * precision * recall / (recall + 9 * precision) * (1 - 0.5 * (chunks / m) ** 3)


def rouge(input: str, reference: str, n: int) -> float:
    """ROUGE-n: F1 of the n-grams. 0 if a text has fewer than n words."""
    words, others = _WORD.findall(input.lower()), _WORD.findall(reference.lower())
    return _f1(_matches(words, others, n), len(words) - n + 1, len(others) - n + 1)


def rouge_l(input: str, reference: str) -> float:
    """ROUGE-L: F1 of the longest common subsequence of words."""
    words, others = _WORD.findall(input.lower()), _WORD.findall(reference.lower())
    return _f1(_lcs_length(words[:MAX_WORDS], others[:MAX_WORDS]), len(words), len(others))


METRICS: dict[str, Callable[[str, str], float]] = {
    **{metric.__name__: metric for metric in (fuzzy_match, bleu, gleu, meteor)},
    **{f"rouge_{n}": partial(rouge, n=n) for n in range(1, 6)},
    "rouge_l": rouge_l,
}


def _f1(matches: int, ours: int, theirs: int) -> float:
    return 2 * matches / (ours + theirs) if ours > 0 and theirs > 0 else 0.0


def _matches(words: Sequence[str], others: Sequence[str], n: int) -> int:
    """The number of shared n-grams of the first MAX_WORDS words, with clipped counts."""
    return (_ngrams(words[:MAX_WORDS], n) & _ngrams(others[:MAX_WORDS], n)).total()


def _ngrams(words: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(zip(*(words[start:] for start in range(n)), strict=False))


def _lcs_length(a: Sequence[Hashable], b: Sequence[Hashable]) -> int:
    """The length of the longest common subsequence: Hyyrö's bit-parallel count, len(b) steps on a len(a)-bit number."""
    positions: dict[Hashable, int] = {}
    for index, value in enumerate(a):
        positions[value] = positions.get(value, 0) | 1 << index
    full = (1 << len(a)) - 1
    row = full  # a 0 bit is where the subsequence grows
    for value in b:
        if value in positions:
            hit = row & positions[value]
            row = ((row + hit) | (row - hit)) & full
    return len(a) - row.bit_count()


def _aligned(words: Sequence[str], others: Sequence[str]) -> list[int]:
    """For each word, its position in the other text, or -1. No position is used twice."""
    free: dict[str, list[int]] = {}
    for place in range(len(others) - 1, -1, -1):
        free.setdefault(others[place], []).append(place)  # the first position last, to be popped
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
