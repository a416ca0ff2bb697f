"""The prompts of a recipe as rows: those of a run in its order, held-out ones, and demonstrations."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from outdo.recipe.schema import Recipe
from outdo.rewards.arguments import NOT_DATA
from outdo.tasks.curriculum import Curriculum
from outdo.tasks.data import COMPLETION
from outdo.tasks.demonstrations import find_demonstrations
from outdo.tasks.task import Task, held_out
from outdo.types import Prompt

MAX_ROWS = 50_000  # of an endless task
MAX_HELD_OUT = 2_000  # where eval_size is 0
_HIDDEN = (*NOT_DATA, "prompt", "messages", COMPLETION)  # names that a row has for something else
_INT64 = 2**63


@dataclass(frozen=True)
class Data:
    """Prompts with their columns."""

    train: tuple[Prompt, ...]
    test: tuple[Prompt, ...]
    in_order: bool  # the training prompts are those of a run, in its order; else each is there once
    as_json: frozenset[str]  # columns whose values are of several types, or nested: written as JSON texts

    @cached_property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(name for prompt in (*self.train, *self.test) for name in columns_of(prompt)))

    def row(self, prompt: Prompt) -> dict[str, Any]:
        """A prompt's columns as they are written. All rows have the same ones."""
        own = columns_of(prompt)
        return {name: json.dumps(own.get(name)) if name in self.as_json else own.get(name) for name in self.columns}


def data_of(recipe: Recipe, task: Task) -> Data:
    """The data of a run by this recipe. Raises TaskError."""
    train, in_order = _train(recipe, task)
    split = next((one for one in (*recipe.eval_split, "test") if one in task.splits), "")
    test = held_out(task, split, recipe.eval_size or (0 if task.finite else MAX_HELD_OUT)) if split else []
    values: dict[str, list[Any]] = {}
    for prompt in (*train, *test):
        for name, value in columns_of(prompt).items():
            values.setdefault(name, []).append(value)
    as_json = frozenset(name for name, column in values.items() if not _is_plain(column))
    return Data(tuple(train), tuple(test), in_order, as_json)


def _train(recipe: Recipe, task: Task) -> tuple[list[Prompt], bool]:
    if task.finite:
        return list(task.prompts("train", recipe.seed)), False
    source = Curriculum(task, recipe.model_copy(update={"curriculum_steps": 0}))
    steps = min(recipe.max_steps, math.ceil(MAX_ROWS / recipe.prompts_per_step))
    return [prompt for _ in range(steps) for prompt in source.draw(recipe.prompts_per_step)], True


def columns_of(prompt: Prompt) -> dict[str, Any]:
    """What rewards are given of a prompt, beside its messages. What JSON cannot hold is left out."""
    columns = {name: value for name, value in prompt.meta.items() if name not in _HIDDEN and _is_json(value)}
    return {"answer": prompt.answer, **columns} if prompt.answer is not None and _is_json(prompt.answer) else columns


def messages_of(prompt: Prompt) -> list[dict[str, Any]]:
    return [dict(message) for message in prompt.messages]


def demonstrations(recipe: Recipe, task: Task) -> list[dict[str, Any]] | None:
    """The examples of the warm-up in its order, as prompt and completion; None where there is none."""
    found = find_demonstrations(recipe, task)
    if found is None:
        return None
    rows = []
    for prompt, shown in found.examples():
        said = [{"role": "assistant", "content": shown}] if isinstance(shown, str) else [dict(m) for m in shown]
        rows.append({"prompt": messages_of(prompt), "completion": said})
    return rows


def as_lines(rows: Iterable[Mapping[str, Any]]) -> str:
    """JSON Lines. Everything beyond ASCII is escaped, so that no reader finds other ends of lines in it."""
    return "".join(json.dumps(row) + "\n" for row in rows)


def _is_plain(values: Sequence[Any]) -> bool:
    """Whether every reader takes these values for one type."""
    kinds = {type(value) for value in values if value is not None}
    if kinds == {int}:
        return all(value is None or -_INT64 <= value < _INT64 for value in values)
    return kinds <= {str} or kinds in ({bool}, {float})


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True
