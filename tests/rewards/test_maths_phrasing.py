"""Answers with names, relations and words around them."""

from __future__ import annotations

import pytest

from outdo.rewards.maths import math


def verdicts(gold, finals, asked=""):
    messages = {"messages": [({"content": asked},)] * len(finals)} if asked else {}
    texts = [final if "\\boxed" in final else f"\\boxed{{{final}}}" for final in finals]
    return [grade.verdict for grade in math(texts, answer=[gold] * len(finals), **messages)]


@pytest.mark.parametrize(
    ("gold", "right", "wrong"),
    [
        (
            "t \\ge 4",
            ["t>=4", "t >= 4", "4 <= t", "-t <= -4", "[4,\\infty)"],
            ["t>4", "t<=4", "t=>4", "-t>=-4", "2t>=8"],
        ),
        ("y <= -6", ["y\\leq -6", "-6>=y"], ["y<-6", "y\\ge -6"]),
        ("n != 8", ["n\\ne 8", "n\\neq8"], ["n=8", "n!=9"]),
        ("5! = 120", ["5!=120"], ["5\\ne 120"]),
        ("r < 7", ["7 > r", "-r > -7"], ["-r < -7", "-r > 7", "r+2<9", "13r<91", "s<7"]),
        ("a+3b\\le 8", ["8\\ge 3b+a", "a+3b<=8"], ["a+3b<8", "a+3b\\ge 8", "a+b\\le 8"]),
        ("m=-3, b=\\frac{5}{7}", ["-3, \\frac57", "b=\\frac57,m=-3"], ["\\frac57,-3", "-3", "m=\\frac57,b=-3"]),
        ("AB=6,CD=11", ["6,11"], ["11,6", "6", "AB=11,CD=6"]),
        ("u=2,v=9;u=4,v=1", ["(2,9),(4,1)", "(4,1),(2,9)"], ["(9,2),(1,4)", "(2,9)", "(2,1),(4,9)"]),
        ("y=8,x=3", ["(3,8)"], ["(8,3)"]),
        ("S_{PQR}:S=5:36", ["5:36"], ["36:5", "5:37", "A:B:C=5:36"]),
        ("\\frac{KL}{MN}=\\frac{2}{\\sqrt{5}}", ["\\frac{2}{\\sqrt5}"], ["\\frac{\\sqrt5}{2}"]),
        ("41\\%", ["41 pct", "41\\text{ pct}", "41 percent"], ["41 cm", "42 pct", "4100 pct"]),
        ("6 ÷ δ", ["\\frac{6}{\\delta}"], ["6d"]),
        ("23", ["z\\approx 23"], ["z\\approx 24"]),
    ],
)
def test_relations_and_names(gold, right, wrong):
    assert verdicts(gold, right) == ["right"] * len(right)
    assert verdicts(gold, wrong) == ["wrong"] * len(wrong)


def test_an_inequality_given_back():
    assert verdicts("w<4", ["-w>-4", "-4<-w", "w<4"], "Solve $-w>-4$.") == ["wrong", "wrong", "right"]


LEADS = [
    "The rotation matrix is",
    "Here is the resulting matrix:",
    "Special matrix:",
    "We find that the largest $k$ is",
]
DENYING = """The answer is not|It is never|NOT|anything but|The wrong answer is|All except|at least|Incorrect guess:
The unlikely answer is|The answer isn't:|The naive answer is|The opposite is|One half is|An upper bound is
They claim it is|Ignore this:|Discarded:|Excluded case:|Doubtful:|Lies:|Off by one is|Discarded number:"""


def test_lead_ins():
    assert verdicts("58", [f"{lead} $58$" for lead in LEADS] + [f"{LEADS[3]} 58."]) == ["right"] * 5
    denying = DENYING.replace("\n", "|").split("|")
    assert verdicts("58", [f"{lead} $58$" for lead in denying]) == ["wrong"] * len(denying)
    assert verdicts("58", ["$58$ is wrong", "The largest $k$ is 59", "The 7 is $58$"]) == ["wrong"] * 3


def test_several_boxes_for_a_list():
    both = "\\boxed{(3,1)} and \\boxed{(8,1)}"
    assert verdicts("(3,1),(8,1)", [both, f"{both} and \\boxed{{(9,1)}}", "\\boxed{(3,1)}"]) == [
        "right",
        "wrong",
        "wrong",
    ]
    assert verdicts("(3,1)", [both]) == verdicts("5", ["\\boxed{5} or \\boxed{6}"]) == ["wrong"]
    assert verdicts("c=5,d=6", ["\\boxed{c=5}, \\boxed{d=6}", "\\boxed{c=6}, \\boxed{d=5}"]) == ["right", "wrong"]
