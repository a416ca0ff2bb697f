"""The task that a recipe names: one, or several by weight.

A mixture's prompts come without end, each part as often as its weight says, and carry the name of their part. They are
judged by that part's rewards (`grade/compose.py`), and each part is evaluated by itself: its split `test` is the
mixture's `test/NAME`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from outdo.errors import RecipeError, did_you_mean
from outdo.recipe.schema import Recipe
from outdo.seeds import seed_of
from outdo.tasks.sources import Source
from outdo.tasks.task import Part, Task, find_task
from outdo.types import PART, Prompt


class Entry(BaseModel):
    """One of `dataset_mixture`: keys of a recipe that are about the task, a weight, and a name."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    dataset_name: str
    weight: float = Field(1.0, gt=0)
    name: str = ""  # default: dataset_name
    task_args: dict[str, Any] = {}
    columns: dict[str, str] = {}
    dataset_config: str | None = None
    dataset_train_split: str = "train"
    dataset_test_split: str = "test"
    system_prompt: str | None = None  # default: the recipe's
    reward_funcs: list[str] = []
    reward_weights: list[float] = []


def task_of(recipe: Recipe) -> Task:
    """The task of a recipe, with all that it says of the data. Raises TaskError, or RecipeError for a bad mixture."""
    if not recipe.dataset_mixture:
        return _found(recipe, recipe.dataset_name)
    parts = [_part(entry, number, recipe) for number, entry in enumerate(recipe.dataset_mixture, 1)]
    names = [part.name for part in parts]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise RecipeError(f"dataset_mixture has {twice!r} twice: give each a `name` of its own")
    return mixed(parts)


def mixed(parts: list[Part]) -> Task:
    """One task of several."""
    splits = [f"{split}/{part.name}" for part in parts for split in part.task.splits if split != "train"]
    mix = _Mix(parts)
    teacher = mix.teacher if any(part.task.teacher for part in parts) else None
    return Task("mixture", mix.prompts, (), teacher, ("train", *splits), parts=tuple(parts))


class _Mix:
    def __init__(self, parts: list[Part]) -> None:
        self.parts = {part.name: part for part in parts}

    def prompts(self, split: str, seed: int) -> Iterator[Prompt]:
        kind, _, name = split.partition("/")
        if name:
            yield from (_marked(prompt, name) for prompt in self.parts[name].task.prompts(kind, seed))
            return
        streams = {name: _endless(part.task, seed_of("mixture", seed, name)) for name, part in self.parts.items()}
        weights = [part.weight for part in self.parts.values()]
        rng = random.Random(seed_of("mixture", seed))
        while True:
            (name,) = rng.choices(list(streams), weights)
            yield _marked(next(streams[name]), name)

    def teacher(self, prompt: Prompt, rng: random.Random) -> str | None:
        teacher = self.parts[prompt.meta[PART]].task.teacher
        return teacher(prompt, rng) if teacher else None


def _marked(prompt: Prompt, name: str) -> Prompt:
    return replace(prompt, id=f"{name}: {prompt.id}", meta={**prompt.meta, PART: name})


def _endless(task: Task, seed: int) -> Iterator[Prompt]:
    for epoch in range(2**31):
        yield from task.prompts("train", seed_of(seed, epoch))


def _part(entry: Mapping[str, Any], number: int, recipe: Recipe) -> Part:
    try:
        read = Entry(**entry)
    except ValidationError as error:
        raise RecipeError("\n".join(_words(e, number) for e in error.errors())) from None
    if read.reward_weights and len(read.reward_weights) != len(read.reward_funcs):
        raise RecipeError(f"dataset_mixture, entry {number}: give one of reward_weights for each of reward_funcs")
    task = _found(read, read.dataset_name, recipe.system_prompt)
    rewards = tuple(read.reward_funcs), tuple(read.reward_weights)
    return Part(read.name or read.dataset_name, task, read.weight, *rewards)


def _words(error: Any, number: int) -> str:
    key = ".".join(str(part) for part in error["loc"])
    meant = did_you_mean(key, Entry.model_fields) if error["type"] == "extra_forbidden" else ""
    return f"dataset_mixture, entry {number}: {key}{meant or ': ' + error['msg']}"


def _found(keys: Recipe | Entry, name: str, system_prompt: str | None = None) -> Task:
    source = Source(name, keys.dataset_config, keys.dataset_train_split, keys.dataset_test_split, dict(keys.columns))
    return find_task(name, keys.task_args, keys.system_prompt or system_prompt, source)
