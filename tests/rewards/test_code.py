"""Code graded by running it: honest answers score and exploits do not, from any thread."""

from __future__ import annotations

import gzip
import json
import math
import re
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import product
from pathlib import Path

import pytest

from outdo.rewards.blocks import source_of
from outdo.rewards.code import code, code_fraction, same
from support.exploits import FUNCTIONS, HANGING, HANGING_PROGRAMS, PROGRAMS, RIGHT
from support.processes import left_running, running

HUMAN_EVAL = Path(__file__).resolve().parents[3] / "shared" / "data" / "humaneval" / "HumanEval.jsonl.gz"
PLACES = ["main thread", "worker thread"]
INPUTS = [(2, 3), (10, -4), (1, 1)]
CALLS = [{"args": [a, b], "expected": 7 * a + b} for a, b in INPUTS]
RUNS = [{"stdin": f"{a} {b}\n", "stdout": f"{7 * a + b}\ndone\n"} for a, b in INPUTS]
CHECK = "def check(candidate):\n" + "".join(f"    assert candidate({a}, {b}) == {7 * a + b}\n" for a, b in INPUTS)
ROWS = {
    "function": {"entry_point": "solve", "cases": CALLS},
    "check": {"entry_point": "solve", "test": CHECK},
    "program": {"cases": RUNS},
}
FEW = {**ROWS, "function": {"entry_point": "solve", "cases": CALLS[:2]}, "program": {"cases": RUNS[:1]}}
EXPLOITS = (
    [("function", name) for name in (*FUNCTIONS, *list(HANGING)[::2])]
    + [("check", name) for name in (*FUNCTIONS, *list(HANGING)[1::2])]
    + [("program", name) for name in (*PROGRAMS, *HANGING_PROGRAMS)]
)


def called(where, function, *args, **kwargs):
    if where == "main thread":
        return function(*args, **kwargs)
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(function, *args, **kwargs).result()


def judged(text, grader=code, **row):
    (grade,) = grader([text], **{name: [value] for name, value in row.items() if name != "reward_timeout"})
    assert grade.reward is None if grade.verdict == "broken" else grade.reward == (grade.verdict == "right")
    return grade


@cache
def grades(where):
    """All exploits, graded in a few calls, as the steps of a run with nothing but cheats in it would be."""
    grades_by_name = {}
    for form, seconds in product(ROWS, (2.0, 0.5)):
        hanging = HANGING_PROGRAMS if form == "program" else HANGING
        names = [name for kind, name in EXPLOITS if kind == form and (name in hanging) == (seconds < 1)]
        sources = {**(PROGRAMS if form == "program" else FUNCTIONS), **hanging}
        columns = {key: [value] * len(names) for key, value in FEW[form].items()}
        answers = called(where, code, [sources[name] for name in names], **columns, reward_timeout=seconds)
        grades_by_name |= {(form, name): grade for name, grade in zip(names, answers, strict=True)}
    return grades_by_name


@pytest.mark.parametrize("where", [PLACES[0], pytest.param(PLACES[1], marks=pytest.mark.slow)])
@pytest.mark.parametrize(("form", "name"), EXPLOITS)
def test_an_exploit_scores_nothing(form, name, where):
    grade = grades(where)[form, name]
    assert (grade.reward, grade.verdict) == (0.0, "wrong"), grade.reason
    assert grade.reason.isprintable()


@pytest.mark.parametrize("where", [PLACES[0], pytest.param(PLACES[1], marks=pytest.mark.slow)])
def test_exploits_leave_no_process(where):
    before = running()  # those of pools that other tests have started
    grades(where)
    assert left_running(but=before) == []


def test_there_are_many_exploits():
    assert len(EXPLOITS) == len(set(EXPLOITS)) >= 250


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("form", ["function", "check"])
@pytest.mark.parametrize(
    "source",
    [
        "def solve(a, b): return 7 * a + b",
        "```python\ndef solve(a, b):\n    return 7 * a + b\n```",
        "So:\n```\ndef solve(a, b): return 0\n```\nNo, better:\n```py\nsolve = lambda a, b: 7 * a + b\n```\nDone.",
        "<think>\n```\ndef solve(a, b): return 0\n```\n</think>\n```python\ndef solve(a, b): return 7 * a + b\n```",
        "<answer>def solve(a, b): return 7 * a + b</answer>",
        "```python\ndef solve(a, b): return 7 * a + b",  # cut off, but all of it is there
        "def solve(b, a): return 7 * b + a",
        "def solve(*numbers): return 7 * numbers[0] + numbers[1]",
        "from functools import cache\nclass S:\n    def __call__(self, a, b): return 7 * a + b\nsolve = cache(S())",
        "print('PASS')\ndef solve(a, b):\n    print('noise' * 1000)\n    return 7 * a + b",
        "import sys\ndef solve(a, b):\n    try: sys.exit(0)\n    except SystemExit: return 7 * a + b",
    ],
)
def test_an_honest_function_scores(form, source, where):
    grade = called(where, judged, source, **ROWS[form])
    assert (grade.reward, grade.verdict) == (1.0, "right"), grade.reason


@pytest.mark.parametrize(
    "source",
    [
        "```python\ndef solve(a, b): return 7 * a + b\n```\nor\n```python\ndef solve(a, b): return 0\n```",
        "<think>```python\ndef solve(a, b): return 7 * a + b\n```</think> Done.",
        "<think>\n```python\ndef solve(a, b): return 7 * a + b\n```",
        "It is `7 * a + b`.",
        "```\n```",
        "",
        "   \n",
    ],
)
def test_last_block_counts(source):
    assert judged(source, **ROWS["function"]).verdict == "wrong"


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("a\n```python\nx\n```\nb\n```\ny\n```\nc", "y\n"),
        ("```python\nx\n", "x\n"),
        ("  ```\n  x\n  ```", "x\n"),
        ("<think>```\nx\n```</think>y", "y"),
        ("<answer>x</answer>", "x"),
        ("x", "x"),
    ],
)
def test_the_code_of_an_answer(text, source):
    assert source_of(text) == source


@pytest.mark.parametrize(
    ("source", "case"),
    [
        ("def f(a, *, b=0): return a + b", {"args": [1], "kwargs": {"b": 4}, "expected": 5}),
        ("def f(): return None", {"expected": None}),
        ("def f(): return None", {"args": None, "kwargs": None, "expected": None}),  # as tables fill what is missing
        ("def f(): return (1, (2, 3))", {"expected": [1, [2, 3]]}),  # JSON has no tuples
        ("def f(x): return x", {"args": [(1, 2)], "expected": (1, 2)}),
        ("def f(): return 0.1 + 0.2", {"expected": 0.3}),
        ("def f(): return 4.0", {"expected": 4}),
        ("def f(): return float('nan')", {"expected": math.nan}),
        ("def f(): return float('-inf')", {"expected": -math.inf}),
        ("def f(s): return s[::-1]", {"args": ["äß\ud800\x00"], "expected": "\x00\ud800ßä"}),
        ("def f(d): return {**d, 'b': [None, True]}", {"args": [{"a": 1}], "expected": {"b": [None, True], "a": 1}}),
        ("def f(): return {1: {2}, (3, 4): frozenset([5])}", {"expected": {(3, 4): frozenset([5]), 1: {2}}}),
        ("def f(): return b'\\x00\\xff'", {"expected": b"\x00\xff"}),
        ("def f(): return 1j", {"expected": 1j}),
        ("def f(n): return 1 << n", {"args": [60_000], "expected": 1 << 60_000}),
        ("def f(n): return -(1 << n)", {"args": [60_000], "expected": -(1 << 60_000)}),
        ("def f(n): return set(range(n))", {"args": [50_000], "expected": set(range(50_000))}),
        ("def f(x): return [-v for v in x]", {"args": [list(range(50_000))], "expected": [-v for v in range(50_000)]}),
    ],
)
def test_plain_values_go_in_and_come_out(source, case):
    grade = judged(source, entry_point="f", cases=[case])
    assert grade.verdict == "right", grade.reason


def test_a_method_of_a_class():
    source = "class Solution:\n    def __init__(self): self.k = 7\n    def solve(self, a, b): return self.k * a + b"
    row = {"entry_point": "Solution.solve", "cases": CALLS}
    assert judged(source, **row).verdict == "right"
    assert judged(source.replace("7", "6"), **row).verdict == "wrong"
    assert judged("class Solution: pass", **row).verdict == "wrong"


@pytest.mark.parametrize(
    ("expected", "value", "verdict"),
    [
        (1, True, False),
        (True, 1, False),
        (0, None, False),
        ("1", 1, False),
        ([1, 2], (1, 2), True),
        ((1, 2), [1, 2], False),
        ([1, 2], [1, 2, 3], False),
        ([1, 2], [2, 1], False),
        ([1], {1}, False),
        ({1, 2}, {2, 1}, True),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        ({"a": [1.0]}, {"a": [1.0 + 1e-12]}, True),
        (1.0, 1.0 + 1e-6, False),
        (10**12, 1e12 + 500, False),
        (10**20 + 1, 1e20, False),
        (10**20, 1e20, True),
        (10**400, 1e300, False),
        (math.nan, 0.0, False),
        (math.inf, -math.inf, False),
        ("", b"", False),
        ("é", "e\u0301", False),
    ],
)
def test_same(expected, value, verdict):
    assert same(expected, value) is verdict


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize(
    "source",
    [
        RIGHT,
        RIGHT.replace("print(7 * a + b)", "print(7 * a + b, '  ')"),
        RIGHT + "print()\nprint('   ')",
        RIGHT + "import sys\nprint('noise', file=sys.stderr)\nsys.exit(0)",
        RIGHT + "import os, sys\nsys.stdout.flush()\nos._exit(0)",
        "if __name__ == '__main__':\n    import sys\n    a, b = map(int, sys.stdin.read().split())\n"
        "    sys.stdout.write(f'{7 * a + b}\\r\\ndone')",
        "import os\na, b = map(int, os.read(0, 99).split())\nos.write(1, b'%d\\ndone' % (7 * a + b))",
        "import subprocess\na, b = map(int, input().split())\n"
        "print(subprocess.check_output(['expr', str(7 * a), '+', str(b)], text=True).strip())\nprint('done')",
    ],
)
def test_an_honest_program_scores(source, where):
    grade = called(where, judged, source, **ROWS["program"])
    assert (grade.reward, grade.verdict) == (1.0, "right"), grade.reason


def test_large_input_and_output():
    numbers = "\n".join(map(str, range(120_000)))
    row = {"cases": [{"stdin": numbers, "stdout": numbers}]}
    assert judged("import sys\nfor line in sys.stdin: print(line, end='')", **row).verdict == "right"
    assert judged("import sys\nfor line in list(sys.stdin)[:-1]: print(line, end='')", **row).verdict == "wrong"
    assert judged("print(0)", **row).verdict == "wrong"  # it never reads


@pytest.mark.parametrize(
    ("source", "share"),
    [
        ("def solve(a, b): return 7 * a + b", 1.0),
        ("def solve(a, b): return 17", 1 / 3),
        ("def solve(a, b): return 7 * a + b if a > 1 else 1 / 0", 2 / 3),
        ("import os\ndef solve(a, b): return os._exit(0) if a == 2 else 7 * a + b", 2 / 3),
        ("def solve(a, b): return 0", 0.0),
        (FUNCTIONS["right_once"], 1 / 3),
    ],
)
def test_code_fraction(source, share):
    (grade,) = code_fraction([source], entry_point=["solve"], cases=[CALLS])
    assert grade.reward == pytest.approx(share)
    assert grade.verdict == ("right" if share == 1 else "wrong")


def test_a_forged_reply_loses_all_cases():
    forged = FUNCTIONS["reply_by_itself"].replace("return 0", "return 7 * a + b")
    (grade,) = code_fraction([forged], entry_point=["solve"], cases=[CALLS])
    assert (grade.reward, grade.verdict) == (0.0, "wrong")
    assert "no request" in grade.reason


def test_reason_hides_the_expected_value():
    reason = judged("def solve(a, b): return 17", **ROWS["function"]).reason
    assert reason.startswith("1 of 3 cases passed; cases[1]:") and "17" in reason and "66" not in reason
    assert "66" not in judged("def solve(a, b): raise ValueError('x')", **ROWS["function"]).reason


def test_row_order_and_equal_answers():
    right, wrong = "def solve(a, b): return 7 * a + b", "def solve(a, b): return 0"
    others = [{"args": [1, 1], "expected": 0}]
    graded = code([right, wrong, right, wrong], entry_point=["solve"] * 4, cases=[CALLS, CALLS, others, others])
    assert [grade.reward for grade in graded] == [1.0, 0.0, 0.0, 1.0]


def test_the_prompt_belongs_to_the_problem():
    prompts = ["k = 7\ndef solve(a, b):\n", "k = 6\ndef solve(a, b):\n"]
    body = "    return k * a + b\n"
    complete = [prompt + "    pass\n" for prompt in prompts]
    graded = code([body] * 2, prompts=prompts, entry_point=["solve"] * 2, test=[CHECK] * 2)
    assert [grade.verdict for grade in graded] == ["right", "wrong"]
    answer = "def solve(a, b): return k * a + b\n"
    graded = code([answer] * 2, prompts=complete, entry_point=["solve"] * 2, test=[CHECK] * 2)
    assert [grade.verdict for grade in graded] == ["right", "wrong"]


@pytest.mark.parametrize(
    "row",
    [
        {},
        {"cases": []},
        {"cases": None},
        {"cases": "abc"},
        {"cases": 7},
        {"cases": {"stdin": "", "stdout": ""}},
        {"cases": [None]},
        {"cases": [{}]},
        {"cases": [{"stdin": "1"}]},
        {"cases": [{"stdin": 1, "stdout": 2}]},
        {"cases": [{"stdin": "", "stdout": "x" * (2**20 + 1)}]},
        {"cases": CALLS},  # without a function
        {"entry_point": "solve", "cases": RUNS},
        {"entry_point": "solve", "cases": [{"args": [1, 2]}]},
        {"entry_point": "solve", "cases": [{"args": 1, "expected": 1}]},
        {"entry_point": "solve", "cases": [{"args": "12", "expected": 1}]},
        {"entry_point": "solve", "cases": [{"kwargs": [1], "expected": 1}]},
        {"entry_point": "solve", "cases": [{"kwargs": {1: 1}, "expected": 1}]},
        {"entry_point": "solve", "cases": [{"args": [object()], "expected": 1}]},
        {"entry_point": "solve", "cases": [{"args": [1, 1], "expected": object()}]},
        {"entry_point": "solve", "cases": [{"args": [1, 1], "expected": type("Lie", (int,), {})(8)}]},
        {"entry_point": "solve", "cases": [{"args": ["x" * 2**24], "expected": 1}]},
        {"entry_point": "solve()", "cases": CALLS},
        {"entry_point": "a.b.c", "cases": CALLS},
        {"entry_point": ["solve"], "cases": CALLS},
        {"entry_point": 7, "cases": CALLS},
        {"test": CHECK},
        {"test": CHECK, "entry_point": ""},
        {"test": CHECK, "entry_point": "not a name"},
        {"test": "def check(candidate): pass", "entry_point": "solve"},
        {"test": "def check(candidate): assert 1 == 2", "entry_point": "solve"},
        {"test": "def chekc(candidate): candidate(1, 1)", "entry_point": "solve"},
        {"test": "def check(candidate:", "entry_point": "solve"},
        {"test": "raise SystemExit", "entry_point": "solve"},
        {"test": "import nowhere\n" + CHECK, "entry_point": "solve"},
        {"test": "\ud800", "entry_point": "solve"},
        {"test": "import os\ndef check(candidate): os._exit(0)", "entry_point": "solve"},
        {"test": "def check(candidate):\n    while True: pass", "entry_point": "solve", "reward_timeout": 1.0},
        {"test": ["no text"], "entry_point": "solve"},
    ],
    ids=lambda row: re.sub(" at 0x[0-9a-f]+", "", repr(row))[:100],
)
def test_invalid_rows_are_broken(row):
    limit = {"reward_timeout": row["reward_timeout"]} if "reward_timeout" in row else {}
    columns = {name: [value] for name, value in row.items() if name != "reward_timeout"}
    (grade,) = code(["def solve(a, b): return 7 * a + b"], **columns, **limit)
    assert (grade.reward, grade.verdict) == (None, "broken")
    assert grade.reason


def test_a_row_too_deep_is_broken():
    deep = []
    for _ in range(5000):
        deep = [deep]
    for case in ({"args": [deep], "expected": 1}, {"args": [1, 1], "expected": deep}):
        (grade,) = code(["def solve(a, b): return 8"], entry_point=["solve"], cases=[[case]])
        assert grade.verdict == "broken"


@pytest.mark.parametrize(
    "check",
    [
        "    try: candidate(1, 'x')\n    except TypeError: return\n    assert False",
        "    try: candidate(1, None)\n    except TypeError as e: assert 'None' in str(e)\n    else: assert False",
        "    assert candidate(b=1, a=1) == 8 and candidate(1, b=2) == 9",
        "    assert [candidate(i, i) for i in range(300)] == [8 * i for i in range(300)]",
        "    assert isinstance(candidate(1, 1), int) and solve(1, 1) == 8",
    ],
)
def test_checks(check):
    row = {"entry_point": "solve", "test": f"def check(candidate):\n    candidate(1, 1)\n{check}"}
    assert judged("def solve(a, b): return 7 * a + b + (b and 0)", **row).verdict == "right"
    assert judged("def solve(a, b): return ''", **row).verdict == "wrong"


SLOW_TO_START = "import time\ntime.sleep(0.4)\n" + CHECK


@pytest.mark.parametrize("source", ["def solve(a, b): return 0", "solve = 0", "def solve("])
@pytest.mark.parametrize("seconds", [0.0, 0.7, 5.0])
def test_answer_cannot_break_the_tests(source, seconds):
    """By leaving them no time to come to their first call."""
    (grade,) = code(
        [f"import time\ntime.sleep({seconds})\n{source}"],
        entry_point=["solve"],
        test=[SLOW_TO_START],
        reward_timeout=1.0,
    )
    assert (grade.reward, grade.verdict) == (0.0, "wrong"), grade.reason


def test_slow_tests():
    source = ["import time\ntime.sleep(0.7)\ndef solve(a, b): return 7 * a + b"]
    (grade,) = code(source, entry_point=["solve"], test=[SLOW_TO_START], reward_timeout=1.0)
    assert grade.verdict == "right", grade.reason


def test_failing_tests_are_broken():
    answers = ["def solve(a, b): return 8", "def solve(", "", "while True: pass"]
    graded = code(answers, entry_point=["solve"] * 4, test=["import nowhere\n" + CHECK] * 4, reward_timeout=1.0)
    assert [grade.verdict for grade in graded] == ["broken", "broken", "wrong", "broken"]


def test_a_test_that_forges_replies():
    forged = (
        "import sys\ndef check(candidate):\n    candidate(1, 1)\n    f = sys._getframe(1).f_locals\n"
        "    f['channel'].write(call=sys.modules['__main__'].quoted(f['request']['nonce']))\n"
    )
    assert judged("def solve(a, b): return 0", entry_point="solve", test=forged).verdict == "wrong"


def test_one_timeout_for_all_cases():
    cases = [{"args": [i], "expected": i} for i in range(20)]
    start = time.monotonic()
    source = ["import time\ndef f(i): time.sleep(0.2); return i"]
    (grade,) = code_fraction(source, entry_point=["f"], cases=[cases], reward_timeout=1.0)
    assert 0 < grade.reward < 0.5
    assert time.monotonic() - start < 2.5


@pytest.mark.skipif(not HUMAN_EVAL.is_file(), reason="HumanEval.jsonl.gz is not in ../shared/data/humaneval")
@pytest.mark.parametrize(("body", "verdict"), [("canonical_solution", "right"), ("pass", "wrong")])
def test_human_eval(body, verdict):
    with gzip.open(HUMAN_EVAL, "rt") as file:
        rows = [json.loads(line) for line in file]
    assert len(rows) == 164
    answers = [row.get(body, "    pass\n") for row in rows]
    columns = {name: [row[name] for row in rows] for name in ("entry_point", "test")}
    graded = code(answers, prompts=[row["prompt"] for row in rows], **columns)
    assert {row["task_id"]: g.reason for row, g in zip(rows, graded, strict=True) if g.verdict != verdict} == {}
