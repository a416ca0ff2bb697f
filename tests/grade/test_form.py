"""The form of an answer, and DAPO's soft penalty for length."""

import pytest

from outdo.grade.form import format as form
from outdo.grade.form import overlong

GOOD = "<think>2+2</think><answer>4</answer>"


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        "<think>\n2 < 3 > 1\n</think>\n\n<answer>\n4\n</answer>\n",
        "  <think>a</think> <answer>b</answer>  ",
        "<think></think><answer></answer>",
        "<think>a <b>bold</b> &lt;think&gt;</think><answer>4</answer>",
        "<think>naïve\u2028\x00</think><answer>½</answer>",
        "<think>" + "a\n" * 2**19 + "</think><answer>4</answer>",
    ],
    ids=range(7),
)
def test_good_form(text):
    assert form([text]) == [1.0]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "4",
        "<answer>4</answer>",
        "<think>a</think>",
        "<think>a<answer>4</answer>",
        "<think>a</think><answer>4",
        "<think>a</think>4</answer>",
        "a</think><answer>4</answer>",
        "<answer>4</answer><think>a</think>",
        "x" + GOOD,
        GOOD + "x",
        "<think>a</think>x<answer>4</answer>",
        GOOD + GOOD,
        GOOD + "<answer>4</answer>",
        "<think>a</think><think>b</think><answer>4</answer>",
        "<think><think>a</think></think><answer>4</answer>",
        "<think>a<think>b</think><answer>4</answer>",
        "<think>a</think><answer><answer>4</answer></answer>",
        "<think>a</think><answer>4<answer></answer>",
        "<think><answer>3</answer></think><answer>4</answer>",
        "<think>a</think><answer>4</think></answer>",
        "<think>a</think><answer>4</answer></answer>",
        "<THINK>a</THINK><ANSWER>4</ANSWER>",
        "< think>a</think><answer>4</answer>",
        "<think>" * 100_000,
        "<think>" + "a" * 2**20,
        "<think>" + "a" * 2**20 + "</think>" + " " * 2**20,
        " " * 2**20,
        "<think></think>" * 50_000,
    ],
    ids=range(29),
)
def test_bad_form(text):
    assert form([text]) == [0.0]


def test_one_value_for_each_answer_in_order():
    assert form([GOOD, "4", GOOD], answer=["4"] * 3) == [1.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("length", "expected"),
    [(0, 0.0), (79, 0.0), (80, 0.0), (81, -0.05), (90, -0.5), (95, -0.75), (99, -0.95), (100, -1.0), (150, -1.0)],
)
def test_the_soft_penalty_of_a_hundred_tokens(length, expected):
    assert overlong([""], [tuple(range(length))], max_completion_length=100) == pytest.approx([expected])


def test_the_soft_penalty_of_odd_limits():
    # 8 // 5 = 1: the buffer is one token, so only the limit itself costs.
    assert overlong([""] * 3, [(0,) * 6, (0,) * 7, (0,) * 8], max_completion_length=8) == pytest.approx([0, 0, -1])
    # 12 // 5 = 2: from 10 to 12.
    assert overlong([""] * 3, [(0,) * 10, (0,) * 11, (0,) * 12], max_completion_length=12) == pytest.approx(
        [0, -0.5, -1]
    )
    assert overlong([""], [(0,)], max_completion_length=1) == pytest.approx([-1])


def test_the_penalty_counts_tokens_not_characters():
    assert overlong(["a" * 5000], [(1, 2)], max_completion_length=100) == pytest.approx([0.0])
