"""reasoning-gym: the gold is right, lenient scorers are corrected, no answer runs as code, and hangs time out."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import psutil
import pytest

from outdo.rewards import gym as grader
from outdo.rewards.gym import reasoning_gym, reasoning_gym_partial
from outdo.sandbox.execute import Raised, Sandbox, require_sandbox
from outdo.sandbox.jail import Limits
from outdo.tasks import gym
from outdo.types import Grade, Prompt

pytest.importorskip("reasoning_gym")


@cache
def problem(name: str, seed: int = 0, **options: Any) -> Prompt:
    return next(gym.prompts("train", seed, name=name, **options))


def grades(
    prompt: Prompt, *answers: str, judge: Callable[..., list[Grade]] = reasoning_gym, **more: Any
) -> list[Grade]:
    n = len(answers)
    texts = [f"<think>Well.</think><answer>{answer}</answer>" for answer in answers]
    return judge(texts, gym=[prompt.meta["gym"]] * n, answer=[prompt.answer] * n, prompts=[prompt.text] * n, **more)


def library(prompt: Prompt, answer: str) -> float:
    """What the library itself makes of an answer that is written here."""
    from reasoning_gym.factory import create_dataset

    row = prompt.meta["gym"]
    return float(create_dataset(row["name"], size=1, seed=0, **row["options"]).score_answer(answer, row["entry"]))


@pytest.mark.slow
def test_every_generator() -> None:
    for name in gym.generators():
        if name == "composite":
            continue
        p = problem(name)
        right, wrong = grades(p, str(p.answer), "no such answer 17 q")
        assert wrong.verdict == "wrong" and wrong.reward == 0.0 and wrong.reason, (name, wrong)
        if name not in gym.NO_GOLD:
            assert right == Grade(1.0, "right"), (name, right)


KIND: list[tuple[str, dict[str, Any], Callable[[dict[str, Any]], str]]] = [
    ("coin_flip", {}, lambda e: "0"),
    ("complex_arithmetic", {}, lambda e: "nan"),
    ("figlet_font", {"static_word": "STRAWBERRIES"}, lambda e: "STRAWBERRYES"),
    ("game_of_life", {}, lambda e: e["answer"][:-1] + ",[7]]"),
    ("game_of_life_halting", {}, lambda e: {"True": "False", "False": "True"}[e["answer"]]),
    ("gsm_symbolic", {}, lambda e: f"{e['answer']} or perhaps 3"),
    ("gsm_symbolic", {}, lambda e: f"-{e['answer']}"),
    ("letter_jumble", {}, lambda e: f"{e['answer']} and more"),
    ("number_sorting", {}, lambda e: e["answer"].replace(".", ".0")),
    ("polynomial_equations", {}, lambda e: f"{e['answer']}, or so"),
    ("puzzle24", {}, lambda e: "1*2*3*4"),
    ("simple_integration", {}, lambda e: f"Integral({e['metadata']['integrand']}, {e['metadata']['variable']})"),
    ("sokoban", {}, lambda e: f"{e['answer']}, I think"),
    ("survo", {}, lambda e: f"maybe\n{e['answer']}"),
    ("time_intervals", {"task_types": ["date"]}, lambda e: f"{e['answer'].split()[0]} hours"),
    ("word_sorting", {}, lambda e: f"{e['answer']}, zebra"),
]


@pytest.mark.parametrize(("name", "options", "trick"), KIND)
def test_lenient_scorers(name: str, options: dict[str, Any], trick: Any) -> None:
    num_fooled = 0
    for p in itertools.islice(gym.prompts("train", 0, name=name, **options), 60):
        answer = trick(p.meta["gym"]["entry"])
        if not answer or library(p, answer) < 1:  # not every problem of the kind can be tricked
            continue
        for judge in (reasoning_gym, reasoning_gym_partial):
            assert [g.reward for g in grades(p, answer, judge=judge)] == [0.0], answer
        num_fooled += 1
        if num_fooled == 2:
            break
    assert num_fooled, "the library is no longer fooled by this: remove it"


def test_other_notations() -> None:
    ways: list[tuple[str, Callable[[Prompt], str]]] = [
        ("chain_sum", lambda p: f"+0{p.answer}.0"),
        ("countdown", lambda p: f"({p.answer})"),
        ("puzzle24", lambda p: f"(({p.answer}))"),
        ("cryptarithm", lambda p: ", ".join(reversed(str(p.answer).split(",")))),
        ("simple_integration", lambda p: str(p.answer).replace("C", "7")),
        ("polynomial_multiplication", lambda p: f"0 + {p.answer}"),
        ("graph_color", lambda p: str(p.answer).replace(" ", "")),
        ("word_ladder", lambda p: str(p.answer).lower()),
        ("knights_knaves", lambda p: " and ".join(reversed(str(p.answer).rstrip(".").split(", and ")))),
        ("gsm_symbolic", lambda p: f"{p.answer}.0"),
    ]
    for name, write in ways:
        p = problem(name)
        assert grades(p, write(p))[0].verdict == "right", (name, write(p), p.answer)


CODE = [
    "__import__('sys')._getframe(1).f_locals['entry']['answer']",
    "entry['answer']",
    "oracle_answer",
    "[oracle_answer]",
    "(lambda: oracle_answer)()",
    "[x for x in oracle_answer]",
    "exec('entry.clear()')",
    "Symbol('x').__class__",
    "oracle_answer if True else 0",
    "valid_solutions[0]",
    "24 if open('/tmp/x', 'w') else 24",
    "parse_expr('24')",
]


@pytest.mark.parametrize(
    "name",
    [
        *("binary_matrix", "spiral_matrix", "string_insertion", "n_queens", "countdown", "puzzle24", "number_sorting"),
        *("polynomial_multiplication", "simple_integration", "intermediate_integration", "bitwise_arithmetic"),
    ],
)
def test_code_scores_nothing(name: str) -> None:
    p = problem(name)
    for answer, grade in zip(CODE, grades(p, *CODE, judge=reasoning_gym_partial), strict=True):
        assert (grade.reward, grade.verdict) == (0.0, "wrong"), (answer, grade)


def test_the_library_runs_code() -> None:
    """Why the form of an answer is checked before its scorer sees it."""
    assert library(problem("string_insertion"), "oracle_answer") > 0


LOGIC = {
    "variables": ["P", "Q", "R"],
    "premises": ["(P → Q)", "(Q → R)", "¬¬(P ∨ R)", "Q"],
    "example_answer": "(P → R)",
}
STATED = """(P → Q) | P → Q | ¬¬(P → Q) | ¬P ∨ Q | ((P → Q) ∧ (R ∨ ¬R)) | (P → Q) ∨ (R ∧ ¬R) | (P → Q) ∨ R | R ∨ ¬Q
(P ∨ R) | ¬(¬P ∧ ¬R) | Q | ¬¬Q | ¬¬¬¬Q | Q ∨ Q | (Q ∧ Q) | (P → Q) ∧ (Q → R) | (Q ∧ (P → Q)) ∧ ((Q → R) ∧ (P ∨ R))
P ∨ ¬P | (P → P) | (P ↔ P) | Q → (P → Q) | R | ¬¬R | (P ∧ ¬P) | ¬Q | P | (P ∧ Q) | ¬R | Q → P | X | (P → | →
(Q → Q ∧ R) | ¬(P ∧ ¬Q) ∨ R"""
CONCLUSIONS = ["(P → R)", "P → R", "(¬P ∨ R)", "(Q ∨ P)", "Q ↔ R", "(Q ∧ R)"]


def test_premises_are_no_conclusions() -> None:
    p = problem("propositional_logic")
    entry = {"question": "?", "answer": None, "metadata": {**p.meta["gym"]["entry"]["metadata"], **LOGIC}}
    row = {**p.meta["gym"], "entry": entry}
    for judge in (reasoning_gym, reasoning_gym_partial):
        for gold in ("(P → R)", "(P → Q)", "Q"):
            stated = [text.strip() for line in STATED.splitlines() for text in line.split(" | ")]
            texts = [f"<answer>{text}</answer>" for text in [*stated, *CONCLUSIONS]]
            graded = judge(texts, gym=[row] * len(texts), answer=[gold] * len(texts))
            paid = [text for text, grade in zip(stated, graded, strict=False) if grade.reward]
            assert not paid
            assert [grade.verdict for grade in graded[len(stated) :]] == ["right"] * len(CONCLUSIONS)


def test_examples_are_conclusions() -> None:
    problems = itertools.islice(gym.prompts("train", 1, name="propositional_logic"), 40)
    for p in problems:
        premises = p.meta["gym"]["entry"]["metadata"]["premises"]
        texts = [text for premise in premises for text in (premise, f"¬¬{premise}", f"({premise} ∨ {premise})")]
        assert not any(grade.reward for grade in grades(p, *texts, judge=reasoning_gym_partial)), p.text
        if p.answer is not None:
            assert grades(p, str(p.answer))[0].verdict == "right", p.text


EMPTY = ["", " \n\t", "\u200b\u2060", "\u3164", "...", "-", "[]", "{}", "()", '""', "[[]]", "?", "''"]
PAYS_FOR_NOTHING = [
    "arc_agi",
    "color_cube_rotation",
    "countdown",
    "emoji_mystery",
    "graph_color",
    "jugs",
    "power_function",
]


def nothing_for_empty_answers(names: list[str]) -> None:
    for name in names:
        for judge in (reasoning_gym, reasoning_gym_partial):
            rewards = [grade.reward for grade in grades(problem(name), *EMPTY, judge=judge)]
            assert rewards == [0.0] * len(EMPTY), (name, rewards)


def test_nothing_for_empty_answers() -> None:
    assert library(problem("color_cube_rotation"), "") > 0  # so it is the guard that refuses it
    nothing_for_empty_answers(PAYS_FOR_NOTHING)


@pytest.mark.slow
def test_nothing_for_empty_answers_of_any_generator() -> None:
    nothing_for_empty_answers([name for name in gym.generators() if name != "composite"])


def test_partial_credit() -> None:
    p = problem("sudoku")
    almost = ("9" if str(p.answer)[0] != "9" else "1") + str(p.answer)[1:]
    (full,), (partial,) = grades(p, almost), grades(p, almost, judge=reasoning_gym_partial)
    assert (full.reward, full.verdict) == (0.0, "wrong")
    assert partial.reward == pytest.approx(0.9 * 80 / 81) and partial.verdict == "wrong"
    p = problem("binary_matrix")
    rows = [[int(n) for n in row.split()] for row in str(p.answer).split("\n")]
    assert grades(p, str(rows), judge=reasoning_gym_partial)[0].reward == 0.1


def test_two_answers_or_an_echo() -> None:
    p = problem("chain_sum")
    row = {"gym": [p.meta["gym"]], "answer": [p.answer], "prompts": [p.text]}
    two = f"<answer>{p.answer}</answer><answer>1{p.answer}</answer>"
    for text in (two, p.text, str(p.answer), f"<think><answer>{p.answer}</answer>", ""):
        assert reasoning_gym([text], **row)[0].verdict == "wrong", text
    assert reasoning_gym([f"{p.text}\n<answer>{p.answer}</answer>"], **row)[0].verdict == "right"


def test_invalid_rows_are_broken() -> None:
    assert reasoning_gym(["<answer>1</answer>"], gym=["chain_sum"])[0].verdict == "broken"
    row = {"name": "no_such", "options": {}, "entry": {}}
    assert "not registered" in reasoning_gym(["<answer>1</answer>"], gym=[row])[0].reason


@pytest.mark.parametrize("thread", [False, True])
def test_timeout(thread: bool) -> None:
    p = problem("polynomial_multiplication")
    results: list[list[Grade]] = []

    def judge() -> None:
        results.append(grades(p, "9**9**9**9", str(p.answer), reward_timeout=1.0))

    start = time.monotonic()
    if thread:
        worker = threading.Thread(target=judge)
        worker.start()
        worker.join()
    else:
        judge()
    hung, right = results[0]
    assert (hung.reward, hung.verdict) == (0.0, "wrong") and "timed out after 1 s" in hung.reason
    assert right.verdict == "right" and time.monotonic() - start < 20
    assert grades(p, str(p.answer))[0].verdict == "right"  # the sandbox outlives the thread


def test_dead_sandbox_is_replaced() -> None:
    p = problem("chain_sum")
    assert grades(p, str(p.answer))[0].verdict == "right"
    for sandbox in list(grader._open):
        os.kill(sandbox.process.pid, signal.SIGKILL)
        sandbox.process.wait()
    verdicts = [grades(p, str(p.answer))[0].verdict for _ in range(2 * (os.cpu_count() or 1) + 1)]
    assert verdicts[0] == "broken" and verdicts[-1] == "right"


def test_no_process_left() -> None:
    code = f"""
import psutil, sys
sys.path.insert(0, {os.path.dirname(__file__)!r})
from test_gym import grades, problem
p = problem("chain_sum")
assert grades(p, str(p.answer), "1")[0].verdict == "right"
print(*[child.pid for child in psutil.Process().children(recursive=True)])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) >= 2
    _, alive = psutil.wait_procs([psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)], timeout=5)
    assert not alive


def test_forks_are_isolated() -> None:
    source = """
import os, time
seen = []
def work(what):
    seen.append(what)
    if what == "die": os._exit(0)
    if what == "hang": time.sleep(60)
    if what == "fork" and not os.fork(): time.sleep(60)
    if what == "raise": raise ValueError
    return seen
"""
    require_sandbox()
    with Sandbox(Limits(60.0)) as sandbox:
        sandbox.load([source], "work")
        assert sandbox.fork(["a"], 5.0) == ["a"]
        for what, seconds, kind in (
            ("die", 5.0, "ChildProcessError"),
            ("raise", 5.0, "ChildProcessError"),
            ("hang", 0.5, "TimeoutError"),
            ("fork", 0.5, "TimeoutError"),
        ):
            with pytest.raises(Raised) as raised:
                sandbox.fork([what], seconds)
            assert raised.value.kind == kind, what
        assert sandbox.fork(["b"], 5.0) == ["b"]
