"""Before training: settings of a recipe that make a failure likely, and what to set instead. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from outdo.recipe.schema import Recipe

# Adam's rates for GRPO fall with the square root of the size. Full updates: 8e-4 for a million parameters, 7e-5 for
# 135 million, 2e-5 for 1.5 billion; adapters take ten times that. A rate past the limit is four times a usual one.
FULL_LIMIT, FULL_SIZE, FULL_FLOOR = 8e-4, 1e6, 5e-6
ADAPTER_FACTOR, ADAPTER_FLOOR, ADAPTER_MOST = 10.0, 2e-4, 5e-3
USUAL = 4.0  # a limit is so many times the rate that is proposed
COLD = 0.3  # temperature below which the answers of a group are copies


def check_recipe(recipe: Recipe | Mapping[str, Any], num_parameters: int | None = None) -> list[str]:
    """A line for each setting: what is wrong with it, and what to set instead. Empty for a sound recipe.

    `num_parameters` is of the whole model, without an adapter; None: the learning rate is not checked.
    """
    keys = recipe.model_dump() if isinstance(recipe, Recipe) else recipe
    return [*_rate(keys, num_parameters), *_groups(keys), *_temperature(keys), *_weights(keys)]


def rate_limit(num_parameters: int, adapter: bool) -> float:
    """The learning rate past which the policy is likely to break."""
    full = max(FULL_LIMIT * (FULL_SIZE / max(num_parameters, 1)) ** 0.5, FULL_FLOOR)
    return min(max(ADAPTER_FACTOR * full, ADAPTER_FLOOR), ADAPTER_MOST) if adapter else full


def _rate(keys: Mapping[str, Any], num_parameters: int | None) -> Iterator[str]:
    rate, optimizer = keys.get("learning_rate"), str(keys.get("optim") or "adamw")
    if rate is None or num_parameters is None or "adam" not in optimizer.lower():
        return
    adapter = bool(keys.get("use_peft"))
    limit = rate_limit(num_parameters, adapter)
    if rate > limit:
        mode = "an adapter of a model" if adapter else "all weights of a model"
        yield (
            f"learning_rate={rate:g} is high for {mode} with {num_parameters:,} parameters, and may destroy it in the "
            f"first updates: set learning_rate={limit / USUAL:.0e}, and at most {limit:.0e}"
        )


def _groups(keys: Mapping[str, Any]) -> Iterator[str]:
    if keys.get("num_generations") == 2:
        yield (
            "num_generations=2: an answer is compared with one other, so most groups have no spread and the others "
            "give +1 and -1 whatever the rewards: set num_generations=8"
        )


def _temperature(keys: Mapping[str, Any]) -> Iterator[str]:
    lowest = min(value for value in (keys.get("temperature"), keys.get("temperature_end"), 1.0) if value is not None)
    if lowest < COLD:
        key = "temperature_end" if keys.get("temperature_end") == lowest else "temperature"
        yield f"{key}={lowest:g}: the answers of a group will be copies, and nothing is learned: set {key}=1"


def _weights(keys: Mapping[str, Any]) -> Iterator[str]:
    """Of the first reward, which is the task's, and those beside it. Behind a gate they are paid for right answers."""
    weights, funcs = keys.get("reward_weights") or [], keys.get("reward_funcs") or []
    if keys.get("reward_gate") or len(weights) < 2:
        return
    largest = max(range(1, len(weights)), key=lambda index: abs(weights[index]))
    if abs(weights[largest]) > abs(weights[0]) > 0:
        first, other = (funcs[index] if index < len(funcs) else f"reward {index + 1}" for index in (0, largest))
        lower = [weights[0], *(min(weight, 0.2 * weights[0]) for weight in weights[1:])]
        yield (
            f"reward_weights: {other} weighs {weights[largest]:g} and {first}, the first, {weights[0]:g}, so {other} "
            f"is learned at its cost: set reward_weights=[{','.join(f'{weight:g}' for weight in lower)}], or "
            f"reward_gate={first}"
        )
