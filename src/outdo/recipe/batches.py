"""Batches that groups fit: one is chosen where the recipe sets none, and one that cannot be is refused with the key to
set."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from outdo.errors import RecipeError
from outdo.recipe.schema import Recipe

SIZE = "per_device_train_batch_size"
# Keys that decide how many answers a step has, besides the size itself.
STEPS = ("steps_per_generation", "gradient_accumulation_steps")


def fitting_batch(merged: Mapping[str, Any], own: Mapping[str, Any], notify: Callable[[str], None]) -> dict[str, Any]:
    """The batch size where the user gave none and the group does not divide the default; nothing where it fits.

    `own` has the user's keys, `merged` also the defaults. The number of answers stays as near to the default as whole
    groups allow. Values of another type are left to the schema, which refuses them.
    """
    size = merged.get(SIZE, Recipe.model_fields[SIZE].default)
    group: Any = merged.get("num_generations")
    times: Any = next((merged[key] for key in STEPS if merged.get(key)), 1)
    given = any(own.get(key) is not None for key in (SIZE, "generation_batch_size"))
    if given or not all(map(_is_count, (size, group, times))):
        return {}
    unit = group // math.gcd(group, times)
    if size % unit == 0:
        return {}
    chosen = unit * max(1, round(size / unit))
    prompts = chosen * times // group
    notify(
        f"{SIZE}={chosen} is chosen, because num_generations={group} does not divide the default {size}: a step has "
        f"{prompts} prompt{'s' * (prompts > 1)} x {group} answers; set {SIZE} for another"
    )
    return {SIZE: chosen}


def refuse_batches(r: Recipe) -> None:
    """Raises RecipeError where groups do not fill a step, or updates do not, with values that would do."""
    batch, group = r.answers_per_step, r.num_generations
    if batch % group:
        raise RecipeError(
            f"num_generations={group} does not divide the {batch} answers of a step ({_product(r)}): "
            f"set {_fitting_key(r)}{_dividing(batch, group)}"
        )
    if batch % r.answers_per_update:
        update = r.answers_per_update
        raise RecipeError(
            f"a step of {batch} answers cannot be split into updates of {update} (per_device_train_batch_size x "
            f"gradient_accumulation_steps): make one a multiple of the other: set {_splitting_key(r)}"
        )


def _product(r: Recipe) -> str:
    if r.generation_batch_size is not None:
        return f"generation_batch_size={r.generation_batch_size}"
    key = next((key for key in STEPS if (getattr(r, key) or 1) > 1), None)
    return f"{SIZE}={r.per_device_train_batch_size}" + (f" x {key}={getattr(r, key)}" if key else "")


def _fitting_key(r: Recipe) -> str:
    """The key of the batch, with the smallest larger value that whole groups fill."""
    if r.generation_batch_size is not None:
        update = r.per_device_train_batch_size * r.gradient_accumulation_steps
        size = _next_multiple(r.generation_batch_size, r.num_generations)
        if size > update and size % update:
            size = _next_multiple(size, math.lcm(r.num_generations, update))
        return f"generation_batch_size={size}"
    unit = r.num_generations // math.gcd(r.num_generations, r.steps_per_generation or r.gradient_accumulation_steps)
    return f"{SIZE}={_next_multiple(r.per_device_train_batch_size, unit)}"


def _dividing(batch: int, group: int) -> str:
    """The group sizes nearest to `group` that divide the batch, as a second way."""
    fits = [n for n in range(2, batch + 1) if batch % n == 0]
    nearest = [n for n in fits if n < group][-1:] + [n for n in fits if n > group][:1]
    return f", or num_generations={' or '.join(map(str, nearest))}" if nearest else ""


def _splitting_key(r: Recipe) -> str:
    """The key of the step, with the next size that whole updates fill."""
    update, accumulated = r.answers_per_update, r.gradient_accumulation_steps
    if r.generation_batch_size is not None:
        return f"generation_batch_size={_next_multiple(r.generation_batch_size, math.lcm(update, r.num_generations))}"
    return f"steps_per_generation={_next_multiple(r.steps_per_generation or 1, accumulated)}"


def _next_multiple(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
