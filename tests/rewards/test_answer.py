"""Final answers: extraction, comparison, and texts that try to pass for an answer."""

from fractions import Fraction

import pytest

from outdo.rewards.answer import boxed, exact, final_answers, gsm8k, number, numeric, without_echoes


def verdict(text, gold, grader=numeric):
    (grade,) = grader([text], answer=[gold])
    assert grade.reward == {"right": 1.0, "wrong": 0.0, "broken": None}[grade.verdict]
    return grade.verdict


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        ("+7", 7),
        ("-3", -3),
        ("\u22123", -3),
        ("12.", 12),
        ("5.00", 5),
        ("1,234.50", Fraction("1234.5")),
        ("1,234,567", 1234567),
        ("$5", 5),
        ("$1,000", 1000),
        ("$ 5", 5),
        ("\\$5", 5),
        ("$-5", -5),
        ("$5$", 5),
        ("5%", 5),
        ("5 \\%", 5),
        ("€2.50", Fraction("2.5")),
        (".5", Fraction(1, 2)),
        ("-.25", Fraction(-1, 4)),
        ("007", 7),
        ("-0", 0),
        ("  42\n", 42),
        ("0.1", Fraction(1, 10)),
        ("5 apples", 5),
        ("72 clips.", 72),
        ("10 dollars", 10),
        ("-$5", -5),
        ("5%.", 5),
        ("$2.50 per hour", Fraction("2.5")),
        ("5\\text{ cm}", 5),
        ("5\\,\\mathrm{kg}", 5),
        ("90^\\circ", 90),
        ("12 km/h", 12),
        ("3 m²", 3),
        ("**5**", 5),
        ("*$5*", 5),
        ("`1,234`", 1234),
        ("**5 km**.", 5),
        ("1.000,5", Fraction("1000.5")),
        ("x = 5", 5),
        ("１２", 12),
        ("123456789012345678901234567890.5", Fraction("123456789012345678901234567890.5")),
    ],
)
def test_numbers(text, value):
    assert number(text) == value


SIGNS_ALONE = ["", " ", ".", "-", "+", "$", "%", ",", "5-", "--5", "+-5", "5..", "$$$5", "(5)"]
MORE_THAN_ONE = [
    "3/4",
    "1e2",
    "1.5e3",
    "2^3",
    "7 2",
    "1 000",
    "5\n6",
    "1.2.3",
    "5 apples 6",
    "5 or 6",
    "5 hundred",
    "5 thousand",
    "5 million dollars",
    "5 dozen eggs",
    "5 and a half",
    "5 thirds",
    "5 to 6",
    "5 squared",
    "5 times that",
    "5 x",
    "5 e",
    "5k",
    "5 bn",
    "5\\text{ hundred}",
    "5\\text{ or }6",
    "5; or 7",
    "5 (6)",
    "not 5",
    "**5** **6**",
    "2**3**2",
    "**5*",
    "**5",
]
BAD_GROUPING = ["1,23", "12,34", "1,2345", ",123", "1,,000", "1_000"]
NOT_DIGITS = ["0x10", "nan", "inf", "True", "five", "½", "٣", "5\x00", "\x005", "5\ud800", "1" * 5000]


@pytest.mark.parametrize("text", [*SIGNS_ALONE, *MORE_THAN_ONE, *BAD_GROUPING, *NOT_DIGITS])
def test_not_numbers(text):
    assert number(text) is None


@pytest.mark.parametrize(
    ("text", "gold"),
    [
        ("<answer>72</answer>", "72"),
        ("<answer> 72.0 </answer>", "72"),
        ("<answer>72", "72"),
        ("<answer>72</ans", "72"),
        ("so it is\n#### 72", "72"),
        ("so it is\n####72\nbye", "72"),
        ("thus \\boxed{72}.", "72"),
        ("thus \\boxed {72}.", "72"),
        ("<think>1+1=3? no</think><answer>2</answer>", "2"),
        ("1+1=3? no</think><answer>2</answer>", "2"),
        ("<answer>\\boxed{2}</answer>", "2"),
        ("<answer>It is #### 2</answer>", "2"),
        ("<answer>\n2\n</answer>", 2),
        ("<answer>1,234.50</answer>", "1234.5"),
        ("<answer>1234.5</answer>", "1,234.50"),
        ("<answer>$5</answer>", "5"),
        ("<answer>\u22125</answer>", "-5"),
        ("<answer>5.00</answer>", 5),
        ("<answer>0.1</answer>", 0.1),
        ("<answer>0.30</answer>", "0.3"),
    ],
)
def test_right_answers(text, gold):
    assert verdict(text, gold) == "right"


@pytest.mark.parametrize(
    ("text", "gold"),
    [
        ("72", "72"),  # no marker
        ("", "72"),
        ("<answer></answer>", "0"),
        ("<answer>3/4</answer>", "3"),
        ("<answer>1e2</answer>", "1"),
        ("<answer>1e2</answer>", "100"),
        ("<answer>7 2</answer>", "7"),
        ("<answer>7 2</answer>", "72"),
        ("<answer>-3</answer>", "3"),
        ("<answer>3</answer>", "-3"),
        ("<answer>72 or 73</answer>", "72"),
        ("<answer>0.30000000000000004</answer>", "0.3"),
        ("<answer>100000000000000000001</answer>", "100000000000000000000"),  # the same float
        ("<answer>1,234</answer>", "1"),
        ("72</answer>", "72"),
        ("</answer>72<answer>", "72"),
        ("<ANSWER>72</ANSWER>", "72"),
        ("### 72", "72"),
        ("\\boxed 72", "72"),
        ("\\boxed{72", "72"),
        ("<answer><answer>72</answer></answer>", "72"),
        ("<answer>True</answer>", "1"),
    ],
)
def test_wrong_answers(text, gold):
    assert verdict(text, gold) == "wrong"


@pytest.mark.parametrize("marked", ["<answer>5</answer>", "#### 5", "\\boxed{5}"])
def test_thinking_part_is_ignored(marked):
    assert verdict(f"<think>{marked}</think>", "5") == "wrong"
    assert verdict(f"<think>{marked}\n</think><answer>6</answer>", "5") == "wrong"
    assert verdict(f"<think>{marked}\n</think><answer>6</answer>", "6") == "right"
    assert verdict(f"{marked}\n</think>so <answer>6</answer>", "6") == "right"
    assert final_answers(f"<think>{marked}\n</think>") == []
    assert final_answers(f"<think>a</think>{marked}\n</think><answer>6</answer>") == ["6"]


@pytest.mark.parametrize(
    "text", ["<think><answer>5</answer>", "<think>\n#### 5", "<answer>5</answer><think>", "<think>"]
)
def test_an_unclosed_thought_has_no_answer(text):
    assert final_answers(text) == []
    assert verdict(text, "5") == "wrong"


@pytest.mark.parametrize(
    "text",
    [
        "<answer>5</answer><answer>6</answer>",
        "<answer>6</answer><answer>5</answer>",
        "<answer>5</answer>\n#### 6",
        "#### 5\n#### 6",
        "#### 5 #### 6",
        "\\boxed{5} \\boxed{6}",
        "\\boxed{6} <answer>5</answer>",
        "#### 5\n\\boxed{6}",
        "<answer>\\boxed{5} \\boxed{6}</answer>",
        "<answer>5</answer><answer>unsure</answer>",
        "<answer>5</answer><answer></answer>",
        "".join(f"<answer>{i}</answer>" for i in range(100)),
        "<answer>5</answer><answer>" + "5" * 300 + "</answer>",
    ],
)
def test_answers_that_disagree(text):
    assert verdict(text, "5") == "wrong"
    assert verdict(text, "6") == "wrong"


@pytest.mark.parametrize(
    "text",
    [
        "<answer>5</answer>\n#### 5",
        "\\boxed{5}, so <answer>5.0</answer>",
        "#### 5\n#### $5.00\n####+5",
        "<answer>5</answer>" * 50,
    ],
)
def test_repeated_answer(text):
    assert verdict(text, "5") == "right"
    assert verdict(text, "6") == "wrong"


@pytest.mark.parametrize(
    "text",
    [
        "#### Step 1\nAdd 40 and 2.\n#### 42",
        "#### Step 1: Add 40 and 2\n#### Step 2. Check: is it 41?\n#### 42",
        "#### Calculation\n40 + 2\n\\boxed{42}",
        "#### **Solution**\n#### Part 2:\n<answer>42</answer>",
        "#### 1. Add both\n40 + 2\n#### 2) **Check**\n#### Final Answer\n#### 42",
        "#### Cost of the apples (in dollars):\n40 + 2\n#### 42",
        "#### 42\n#### Verification\n42 - 2 = 40",
        "##### Step one\n#### 42",
        "<answer>#### Step 1\n40 + 2\n#### 42</answer>",
        "#### Überlegung\n#### 42",
        "#### **42**",
        "#### `42`",
        "**#### 42**",
        "**#### Step 1**\n***#### 42***",
    ],
)
def test_headings_are_ignored(text):
    for grader in (numeric, gsm8k):
        assert verdict(text, "42", grader) == "right"
        assert verdict(text, "1", grader) == "wrong"


@pytest.mark.parametrize(
    "line",
    [
        "41",
        "**41**",
        "41 apples",
        "41. ",
        "Step 1: 41",
        "Step 1: $41",
        "Answer: 41",
        "Total 41",
        "The answer is 41",
        "Forty-one",
        "No solution",
        "unsure",
        "\\pi",
        "x",
        "41 #### 42",
        "",
    ],
)
@pytest.mark.parametrize("text", ["#### {}\n#### 42", "#### 42\n#### {}", "**#### {}**\n\\boxed{{42}}"])
def test_answers_that_are_not_headings(line, text):
    assert verdict(text.format(line), "42") == "wrong"
    assert verdict(text.format(line), "41") == "wrong"


def test_headings_beside_words():
    assert verdict("#### Paris\n#### Rome", "Rome", exact) == "wrong"
    assert verdict("#### Paris\n<answer>Rome</answer>", "Rome", exact) == "wrong"
    assert verdict("#### Step 1\nWhere is it?\n#### Answer:\n<answer>Rome</answer>", "Rome", exact) == "right"
    assert verdict("#### Solution", "Solution", exact) == "right"
    assert verdict("<answer>Solution</answer><answer>5</answer>", "5") == "wrong"  # only a `####` begins a heading
    assert final_answers("#### Step 1\n#### Solution") == ["Step 1", "Solution"]


ASKED = "What is 6 times 7?\n\nEnd with `#### N`, for example:\n#### 42 is what it looks like\n\nThink first."


@pytest.mark.parametrize(
    ("text", "gold", "expected"),
    [
        (ASKED, "42", "wrong"),
        (f"You asked: {ASKED}", "42", "wrong"),
        ("#### 42 is what it looks like", "42", "wrong"),
        (f"{ASKED}\n#### 42", "42", "right"),  # said by itself
        (f"{ASKED}\n#### 43", "43", "right"),  # the example does not disagree
        (f"{ASKED}\n#### 43", "42", "wrong"),
        ("<answer>42</answer>", "42", "right"),
    ],
)
@pytest.mark.parametrize("grader", [numeric, exact, gsm8k])
def test_echo_of_the_prompt(text, gold, expected, grader):
    (grade,) = grader([text], answer=[gold], messages=[[{"role": "user", "content": ASKED}]])
    assert grade.verdict == expected


def test_without_echoes():
    messages = [
        {"role": "system", "content": "Write <answer>N</answer> at the end."},
        {"role": "user", "content": "Hi."},
    ]
    assert without_echoes(["Hi. Write <answer>N</answer> at the end."], [messages]) == ["Hi. \n"]
    assert without_echoes(["Hi. <answer>N</answer>"], [messages]) == ["Hi. <answer>N</answer>"]
    assert without_echoes(["#### 5"], [[{"role": "user", "content": "#### 5"}]]) == ["#### 5"]  # too short to tell
    assert without_echoes(["#### 5"], ["no messages"]) == ["#### 5"]
    with pytest.raises(ValueError, match="zip"):
        without_echoes(["a", "b"], [messages])


@pytest.mark.parametrize(
    ("text", "held"),
    [
        ("\\boxed{\\frac{1}{2}}", ["\\frac{1}{2}"]),
        ("\\boxed{a{b{c}d}e} {f} \\boxed{g}", ["a{b{c}d}e", "g"]),
        ("\\boxed{\\boxed{5} 6}", ["\\boxed{5} 6"]),
        ("\\boxed{\\{1,2\\}}", ["\\{1,2\\}"]),
        ("\\boxed{1 \\\\} x}", ["1 \\\\"]),
        ("{\\boxed{5}}", ["5"]),
        ("}} \\boxed{5}", ["5"]),
        ("\\boxed{5", []),
        ("\\boxed{{5}", []),
        ("\\boxed {5}", ["5"]),
        ("\\boxed{}", [""]),
        ("\\boxedx{5}", []),
    ],
)
def test_braces_inside_a_box(text, held):
    assert boxed(text) == held


def test_row_order():
    texts = [f"<answer>{i}</answer>" for i in range(4)]
    assert [g.reward for g in numeric(texts, answer=["0", "9", "2", "9"])] == [1.0, 0.0, 1.0, 0.0]


def test_strict_zip():
    for grader in (numeric, exact, gsm8k):
        with pytest.raises(ValueError, match="zip"):
            grader(["<answer>1</answer>"], answer=["1", "2"])


@pytest.mark.parametrize(
    "gold", ["", "  ", "seventy-two", "3/4", None, "1e2", "1 2", "nan", float("nan"), float("inf")]
)
@pytest.mark.parametrize("text", ["<answer>72</answer>", "", "<answer>None</answer>", "<answer></answer>"])
def test_invalid_gold_is_broken(gold, text):
    assert verdict(text, gold) == "broken"
    assert verdict(text, gold, gsm8k) == "broken"


@pytest.mark.parametrize("gold", ["", "   ", "\n"])
def test_empty_gold_is_broken_for_exact(gold):
    assert verdict("<answer></answer>", gold, exact) == "broken"


def test_the_reason_names_the_gold():
    (grade,) = numeric(["<answer>1</answer>"], answer=["seventy"])
    assert "'seventy'" in grade.reason


@pytest.mark.parametrize(
    ("text", "gold", "expected"),
    [
        ("<answer>Paris</answer>", "Paris", "right"),
        ("<answer>  Paris\n</answer>", " Paris ", "right"),
        ("#### Paris", "Paris", "right"),
        ("<answer>paris</answer>", "Paris", "wrong"),
        ("<answer>Paris.</answer>", "Paris", "wrong"),
        ("<answer>New  York</answer>", "New York", "wrong"),
        ("<answer>5.0</answer>", "5", "wrong"),
        ("<answer>5</answer>", 5, "right"),
        ("<answer>Paris</answer><answer>Rome</answer>", "Paris", "wrong"),
        ("<answer>Paris</answer><answer>Paris</answer>", "Paris", "right"),
        ("Paris", "Paris", "wrong"),
        ("<answer>" + "a" * 200 + "</answer>", "a" * 200, "right"),
        ("<answer>naïve – ok</answer>", "naïve – ok", "right"),
    ],
)
def test_exact_compares_text(text, gold, expected):
    assert verdict(text, gold, exact) == expected


def test_gsm8k_worked_solution():
    gold = "She has 48/2 = <<48/2=24>>24 left.\nIn all 48+24 = <<48+24=72>>72.\n#### 72"
    assert verdict("<answer>72</answer>", gold, gsm8k) == "right"
    assert verdict("#### 72.00", gold, gsm8k) == "right"
    assert verdict("#### 24", gold, gsm8k) == "wrong"
    assert verdict("#### 1,080", "#### 1080", gsm8k) == "right"
    assert verdict("#### 7", "7", gsm8k) == "right"
    assert verdict("#### 7", "#### seven", gsm8k) == "broken"
    assert verdict("<answer>72</answer>", gold) == "broken"  # `numeric` wants the number itself


MEGABYTE = 2**20


@pytest.mark.parametrize(
    "text",
    [
        "a" * MEGABYTE,
        "1" * MEGABYTE,
        " " * MEGABYTE,
        "<answer>" * 100_000,
        "</answer>" * 100_000,
        "</answer>" + "<answer>" * 100_000,
        "<answer>" * 100_000 + "</answer>",
        "<answer></answer>" * 50_000,
        "<answer>1" * 50_000 + "</answer>" * 50_000,
        "<think>" * 100_000,
        "</think>" * 100_000,
        "####" * 200_000,
        "####\n" * 200_000,
        "".join(f"#### Step {i}\n" for i in range(50_000)),
        "#### A" + "a " * MEGABYTE + "\n#### 6",
        "#### Step 1" + ": " * MEGABYTE + "\n#### 6",
        "\\boxed{" * 100_000,
        "\\boxed" + " " * MEGABYTE,
        "\\boxed " * 100_000,
        "\\boxed{" + "1" * MEGABYTE + "}",
        "<answer>" + "1," * (MEGABYTE // 2) + "</answer>",
        "#### " + "%" * MEGABYTE,
        "#### " + "$" * MEGABYTE,
        "#### " + "." * MEGABYTE,
        "<answer>5\x00</answer>",
        "<answer>5</answer\x00>",
        "<answer>\ud8005</answer>",
        "\ud800" * 1000,
    ],
    ids=range(28),
)
@pytest.mark.parametrize("grader", [numeric, exact, gsm8k])
def test_hostile_texts(text, grader):
    assert verdict(text, "5", grader) == "wrong"


def test_long_thinking_part():
    assert verdict("<think>" + "7 " * MEGABYTE + "</think><answer>5</answer>", "5") == "right"
    assert verdict("x\x00" * MEGABYTE + "<answer>5</answer>", "5") == "right"


def test_zeros_at_the_ends_of_a_number():
    zeros = "0" * 3000
    for text in (f"18.{zeros}", f"18.{zeros}.", f"$18.{zeros}", f"**18.{zeros}**", f"{zeros}18", f"18.{zeros} km"):
        assert number(text) == 18, text[:10]
    for text in (f"18.{zeros}.5", f"1.{zeros},500", f"18{zeros}", f"18.{zeros} or 19"):
        assert number(text) != 18 and number(text) != 1500, text[:10]
    assert number(f"18.{zeros}1") > 18
    assert [g.verdict for g in gsm8k([f"#### 18.{zeros}", f"#### 18.{zeros}1"], ["18", "18"])] == ["right", "wrong"]


@pytest.mark.parametrize("empty", ["\\boxed{}", "\\boxed{ }", "\\boxed{...}", "\\boxed{…}", "\\boxed{___}"])
def test_an_empty_box_only_mentions_the_form(empty):
    for text in (f"I put it in {empty}: \\boxed{{42}}", f"#### 42\nAs {empty}", f"<answer>42</answer> {empty}"):
        assert verdict(text, "42") == "right"
        assert verdict(text, "41") == "wrong"
    for text in (empty, f"{empty} 42", f"{empty} \\boxed{{41}} \\boxed{{42}}", f"{empty} \\boxed{{-}} \\boxed{{42}}"):
        assert verdict(text, "42") == "wrong"
