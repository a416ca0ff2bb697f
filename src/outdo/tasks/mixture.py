"""The task of a recipe: a single one, or a mixture of several by weight.

A mixture draws endlessly from its parts, by weight. A prompt carries the name of its part and is graded by that part's
rewards (`rewards/compose.py`). Each part is evaluated separately: its split `test` is the mixture's `test/NAME`.
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
from outdo.tasks.curriculum import with_easier
from outdo.tasks.sources import SOURCE_KEYS, Source
from outdo.tasks.task import Part, Shown, Task, endless_prompts, find_task
from outdo.types import PART, Prompt


class Entry(BaseModel):
    """One entry of `dataset_mixture`: the recipe's keys about a task, a weight, and a name."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    dataset_name: str
    weight: float = Field(1.0, gt=0)
    name: str = ""  # default: dataset_name
    task_args: dict[str, Any] = {}
    columns: dict[str, str] = {}
    dataset_config: str | None = None
    dataset_train_split: str = "train"
    dataset_test_split: str = "test"
    eval_fraction: float | None = Field(None, gt=0, lt=1)  # default: the recipe's
    system_prompt: str | None = None  # default: the recipe's
    reward_funcs: list[str] = []
    reward_weights: list[float] = []


def task_of(recipe: Recipe, task: Task | None = None) -> Task:
    """The recipe's task or the given one, checked with the curriculum's arguments. Raises TaskError, RecipeError."""
    task = task or _task_of(recipe)
    return with_easier(recipe, task) if recipe.curriculum_steps else task


def _task_of(recipe: Recipe) -> Task:
    if not recipe.dataset_mixture:
        return _find_task(recipe, recipe.dataset_name)
    parts = [_part(entry, number, recipe) for number, entry in enumerate(recipe.dataset_mixture, 1)]
    names = [part.name for part in parts]
    duplicate = next((name for name in names if names.count(name) > 1), None)
    if duplicate is not None:
        raise RecipeError(f"dataset_mixture has {duplicate!r} twice: give each entry its own `name`")
    return mix(parts)


def mix(parts: list[Part]) -> Task:
    """One task that draws from several."""
    splits = [f"{split}/{part.name}" for part in parts for split in part.task.splits if split != "train"]
    mixture = _Mixture(parts)
    teacher = mixture.teacher if any(part.task.teacher for part in parts) else None
    agents = {part.task.agent for part in parts}
    if len(agents) > 1:
        names = {part.task.agent: part.name for part in parts}
        agent = max(names)
        raise RecipeError(
            f"dataset_mixture: {names[agent]} is played by the agent {agent}, and {names[min(names)]} is not: mix only "
            "tasks that are played alike"
        )
    return Task("mixture", mixture.prompts, (), teacher, ("train", *splits), parts=tuple(parts), agent=agents.pop())


class _Mixture:
    def __init__(self, parts: list[Part]) -> None:
        self.parts = {part.name: part for part in parts}

    def prompts(self, split: str, seed: int) -> Iterator[Prompt]:
        kind, _, name = split.partition("/")
        if name:
            yield from (_with_part(prompt, name) for prompt in self.parts[name].task.prompts(kind, seed))
            return
        streams = {n: endless_prompts(part.task, seed_of("mixture", seed, n)) for n, part in self.parts.items()}
        weights = [part.weight for part in self.parts.values()]
        rng = random.Random(seed_of("mixture", seed))
        while True:
            (name,) = rng.choices(list(streams), weights)
            yield _with_part(next(streams[name]), name)

    def teacher(self, prompt: Prompt, rng: random.Random) -> Shown | None:
        teacher = self.parts[prompt.meta[PART]].task.teacher
        return teacher(prompt, rng) if teacher else None


def _with_part(prompt: Prompt, name: str) -> Prompt:
    return replace(prompt, id=f"{name}: {prompt.id}", meta={**prompt.meta, PART: name})


def _part(entry: Mapping[str, Any], number: int, recipe: Recipe) -> Part:
    try:
        keys = Entry(**entry)
    except ValidationError as error:
        raise RecipeError("\n".join(_describe_error(e, number) for e in error.errors())) from None
    if keys.reward_weights and len(keys.reward_weights) != len(keys.reward_funcs):
        raise RecipeError(f"dataset_mixture, entry {number}: give one weight per reward function")
    keys = keys.model_copy(update={"eval_fraction": keys.eval_fraction or recipe.eval_fraction})
    task = _find_task(keys, keys.dataset_name, recipe.system_prompt)
    rewards = tuple(keys.reward_funcs), tuple(keys.reward_weights)
    return Part(keys.name or keys.dataset_name, task, keys.weight, *rewards)


def _describe_error(error: Any, number: int) -> str:
    key = ".".join(str(part) for part in error["loc"])
    meant = did_you_mean(key, Entry.model_fields) if error["type"] == "extra_forbidden" else ""
    return f"dataset_mixture, entry {number}: {key}{meant or ': ' + error['msg']}"


def _find_task(keys: Recipe | Entry, name: str, system_prompt: str | None = None) -> Task:
    source = Source(name, **{field: getattr(keys, key) for key, field in SOURCE_KEYS.items()})
    return find_task(name, keys.task_args, keys.system_prompt or system_prompt, source)
