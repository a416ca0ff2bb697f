"""Code repair: failures are shown, hidden tests decide, and nothing runs outside of the sandbox."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from outdo.envs.repair import Repair
from outdo.errors import TaskError
from outdo.rewards.code import same
from outdo.tasks import repair
from outdo.tasks.repair.families import FAMILIES, UNSEEN
from outdo.tasks.repair.problems import Case, Key, problem_of
from outdo.tasks.task import find_task
from outdo.types import Prompt
from support.play import assistant, play

DOUBLE = Prompt(
    "double",
    ({"role": "user", "content": "Write a function `double`."},),
    None,
    {
        "entry_point": "double",
        "visible": [{"args": [3], "expected": 6}, {"args": ["ab"], "expected": "abab"}],
        "cases": [{"args": [21], "expected": 42}, {"args": [[1]], "expected": [1, 1]}, {"args": [0], "expected": 0}],
        "max_attempts": 2,
    },
)


def some(count: int, split: str = "train", **args: object) -> list[Prompt]:
    return list(itertools.islice(find_task("repair", dict(args)).prompts(split, 3), count))


def fenced(body: str) -> str:
    return f"Here it is.\n```python\n{body}\n```"


def passes(source: str, name: str, cases: list[Case]) -> list[bool]:
    """Without the sandbox: for the task's own sources."""
    names: dict[str, Any] = {}
    exec(source, names)
    function: Callable[..., Any] = names[name]

    def passed(case: Case) -> bool:
        try:
            return same(case["expected"], function(*eval(repr(case["args"]))))
        except Exception:
            return False

    return [passed(case) for case in cases]


def test_every_problem_has_a_solution_and_shows_its_bug() -> None:
    prompts = [*some(200), *some(60, "ood"), *some(40, "test")]
    for prompt in prompts:
        name, visible, hidden = (prompt.meta[column] for column in ("entry_point", "visible", "cases"))
        problem = problem_of(Key(**prompt.meta["problem"]))
        assert problem and prompt.answer == problem.source and problem.wrong in prompt.text
        assert len(visible) == 4 and len(hidden) == 8 and not [case for case in visible if case in hidden]
        assert all(passes(problem.source, name, visible + hidden))
        failing = [not passed for passed in passes(problem.wrong, name, visible)]
        assert any(failing) and failing == [bool(failure) for failure in problem.failures]
        assert not all(passes(problem.wrong, name, hidden))
        assert problem.source not in prompt.text
    assert {prompt.meta["entry_point"] for prompt in prompts} == {*FAMILIES, *UNSEEN} and len(FAMILIES) >= 8


@pytest.mark.sandbox
def test_solution_is_paid() -> None:
    prompts = {prompt.meta["entry_point"]: prompt for prompt in (*some(100), *some(20, "ood"))}
    assert prompts.keys() == {*FAMILIES, *UNSEEN}
    for prompt in prompts.values():
        messages = repair.solution(prompt)
        assert play(Repair(), prompt, messages) == (messages, 1.0)


@pytest.mark.sandbox
def test_demonstrations_are_what_is_played() -> None:
    raising = next(
        p for p in some(400) if any("raised" in one for one in problem_of(Key(**p.meta["problem"])).failures)
    )  # type: ignore[union-attr]
    for number, prompt in enumerate([raising, *some(5)]):
        shown = repair.teacher(prompt, random.Random(number))
        assert play(Repair(), prompt, shown) == (shown, float(prompt.answer in shown[-1]["content"]))
    hasty = [repair.teacher(prompt, random.Random(prompt.id)) for prompt in some(300)]
    right = [prompt.answer in shown[-1]["content"] for prompt, shown in zip(some(300), hasty, strict=True)]
    assert abs(sum(right) / 300 - (1 - 0.7**3)) < 0.1 and {len(shown) for shown in hasty} == {1, 3, 5}


@pytest.mark.sandbox
def test_failures_are_shown() -> None:
    texts = fenced("def double(x): return x + 3"), fenced("def double(x): return 2 * x")
    conversation, reward = play(Repair(), DOUBLE, assistant(*texts))
    assert reward == 1.0
    assert conversation[1]["content"] == (
        "1 of 2 tests failed:\n"
        "double('ab') should return 'abab': raised TypeError: can only concatenate str (not \"int\") to str\n"
        "Correct the function."
    )


@pytest.mark.sandbox
@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "No code."),
        (fenced("def double(x) return"), "cannot be run: the code raised SyntaxError"),
        (fenced("def other(x): return x"), "cannot be run"),
        (fenced("import os\ndef double(x): os._exit(0)"), "double(3) should return 6: exited with status 0"),
        (fenced("def double(x):\n    while True: pass"), "double('ab') should return 'abab': timed out after 1 s"),
        (fenced("def double(x): return '\\x1b[2J' * 300"), "returned '\\x1b[2J"),
    ],
)
def test_answers_that_fail(text: str, part: str) -> None:
    conversation, reward = play(
        Repair(seconds=1.0), replace(DOUBLE, meta={**DOUBLE.meta, "max_attempts": 2}), assistant(text)
    )
    assert part in conversation[1]["content"] and reward == 0.0
    assert conversation[1]["content"].isprintable() or "\n" in conversation[1]["content"]


# Each passes the visible tests, or tries to learn or forge what the hidden ones expect.
CHEATS = {
    "knows_the_visible_tests": "def double(x): return {'3': 6, 'ab': 'abab'}.get(str(x))",
    "finds_the_expected_value": "import gc\ndef double(x):\n    for value in gc.get_objects():\n"
    "        if type(value) is dict and 'expected' in value: return value['expected']\n    return None",
    "looks_up_the_frames": "import sys\ndef double(x):\n    frame = sys._getframe()\n    while frame:\n"
    "        for value in list(frame.f_locals.values()):\n"
    "            if isinstance(value, dict) and 'expected' in value: return value['expected']\n"
    "        frame = frame.f_back",
    "reads_files": "import glob\ndef double(x):\n"
    "    for path in glob.glob('/*') + glob.glob('/tmp/**', recursive=True):\n"
    "        try:\n            if '42' in open(path).read(): return 42\n        except OSError: pass",
    "equals_everything": "class Any(int):\n    def __eq__(self, other): return True\n    __hash__ = int.__hash__\n"
    "def double(x): return Any(0)",
    "remembers_between_attempts": "import os\ndef double(x):\n    open('/tmp/seen', 'a').write(repr(x))\n"
    "    return {'3': 6, 'ab': 'abab'}.get(str(x), 42 if '3' in open('/tmp/seen').read() else None)",
    "exits": "import sys\nsys.exit(0)",
}


@pytest.mark.sandbox
@pytest.mark.parametrize("name", CHEATS)
def test_cheats_are_not_paid(name: str) -> None:
    prompt = replace(DOUBLE, meta={**DOUBLE.meta, "max_attempts": 1})
    assert play(Repair(), prompt, assistant(fenced(CHEATS[name])))[1] == 0.0


@pytest.mark.sandbox
def test_nothing_hidden_is_shown() -> None:
    """The function prints and returns what it is called with: hidden arguments never come back."""
    nosy = fenced("def double(x):\n    print(x)\n    raise ValueError(x)")
    conversation, _ = play(Repair(), DOUBLE, assistant(nosy))
    assert "ValueError: ab" in conversation[1]["content"]
    assert not any(hidden in conversation[1]["content"] for hidden in ("21", "42", "[1"))


@pytest.mark.sandbox
def test_partial() -> None:
    once = replace(DOUBLE, meta={**DOUBLE.meta, "max_attempts": 1})
    numbers_only = fenced("def double(x): return 2 * x if isinstance(x, int) else None")
    assert play(Repair(partial=True), once, assistant(numbers_only))[1] == pytest.approx(3 / 5)
    assert play(Repair(), once, assistant(numbers_only))[1] == 0.0
    assert play(Repair(partial=True), once, assistant(fenced("def double(x): return x + x")))[1] == 1.0


def test_without_code() -> None:
    prompt = some(1, with_code=False, max_attempts=1)[0]
    assert "def " not in prompt.text and "1 attempts" not in prompt.text


@pytest.mark.parametrize(
    "changed", [{"visible": []}, {"entry_point": ""}, {"cases": [{"args": 3}]}, {"max_attempts": "x"}]
)
@pytest.mark.sandbox
def test_a_prompt_of_another_kind(changed: dict[str, object]) -> None:
    with pytest.raises(TaskError, match="repair: "):
        Repair().reset(replace(DOUBLE, meta={**DOUBLE.meta, **changed}))


@pytest.mark.parametrize("seconds", [0, -1, True, "5"])
def test_bad_environment_arguments(seconds: Any) -> None:
    with pytest.raises(TaskError, match=r"environment_args\.seconds"):
        Repair(seconds=seconds)
