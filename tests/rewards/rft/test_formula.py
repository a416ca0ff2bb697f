"""The formula language: values, precedence, columns of errors, and limits."""

import math
import random
import time

import pytest

from outdo.rewards.rft.formula import FormulaError, can_be_named, parse

VALUES = {"a": 0.5, "b": 2.0, "zero": 0.0, "min": 7.0}


def value(text):
    return parse(text, VALUES)(VALUES)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("1", 1.0),
        ("a", 0.5),
        ("1 + 2 * 3", 7.0),
        ("(1 + 2) * 3", 9.0),
        ("10 - 4 - 3", 3.0),
        ("16 / 4 / 2", 2.0),
        ("2 ^ 3 ^ 2", 512.0),
        ("-2 ^ 2", -4.0),
        ("(-2) ^ 2", 4.0),
        ("2 ^ -1", 0.5),
        ("2 * -3", -6.0),
        ("--2", 2.0),
        ("+2 - +1", 1.0),
        ("1e-3", 0.001),
        ("1.5E2", 150.0),
        (".5 + 5.", 5.5),
        ("0.5 * a + 0.5 * b", 1.25),
        ("(a+b)/2", 1.25),
        ("min(1, 2, a)", 0.5),
        ("max(a)", 0.5),
        ("max(1, max(2, 3)) ^ 2", 9.0),
        ("abs(a - b)", 1.5),
        ("floor(-0.5) + ceil(0.2)", 0.0),
        ("exp(0) + sqrt(9) + log(1)", 4.0),
        ("log(exp(2))", 2.0),
        ("min + min(min, 3)", 10.0),  # a grader may be called as a function is
        ("\n a\t+ b ", 2.5),
    ],
)
def test_values(text, want):
    assert value(text) == pytest.approx(want)


def test_agrees_with_python():
    rng = random.Random(0)

    def grown(depth):
        if depth == 0 or rng.random() < 0.2:
            return rng.choice(["a", "b", "1.5", "3"])
        kind = rng.randrange(4)
        if kind == 0:
            return f"({grown(depth - 1)})"
        if kind == 1:
            return f"-{grown(depth - 1)}"
        if kind == 2:
            return f"max({grown(depth - 1)}, {grown(depth - 1)})"
        return f"{grown(depth - 1)} {rng.choice('+-*/')} {grown(depth - 1)}"

    for _ in range(300):
        text = grown(5)
        try:
            want = eval(text, {"max": max}, dict(VALUES))
        except ZeroDivisionError:
            continue
        assert value(text) == pytest.approx(want), text


def test_names():
    assert parse("a + max(b, a)", ["a", "b", "c"]).names == {"a", "b"}
    assert parse("1", []).names == frozenset()


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("", 1, "the end of the formula"),
        ("1 +", 4, "the end of the formula"),
        ("1 2", 3, "expected an operator .*got '2'"),
        ("(1 + 2", 7, "parenthesis of column 1"),
        ("1 + 2)", 6, "expected an operator .*got '\\)'"),
        ("1 $ 2", 3, "unexpected character"),
        ("a * * b", 5, "expected a number"),
        ("accurcy", 1, "unknown grader 'accurcy'"),
        ("2 + aa", 5, "did you mean 'a'"),
        ("sin(1)", 1, "unknown function 'sin'"),
        ("2 * abs(1, 2)", 5, "takes one value, not 2"),
        ("min()", 5, "expected a number"),
        ("1e999", 1, "too large"),
        ("a.b", 2, "unexpected character '\\.'"),
        ("a ** b", 4, "expected a number"),
        ("__import__('os')", 12, "unexpected character"),
        ("a if b else 1", 3, "expected an operator"),
    ],
)
def test_errors_have_columns(text, column, message):
    with pytest.raises(FormulaError, match=message) as caught:
        parse(text, VALUES)
    assert f"column {column}:" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 / zero", "division of 1 by 0"),
        ("9^9^9^9", "too large"),
        ("exp(1000)", "exp\\(1000\\) is too large"),
        ("log(0)", "log\\(0\\) is undefined"),
        ("log(-1)", "is undefined"),
        ("sqrt(-1)", "sqrt\\(-1\\) is undefined"),
        ("zero ^ -1", "is undefined"),
        ("(-8) ^ (1/3)", "is undefined"),
        ("1e308 * 10", "too large"),
        ("1e308 + 1e308", "too large"),
    ],
)
def test_undefined_values(text, message):
    with pytest.raises(FormulaError, match=message):
        value(text)


@pytest.mark.parametrize(
    "bomb", ["(" * 10_000, "-" * 9_999 + "1", "2^" * 4_999 + "1", "abs(" * 2_000, "(" * 60 + "1" + ")" * 60]
)
def test_deep_formulas(bomb):
    with pytest.raises(FormulaError, match="nested more than 50"):
        parse(bomb, VALUES)


def test_long_formulas():
    with pytest.raises(FormulaError, match="limit is 10000"):
        parse("1+" * 10_000 + "1", VALUES)
    start = time.process_time()
    assert value("+".join(["1"] * 5_000)) == 5_000
    assert value("max(" + ",".join(["1"] * 4_900) + ")") == 1
    assert value("(" * 40 + "a" + ")" * 40) == 0.5
    assert time.process_time() - start < 1


def test_values_are_finite():
    rng = random.Random(1)
    for _ in range(300):
        text = "".join(
            rng.choice(["a", "b", "zero", "+", "-", "*", "/", "^", "(", ")", "log(", "9", ","]) for _ in range(12)
        )
        try:
            result = value(text)
        except FormulaError:
            continue
        assert math.isfinite(result), text


@pytest.mark.parametrize(
    ("key", "can"),
    [("a", True), ("_a1", True), ("a b", False), ("1a", False), ("a-b", False), ("é", False), ("", False)],
)
def test_can_be_named(key, can):
    assert can_be_named(key) is can
