"""Mathematical equivalence: equal answers, different ones, evasions, and answers that hang."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from outdo.rewards.maths import grader, math
from support.processes import left_running, running

PLACES = ["main thread", "worker thread"]
TOWERS = [
    "9^{9^{9^{9^{9}}}}",
    "(10^{10})!",
    "((((7!)!)!)!)!",
    "\\binom{10^{9}}{5\\cdot 10^{8}}",
    "2^{2^{2^{2^{2^{2^{2}}}}}}",
    "\\sum_{k=1}^{10^{12}}\\frac{1}{k^{3}+\\sin k}",
    "\\int_0^{10}\\sin(x^{x^{x}})\\,dx",
    "(x+y+z+1)^{3000}",
]


def called(where, function, *args, **kwargs):
    if where == "main thread":
        return function(*args, **kwargs)
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(function, *args, **kwargs).result()


def verdicts(pairs, **more):
    grades = math([text for text, _ in pairs], answer=[gold for _, gold in pairs], **more)
    assert all(grade.reward == {"right": 1.0, "wrong": 0.0, "broken": None}[grade.verdict] for grade in grades)
    return [grade.verdict for grade in grades]


def boxed(*pairs):
    return [(f"So it is $\\boxed{{{answer}}}$.", gold) for answer, gold in pairs]


def unexpected(pairs, verdict, **more):
    return [pair for pair, answer in zip(pairs, verdicts(pairs, **more), strict=True) if answer != verdict]


SAME = boxed(
    ("\\frac{1}{2}", "0.5"),
    ("0.5", "\\frac{1}{2}"),
    ("\\dfrac12", "\\frac{1}{2}"),
    ("\\tfrac{2}{4}", "\\frac12"),
    ("1/2", "0.5"),
    ("-\\frac{3}{4}", "\\frac{-3}{4}"),
    ("0.333333", "\\frac13"),
    ("1,234", "1234"),
    ("1{,}234", "1234"),
    ("12.50", "12.5"),
    ("\\$5", "5"),
    ("5\\text{ cm}", "5"),
    ("5", "5\\text{ cm}"),
    ("90^\\circ", "90"),
    ("x=5", "5"),
    ("5", "x=5"),
    ("f(x)=x^2", "x^2"),
    ("1+x^2", "x^2+1"),
    ("(x+1)^2", "x^2+2x+1"),
    ("\\frac{\\sqrt{8}}{2}", "\\sqrt{2}"),
    ("\\frac{1}{\\sqrt{2}}", "\\frac{\\sqrt{2}}{2}"),
    ("13\\pi", "\\pi\\cdot 13"),
    ("3\\times10^{6}", "3000000"),
    ("2^{10}", "1024"),
    ("\\left(3, 4\\right)", "(3,4)"),
    ("\\{2,1\\}", "\\{1,2\\}"),
    ("1, 2", "2,1"),
    ("[0, 1)", "[0,1)"),
    ("(-\\infty, 3)\\cup(5, \\infty)", "(-\\infty,3)\\cup(5,\\infty)"),
    ("\\pm 2", "\\{-2,2\\}"),
    ("2+3i", "3i+2"),
    ("\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}", "\\begin{pmatrix} 1 & 2 \\\\ 3 & 4 \\end{pmatrix}"),
    ("\\text{even}", "even"),
    ("\\sin x\\cos x", "\\cos x\\sin x"),
    ("\u22123", "-3"),
    ("\\approx 3.14", "3.14"),
    ("3\\frac{1}{2}", "\\frac{7}{2}"),
    ("2102_{8}", "2102_8"),
    ("2102", "2102_8"),  # the question states the base
    ("02102_8", "2102_{8}"),
    ("x=2102_8", "2102_8"),
    ("(2102)_{8}", "2102_8"),
    ("2102_{\\text{eight}}", "2102_8"),
    ("2102\\text{ (base 8)}", "2102_8"),
    ("2102_{10}", "2102"),
    ("1A3_{16}", "1A3_{16}"),
    ("\\mathrm{1A3}_{16}", "1A3_{16}"),
    ("FF", "FF_{16}"),
    ("5\\text{ (five)}", "5"),
)
WORKED_OUT = boxed(  # numbers, though not the gold's digits
    ("50\\%", "0.5"),
    ("0.5", "50\\%"),
    ("10^3", "1000"),
    ("10^{-3}", "0.001"),
    ("-2^{3}", "-8"),
    ("(\\frac{1}{2})^3", "\\frac{1}{8}"),
    ("\\frac{1}{2^{3}}", "\\frac{1}{8}"),
    ("4^{\\frac{1}{2}}", "2"),
    ("\\sqrt{144}", "12"),
    ("\\sqrt[3]{8}", "2"),
    ("\\sqrt{\\frac{1}{4}}", "0.5"),
    ("\\frac{\\sqrt{16}}{8}", "0.5"),
    ("-3.2\\times 10^{4}", "-32000"),
    ("-\\frac{1}{2}\\text{ cm}", "-0.5"),
    ("1{,}234\\text{ km}", "1234"),
    ("60\\text{ km}/\\text{h}", "60"),
    ("5\\text{ N}\\cdot\\text{m}", "5"),
    ("5\\text{ m}^2", "5"),
    ("x\\in\\{5\\}", "5"),
    ("\\mathbf{5}", "5"),
    ("\\text{5}", "5"),
    ("-(3)", "-3"),
    ("(\\sqrt{9}, \\frac{8}{2})", "(3,4)"),
    ("2,1", "x=1,x=2"),
    ("\\sqrt{12}", "2\\sqrt{3}"),
    ("\\sqrt{3}+\\sqrt{3}", "2\\sqrt{3}"),  # no plain number
    ("2\\sqrt{3}", "3.464102"),  # a rounded number, of which this is the exact one
    ("\\frac{1+\\sqrt{5}}{2}", "1.618034"),
)
DIFFERENT = boxed(
    ("\\frac{1}{2}", "0.25"),
    ("0.33", "\\frac13"),
    ("0.3334", "\\frac13"),
    ("5.0000001", "5"),
    ("0.0000001", "0.0000004"),
    ("10^{-8}", "0.0000004"),
    ("0", "0.0000004"),
    ("123", "1234"),
    ("(4,3)", "(3,4)"),
    ("(3,4,5)", "(3,4)"),
    ("[0,1]", "[0,1)"),
    ("(0,1)", "[0,1]"),
    ("\\{1,2,3\\}", "\\{1,2\\}"),
    ("x^2+2", "x^2+1"),
    ("y^2+1", "x^2+1"),
    ("x^3", "x^2"),
    ("-5", "5"),
    ("5", "-5"),
    ("x<3", "x>3"),
    ("x\\le 3", "x<3"),
    ("2-3i", "2+3i"),
    ("\\begin{pmatrix}1&3\\\\2&4\\end{pmatrix}", "\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}"),
    ("odd", "\\text{even}"),
    ("\\infty", "5"),
    ("\\emptyset", "5"),
    ("", "5"),
    ("\\frac{1}{0}", "5"),
    ("\\text{five}", "5"),
    ("5x", "5"),
    ("123_7", "123_5"),
    ("123_3", "123_5"),
    ("4343_{7}", "4343_6"),
    ("2102_{10}", "2102_8"),
    ("2102_{\\text{ten}}", "2102_8"),
    ("2102\\text{ (base 9)}", "2102_8"),
    ("2103", "2102_8"),
    ("1090", "2102_8"),  # the same number, in another base
    ("3_{10}", "11_2"),
    ("0.12_{4}", "0.12_3"),
    ("1A3_{12}", "1A3_{16}"),
    ("5_6", "5"),
    ("5_{\\text{six}}", "5"),
    ("5_6+0", "5"),
    ("5_6x", "5x"),
    ("\\{11_{3},101_{2}\\}", "\\{11_{2},101_{2}\\}"),
)
NOT_WORKED_OUT = boxed(
    *(
        (text, "391")
        for text in (
            "17\\cdot 23",
            "23\\cdot 17",
            "17\\times 23",
            "17*23",
            "17×23",
            "x=17\\cdot 23",
            "17\\cdot 23\\text{ cm}",
            "400-9",
            "-9+400",
            "390+1",
            "782\\div 2",
            "782/4\\cdot 2",
            "\\frac{17\\cdot 46}{2}",
            "\\frac{17}{23^{-1}}",
            "\\frac{17}{\\frac{1}{23}}",
            "17\\sqrt{529}",
            "17^{1}23^{1}",
            "|-391|",
            "\\lfloor 391.5\\rfloor",
            "391\\sin^2 1+391\\cos^2 1",
        )
    ),
    ("\\sum_{n=1}^{10}n", "55"),
    ("\\int_0^1 2x\\,dx", "1"),
    ("\\binom{11}{2}", "55"),
    ("\\log_2 32", "5"),
    ("5!", "120"),
    ("2+3", "x=5"),
    ("2+3", "5\\text{ cm}"),
    ("(1+2,4)", "(3,4)"),
    ("(1+2,\\sqrt{16})", "(3,4)"),
    ("\\{1+2,4\\}", "\\{3,4\\}"),
)
SEVERAL = boxed(
    *(
        (text, gold)
        for gold in ("5", "6", "x=5")
        for text in (
            "5,6",
            "5 or 6",
            "5\\text{ or }6",
            "5\\text{ and }6",
            "5\\mbox{ or }6",
            "5;6",
            "5/6",
            "5=6",
            "6=5",
            "x=5=6",
            "x=6=x=5",
            "x=5,x=6",
            "x=5\\text{ or }x=6",
            "x=6\\lor x=5",
            "x=6\\Rightarrow x=5",
            "x=6\\quad x=5",
            "x=6\\\\x=5",
            "5\\approx 6",
            "6\\equiv 5",
            "5\\neq 6",
            "5\\pm 1",
            "\\pm 5",
            "\\{5,6\\}",
            "(5,6)",
            "[5,6]",
            "x\\in\\{5,6\\}",
            "5\\le x\\le 6",
            "5\\quad 6",
            "5\\to 6",
            "5\\text{ (or 6)}",
            "\\text{5 or 6}",
            "5\\boxed{6}",
            "6\\boxed 5",
            "5?6",
            "5\\cup 6",
            "\\begin{cases}5\\\\6\\end{cases}",
            "5$ or $6",
            "\\text{not }5",
            "5\\text{ hundred}",
            "5\\text{ thousand}",
            "5\\text{ or six}",
            "5\\textit{ or six}",
            "5\\text{, six}",
            "5\\mathbf{ or more}",
        )
    )
)
PLACED = [
    ("<think>\\boxed{5}</think>", "5"),
    ("<think>\\boxed{5}", "5"),
    ("\\boxed{5}</think>", "5"),
    ("<think>\\boxed{5}</think>\\boxed{6}", "5"),
    ("\\boxed{5}\\boxed{6}", "5"),
    ("\\boxed{6} or \\boxed{5}", "5"),
    ("<answer>6</answer> \\boxed{5}", "5"),
    ("#### 5\n#### 6", "5"),
    (" ".join(f"\\boxed{{{n}}}" for n in range(100)), "5"),
    ("5", "5"),
    ("The answer is 5.", "5"),
    ("\\boxed{5", "5"),
    ("\\boxed5", "5"),
    ("\\boxed{\\boxed{5} 6}", "5"),
    ("\\boxed{" + "5" * 2000 + "}", "5" * 900),
    ("", "5"),
]


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize(
    ("pairs", "verdict"),
    [
        (SAME, "right"),
        (WORKED_OUT, "right"),
        (DIFFERENT, "wrong"),
        (NOT_WORKED_OUT, "wrong"),
        (SEVERAL, "wrong"),
        (PLACED, "wrong"),
    ],
    ids=["same", "worked out", "different", "not worked out", "several answers", "not where an answer stands"],
)
def test_equivalence(pairs, verdict, where):
    assert called(where, unexpected, pairs, verdict) == []


@pytest.mark.parametrize(
    ("text", "gold"),
    [
        ("\\boxed{\\frac{1}{2}} and again \\boxed{0.5}", "\\frac12"),
        ("\\boxed{5}, so <answer>5</answer>", "5"),
        ("<think>\\boxed{6}</think> \\boxed{5}", "5"),
        ("#### 5", "so it is\n#### 5"),
        ("\\boxed{5}", "We get $3+2=5$, so \\boxed{5}."),
        ("<answer>The area is $13\\pi$.</answer>", "13\\pi"),
        ("\\boxed{\\frac{\\sqrt{3}}{2}}", "\\frac{\\sqrt{3}}{2}"),
        ("\\boxed{\\sum_{k=1}^{n}k}", "\\sum_{k=1}^{n}k"),  # where it is the gold
    ],
)
def test_right_answers(text, gold):
    assert verdicts([(text, gold)]) == ["right"]


def test_echo_of_the_prompt():
    question = "Give your answer as \\boxed{42} if there is none."
    messages = [[{"role": "user", "content": question}]]
    assert verdicts([(question, "42")], messages=messages) == ["wrong"]
    assert verdicts([(question + "\nIt is \\boxed{7}.", "7")], messages=messages) == ["right"]
    assert verdicts([("None: \\boxed{42}.", "42")], messages=messages) == ["right"]


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("gold", [None, "", "  ", "$$", "\\frac{1}{", "}{", "\\begin{matrix}", "1" * 1001, "\\boxed{}"])
def test_invalid_gold_is_broken(gold, where):
    answers = ["\\boxed{5}", "\\boxed{\\frac{1}{3}}", "no answer"]
    assert called(where, verdicts, [(text, gold) for text in answers], reward_timeout=2.0) == ["broken"] * 3


HOSTILE = [
    "(" * 400 + "1" + ")" * 400,
    "\\frac{1}{" * 90 + "2" + "}" * 90,
    "\\sqrt{" * 120 + "2" + "}" * 120,
    "{" * 900,
    "^" * 900,
    "1" * 999,
    "x_{" * 300 + "}" * 300,
    "\\text{" * 100,
    "5\x00",
    "\ud800",
    "\\input{/etc/passwd}",
    "__import__('os').system('id')",
    "\\left(" * 160,
]


@pytest.mark.parametrize("where", PLACES)
def test_hostile_answers(where):
    golds = ("5", "\\sqrt{5}")  # beside a number, most are seen through at once
    pairs = boxed(*((text, gold) for text in [*HOSTILE, *TOWERS] for gold in golds))
    pairs += boxed(("5.0", "5"), ("\\frac{10}{2}", "x=5"))
    start = time.monotonic()
    answers = called(where, verdicts, pairs, reward_timeout=1.0)
    assert answers == ["wrong"] * 2 * (len(HOSTILE) + len(TOWERS)) + ["right"] * 2
    assert time.monotonic() - start < 12


def test_hanging_answers_do_not_block_others():
    verdicts(boxed(("2x+x", "3x")))  # the pool has started
    hanging = [(f"\\boxed{{\\sin({tower}+{i})}}", "x+1") for i, tower in enumerate(["9^{9^{9^{9}}}"] * 16)]
    good = [(f"\\boxed{{(x+{i})^2}}", f"x^2+{2 * i}x+{i * i}") for i in range(2, 114)]
    pairs = [pair for i in range(16) for pair in (hanging[i], *good[7 * i : 7 * i + 7])]
    assert len(pairs) == 128
    start = time.monotonic()
    answers = verdicts(pairs, reward_timeout=3.0)
    took = time.monotonic() - start
    assert [verdict for pair, verdict in zip(pairs, answers, strict=True) if pair in good] == ["right"] * 112
    assert [verdict for pair, verdict in zip(pairs, answers, strict=True) if pair in hanging] == ["wrong"] * 16
    assert took < 2 * 3.0 + 1


def test_strict_zip():
    with pytest.raises(ValueError, match="zip"):
        math(["\\boxed{1}"], answer=["1", "2"])


def test_no_process_after_close():
    grader._pool().close()
    before = running()
    verdicts(boxed(("2x+x", "3x")))
    grader._pool().close()
    assert left_running(but=before) == []
    assert verdicts(boxed(("2y+y", "3y"))) == ["right"]  # and it starts again


def test_no_process_survives_the_parent():
    before = running()
    source = (
        "from outdo.rewards.maths import math\n"
        "math(['\\\\boxed{2x+x}'], answer=['3x'])\nprint('started', flush=True)\n"
        "math(['\\\\boxed{\\\\sin(9^{9^{9^{9}}})}'] * 4, answer=['x', 'y', 'z', 't'], reward_timeout=60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout.readline() == "started\n"
        time.sleep(0.5)
        os.kill(parent.pid, signal.SIGKILL)
    assert left_running(but=before) == []


@pytest.mark.parametrize("where", PLACES)
def test_expression_of_the_question(where):
    messages = ({"role": "user", "content": "Compute $\\sqrt{144}$."},)
    texts = [f"\\boxed{{{answer}}}" for answer in ("\\sqrt{144}", "\\sqrt {144}", "12", "\\frac{24}{2}")]
    grades = called(where, math, texts, answer=["12"] * 4, messages=[messages] * 4)
    assert [grade.verdict for grade in grades] == ["wrong", "wrong", "right", "wrong"]  # 24/2 can be worked out, too
    assert math(texts[:1], answer=["12"])[0].verdict == "right"  # equal is equal


def test_reason():
    (grade,) = math(["\\boxed{17\\cdot 23}"], answer=["391"])
    assert "17\\\\cdot23" in grade.reason and grade.reason.endswith("not evaluated")
