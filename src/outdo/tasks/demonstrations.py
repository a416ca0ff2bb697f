"""The demonstrations that SFT trains on: prompts with answers, in an order that the seed decides."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from outdo.errors import TaskError
from outdo.recipe.schema import Recipe
from outdo.seeds import seed_of
from outdo.tasks.sources import Source
from outdo.tasks.task import Shown, Task, add_system_prompt, find_task, repeat_epochs
from outdo.types import Prompt

MAX_FINITE = 200_000  # training prompts after which a task is treated as endless, unless it is marked finite
Demonstration = tuple[Prompt, Shown]  # a prompt, and what follows it


@dataclass(frozen=True)
class Demonstrations:
    """All demonstrations of a run, in order."""

    name: str
    num_examples: int  # over all epochs
    batch_size: int
    stream: Callable[[], Iterator[Demonstration]]

    @property
    def steps(self) -> int:
        return math.ceil(self.num_examples / self.batch_size)

    @property
    def fingerprint(self) -> str:
        """A hash of their number and of the first 32."""
        first = [([dict(m) for m in p.messages], shown) for p, shown in itertools.islice(self.stream(), 32)]
        return f"{seed_of(self.num_examples, self.batch_size, json.dumps(first)):016x}"

    def examples(self, skip: int = 0) -> Iterator[Demonstration]:
        return itertools.islice(self.stream(), skip, self.num_examples)


def find_demonstrations(recipe: Recipe, task: Task) -> Demonstrations | None:
    """The demonstrations of the recipe's sft keys; None if it has no SFT. Raises TaskError before a model is loaded.

    `sft_steps` draws endlessly. `sft_epochs` shows each example once per epoch, shuffled anew; the last may be partial.
    """
    if not recipe.sft_steps and not recipe.sft_epochs:
        return None
    source = _source_task(recipe, task)
    size, seed = recipe.sft_batch_size, recipe.seed
    if recipe.sft_steps:
        next(source.demonstrations(seed))  # raises if there are none
        return _demonstrations(source, recipe, recipe.sft_steps * size, lambda: source.demonstrations(seed))
    rows = demonstrations_of(source, "train", seed)

    def epoch_of(epoch: int) -> list[Demonstration]:
        order = list(rows)
        random.Random(seed_of("lessons", seed, epoch)).shuffle(order)
        return order

    num_examples = max(1, round(recipe.sft_epochs * len(rows)))
    return _demonstrations(source, recipe, num_examples, lambda: repeat_epochs(epoch_of))


def held_out_demonstrations(recipe: Recipe, task: Task) -> Demonstrations | None:
    """Demonstrations that are never trained on, once each, for the held-out loss; None if the data has none."""
    source = _source_task(recipe, task)
    if "test" not in source.splits or source.teacher is None:
        return None
    rows = demonstrations_of(source, "test", seed_of("held out"), recipe.eval_size)
    return _demonstrations(source, recipe, len(rows), lambda: iter(rows))


def demonstrations_of(task: Task, split: str, seed: int, limit: int = 0) -> list[Demonstration]:
    """A split's demonstrations once each: the first `limit`, or all. Raises TaskError for all of an endless task."""
    if task.teacher is None:
        next(task.demonstrations(seed))  # raises
    assert task.teacher
    rng = random.Random(seed_of("teacher", seed))
    rows: list[Demonstration] = []
    for num_seen, prompt in enumerate(task.prompts(split, seed)):
        if (shown := task.teacher(prompt, rng)) is not None:
            rows.append((prompt, shown))
        if limit and len(rows) == limit:
            break
        if num_seen >= MAX_FINITE and not task.finite:
            raise TaskError(f"task {task.name} generates prompts endlessly, so it has no epochs: set sft_steps instead")
    if not rows:
        raise TaskError(f"task {task.name}: none of its {split} prompts has a demonstration")
    return rows


def _source_task(recipe: Recipe, task: Task) -> Task:
    """The task that has the demonstrations: other data, or the task itself."""
    if not recipe.sft_dataset_name:
        return task
    source = Source(recipe.sft_dataset_name, columns=dict(recipe.sft_columns), eval_fraction=recipe.eval_fraction)
    return find_task(recipe.sft_dataset_name, recipe.sft_task_args, source=source)


def _demonstrations(
    source: Task, recipe: Recipe, num_examples: int, stream: Callable[[], Iterator[Demonstration]]
) -> Demonstrations:
    """Adds the recipe's system prompt, which data from elsewhere does not have."""

    def with_system_prompt() -> Iterator[Demonstration]:
        return ((add_system_prompt(prompt, recipe.system_prompt), shown) for prompt, shown in stream())

    return Demonstrations(source.name, num_examples, recipe.sft_batch_size, with_system_prompt)
