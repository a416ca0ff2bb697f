"""Tables of right and wrong answers, and what holds for every answer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from maths_cases import RIGHT, WRONG

from outdo.rewards.maths import compare, math
from outdo.rewards.maths.notation import NotMathsError, normalized, tokens
from outdo.rewards.maths.parser import parse
from outdo.rewards.maths.question import formulas_to_give_back, question
from outdo.rewards.probes import near_latex


def verdicts(cases):
    """Each alone has a question or none: the grader gets them for all of its answers, or for none."""
    graded = {}
    for known in (True, False):
        part = [case for case in cases if bool(case[0]) == known]
        messages = {"messages": [({"role": "user", "content": asked},) for asked, _, _ in part]} if known else {}
        grades = math(
            [f"So \\boxed{{{final}}}" for _, _, final in part], answer=[gold for _, gold, _ in part], **messages
        )
        graded |= dict(zip(part, grades, strict=True))
    return graded


def test_tables_are_large_and_disjoint():
    assert len(set(WRONG)) > 250 and len(set(RIGHT)) > 250 and not set(WRONG) & set(RIGHT)


def test_wrong_answers():
    assert [case for case, grade in verdicts(WRONG).items() if grade.verdict != "wrong"] == []


def test_right_answers():
    assert [case for case, grade in verdicts(RIGHT).items() if grade.verdict != "right"] == []


@pytest.mark.parametrize("verdict", ["wrong", "right"])
def test_attacks(verdict):
    """Answers that were tried to get past the grader, and right ones in unusual spellings."""
    rows = [json.loads(line) for line in (Path(__file__).parent / "maths_attacks.jsonl").read_text().splitlines()]
    cases = [(row["question"], row["gold"], answer) for row in rows for answer in row[verdict]]
    assert len(cases) > 300
    assert [case for case, grade in verdicts(cases).items() if grade.verdict != verdict] == []


def test_gold_is_right_for_itself():
    golds = {(asked, gold, gold) for asked, gold, _ in (*RIGHT, *WRONG)}
    assert [case for case, grade in verdicts(golds).items() if grade.verdict != "right"] == []


_SIGNS = "0123456789abxyzABC+-*/^_(){}[],.:;=<>|!%' ~$²½√π×∞°&"
_PARTS = r"""\frac \text{ \text{cm} \sqrt \, \left( \right) \cdot \% \$ \{ \} {,} or and sin pi \mathrm{ \phantom{ 12
1,234 \overline \pm \begin{pmatrix} \end{pmatrix} \\ \color{red} \dfrac \mathbf{ cm \("""
PIECES = st.sampled_from([*_SIGNS, *_PARTS.split(), "The answer is ", " square feet"])


@settings(max_examples=400, deadline=None)
@given(st.lists(PIECES, max_size=14).map("".join))
def test_normalizing_twice_changes_nothing(text):
    once = normalized(text)
    assert normalized(once) == once


@settings(max_examples=200, deadline=None)
@given(st.lists(PIECES, max_size=14).map("".join))
def test_the_notation_has_the_same_tree(text):
    try:
        tree = parse(normalized(text))
    except NotMathsError:
        return
    assert parse(normalized(normalized(text))).key == tree.key


HIDDEN = "\\, \\; {} \\text{} \\mathrm{} \\phantom{1} \\hspace{1em} \\color{red}"
INVISIBLE = st.sampled_from(["", " ", "\u200b", *HIDDEN.split()])
SIGNS = st.sampled_from(["\\cdot ", "\\times ", "*", "×", "⋅", "+", "-"])


@settings(max_examples=150, deadline=None)
@given(st.integers(2, 99), st.integers(2, 99), SIGNS, st.lists(INVISIBLE, min_size=4, max_size=4))
def test_a_sum_or_product_is_never_worked_out(a, b, sign, hidden):
    text = f"{hidden[0]}{a}{hidden[1]}{sign}{hidden[2]}{b}{hidden[3]}"
    value = {"+": a + b, "-": a - b}.get(sign, a * b)
    (grade,) = math([f"\\boxed{{{text}}}"], answer=[str(value)])
    assert grade.verdict == "wrong"


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**6), st.lists(INVISIBLE, min_size=2, max_size=2))
def test_what_does_not_show_does_not_matter(number, hidden):
    (grade,) = math([f"\\boxed{{{hidden[0]}{number}{hidden[1]}}}"], answer=[str(number)])
    assert grade.verdict == "right"


@pytest.mark.parametrize(
    ("text", "formulas"),
    [
        ("Compute 391/23.", ["391/23"]),
        ("What is $6^2$ and \\(7^2\\)?", ["6^2", "7^2"]),
        ("Expand (x + 9)^2", ["(x+9)^2"]),
        ("Simplify \\sqrt{72}.", ["\\sqrt{72}"]),
        ("Evaluate \\int_0^1 3x^2 dx", ["\\int_0^1 3x^2dx"]),
        ("A coin shows heads with probability 1/2.", []),
    ],
)
def test_formulas_of_a_question(text, formulas):
    assert formulas_to_give_back(text, "9")[: len(formulas) or 1] == formulas


def test_units_that_a_question_asks_for():
    assert question("How many minutes is that? Give the length in cm.").units == {"min", "cm"}


def test_probes_repeat_the_question():
    row = {"prompt": "Compute 391/23.", "answer": "17"}
    assert "\\boxed{391/23}" in near_latex(row)
    assert math(near_latex(row)[:1], answer=["17"], messages=[({"content": row["prompt"]},)])[0].verdict == "wrong"


def test_tokens_refuse_an_open_brace():
    with pytest.raises(NotMathsError):
        tokens("\\text{cm")


def test_percent_has_one_meaning():
    for asked in ("", "What percent is it?", "How much is it?"):
        for gold, small, large in (("5", "5\\%", "500\\%"), ("0.5", "0.5\\%", "50\\%"), ("250", "250\\%", "25000\\%")):
            paid = [grade.reward for grade in verdicts([(asked, gold, small), (asked, gold, large)]).values()]
            assert sum(paid) <= 1, (asked, gold)


def test_rules_are_a_registry():
    assert len(compare._RULES) == len(set(compare._RULES))
