"""Countdown's verifier: exactly the given numbers, the target, and a parser that never calls eval."""

import sys
from fractions import Fraction

import pytest

from outdo.rewards.games import countdown, evaluate


def verdict(expression, numbers=(3, 4, 5), target=23, text="<answer>{}</answer>"):
    (grade,) = countdown([text.format(expression)], numbers=[numbers], target=[target])
    assert grade.reward == {"right": 1.0, "wrong": 0.0}[grade.verdict]
    return grade.verdict


@pytest.mark.parametrize(
    ("text", "value", "used"),
    [
        ("7", 7, [7]),
        ("1+2*3", 7, [1, 2, 3]),
        ("(1+2)*3", 9, [1, 2, 3]),
        ("10-4-3", 3, [10, 4, 3]),
        ("10-(4-3)", 9, [10, 4, 3]),
        ("24/4/3", 2, [24, 4, 3]),
        ("24/(4/3)", 18, [24, 4, 3]),
        ("1/3+1/6", Fraction(1, 2), [1, 3, 1, 6]),
        ("2*3/4*2", 3, [2, 3, 4, 2]),
        ("8-2*3+1", 3, [8, 2, 3, 1]),
        (" ( 1 +\n2 )\t* 3 ", 9, [1, 2, 3]),
        ("((((5))))", 5, [5]),
        ("3-5", -2, [3, 5]),
        ("007", 7, [7]),
        ("999999999*999999999", 999999999**2, [999999999, 999999999]),
    ],
)
def test_values(text, value, used):
    assert evaluate(text) == (value, used)


UNFINISHED = ["", " ", "+", "()", "(", ")", "1+", "1+2)", "(1+2", "(1 2", "(1(2)", "(1 2)", ")1(", "1+*2"]
UNARY_OR_IMPLICIT = ["+1", "-1", "1+-2", "3*-1", "(-1)", "1 2", "1(2)", "(1)(2)"]
OTHER_OPERATORS = ["2**3", "7//2", "7%2", "2^3", "3×4", "8÷2", "1=1", "1+2=3", "1;2", "1 ,2", "3+4 # 5"]
OTHER_NUMBERS = ["1.5", "1e2", "0x10", "1_0", "1,000", "½", "²"]
CODE = ["x", "abs(1)", "1+len('ab')", "__import__('os').system('true')", "1if 1else 2", "1+\x002", "\ud800"]


@pytest.mark.parametrize("text", [*UNFINISHED, *UNARY_OR_IMPLICIT, *OTHER_OPERATORS, *OTHER_NUMBERS, *CODE])
def test_invalid_expressions(text):
    with pytest.raises(ValueError):
        evaluate(text)


@pytest.mark.parametrize("text", ["1/0", "1/(2-2)", "0/0", "5/(1/2-1/2)", "1/(0*9)"])
def test_division_by_zero(text):
    with pytest.raises(ValueError, match="zero"):
        evaluate(text)


def test_product_with_zero():
    assert evaluate("0/5+0*3") == (0, [0, 5, 0, 3])


def test_nesting():
    assert evaluate("(" * 40 + "7" + ")" * 40) == (7, [7])
    limit = sys.getrecursionlimit()
    for depth in (60, 240):
        with pytest.raises(ValueError):
            evaluate("(" * depth + "7" + ")" * depth)
    with pytest.raises(ValueError, match="500"):
        evaluate("(" * limit * 2 + "7" + ")" * limit * 2)
    with pytest.raises(ValueError):
        evaluate("(" * 500)


def test_long_texts():
    with pytest.raises(ValueError, match="500"):
        evaluate("9*" * 2**20 + "9")
    assert evaluate("1+" * 249 + "1")[0] == 250


@pytest.mark.parametrize("text", ["1234567890", "99999999999999999999"])
def test_ten_digits(text):
    with pytest.raises(ValueError):
        evaluate(text)


RIGHT_EXPRESSIONS = [
    *("3+4*5", "5*4+3", "(5*4)+3", "4*5+3", " 3 + 4 * 5 ", "3+4×5", "3 + 4 × 5", "(5 × 4) + 3", "3+4·5", "3+4⋅5"),
    *(
        "3+4*5=23",
        "3 + 4 × 5 = 23",
        "(5*4)+3 = 23.",
        "$3 + 4 \\times 5 = 23$",
        "3+4\\cdot 5",
        "**3+4*5**",
        "`3+4*5=23`",
    ),
    *("\\(3+4\\times5\\)", "\\left(5\\times4\\right)+3", "[5*4]+3", "3+5×4 = 23"),
]


@pytest.mark.parametrize("expression", RIGHT_EXPRESSIONS)
def test_right_expressions(expression):
    assert verdict(expression) == "right"


@pytest.mark.parametrize(
    "expression",
    [
        "23",  # the target itself
        "3+4+5",  # another value
        "3+20",  # other numbers
        "4*5+3+3-3",  # a number more than once
        "5*5-4+3-1",
        "4*5",  # too few
        "3+4*5+0",  # one too many
        "3+4*5*1",
        "34-5-6",  # digits glued
        "3+4*5=24",
        "3+4*5=",
        "3+4*5==23",
        "3+4*5=23=23",
        "=23",
        "23=3+4*5",
        "3+4+5=23",
        "3+4*5=20+3",
        "3+4*5=23.5",
        "3+4*5≈23",
        "3+4**5",
        "3+4x5",
        "3+4 5",
        "３+４*５",
        "٣+4*5",
        "3+4*5²",
        "3 + 4 × 5 × 1",
        "3+4\\times5\\times1",
        "2+4×5+1",
        "3+4×5 or 23",
        "3+4×5 = 23 (not 24)",
        "3+4*5 or 23",
        "-3+4*5+6",
        "",
        "eval('3+4*5')",
    ],
)
def test_wrong_expressions(expression):
    assert verdict(expression) == "wrong"


def test_repeated_numbers():
    assert verdict("2*2+3", (2, 2, 3), 7) == "right"
    assert verdict("2*2+3", (2, 3), 7) == "wrong"
    assert verdict("2+3", (2, 2, 3), 5) == "wrong"
    assert verdict("2*2+3", [3, 2, 2], 7) == "right"


def test_exact_fractions():
    assert verdict("8/(3-8/3)", (8, 3, 8, 3), 24) == "right"
    assert verdict("(1/3)*3", (1, 3, 3), 1) == "right"
    assert verdict("7/2", (7, 2), 3) == "wrong"


def test_negative_target():
    assert verdict("3-5", (3, 5), -2) == "right"
    assert verdict("3-5", (3, 5), 2) == "wrong"


def test_only_the_final_answer_counts():
    assert verdict("3+4*5", text="<think>3+4+5</think><answer>{}</answer>") == "right"
    assert verdict("3+4*5", text="<think><answer>{}</answer></think>") == "wrong"
    assert verdict("3+4*5", text="<think>so <answer>{}</answer>") == "wrong"
    assert verdict("3+4*5", text="{}") == "wrong"
    assert verdict("3+4*5", text="<answer>3+4+5</answer><answer>{}</answer>") == "wrong"
    assert verdict("3+4*5", text="<answer>{}</answer><answer>3+4+5</answer>") == "wrong"
    assert verdict("3+4*5", text="\\boxed{{{}}}") == "right"
    assert verdict("3+4*5", text="#### {}") == "right"


def test_reasons():
    def reason(expression):
        return countdown([f"<answer>{expression}</answer>"], numbers=[(3, 4, 5)], target=[23])[0].reason

    assert reason("3+4+5") == "equals 12, not 23"
    assert reason("4*5") == "uses [4, 5], not [3, 4, 5]"
    assert "zero" in reason("3/(4-4)")


def test_row_order():
    grades = countdown(["<answer>1+2</answer>"] * 3, numbers=[(1, 2), (1, 2), (1, 3)], target=[3, 4, 3])
    assert [grade.reward for grade in grades] == [1.0, 0.0, 0.0]
    with pytest.raises(ValueError, match="zip"):
        countdown(["<answer>1+2</answer>"], numbers=[(1, 2)], target=[3, 4])


@pytest.mark.parametrize(
    "text",
    [
        "<answer>" + "(" * 2**20 + "</answer>",
        "<answer>" + "1+" * 2**19 + "1</answer>",
        "1" * 2**20,
        "<answer>\x00</answer>",
    ],
)
def test_hostile_texts(text):
    (grade,) = countdown([text], numbers=[(3, 4, 5)], target=[23])
    assert (grade.verdict, grade.reward) == ("wrong", 0.0)


def test_signs_of_print():
    for expression in ("8÷2−1", "8\\div 2 − 1 = 3", "8∕2-1", "8÷2-1=3", "\\frac{8}{2}-1", "\\frac{8}{2} - 1 = 3"):
        assert verdict(expression, (8, 2, 1), 3) == "right"
        assert verdict(expression, (8, 2, 1), 4) == "wrong"
    assert verdict("1−3=−2", (1, 3), -2) == "right"
    assert verdict("1-3=2", (1, 3), -2) == "wrong"
