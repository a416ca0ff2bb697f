"""Lengths: skips prompts that do not fit in the context, and converts epochs to steps."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from outdo.errors import RecipeError, TaskError
from outdo.recipe.schema import Recipe
from outdo.tasks.mixture import mix
from outdo.tasks.task import Part, Task
from outdo.types import Prompt

TEMPLATE_MARGIN = 64  # tokens by which a chat template may differ between two prompts
MAX_TOO_LONG = 1000  # prompts in a row that are too long, before an endless task is refused

Measure = Callable[[Sequence[Prompt]], list[int]]  # prompts to their numbers of tokens


def epochs_to_steps(recipe: Recipe, task: Task) -> Recipe:
    """The recipe with `max_steps` computed from `num_train_epochs`, if only that is given. Raises TaskError."""
    epochs = recipe.num_train_epochs
    if epochs is None or "max_steps" in recipe.model_fields_set:
        return recipe
    steps = math.ceil(epochs * steps_per_epoch(recipe, task, f"num_train_epochs={epochs:g}", "max_steps"))
    return recipe.model_copy(update={"max_steps": max(1, steps)})


def steps_per_epoch(recipe: Recipe, task: Task, key: str, instead: str) -> float:
    """Steps that see every training prompt once; not always a whole number. Raises TaskError, which names the key that
    needs it and another for endless tasks."""
    if not task.finite:
        raise TaskError(f"{key}: {task.name} generates prompts endlessly: set {instead} instead")
    return len({prompt.id for prompt in task.prompts("train", 0)}) / recipe.prompts_per_step


def fit_to_context(recipe: Recipe, task: Task, context: int, measure: Measure, notify: Callable[[str], None]) -> Task:
    """The task without prompts that leave no room for an answer in a context of so many tokens, or exceed the recipe's
    limit. Prompts of an endless task are only measured if the recipe sets a limit. Raises RecipeError, TaskError.
    """
    room = context - recipe.max_completion_length
    if room < 1:
        raise RecipeError(
            f"max_completion_length={recipe.max_completion_length} leaves no room for a prompt: the model's context is "
            f"{context} tokens"
        )
    if task.parts:

        def fitted(part: Part) -> Part:
            fits = fit_to_context(recipe, part.task, context, measure, lambda line: notify(f"{part.name}: {line}"))
            return replace(part, task=fits)

        return mix([fitted(part) for part in task.parts])
    if task.easier:
        easier = fit_to_context(recipe, task.easier, context, measure, lambda line: notify(f"curriculum: {line}"))
        task = replace(task, easier=easier)
    if not task.finite and recipe.max_prompt_length is None:
        return task
    return drop_long_prompts(task, measure, min(room, recipe.max_prompt_length or room), notify)


def drop_long_prompts(task: Task, measure: Measure, limit: int, notify: Callable[[str], None]) -> Task:
    """The task without prompts of more than `limit` tokens. Raises TaskError if none remains.

    A data set is measured now and its skipped prompts are reported. An endless task is measured as it is drawn from.
    """
    if not task.finite:
        return replace(task, keep=_LengthFilter(task.name, measure, limit))
    too_long: set[tuple[str, ...]] = set()
    for split in task.splits:
        prompts = list(task.prompts(split, 0))
        lengths = _lengths(prompts, measure, limit)
        if min(lengths) > limit:
            raise TaskError(
                f"{task.name}: all {len(prompts):,} {split} prompts are longer than {limit} tokens (the shortest has "
                f"{min(lengths)}): raise max_prompt_length, or lower max_completion_length to leave room in the context"
            )
        if num_long := sum(length > limit for length in lengths):
            notify(f"{num_long:,} of {len(prompts):,} {split} prompts are longer than {limit} tokens: skipped")
        too_long |= {_texts(prompt) for prompt, length in zip(prompts, lengths, strict=True) if length > limit}
    return replace(task, keep=lambda prompt: _texts(prompt) not in too_long) if too_long else task


def _lengths(prompts: Sequence[Prompt], measure: Measure, limit: int) -> list[int]:
    """Their numbers of tokens, or 0 for prompts that are certain to fit and need no measuring.

    A token is at least one byte of text. A chat template adds no more than one whole prompt has, plus a margin.
    """
    template = measure(prompts[:1])[0] + TEMPLATE_MARGIN
    lengths = [0] * len(prompts)
    uncertain = [i for i, p in enumerate(prompts) if template + sum(len(text.encode()) for text in _texts(p)) > limit]
    for i, length in zip(uncertain, measure([prompts[i] for i in uncertain]), strict=True):
        lengths[i] = length
    return lengths


def _texts(prompt: Prompt) -> tuple[str, ...]:
    tools = (json.dumps(prompt.meta["tools"]),) if prompt.meta.get("tools") else ()
    return (*(message["content"] for message in prompt.messages), *tools)


class _LengthFilter:
    """True for prompts that are short enough. Raises TaskError after too many in a row that are not."""

    def __init__(self, name: str, measure: Measure, limit: int) -> None:
        self.name, self.measure, self.limit, self.num_long = name, measure, limit, 0

    def __call__(self, prompt: Prompt) -> bool:
        fits = self.measure([prompt])[0] <= self.limit
        self.num_long = 0 if fits else self.num_long + 1
        if self.num_long == MAX_TOO_LONG:
            raise TaskError(f"{self.name}: {MAX_TOO_LONG:,} prompts in a row are longer than {self.limit} tokens")
        return fits
