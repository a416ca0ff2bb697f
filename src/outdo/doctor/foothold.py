"""Before training: whether there is anything to hold on to, and how large a group must be to see a spread."""

from __future__ import annotations

import math
from collections.abc import Sequence

SIZES = (4, 8, 16, 32)
NEVER, ALWAYS = 0.005, 0.995  # success at which nothing is learnt
TOO_HARD = (
    "  warning: the model is right almost never, so every group will be all wrong and nothing is learnt. "
    "Give it a longer warm-up (sft_steps), an easier start (curriculum_steps, curriculum_args), "
    "or a reward that also pays for part of the way"
)
TOO_EASY = (
    "  warning: the model is right almost always; there is nothing left to learn here: every group will be all right. "
    "Take harder prompts (task_args), or replace groups without spread (dynamic_sampling=true)"
)
HARD_BUT = (
    "  warning: the model is right almost never, so groups teach only where {} tells wrong answers apart. "
    "To teach what is right, take a longer warm-up (sft_steps) or an easier start (curriculum_steps, curriculum_args)"
)
EASY_BUT = (
    "  warning: the model is right almost always, so groups teach only where {} tells right answers apart. "
    "To teach more of what is right, take harder prompts (task_args)"
)


def spread(success: float, k: int, any_right: float, sizes: Sequence[int] = SIZES) -> dict[int, float]:
    """The share of groups with both right and wrong answers, for each G: 1 - p^G - (1-p)^G over prompts.

    How much prompts differ in p is told by the share with any right answer among k: p is taken to have a beta
    distribution with that mean and that share.
    """
    low, high = -7.0, 9.0  # the logarithm of how much prompts are alike
    for _ in range(60):
        middle = (low + high) / 2
        alike = math.exp(middle)
        low, high = (middle, high) if _power((1 - success) * alike, alike, k) > 1 - any_right else (low, middle)
    alike = math.exp((low + high) / 2)
    right, wrong = success * alike, (1 - success) * alike
    return {g: max(0.0, 1 - _power(right, alike, g) - _power(wrong, alike, g)) for g in sizes}


def _power(part: float, whole: float, g: int) -> float:
    """The mean of p^g where p has a beta distribution."""
    return math.prod((part + j) / (whole + j) for j in range(g))


def words(success: float, k: int, any_right: float, size: int, graded: Sequence[str] = ()) -> list[str]:
    """What to say of a model before it is trained with groups of that size. `graded` are the rewards that may pay
    answers differently that are all right or all wrong."""
    names = " or ".join(graded)
    if success < NEVER:
        return [HARD_BUT.format(names) if graded else TOO_HARD]
    if success > ALWAYS:
        return [EASY_BUT.format(names) if graded else TOO_EASY]
    if k < 2:
        return []
    found = spread(success, k, any_right, sorted({*SIZES, size}))
    shown = ", ".join(f"{share:.0%} with {g}" for g, share in found.items())
    lines = [f"  groups that would have spread, by num_generations (now {size}): {shown}"]
    better = next((g for g, share in found.items() if g > size and share >= 0.3), None)
    if found[size] < 0.15 and better:
        lines.append(f"  most groups would teach nothing: num_generations={better} would see more of a spread")
    return lines
