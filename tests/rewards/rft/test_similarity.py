"""Similarity metrics, against numbers computed by hand, and on texts made to be slow."""

import itertools
import math
import random
import time
from functools import cache

import pytest

from outdo.rewards.rft.similarity import (
    MAX_CHARS,
    MAX_WORDS,
    METRICS,
    _lcs_length,
    bleu,
    fuzzy_match,
    gleu,
    meteor,
    rouge_l,
)

TEXTS = ["", " ", "a", "the cat sat on the mat", "The CAT", "\0\ud800", "日本 語", "..!?", "the the the the", "x" * 300]


@pytest.mark.parametrize("name", METRICS)
def test_range_and_determinism(name):
    for a, b in itertools.product(TEXTS, TEXTS):
        assert 0.0 <= METRICS[name](a, b) <= 1.0, (a, b)
        assert METRICS[name](a, b) == METRICS[name](a, b)


@pytest.mark.parametrize("name", METRICS)
def test_equal_and_unrelated_texts(name):
    text = "one two three four five six seven eight nine ten"
    assert METRICS[name](text, text) == pytest.approx(1.0, abs=0.001)
    if name != "fuzzy_match":
        assert METRICS[name](text, "ein anderer Satz ganz ohne gleiche Worte hier drin") == 0.0


@pytest.mark.parametrize(
    ("a", "b", "want"),
    [
        ("", "", 1.0),
        ("a", "", 0.0),
        ("abc", "abd", 2 * 2 / 6),
        ("this is a test", "this is a test!", 2 * 14 / 29),  # 0.9655, as rapidfuzz's page has it
        ("fuzzy wuzzy was a bear", "wuzzy fuzzy was a bear", 2 * 20 / 44),
        ("kitten", "sitting", 2 * 4 / 13),
        ("ABC", "abc", 0.0),
    ],
)
def test_fuzzy_match(a, b, want):
    assert fuzzy_match(a, b) == pytest.approx(want)


def test_lcs_length():
    def slow(a, b):
        @cache
        def length(i, j):
            if i == len(a) or j == len(b):
                return 0
            return 1 + length(i + 1, j + 1) if a[i] == b[j] else max(length(i + 1, j), length(i, j + 1))

        return length(0, 0)

    rng = random.Random(0)
    for _ in range(200):
        a, b = ("".join(rng.choice("abc") for _ in range(rng.randrange(30))) for _ in range(2))
        assert _lcs_length(a, b) == slow(a, b), (a, b)


def test_bleu_by_hand():
    # p1 5/6, p2 3/5, p3 1/4, p4 matches nothing: 1/(2·3)
    want = (5 / 6 * 3 / 5 * 1 / 4 * 1 / 6) ** 0.25
    assert bleu("the cat sat on the mat", "the cat is on the mat") == pytest.approx(want)
    # shorter: p1 = p2 = p3 = 1, brevity exp(1 - 6/3)
    assert bleu("the cat sat", "the cat sat on the mat") == pytest.approx(math.exp(-1))
    # clipped: one `the` counts out of four; then nothing matches: 1/(2·3), 1/(4·2), 1/(8·1)
    assert bleu("the the the the", "the cat sat down") == pytest.approx((1 / 4 * 1 / 6 * 1 / 8 * 1 / 8) ** 0.25)
    assert bleu("yes", "yes") == 1.0


def test_gleu_by_hand():
    # 5 + 3 + 1 + 0 n-grams in common, of 6 + 5 + 4 + 3
    assert gleu("the cat sat on the mat", "the cat is on the mat") == pytest.approx(9 / 18)
    assert gleu("the cat", "the cat sat") == pytest.approx(3 / 6)


def test_meteor_by_hand():
    # m = 5 in two chunks (the cat | on the mat), P = R = 5/6
    assert meteor("the cat sat on the mat", "the cat is on the mat") == pytest.approx(5 / 6 * (1 - 0.5 * (2 / 5) ** 3))
    # m = 3, one chunk, P = 1, R = 1/2
    f = 10 * 1 * 0.5 / (0.5 + 9)
    assert meteor("on the mat", "cat on the mat sat down") == pytest.approx(f * (1 - 0.5 / 27))
    assert meteor("Yes", "yes") == 0.5
    # every word in its own chunk
    assert meteor("c b a", "a b c") == pytest.approx(0.5)


def test_rouge_by_hand():
    a, b = "the cat sat on the mat.", "The cat is on the mat"
    assert METRICS["rouge_1"](a, b) == pytest.approx(2 * 5 / 12)
    assert METRICS["rouge_2"](a, b) == pytest.approx(2 * 3 / 10)
    assert METRICS["rouge_3"](a, b) == pytest.approx(2 * 1 / 8)
    assert METRICS["rouge_4"](a, b) == 0.0
    assert METRICS["rouge_5"]("a b c d e f", "a b c d e g") == pytest.approx(2 * 1 / 4)
    assert METRICS["rouge_5"]("too short", "too short") == 0.0
    assert rouge_l(a, b) == pytest.approx(2 * 5 / 12)
    assert rouge_l("a b c d", "d c b a") == pytest.approx(2 * 1 / 8)


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("kind", ["same", "distinct", "signs", "random"])
def test_megabytes_are_quick(name, kind):
    rng = random.Random(0)
    text = {
        "same": "a " * 500_000,
        "distinct": " ".join(map(str, range(150_000))),
        "signs": "." * 1_000_000,
        "random": "".join(rng.choices("abc ", k=1_000_000)),
    }[kind]
    start = time.monotonic()
    assert 0.0 <= METRICS[name](text, text[::-1]) <= 1.0
    assert time.monotonic() - start < 2


def test_beyond_the_limit():
    text = "a" * MAX_CHARS
    assert fuzzy_match(text, text) == 1.0
    assert fuzzy_match(text * 2, text) == pytest.approx(2 / 3)
    assert fuzzy_match(text * 2, text * 2) == 0.5
    words = "w " * MAX_WORDS
    for name in ("rouge_1", "rouge_l", "gleu", "bleu"):
        assert METRICS[name](words, words) == pytest.approx(1.0, abs=0.001), name
        assert METRICS[name](words + "w " * MAX_WORDS, words) < 0.7, name


def test_padding_lowers_scores():
    reference = "the cat sat on the mat"
    for name, metric in METRICS.items():
        assert metric(reference + " junk" * 100, reference) < metric(reference, reference), name
