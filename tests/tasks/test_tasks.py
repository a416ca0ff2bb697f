"""Tasks: splits that never meet, golds that are right, and the errors of a user's own task."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from outdo.errors import TaskError
from outdo.recipe.load import load_recipe
from outdo.rewards.answer import numeric
from outdo.rewards.games import countdown
from outdo.tasks import arithmetic
from outdo.tasks.curriculum import Curriculum
from outdo.tasks.mixture import task_of
from outdo.tasks.task import TASKS, Task, find_task, held_out, task
from outdo.training.context import make_context
from outdo.types import Prompt
from support.basics import prompt_of


def problem(prompt: Prompt) -> object:
    """What a problem is, whichever way round it is written."""
    if "op" in prompt.meta:
        return (*sorted((prompt.meta["a"], prompt.meta["b"])), prompt.meta["op"])
    return (*sorted(prompt.meta["numbers"]), prompt.meta["target"])


@pytest.mark.parametrize("name", ["arithmetic", "countdown"])  # the others: test_gsm8k.py, tests/envs
def test_splits_are_disjoint(name: str) -> None:
    found = find_task(name)
    tested = {problem(p) for p in held_out(found, "test", 400)}
    assert len(tested) >= 150
    trained = {problem(p) for seed in range(3) for p in itertools.islice(found.prompts("train", seed), 4000)}
    demonstrated = {problem(p) for p, _ in itertools.islice(found.demonstrations(0), 4000)}
    assert not tested & (trained | demonstrated)


def test_ood_is_harder() -> None:
    prompts = held_out(find_task("arithmetic", {"digits": 2}), "ood", 50)
    assert all(100 <= p.meta["a"] <= 999 and 100 <= p.meta["b"] <= 999 for p in prompts)
    assert all(len(p.meta["numbers"]) == 4 for p in held_out(find_task("countdown"), "ood", 20))


@pytest.mark.parametrize("digits", [1, 2, 4])
def test_arithmetic_answers_are_right(digits: int) -> None:
    for p in itertools.islice(arithmetic.prompts("train", 5, digits=digits), 200):
        a, b = p.meta["a"], p.meta["b"]
        assert p.answer == str(a + b if p.meta["op"] == "+" else a - b)
        assert p.text == f"{a}{p.meta['op']}{b}" and int(p.answer) >= 0


def test_arithmetic_demonstrations() -> None:
    rng = random.Random(0)
    careful, careless, easy = [], [], []
    for p in itertools.islice(arithmetic.prompts("train", 1, digits=3), 300):
        careful.append(numeric([arithmetic.teacher(p, rng, forgets=0.0, slips=0.0)], [p.answer])[0].reward)
        careless.append(numeric([arithmetic.teacher(p, rng, forgets=1.0, slips=0.0)], [p.answer])[0].reward)
        columns = zip(reversed(str(p.meta["a"])), reversed(str(p.meta["b"])), strict=True)
        plain = [int(x) + int(y) <= 9 if p.meta["op"] == "+" else int(x) >= int(y) for x, y in columns]
        easy.append(float(all(plain)))
    assert careful == [1.0] * 300
    assert careless == easy and 0 < sum(easy) < 300


def test_countdown_solutions_solve() -> None:
    for p in itertools.islice(TASKS["countdown"].prompts("train", 2), 200):
        text = f"<answer>{p.meta['solution']}</answer>"
        assert countdown([text], [p.meta["numbers"]], [p.meta["target"]])[0].verdict == "right", p


def test_held_out_is_deterministic() -> None:
    first, second = (held_out(find_task("arithmetic"), "test", 50) for _ in range(2))
    assert first == second and len({p.id for p in first}) == 50


def test_held_out_of_a_small_space() -> None:
    few = held_out(find_task("arithmetic", {"digits": 1}), "test", 500)
    assert 5 <= len(few) <= 60 and len({p.id for p in few}) == len(few)


def test_jsonl(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    rows = [{"prompt": f"q{i}", "answer": i, "hint": "h"} for i in range(100)]
    rows.append({"messages": [{"role": "user", "content": "mine"}], "answer": 1, "split": "test"})
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n")
    found = find_task(str(path))
    train, test = list(found.prompts("train", 0)), list(found.prompts("test", 0))
    assert len(train) + len(test) == 101 and not {p.id for p in train} & {p.id for p in test}
    assert 3 <= len(test) <= 25 and any(p.text == "mine" for p in test)
    assert train[0].meta == {"hint": "h"}
    assert [p.id for p in found.prompts("train", 1)] != [p.id for p in train]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("{bad", "line 1: not JSON"),
        ("[1]", "an object"),
        ('{"question": "x"}', "question"),
        ('{"messages": [{"role": "user"}]}', "line 1"),
        ("", "no prompts"),
    ],
)
def test_bad_jsonl(tmp_path: Path, text: str, part: str) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text(text)
    with pytest.raises(TaskError, match=part):
        find_task(str(path))


@pytest.mark.parametrize("messages", ["hello", (), ("hello",), ({"role": "user"},), ({"role": "user", "content": 3},)])
def test_bad_messages(messages: object) -> None:
    mine = Task("mine", lambda split, seed: iter([Prompt("x", messages, "1")]), ("exact",))  # type: ignore[arg-type]
    with pytest.raises(TaskError, match=r"prompt 'x' are .*; they must be a tuple such as \(\{\"role\""):
        next(mine.prompts("train", 0))


def test_unknown_names_and_arguments() -> None:
    with pytest.raises(TaskError, match="did you mean 'arithmetic'"):
        find_task("arithmetics")
    with pytest.raises(TaskError, match="takes no 'digit': did you mean 'digits'\\? It takes digits, ops"):
        find_task("arithmetic", {"digit": 3})
    with pytest.raises(TaskError, match="no such file"):
        find_task("missing.jsonl")
    with pytest.raises(TaskError, match="digits=0"):
        find_task("arithmetic", {"digits": 0})


def test_failing_user_tasks() -> None:
    @task(rewards=["exact"])
    def empty(split: str, seed: int) -> Iterator[Prompt]:
        yield from ()

    @task(rewards=["exact"])
    def raises(split: str, seed: int) -> Iterator[Prompt]:
        raise KeyError("column")
        yield

    @task(rewards=["exact"])
    def strings(split: str, seed: int) -> Iterator[Prompt]:
        yield "not a prompt"  # type: ignore[misc]

    for found, part in ((empty, "no prompts"), (raises, "KeyError"), (strings, "must yield outdo.Prompt")):
        assert isinstance(found, Task)
        with pytest.raises(TaskError, match=part):
            next(found.prompts("train", 0))


def test_system_prompt() -> None:
    p = next(find_task("arithmetic", system_prompt="Be brief.").prompts("train", 0))
    assert [m["role"] for m in p.messages] == ["system", "user"]


def test_curriculum_ends() -> None:
    keys = {"curriculum_steps": 20, "curriculum_args": {"digits": 1}, "curriculum_informative": 0.3}
    for share, steps in ((0.9, 20), (0.1, 5)):
        curriculum = Curriculum(find_task("arithmetic"), load_recipe(None, keys))
        easy = 0
        for _ in range(30):
            easy += all(p.meta["a"] < 10 for p in curriculum.draw(4))
            curriculum.observe(share)
        assert easy == steps


@pytest.mark.parametrize(
    ("args", "part"), [({"digitz": 1}, "did you mean 'digits'"), ({"digits": 0}, "digits=0 must be")]
)
def test_curriculum_args_are_checked(args: dict[str, int], part: str) -> None:
    """By a dry run and a run alike, before a model is loaded; also for a task that is given in Python."""
    recipe = load_recipe(None, {"curriculum_steps": 5, "curriculum_args": args})
    for act in (lambda: task_of(recipe), lambda: task_of(recipe, TASKS["arithmetic"]), lambda: make_context(recipe)):
        with pytest.raises(TaskError, match=f"curriculum_args: .*{part}"):
            act()


def test_step_larger_than_the_data() -> None:
    def two(split: str, seed: int) -> Iterator[Prompt]:
        yield from (prompt_of("a"), prompt_of("b"))

    curriculum = Curriculum(Task("two", two, ("exact",)), load_recipe())
    drawn = curriculum.draw(5)
    assert len(drawn) == 5 and len({p.id for p in drawn}) == 5 and {p.text for p in drawn} == {"a", "b"}


def test_arithmetic_ask_and_between() -> None:
    args = {"ops": "*", "between": [2, 12], "ask": "What is {a} {op} {b}?"}
    for p in itertools.islice(find_task("arithmetic", args).prompts("train", 1), 50):
        a, b = int(p.meta["a"]), int(p.meta["b"])
        assert 2 <= a <= 12 and 2 <= b <= 12 and p.answer == str(a * b) and p.text == f"What is {a} * {b}?"
        assert numeric([arithmetic.teacher(p, random.Random(0), slips=0.0)], [p.answer])[0].reward == 1.0
    assert all(p.meta["a"] > 12 for p in held_out(find_task("arithmetic", args), "ood", 20))
    for args, message in (
        ({"between": [5]}, "two numbers"),
        ({"between": 5}, "two numbers"),
        ({"ask": "Well?"}, "must contain"),
        ({"ops": "/"}, "consist of"),
        ({"digits": "many"}, "digits='many': TypeError"),
    ):
        with pytest.raises(TaskError, match=message):
            next(find_task("arithmetic", args).prompts("train", 0))


@pytest.mark.parametrize(
    ("name", "args"),
    [("arithmetic", {"between": [2, 3], "ops": "+"}), ("countdown", {"numbers": 2, "highest": 2, "ops": "-"})],
)
def test_empty_split(name: str, args: dict[str, object]) -> None:
    found = find_task(name, args)
    assert next(found.prompts("train", 0))
    with pytest.raises(TaskError, match="'test' is empty"):
        held_out(found, "test", 5)
