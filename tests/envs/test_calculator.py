"""The calculator: exact values against Python's own fractions, its bounds, and the marks of GSM8K."""

from __future__ import annotations

import re
import time
from contextlib import suppress
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outdo.envs.calculator import MAX_CHARS, calculator, evaluate, evaluate_mark, number_text, open_mark
from outdo.envs.calls import CallError

numbers = st.one_of(
    st.integers(0, 999).map(str),
    st.integers(1000, 10**9).map(lambda n: f"{n:,}"),
    st.decimals(0, 1000, places=3, allow_nan=False).map(str),
    st.integers(0, 99).map(lambda n: f".{n:02}"),
)


def joined(parts: tuple[str, str, str]) -> str:
    left, sign, right = parts
    return f"{left} {sign} {right}" if sign != "**" else f"({left})**({right})"


expressions = st.recursive(
    numbers,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "//"]), inner).map(joined),
        st.tuples(inner, st.just("**"), st.sampled_from(["0", "1", "2", "-2"])).map(joined),
        st.tuples(inner, inner).map(lambda two: f"{two[0]} % ({two[1]})"),
        inner.map(lambda one: f"({one})"),
        inner.map(lambda one: f"-{one}"),
    ),
    max_leaves=8,
)


def by_python(expression: str) -> Fraction:
    """Python's own value: its parser, its precedence and its fractions."""
    source = re.sub(r"[0-9][0-9,]*\.?[0-9]*|\.[0-9]+", lambda m: f"F('{m[0].replace(',', '')}')", expression)
    source = re.sub(r"\*\*\(F\('(\d)'\)\)", r"**\1", re.sub(r"\*\*\(-F\('(\d)'\)\)", r"**-\1", source))
    return eval(source, {"F": Fraction})  # what the test itself has written


@settings(max_examples=150, deadline=None)
@given(expressions)
def test_agrees_with_fractions(expression):
    try:
        expected = by_python(expression)
    except ZeroDivisionError:
        with pytest.raises(CallError, match="division by zero"):
            evaluate(expression)
        return
    try:
        assert evaluate(expression) == expected
    except CallError as error:
        assert "too large" in str(error)
        assert max(expected.numerator.bit_length(), expected.denominator.bit_length()) > 500


@settings(max_examples=150, deadline=None)
@given(st.fractions(min_value=-(10**6), max_value=10**6, max_denominator=10**7))
def test_text_is_the_number(value):
    text = number_text(value)
    denominator = value.denominator
    for prime in (2, 5):
        while denominator % prime == 0:
            denominator //= prime
    if denominator == 1 and (value * 10**20).denominator == 1:
        assert Fraction(text) == value
    else:
        assert abs(Fraction(text) - value) <= abs(value) * Fraction(1, 10**11)
    assert not text.startswith(".") and not ("." in text and text.endswith(("0", ".")))


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("48/2", "24"),
        ("0.1+0.2", "0.3"),
        ("-2**2", "-4"),
        ("2**3**2", "512"),
        ("2**-1", "0.5"),
        ("(-3)**3 + 0**2 + 0**0", "-26"),
        ("2*-3", "-6"),
        ("+30+46", "76"),
        ("7//2 - -7//2", "7"),
        ("10 % 4", "2"),
        ("20%", "0.2"),
        ("20% of 50", "10"),
        ("50% * 50% - 1", "-0.75"),
        ("200*15%+1", "31"),
        ("3 × 4 ÷ 2 − 1", "5"),
        ("3 x 4X2", "24"),
        ("2^10 =", "1024"),
        ("$1,250.50 * 2", "2501"),
        ("sqrt(2.25) + √16 + 9**0.5", "8.5"),
        ("sqrt(2)**2", "2"),
        ("1.5e3", "1500"),
        ("100/3", "33.3333333333"),
        ("2/3", "0.666666666667"),
        ("-1/3000", "-0.000333333333333"),
        ("10**30/7", "142857142857142857142857142857.14"),
        ("1/8", "0.125"),
        ("0*-5", "0"),
        ("2**100", "1267650600228229401496703205376"),
    ],
)
def test_values(expression, result):
    assert calculator(expression) == result


@pytest.mark.parametrize(
    "expression",
    [
        *("", "   ", "=", "()", "1+", "*2", "1 2", "2(3)", "(1", "1)", "1..2", "1,5", "1,0000", "1.2.3", "1==1", "1=1"),
        *("x", "of", "abc", "sqrt", "sqrt(-1)", "2**(1/3)", "1/0", "1//0", "1%(0)", "0**-1", "½", "٣+1", "1_000"),
        *("__import__('os').system('x')", "open('x')", "a.b", "1;2", "lambda: 1", "[1]", "'a'*9", "1\x00+1"),
        *("9**9**9", "9**9999999999", "(10**299)**300", "1e999*1e999", "1e400", "2**(2**100)", "1e-999"),
        *("(" * 60 + "1" + ")" * 60, "-" * 60 + "1", "2" + "**1" * 60, "1+" * 600 + "1", "9" * 999, "%" * 900),
    ],
)
def test_refused_in_words(expression):
    started = time.monotonic()
    with pytest.raises(CallError) as caught:
        calculator(expression)
    assert time.monotonic() - started < 0.5
    assert 10 < len(str(caught.value)) < 200


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet="0123456789.,+-*/%^()eEx $=√sqrtof<>", max_size=40) | st.text(max_size=40))
def test_any_text_is_a_value_or_a_refusal(text):
    with suppress(CallError):
        Fraction(calculator(text))


def test_length_is_bounded():
    assert evaluate("1+" * (MAX_CHARS // 2 - 1) + "1") == MAX_CHARS // 2
    with pytest.raises(CallError, match="1,001 characters"):
        evaluate("1" * (MAX_CHARS + 1))


@pytest.mark.parametrize(
    ("text", "insertion"),
    [
        ("Natalia sold 48/2 = <<48/2=", "24>>"),
        ("<<1+1=2>>2, then <<0.5*20=", "10>>"),
        ("$<<12/60=", "0.2>>"),
        ("<<18*.5=", "9>>"),
        ("<<80/100*10=", "8>>"),
        ("<<+30+46+38+11+18=", "143>>"),
    ],
)
def test_marks(text, insertion):
    assert evaluate_mark(text) == insertion


@pytest.mark.parametrize("text", ["", "48/2=", "<<48/2=24>>", "<<48/2= ", "<<48\n/2=", "<<a=b=", "<<48/2"])
def test_text_without_an_open_mark(text):
    assert open_mark(text) is None
    with pytest.raises(CallError):
        evaluate_mark(text)


def test_mark_without_a_value():
    assert open_mark("<<4/0=") == "4/0"
    with pytest.raises(CallError, match="division by zero"):
        evaluate_mark("<<4/0=")
