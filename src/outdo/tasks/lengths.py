"""How long things are: prompts that do not fit are left out, and epochs become steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from outdo.errors import RecipeError, TaskError
from outdo.recipe.schema import Recipe
from outdo.tasks.mixture import mixed
from outdo.tasks.task import Task
from outdo.types import Prompt

TEMPLATES_DIFFER = 64  # tokens
MISSES = 1000  # prompts in a row that are too long: a generator makes no others

Texts = tuple[str, ...]  # of a prompt's messages
Measure = Callable[[Sequence[Prompt]], list[int]]  # prompts to their numbers of tokens


def in_steps(recipe: Recipe, task: Task) -> Recipe:
    """The recipe with `max_steps` in place of epochs, where only those are given. Raises TaskError."""
    epochs = recipe.num_train_epochs
    if epochs is None or "max_steps" in recipe.model_fields_set:
        return recipe
    if not task.finite:
        raise TaskError(f"num_train_epochs={epochs:g}: {task.name} makes prompts without end: give max_steps")
    count = len({prompt.id for prompt in task.prompts("train", 0)})
    steps = math.ceil(epochs * count / recipe.prompts_per_step)
    return recipe.model_copy(update={"max_steps": max(1, steps)})


def within(recipe: Recipe, task: Task, context: int, measure: Measure, say: Callable[[str], None]) -> Task:
    """Without the prompts that leave no room for an answer in a context of so many tokens, or are longer than the
    recipe allows. Those of a task without end are only measured where the recipe asks. Raises RecipeError, TaskError.
    """
    room = context - recipe.max_completion_length
    if room < 1:
        what = f"max_completion_length={recipe.max_completion_length} leaves no room for a prompt"
        raise RecipeError(f"{what}: the model sees {context} tokens")
    if task.parts:
        parts = []
        for part in task.parts:
            named = partial(_of_part, part.name, say)
            parts.append(replace(part, task=within(recipe, part.task, context, measure, named)))
        return mixed(parts)
    if not task.finite and recipe.max_prompt_length is None:
        return task
    return fitting(task, measure, min(room, recipe.max_prompt_length or room), say)


def _of_part(name: str, say: Callable[[str], None], line: str) -> None:
    say(f"{name}: {line}")


def fitting(task: Task, measure: Measure, limit: int, say: Callable[[str], None]) -> Task:
    """The same task without the prompts of more than `limit` tokens. Raises TaskError where none is left to train on.

    Of a data set all are measured now, and what is left out is said. Of a task without end each is when it comes.
    """
    if not task.finite:
        return replace(task, keep=_Sieve(task.name, measure, limit))
    too_long: set[Texts] = set()
    for split in task.splits:
        prompts = list(task.prompts(split, 0))
        sizes = _sizes(prompts, measure, limit)
        long = {_texts(prompt) for prompt, size in zip(prompts, sizes, strict=True) if size > limit}
        if min(sizes) > limit:
            raise TaskError(
                f"{task.name}: all {len(prompts):,} {split} prompts are longer than {limit} tokens (the shortest has "
                f"{min(sizes)}): raise max_prompt_length, or lower max_completion_length to leave room in the context"
            )
        if long:
            count = sum(size > limit for size in sizes)
            say(f"{count:,} of {len(prompts):,} {split} prompts are longer than {limit} tokens and left out")
        too_long |= long
    return replace(task, keep=lambda prompt: _texts(prompt) not in too_long) if too_long else task


def _sizes(prompts: Sequence[Prompt], measure: Measure, limit: int) -> list[int]:
    """Their numbers of tokens; of those that are sure to fit, 0. A token is a byte of text or more, and what a chat
    template puts around is no more than one whole prompt has, or thereabouts."""
    frame = measure(prompts[:1])[0] + TEMPLATES_DIFFER
    sizes = [0] * len(prompts)
    unsure = [i for i, p in enumerate(prompts) if frame + sum(len(text.encode()) for text in _texts(p)) > limit]
    for i, size in zip(unsure, measure([prompts[i] for i in unsure]), strict=True):
        sizes[i] = size
    return sizes


def _texts(prompt: Prompt) -> Texts:
    return tuple(message["content"] for message in prompt.messages)


class _Sieve:
    """Lets prompts through that are short enough. Raises TaskError where none seems to be."""

    def __init__(self, name: str, measure: Measure, limit: int) -> None:
        self.name, self.measure, self.limit, self.missed = name, measure, limit, 0

    def __call__(self, prompt: Prompt) -> bool:
        fits = self.measure([prompt])[0] <= self.limit
        self.missed = 0 if fits else self.missed + 1
        if self.missed == MISSES:
            raise TaskError(f"{self.name}: {MISSES:,} prompts in a row are longer than {self.limit} tokens")
        return fits
