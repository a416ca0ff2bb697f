"""Forms of answers, results and tests: every right one passes, and no answer passes tests that it does not satisfy."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction

import pytest

from outdo.rewards.blocks import code_blocks
from outdo.rewards.checks import expected_by
from outdo.rewards.code import code, same
from support import programs
from support.programs import ANSWERS, STYLES, TESTS, WRONG

CASES = [{"args": [x], "expected": y} for x, y in zip(programs.XS, programs.YS, strict=True)]
RUNS = [{"stdin": f"{x}\n", "stdout": f"{y}\n"} for x, y in zip(programs.XS, programs.YS, strict=True)]
CHECK = {"entry_point": "solve", "test": TESTS["assert"]}
CALLS = {"entry_point": "solve", "cases": CASES}


def verdicts(rows):
    """{name: (verdict, reason)} of rows {name: (answer, columns)}, graded in one call."""
    keys = ("entry_point", "test", "cases", "prompts")
    columns = {key: [row.get(key) for _, row in rows.values()] for key in keys}
    graded = code([answer for answer, _ in rows.values()], **columns, reward_timeout=20.0)
    return {name: (grade.verdict, grade.reason) for name, grade in zip(rows, graded, strict=True)}


def others(verdict, rows):
    return {name: got for name, got in verdicts(rows).items() if got[0] != verdict}


def using(name):
    definitions, expression = programs.FEATURES[name]
    return f"{definitions}def solve(n):\n    return {expression}\n"


def asserting(assertion):
    return {"entry_point": "f", "test": f"def check(candidate):\n    assert candidate(){assertion}"}


def test_every_style_passes_a_right_answer():
    assert others("right", {name: (programs.SOLVE, {**CHECK, "test": test}) for name, test in TESTS.items()}) == {}


def test_no_answer_passes_by_what_it_raises_or_returns():
    styles = list(STYLES)
    pairs = {(styles[i * 5 % len(styles)], answer) for i, answer in enumerate(ANSWERS)}
    pairs |= {(style, "raises StopIteration") for style in styles[1:15:2]} | {("not_above", "returns nan")}
    assert others("wrong", {pair: (ANSWERS[pair[1]], {**CHECK, "test": TESTS[pair[0]]}) for pair in pairs}) == {}


@pytest.mark.slow
def test_no_answer_passes_in_any_style():
    assert len(WRONG) > 1500
    assert others("wrong", {pair: (ANSWERS[pair[1]], {**CHECK, "test": TESTS[pair[0]]}) for pair in WRONG}) == {}


def test_forms_of_a_function():
    row = {**CALLS, "prompts": programs.STUB}
    assert others("right", {name: (answer, row) for name, answer in programs.FUNCTIONS.items()}) == {}


@pytest.mark.slow
def test_forms_of_a_function_in_tests():
    row = {**CHECK, "prompts": programs.STUB}
    assert others("right", {name: (answer, row) for name, answer in programs.FUNCTIONS.items()}) == {}
    assert others("right", {name: (using(name), CHECK) for name in programs.FEATURES}) == {}


def test_the_answer_is_a_module():
    assert others("right", {name: (using(name), CALLS) for name in programs.FEATURES}) == {}


def test_results_that_equal_plain_values():
    rows = {}
    for name, (source, assertion, expected) in programs.RESULTS.items():
        rows[f"{name} in a test"] = (source, asserting(assertion))
        rows[name] = (source, {"entry_point": "f", "cases": [{"expected": expected}]})
    for name, (source, assertion) in programs.OBJECTS.items():
        rows[f"{name} as an object"] = (source, asserting(assertion))
    assert others("right", rows) == {}


def test_results_that_differ():
    sources = {name: source for name, (source, _, _) in programs.RESULTS.items()}
    assertions = ("== {'a': 2}", "== {1: [3]}", "== [2, 1]", "== 0.25", "== deque")
    names = ("counter", "defaultdict", "namedtuple", "fraction", "deque")
    rows = {name: (sources[name], asserting(text)) for name, text in zip(names, assertions, strict=True)}
    rows["deque is no list"] = (sources["deque"], asserting("== [1, 2]"))
    rows["dataclass is no tuple"] = (programs.OBJECTS["dataclass"][0], asserting("== (3,)"))
    rows["generator is no list"] = (programs.OBJECTS["generator"][0], asserting("== [1, 2]"))
    rows["past the end"] = (programs.OBJECTS["endless"][0], asserting(" and len(list(candidate())) > 0"))
    assert others("wrong", rows) == {}


def test_forms_of_a_program():
    row = {"cases": RUNS[1:2]}
    assert others("right", {name: (answer, row) for name, answer in programs.PROGRAMS.items()}) == {}


POINT = (
    "from dataclasses import dataclass\nimport enum\n@dataclass\nclass P:\n    x: int\nclass E(enum.Enum):\n    A = 1\n"
)


def test_classes_of_the_prompt():
    prompt = POINT + "class Bad(ValueError): pass\ndef f(p):\n    pass\n"
    test = (
        "def check(candidate):\n    assert candidate(P(1)) == P(2)\n    assert candidate(E.A) is E.A\n"
        "    try: candidate(P(-1))\n    except Bad as error: assert error.args == ('low', 1)\n    else: assert False\n"
    )
    right = (
        "def f(p):\n    if p is E.A: return p\n    if p.x < 0: raise Bad('low', 1)\n    return P(p.x + 1)\n",
        "class Worse(Bad): pass\ndef f(p):\n    if isinstance(p, E): return E.A\n"
        "    if p.x < 0: raise Bad('low', 1)\n    return P(x=p.x + 1)\n",
    )
    wrong = (right[0].replace("x + 1", "x + 2"), right[0].replace("Bad(", "ValueError("), right[0].replace("E.A", "1"))
    row = {"entry_point": "f", "test": test, "prompts": prompt}
    assert others("right", {answer: (answer, row) for answer in right}) == {}
    assert others("wrong", {answer: (answer, row) for answer in wrong}) == {}


RAISES = "def check(candidate):\n    assert candidate(1) == 2\n"
EXPECTING = {
    "ValueError": "try: candidate(-1)\n    except ValueError: return\n    assert False",
    "Exception": "try: candidate(-1)\n    except Exception: return\n    assert False",
    "bare": "try: candidate(-1)\n    except: return\n    assert False",
    "tuple": "errors = (KeyError, ValueError)\n    try: candidate(-1)\n    except errors: return\n    assert False",
    "assertRaises": "import unittest\n    with unittest.TestCase().assertRaises(ValueError): candidate(-1)",
    "assertRaises call": "import unittest\n    unittest.TestCase().assertRaises(ValueError, candidate, -1)",
    "message": "try: candidate(-1)\n    except ValueError as e: assert str(e) == 'low'\n    else: assert False",
}


def test_exceptions_that_the_tests_expect():
    bodies = {"plain": "raise ValueError('low')", "a subclass": "raise type('E', (ValueError,), {})('low')"}
    hidden = {"StopIteration": "raise StopIteration", "SystemExit": "raise SystemExit", "object": "return object()"}
    hidden |= {"SkipTest": "import unittest; raise unittest.SkipTest", "own": "raise type('E', (BaseException,), {})"}
    source = "def solve(n):\n    if n < 0:\n        {}\n    return n * n + 1"

    def rows(table, names=tuple(EXPECTING)):
        tests = {name: {**CHECK, "test": f"{RAISES}    {EXPECTING[name]}"} for name in names}
        return {(name, how): (source.format(body), row) for how, body in table.items() for name, row in tests.items()}

    assert others("right", rows(bodies)) == {}
    graded = verdicts(rows(hidden, ("Exception", "ValueError", "assertRaises")))
    passed = {pair for pair, (verdict, _) in graded.items() if verdict == "right"}
    assert passed == {("Exception", "SkipTest"), ("Exception", "StopIteration")}  # exceptions, as that test expects


@pytest.mark.parametrize(
    ("expected", "value", "verdict"),
    [
        (5e-13, 0, False),
        (5e-13, 0.0, False),
        (1.6e-19, 0.0, False),
        (6.6e-34, 6.6e-34 * (1 + 1e-12), True),
        (6.6e-34, 6.7e-34, False),
        (-5e-13, 5e-13, False),
        (0.0, 5.5e-17, True),
        (0, 1e-17, True),
        (0.0, 1e-9, False),
        (0.5, Fraction(1, 2), True),
        (0.1, Decimal("0.1"), True),
        (3, Decimal(3), True),
        (3, Decimal("3.5"), False),
        (1, Decimal("NaN"), False),
        (10**400, Decimal("1e400"), True),
        (1.0, Decimal("1e999999"), False),
        (math.inf, Decimal("Infinity"), True),
        ({1}, frozenset({1}), True),
        (True, Fraction(1), False),
    ],
)
def test_same_numbers(expected, value, verdict):
    assert same(expected, value) is verdict


@pytest.mark.parametrize(
    ("test", "exceptions", "nan", "infinity"),
    [
        ("assert candidate(1) == 2", set(), False, False),
        ("if candidate(1) != 2: raise KeyError", set(), False, False),
        ("try: candidate(1)\nexcept KeyError: pass", {"KeyError"}, False, False),
        ("try: candidate(1)\nexcept: pass", {"Exception"}, False, False),
        ("assert math.isnan(candidate(1))", set(), True, False),
        ("assert candidate(1) == float('-inf')", set(), False, True),
        ("assert candidate(1) == 1e999", set(), False, True),
        ("x = candidate(1)\nassert x != x", set(), True, False),
        ("banana, info = candidate('inform'), 'nano'", set(), False, False),
        ("def (", set(), False, False),
    ],
)
def test_what_tests_expect(test, exceptions, nan, infinity):
    expected = expected_by(test)
    assert expected.exceptions & {"KeyError", "Exception"} == exceptions
    assert (expected.nan, expected.infinity) == (nan, infinity)


def test_nan_where_the_tests_expect_it():
    test = "import math\ndef check(candidate):\n    assert math.isnan(candidate(-1)) and candidate(4) == 2"
    row = {"entry_point": "f", "test": test}
    assert verdicts({0: ("def f(x): return x ** 0.5 if x >= 0 else float('nan')", row)})[0][0] == "right"
    both = {**row, "test": test.replace("candidate(4) == 2", "not abs(candidate(4) - 2) > 1e-6")}
    assert verdicts({0: ("def f(x): return float('nan')", both)})[0][0] == "wrong"


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        ("```\na\n```", ["a\n"]),
        ("~~~py\na\n```\nb\n~~~", ["a\n```\nb\n"]),
        ("````\na\n```\nb\n````", ["a\n```\nb\n"]),
        ("```bash\na\n```\n```python\nb\n```", ["b\n"]),
        ("```text\na\n```", ["a\n"]),
        ("say ```a``` and\n```\nb\n```", ["b\n"]),
        ("  ```\n    a\n  b\n```", ["  a\nb\n"]),
        ("```python\na\n```python\nb\n```", ["a\n", "b\n"]),
        ('```\na = """\n    ```\n    b\n    ```\n"""\n```', ['a = """\n    ```\n    b\n    ```\n"""\n']),
        ("```\na\n     ```\nb", ["a\n"]),
        ("no code", ["no code"]),
    ],
)
def test_blocks(text, blocks):
    assert code_blocks(text) == blocks
