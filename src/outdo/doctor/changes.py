"""Changes of a recipe. None is derived from a value that is not known: then it is given in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outdo.doctor.finding import Change

Keys = Mapping[str, Any]  # a recipe; of another trainer only what its log shows


def set_key(recipe: Keys, key: str, new: Any) -> Change:
    """A change to a value that does not depend on the one now."""
    return Change(key, recipe.get(key), new)


def scale_key(recipe: Keys, key: str, factor: float, least: float | None = None) -> Change:
    """A change by a factor; to `least` where the value now is 0 or the result is below that."""
    if key not in recipe:
        way, times = ("raise", factor) if factor > 1 else ("lower", 1 / factor)
        least_words = f", at least to {least:g}" if least is not None and factor > 1 else ""
        return Change(key, None, None, f"{way} {key} {times:.3g}×{least_words}")
    old = recipe[key] or 0
    new = max(float(f"{old * factor:.3g}"), least or 0)
    return Change(key, recipe[key], int(new) if isinstance(old, int) and least is None else new)


def lower_rate(recipe: Keys, by: float) -> Change:
    return scale_key(recipe, "learning_rate", 1 / by)


def raise_beta(recipe: Keys) -> Change:
    return scale_key(recipe, "beta", 4, least=0.04)


def fits_batch(size: int, recipe: Keys) -> bool:
    """Whether the batch divides into groups of that size; assumed where another trainer's batch is unknown."""
    rows = recipe.get("per_device_train_batch_size")
    multiple = recipe.get("steps_per_generation") or recipe.get("gradient_accumulation_steps") or 1
    batch = recipe.get("generation_batch_size") or (rows * multiple if rows else size)
    return int(batch) % size == 0


def higher_temperature(recipe: Keys, factor: float = 1.25) -> Change:
    """A higher temperature; where it decays during the run, no decay."""
    start, end = recipe.get("temperature"), recipe.get("temperature_end")
    if start is None:
        return scale_key({}, "temperature", factor)
    if end is not None and end < start:
        return set_key(recipe, "temperature_end", start)
    return set_key(recipe, "temperature", round(factor * float(start), 2))


def larger_groups(recipe: Keys) -> Change:
    """Larger groups where the batch divides into them, else a larger batch."""
    if not recipe.get("num_generations"):
        return scale_key({}, "num_generations", 2)
    size = 2 * int(recipe["num_generations"])
    if fits_batch(size, recipe):
        return set_key(recipe, "num_generations", size)
    key = "generation_batch_size" if recipe.get("generation_batch_size") else "per_device_train_batch_size"
    return set_key(recipe, key, 2 * int(recipe[key]))
