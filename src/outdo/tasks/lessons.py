"""What supervised training imitates: prompts with answers, in an order that the seed decides."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from outdo.errors import TaskError
from outdo.recipe.schema import Recipe
from outdo.seeds import seed_of
from outdo.tasks.sources import Source
from outdo.tasks.task import WHOLE, Task, find_task
from outdo.types import Prompt

Example = tuple[Prompt, str]  # a prompt and the answer to imitate


@dataclass(frozen=True)
class Lessons:
    """All that a run is shown, in its order, and in how many steps."""

    name: str
    num_examples: int  # over all epochs
    batch_size: int
    stream: Callable[[], Iterator[Example]]

    @property
    def steps(self) -> int:
        return math.ceil(self.num_examples / self.batch_size)

    @property
    def fingerprint(self) -> str:
        """Tells them from others: a hash of their number and of the first."""
        first = [([dict(m) for m in p.messages], text) for p, text in itertools.islice(self.stream(), 32)]
        return f"{seed_of(self.num_examples, self.batch_size, json.dumps(first)):016x}"

    def examples(self, skip: int = 0) -> Iterator[Example]:
        return itertools.islice(self.stream(), skip, self.num_examples)


def find_lessons(recipe: Recipe, task: Task) -> Lessons | None:
    """What the recipe's sft keys ask for; None where they ask for nothing. Raises TaskError, before anything is loaded.

    By `sft_steps` the demonstrations go on as long as they are asked for. By `sft_epochs` each example comes once an
    epoch, in an order of that epoch's own; the last epoch may be a part of one.
    """
    if not recipe.sft_steps and not recipe.sft_epochs:
        return None
    taught = _taught(recipe, task)
    size, seed = recipe.sft_batch_size, recipe.seed
    if recipe.sft_steps:
        next(taught.demonstrations(seed))  # says now, not after the model is loaded, that there is no teacher
        return Lessons(taught.name, recipe.sft_steps * size, size, lambda: _framed(taught.demonstrations(seed), recipe))
    found = shown(taught, "train", seed)
    number = max(1, round(recipe.sft_epochs * len(found)))
    return Lessons(taught.name, number, size, lambda: _framed(_epochs(found, seed), recipe))


def held_out_lessons(recipe: Recipe, task: Task) -> Lessons | None:
    """Examples that training never shows, once each, for the loss on them; None where the data has none."""
    taught = _taught(recipe, task)
    if "test" not in taught.splits or taught.teacher is None:
        return None
    found = shown(taught, "test", seed_of("held out"), recipe.eval_size)
    return Lessons(taught.name, len(found), recipe.sft_batch_size, lambda: _framed(iter(found), recipe))


def shown(task: Task, split: str, seed: int, most: int = 0) -> list[Example]:
    """A split's demonstrations once each; the first `most`, or all. Raises TaskError where they have no end."""
    if task.teacher is None:
        next(task.demonstrations(seed))  # raises, in its own words
    assert task.teacher
    rng = random.Random(seed_of("teacher", seed))
    found: list[Example] = []
    for tried, prompt in enumerate(task.prompts(split, seed)):
        if (text := task.teacher(prompt, rng)) is not None:
            found.append((prompt, text))
        if most and len(found) == most:
            break
        if tried >= WHOLE and not task.finite:
            raise TaskError(
                f"task {task.name} makes prompts without end, so there are no epochs: give sft_steps, not sft_epochs"
            )
    if not found:
        raise TaskError(f"task {task.name}: not one of its {split} prompts has an answer to imitate")
    return found


def _taught(recipe: Recipe, task: Task) -> Task:
    """Whose demonstrations they are: those of other data, or the task's own."""
    if not recipe.sft_dataset_name:
        return task
    source = Source(recipe.sft_dataset_name, columns=dict(recipe.sft_columns))
    return find_task(recipe.sft_dataset_name, recipe.sft_task_args, source=source)


def _epochs(examples: list[Example], seed: int) -> Iterator[Example]:
    for epoch in itertools.count():
        order = list(range(len(examples)))
        random.Random(seed_of("lessons", seed, epoch)).shuffle(order)
        yield from (examples[i] for i in order)


def _framed(examples: Iterator[Example], recipe: Recipe) -> Iterator[Example]:
    """With the recipe's system prompt, where an example of other data has none of its own."""
    for prompt, text in examples:
        if recipe.system_prompt is None or prompt.messages[0]["role"] == "system":
            yield prompt, text
        else:
            first = {"role": "system", "content": recipe.system_prompt}
            yield replace(prompt, messages=(first, *prompt.messages)), text
