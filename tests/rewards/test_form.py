"""The form of an answer, and the penalties for length and repetition."""

import math
import time

import pytest

from outdo.rewards.form import cosine, length, overlong, reasoning_steps, repetition, tag_count
from outdo.rewards.form import format as form

GOOD = "<think>2+2</think><answer>4</answer>"


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        "<think>\n2 < 3 > 1\n</think>\n\n<answer>\n4\n</answer>\n",
        "  <think>a</think> <answer>b</answer>  ",
        "<think>∞</think><answer>∅</answer>",
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
        "<think></think><answer></answer>",
        "<think></think><answer>4</answer>",
        "<think>a</think><answer></answer>",
        "<think> \n\t</think><answer>\u00a0</answer>",
        "<think>...</think><answer>?!</answer>",
        "<think>a</think><answer>-</answer>",
        "<think>\u200b\u200d\u2060</think><answer>\ufeff\u00ad</answer>",
        "<think>\u3164\u115f</think><answer>\u2800\u2800</answer>",
        "<think>a</think><answer>\u202e\u0301\ufe0f</answer>",
        "<think>$ | ~ _ ^</think><answer>$</answer>",
    ],
    ids=range(39),
)
def test_bad_form(text):
    assert form([text]) == [0.0]


NOTHING = [
    *(
        "&nbsp;",
        "&nbsp;&nbsp",
        "&#160;",
        "&#xA0;",
        "&ZeroWidthSpace;",
        "&shy;",
        "&#8203;",
        "&amp;",
        "<br>",
        "<BR/>\n<br />",
    ),
    *(
        "<p><br></p>",
        "<div> </div>",
        "<!-- -->",
        "<!-- later -->",
        "**<br>**",
        "\\n",
        "\\r\\n\\t",
        "\\\\n",
        "\\u200b",
        "\\x20",
    ),
    *(
        "\\quad",
        "\\text{}",
        "\\boxed{\\text{ }}",
        "\\hspace{1em}",
        "\\vspace*{2cm}",
        "\\phantom{5}",
        "\\newline",
        "~\\,\\ ",
    ),
    "\\begin{center}\\end{center}",
]
SOMETHING = [
    *(
        "5",
        "&pi;",
        "&infin;",
        "&#65;",
        "&eacute;",
        "&x",
        "R&D",
        "&lt;5",
        "a<br>b",
        "<b>5</b>",
        "<img src=a.png>",
        "x<y",
    ),
    *(
        "\\pi",
        "\\nu",
        "\\theta",
        "\\rho",
        "\\frac{1}{2}",
        "\\boxed{7}",
        "\\text{a}",
        "\\infty",
        "\\n5",
        "\\u0041",
        "\\x41",
        "√",
        "€",
    ),
]


@pytest.mark.parametrize(("texts", "shown"), [(NOTHING, False), (SOMETHING, True)], ids=["nothing", "something"])
def test_markup_that_shows_nothing(texts, shown):
    for text in texts:
        assert (
            form([f"<think>{text}</think><answer>4</answer>", f"<think>a</think><answer>{text}</answer>"])
            == [shown] * 2
        )
        assert tag_count([f"<think>a</think><answer>{text}</answer>", f"<answer>{text}</answer>"]) == (
            [1.0, 0.5] if shown else [0.5, 0.0]
        ), text
    if not shown:
        steps = [f"Step 1: {text}\nStep 2: {3 * text}\nStep 3: {text} {text}" for text in texts]
        assert reasoning_steps(steps) == [0.0] * len(steps)
    assert reasoning_steps(["1. &nbsp;Add 2\n2. <br>Double it\n3. \\nSubtract one"]) == [1.0]


def test_one_value_for_each_answer_in_order():
    assert form([GOOD, "4", GOOD], answer=["4"] * 3) == [1.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("length", "expected"),
    [(0, 0.0), (79, 0.0), (80, 0.0), (81, -0.05), (90, -0.5), (95, -0.75), (99, -0.95), (100, -1.0), (150, -1.0)],
)
def test_overlong(length, expected):
    assert overlong([""], [tuple(range(length))], max_completion_length=100) == pytest.approx([expected])


def test_overlong_odd_limits():
    # 8 // 5 = 1: the buffer is one token, so only the limit itself costs.
    assert overlong([""] * 3, [(0,) * 6, (0,) * 7, (0,) * 8], max_completion_length=8) == pytest.approx([0, 0, -1])
    # 12 // 5 = 2: from 10 to 12.
    assert overlong([""] * 3, [(0,) * 10, (0,) * 11, (0,) * 12], max_completion_length=12) == pytest.approx(
        [0, -0.5, -1]
    )
    assert overlong([""], [(0,)], max_completion_length=1) == pytest.approx([-1])


def test_overlong_counts_tokens():
    assert overlong(["a" * 5000], [(1, 2)], max_completion_length=100) == pytest.approx([0.0])


def test_format_is_fast():
    texts = [GOOD.replace("2+2", "two and two " * n) for n in range(8, 24)]
    start = time.thread_time()
    for _ in range(500):
        form(texts)
    assert 500 * len(texts) / (time.thread_time() - start) > 50_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (GOOD, 1.0),
        (f"Sure. {GOOD}\n", 1.0),
        (GOOD + " bye", 0.75),
        (GOOD + "\x00", 0.75),
        ("", 0.0),
        ("4", 0.0),
        ("<think>a", 0.25),
        ("<think>a</think>", 0.5),
        ("a</think><answer>4</answer>", 0.75),
        ("<answer>4</answer>", 0.5),
        ("<think><think>a</think><answer>4</answer>", 0.75),
        (GOOD + GOOD, 0.0),
        ("<answer>4</answer><think>a</think>", 0.0),
        ("</answer><answer></think><think>", 0.0),
        ("</think>a<think>b<answer>4</answer>", 0.5),
        ("<think>a<answer>4</think>b</answer>", 0.5),
        ("<THINK></Think><answer >4</answer>", 0.25),
        ("<think></think><answer></answer>", 0.0),
        ("<think>\u200b</think><answer> . </answer>", 0.0),
        ("<think>a</think><answer></answer>", 0.5),
        ("<think></think><answer>4</answer>", 0.5),
        ("<think></think>a<answer></answer>", 0.0),
        ("<think><answer>", 0.0),
        ("</think></answer>", 0.0),
        ("</think><think><answer></answer>", 0.0),
        ("".join(["<think>", "</think>", "<answer>", "</answer>"] * 20_000), 0.0),
    ],
    ids=range(26),
)
def test_tag_count(text, expected):
    assert tag_count([text]) == [expected]


@pytest.mark.parametrize(
    ("text", "num_steps"),
    [
        ("Step 1: add them\nStep 2: halve it", 2),
        ("Step 1:\nadd them\nStep 2:\nhalve it\nStep 3:\ndone", 3),
        ("**Step 1:** add\n**Step 2:** halve", 2),
        ("1. add\n2. halve\n3. check\n4. tell", 3),
        ("  1. 2+2=4\n  2. 4*3=12", 2),
        ("- add\n* halve\n- check", 3),
        ("First, I add. Second, I halve. Finally, I check.", 3),
        ("1. First, I add\n2. Next, I halve", 2),
        ("<think>First, I add.</think>Second, I halve. Next, I check.", 1),
        ("First, I add.</think>Second, I halve. Next, I check.", 1),
        ("<think>First, I add. Next, I was cut", 2),
        ("", 0),
        ("I add them and halve it.", 0),
        ("First, First, First, First,", 0),
        ("Step 1: Step 2: Step 3:", 0),
        ("1.\n2.\n3.\n", 0),
        ("- \n- \n- ", 0),
        ("- ---\n- ...\n* ***", 0),
        ("- a\n- b\n- c", 0),
        ("First, add. First, halve. First, check.", 1),
        ("Step 1: add\nStep 1: halve\nStep 1: check", 1),
        ("- add it\n- Add it.\n- add it!", 1),
        ("First, add it. Second, add it. Next, add it.", 1),
        ("3.14 is pi\n2.72 is e\n-5 is less\n--- ", 0),
        ("first, second, next, finally, Firstly", 0),
        ("Step one: add\nSteps 2: halve\nMisStep 3: check", 0),
        ("\u0661. add\n\u0662. halve", 0),
        ("First, Second, Third, Finally,", 0),
        ("1. one\n2. two\n3. three", 0),
        ("1. Step one\n2. Step two\n3. Step three", 0),
        ("- nothing\n- none\n- n/a", 0),
        ("- aaa\n- bbb\n- ccc", 0),
        ("1. 111\n2. 222\n3. 333", 0),
        ("- \u3164\u3164\u3164\n- \u115f\u115f\u115f\u115f\n- \u2800\u2800\u2800", 0),
        ("Step 1: then\nStep 2: and then\nStep 3: and so", 0),
        ("- <answer>\n- </answer>\n* <answer></answer>", 0),
        ("1. x x x\n2. y y y\n3. z z z", 0),
        ("1. 12 / 4 = 3\n2. 加起来看\n3. сложим", 3),
    ],
    ids=range(38),
)
def test_reasoning_steps(text, num_steps):
    assert reasoning_steps([text]) == pytest.approx([num_steps / 3])


def test_length():
    ids = [(0,) * n for n in (10, 20, 30, 50)]
    assert length([""] * 4, ids, ["right"] * 4) == pytest.approx([0.5, 0.25, 0.0, -0.5])
    assert length([""] * 4, ids, ["wrong"] * 4) == pytest.approx([0.0, 0.0, 0.0, -0.5])
    assert length(["a" * 99, ""], [(1,), (1, 2, 3)], ["right", "right"]) == pytest.approx([0.5, -0.5])


def test_length_of_equal_lengths():
    assert length([""] * 3, [(0,) * 7] * 3, ["right", "wrong", "broken"]) == [0.0, 0.0, None]
    assert length([""], [()], ["right"]) == [0.0]
    assert length([], [], []) == []


def test_length_ignores_broken_answers():
    ids = [(0,) * n for n in (10, 20, 1000)]
    assert length([""] * 3, ids, ["right", "right", "broken"]) == pytest.approx([0.5, -0.5, None])


def test_cosine():
    def at(tokens, verdict, finish="stop"):
        return cosine([""], [(0,) * tokens], [finish], [verdict], max_completion_length=100)[0]

    assert [at(n, "right") for n in (0, 50, 100)] == pytest.approx([1.0, 0.75, 0.5])
    assert [at(n, "wrong") for n in (0, 50, 100)] == pytest.approx([-1.0, -0.75, -0.5])
    assert at(25, "right") == pytest.approx(0.5 + 0.25 * (1 + math.cos(math.pi / 4)))
    assert at(150, "right") == pytest.approx(0.5)  # beyond the limit the cosine would rise again
    assert at(10, "broken") is None


def test_cosine_of_truncated_answers():
    rewards = cosine([""] * 3, [(0,) * 100] * 3, ["length"] * 3, ["right", "wrong", "broken"], 100)
    assert rewards == [pytest.approx(-0.5), pytest.approx(-0.5), None]


def test_invalid_arguments():
    with pytest.raises(ValueError, match="cosine needs max_completion_length"):
        cosine([""], [()], ["stop"], ["right"], max_completion_length=0)
    with pytest.raises(ValueError, match="invalid verdict 'Right'"):
        length([""], [()], ["Right"])
    with pytest.raises(ValueError, match="zip"):
        length([""], [(), ()], ["right"])


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ((), 0.0),
        ((1, 2), 0.0),
        ((1, 2, 3), 0.0),
        ((1, 2, 3, 4, 5), 0.0),
        ((1, 1, 1, 1), -0.5),
        ((1, 2, 3, 1, 2, 3), -0.25),
        ((7,) * 102, -0.99),
    ],
)
def test_repetition(ids, expected):
    assert repetition(["a b c d e"], [ids]) == pytest.approx([expected])


def test_repetition_of_words():
    assert repetition(["go on and Go on AND", "go on", "one two three four"]) == pytest.approx([-0.25, 0.0, 0.0])


HOSTILE = [
    "\x00",
    "\ud800",
    " ",
    "a",
    "1.\n",
    "- a\n",
    "- \t",
    "First, ",
    "Step 1: ",
    "<think>",
    "</think>",
    "\u0130",
    "_",
]


@pytest.mark.parametrize("unit", HOSTILE)
def test_linear_time(unit):
    text = unit * (2**20 // len(unit))
    start = time.thread_time()
    for reward in (form, tag_count, reasoning_steps):
        (value,) = reward([text, "<answer>" + text])[:1]
        assert 0.0 <= value < 0.5
    assert -1.0 <= repetition([text], [tuple(range(2**16)) * 4])[0] <= 0.0
    assert time.thread_time() - start < 2.0
