"""Prompts that are too long, and epochs in steps."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from outdo.errors import TaskError
from outdo.recipe.load import load_recipe
from outdo.tasks.lengths import drop_long_prompts, epochs_to_steps, fit_to_context
from outdo.tasks.mixture import task_of
from outdo.tasks.task import Task, find_task
from outdo.types import PART, Prompt
from support.basics import prompt_of


def words(prompts: Sequence[Prompt]) -> list[int]:
    return [len(prompt.text.split()) for prompt in prompts]


def file_of(tmp_path: Path, lengths: dict[str, list[int]]) -> Task:
    rows = [
        {"prompt": " ".join([f"{split}{i}"] * n), "split": split}
        for split, ns in lengths.items()
        for i, n in enumerate(ns)
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return find_task(str(tmp_path / "a.jsonl"))


def test_long_prompts_are_skipped(tmp_path: Path) -> None:
    task = file_of(tmp_path, {"train": [1, 5, 6, 9], "test": [2, 7]})
    notices: list[str] = []
    short = drop_long_prompts(task, words, 5, notices.append)
    assert notices == [
        "2 of 4 train prompts are longer than 5 tokens: skipped",
        "1 of 2 test prompts are longer than 5 tokens: skipped",
    ]
    assert sorted(words(list(short.prompts("train", 3)))) == [1, 5] and words(list(short.prompts("test", 0))) == [2]
    notices.clear()
    assert drop_long_prompts(task, words, 9, notices.append) is task and not notices


def test_only_uncertain_prompts_are_measured(tmp_path: Path) -> None:
    task = file_of(tmp_path, {"train": [3, 5, 80, 300], "test": [2]})
    measured: list[Prompt] = []

    def measure(prompts: Sequence[Prompt]) -> list[int]:
        measured.extend(prompts)
        return words(prompts)

    notices: list[str] = []
    short = drop_long_prompts(task, measure, 500, notices.append)
    assert short is task and not notices
    assert {n for n in words(measured) if n > 5} == {80, 300}  # of bytes they have more
    assert sorted(words(list(drop_long_prompts(task, measure, 100, notices.append).prompts("train", 0)))) == [3, 5, 80]


def test_all_too_long(tmp_path: Path) -> None:
    task = file_of(tmp_path, {"train": [6, 9], "test": [2]})
    with pytest.raises(
        TaskError, match=r"all 2 train prompts are longer than 5 tokens \(the shortest has 6\).*max_prompt"
    ):
        drop_long_prompts(task, words, 5, print)


def test_endless_task_is_measured_lazily() -> None:
    def growing(split: str, seed: int, least: int = 1) -> Iterator[Prompt]:
        yield from (prompt_of("w " * (least + i % 4)) for i in itertools.count())

    task = Task("growing", growing, ("exact",))
    short = drop_long_prompts(task, words, 2, print)
    assert {n for n in words(list(itertools.islice(short.prompts("train", 0), 20)))} == {1, 2}
    with pytest.raises(TaskError, match="in a row are longer than 2 tokens"):
        next(short.with_args({"least": 3}).prompts("train", 0))


def test_long_prompts_of_a_mixture(tmp_path: Path) -> None:
    file_of(tmp_path, {"train": [1, 5, 600, 9], "test": [2, 700]})
    keys = {
        "dataset_mixture": [{"dataset_name": str(tmp_path / "a.jsonl"), "name": "a"}, {"dataset_name": "arithmetic"}]
    }
    recipe, notices = load_recipe(None, {**keys, "max_completion_length": 100}), list[str]()
    task = fit_to_context(recipe, task_of(recipe), 512, words, notices.append)
    assert notices == [
        f"a: 1 of {n} {split} prompts are longer than 412 tokens: skipped" for split, n in (("train", 4), ("test", 2))
    ]
    drawn = list(itertools.islice(task.prompts("train", 0), 200))
    assert max(words(drawn)) == 9 and {prompt.meta[PART] for prompt in drawn} == {"a", "arithmetic"}
    assert words(list(task.prompts("test/a", 0))) == [2]


def test_epochs_to_steps(tmp_path: Path) -> None:
    task = file_of(tmp_path, {"train": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], "test": [1]})
    keys = {"num_generations": 4, "per_device_train_batch_size": 16}
    for epochs, steps in ((1, 3), (2, 5), (0.1, 1)):
        assert epochs_to_steps(load_recipe(None, {**keys, "num_train_epochs": epochs}), task).max_steps == steps
    both = load_recipe(None, {**keys, "num_train_epochs": 1, "max_steps": 7})
    assert epochs_to_steps(both, task).max_steps == 7
    first = epochs_to_steps(load_recipe(None, {**keys, "num_train_epochs": 1}), task)
    again = load_recipe(None, {"seed": 1}, base_of=first.model_dump())
    assert epochs_to_steps(again, task).max_steps == 3
    with pytest.raises(TaskError, match="endlessly: set max_steps"):
        epochs_to_steps(load_recipe(None, {"num_train_epochs": 1}), find_task("arithmetic"))
