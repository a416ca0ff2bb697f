"""Rewards as source of their own: what they give is what the originals give, on a table of answers."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from outdo.bridges.convert import convert
from outdo.bridges.convert.rewards import BOUND
from outdo.bridges.convert.source import standalone
from outdo.recipe.load import load_recipe
from outdo.rewards.registry import GRADERS
from outdo.rewards.rft import load, validate
from outdo.types import Grade

QUESTION = [
    {"role": "user", "content": "How many apples does Ann have? Options: (A) Paris (B) Rome\nAnswer in <answer>."}
]
TEXTS = [
    *("", "42", "42", "<answer>42</answer>", "#### 42", "\\boxed{42}", "<answer>42.0</answer>", "<answer>$42</answer>"),
    *("<answer>42 apples</answer>", "<answer>42 pears</answer>", "<answer>42 km</answer>", "<answer>1,042</answer>"),
    *("<answer>41</answer> <answer>42</answer>", "<think><answer>42</answer></think>", "<think>42", "#### Step 1"),
    *("<think>2+2=4</think><answer>42</answer>", "<think></think><answer></answer>", "<answer>Paris</answer>"),
    *("<answer>(A)</answer>", "<answer>A. Paris</answer>", "<answer>B</answer>", "**A**", "<answer> Paris\n</answer>"),
    *("<answer>3+4*5</answer>", "<answer>3 + 4 × 5 = 23</answer>", "<answer>4*5+3</answer>", "<answer>23</answer>"),
    *('{"name": "Ann", "age": 7}', '```json\n{"name": "Ann", "age": 7}\n```', '{"name": "Ann", "age": -1}', "{'a': 1}"),
    *('<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>', '{"name": "add", "arguments": {}}'),
    *("First, I add 1+1=2. Next, I take 2*3=6. Finally, it is 42.", "the the the the the", 'a "quoted" \\ text\n"""'),
    *("<answer>forty-two</answer>", "<answer>42 (forty-two)</answer>", "<answer>−42</answer>", "<answer>٤٢</answer>"),
]
ROWS: dict[str, dict[str, Any]] = {
    "numeric": {"answer": "42"},
    "gsm8k": {"answer": "6*7=42\n#### 42"},
    "exact": {"answer": "Paris"},
    "label": {"answer": "A", "labels": ["A", "B"]},
    "countdown": {"numbers": [3, 4, 5], "target": 23},
    "json_schema": {"schema": GRADERS["json_schema"].example["schema"]},
    "tool_call": {"answer": {"name": "add", "arguments": {"a": 1, "b": 2}}},
}
TOKENS = {
    "completion_ids": [tuple(map(ord, text)) for text in TEXTS],
    "finish": ["length" if len(text) > 40 else "stop" for text in TEXTS],
    "verdicts": ["right" if "42" in text else "wrong" for text in TEXTS],
}
CARRIED = sorted(set(GRADERS) - set(BOUND))


def numbers(grades: list[Any]) -> list[Any]:
    """Rewards and verdicts, of whatever class the grades are."""
    return [(g.reward, g.verdict, g.reason) if hasattr(g, "verdict") else g for g in grades]


def imported(text: str, name: str) -> ModuleType:
    assert not [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.ImportFrom) and "outdo" in str(n.module)]
    module = sys.modules[name] = ModuleType(name)
    exec(compile("from __future__ import annotations\n" + text, name, "exec"), vars(module))
    return module


@pytest.mark.parametrize("name", CARRIED)
def test_a_copy_grades_as_the_original(name: str) -> None:
    function = GRADERS[name].function
    key = (function.__module__, function.__name__)
    copied = standalone([key])
    module = imported(copied.text, f"copy_of_{name}")
    row = {column: [value] * len(TEXTS) for column, value in ROWS.get(name, {"answer": "42"}).items()}
    given = {"completions": TEXTS, "messages": [QUESTION] * len(TEXTS), **row, **TOKENS, "max_completion_length": 50}
    ours, theirs = function(**given), getattr(module, copied.names[key])(**given)
    assert numbers(theirs) == numbers(ours)
    assert len({str(one) for one in numbers(ours)}) > 1  # the table tells graders apart
    assert not any(isinstance(one, Grade) for one in theirs)


def test_all_graders_in_one_file() -> None:
    """Names that two modules have are told apart."""
    keys = [(GRADERS[name].function.__module__, GRADERS[name].function.__name__) for name in CARRIED]
    copied = standalone(keys)
    module = imported(copied.text, "copy_of_all")
    assert len(set(copied.names.values())) == len(copied.names)
    for name, key in zip(CARRIED, keys, strict=True):
        row = {column: [value] * len(TEXTS) for column, value in ROWS.get(name, {"answer": "42"}).items()}
        given = {
            "completions": TEXTS,
            "messages": [QUESTION] * len(TEXTS),
            **row,
            **TOKENS,
            "max_completion_length": 50,
        }
        assert numbers(getattr(module, copied.names[key])(**given)) == numbers(GRADERS[name].function(**given)), name


# OpenAI's graders, read by our reader and run in the real sandbox

FORMS = {
    "answer": {
        "numeric": "42",
        "exact": "Paris",
        "label": "A",
        "tool_call": ROWS["tool_call"]["answer"],
        "format": "x",
    },
}


def rft_grader(tmp_path: Path, rewards: str, row: dict[str, Any], *keys: str) -> Path:
    """The grader file of a recipe on data of one row."""
    rows = [{"prompt": f"{QUESTION[0]['content']} {i}", **row} for i in range(4)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    words = [f"dataset_name={tmp_path / 'rows.jsonl'}", f"reward_funcs={rewards}", "model_name_or_path=gpt", *keys]
    convert(load_recipe(None, words), "rft", tmp_path / "job")
    return tmp_path / "job" / "grader.json"


def graded_as_there(path: Path, row: dict[str, Any], texts: list[str]) -> list[Any]:
    assert validate(path) == []
    columns = {key: [value] * len(texts) for key, value in {**row, "messages": QUESTION}.items()}
    return [grade.reward for grade in load(path)[0](texts, **columns)]


@pytest.mark.sandbox
@pytest.mark.parametrize("name", ["numeric", "exact", "label", "countdown", "tool_call", "format", "tag_count"])
def test_a_python_grader_pays_as_ours(tmp_path: Path, name: str) -> None:
    row = ROWS.get(name, {"answer": "x"})
    path = rft_grader(tmp_path, name, row)
    assert json.loads(path.read_text())["type"] == "python"
    columns = {column: [value] * len(TEXTS) for column, value in row.items()}
    given = GRADERS[name].function(completions=TEXTS, messages=[QUESTION] * len(TEXTS), **columns)
    ours = [one.reward if isinstance(one, Grade) else one for one in given]
    assert graded_as_there(path, row, TEXTS) == pytest.approx(ours)


OWN = '''
import math


def grade(completions, answer, **columns):
    """The name of OpenAI's own function, on purpose."""
    return [math.floor(len(text) / 10) * (gold == "42") for text, gold in zip(completions, answer)]


def one(response, ground_truth, prompt):
    return 1.0 if ground_truth in response and "apples" in prompt else 0.25
'''


@pytest.mark.sandbox
def test_weights_become_a_formula(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(OWN)
    path = rft_grader(tmp_path, "numeric,own.py:grade,own.py:one", ROWS["numeric"], "reward_weights=[1,-0.5,2]")
    assert json.loads(path.read_text())["calculate_output"] == "1.0 * numeric - 0.5 * grade + 2.0 * one"
    texts = ["<answer>42</answer>", "no", "x" * 25]
    assert graded_as_there(path, ROWS["numeric"], texts) == pytest.approx([1 - 0.5 + 2, 0 - 0 + 0.5, 0 - 1 + 0.5])


def test_a_grader_of_openais_stays_as_it_is(tmp_path: Path) -> None:
    grader = {
        "type": "string_check",
        "name": "same",
        "input": "{{ sample.output_text }}",
        "reference": "{{ item.answer }}",
        "operation": "eq",
    }
    (tmp_path / "grader.json").write_text(json.dumps(grader))
    path = rft_grader(tmp_path, str(tmp_path / "grader.json"), ROWS["numeric"])
    assert json.loads(path.read_text()) == grader


def test_the_job_is_openais_form(tmp_path: Path) -> None:
    keys = ("max_steps=6", "num_generations=2", "per_device_train_batch_size=4", "eval_steps=2", "seed=5")
    path = rft_grader(tmp_path, "numeric", ROWS["numeric"], *keys)
    job = json.loads(path.with_name("job.json").read_text())
    rows = [json.loads(line) for line in path.with_name("train.jsonl").open()]
    assert job["method"]["reinforcement"]["hyperparameters"] == {
        "n_epochs": 6 * 2 // len(rows),
        "batch_size": 2,
        "learning_rate_multiplier": "auto",
        "compute_multiplier": "auto",
        "eval_interval": 2,
        "eval_samples": 10,
        "reasoning_effort": "default",
    }
    assert (job["seed"], job["training_file"], job["suffix"]) == (5, "train.jsonl", "rows")
    assert all(row["messages"][-1]["role"] == "user" and row["answer"] == "42" for row in rows)
    compile(path.with_name("start.py").read_text(), "start.py", "exec")
