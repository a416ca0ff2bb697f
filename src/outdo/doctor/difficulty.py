"""Before training: whether the task is too hard or too easy to learn from, and how large a group should be."""

from __future__ import annotations

import math
from collections.abc import Sequence

SIZES = (4, 8, 16, 32)
TOO_HARD_BELOW, TOO_EASY_ABOVE = 0.005, 0.995  # success
TOO_HARD = (
    "  warning: the model is almost never right, so every group will be all wrong and nothing is learned. "
    "Use a longer SFT warm-up (sft_steps), an easier start (curriculum_steps, curriculum_args), "
    "or a reward that pays for partial progress"
)
TOO_EASY = (
    "  warning: the model is almost always right, so every group will be all right and nothing is learned. "
    "Use harder prompts (task_args), or replace groups without spread (dynamic_sampling=true)"
)
HARD_BUT_GRADED = (
    "  warning: the model is almost never right, so groups are informative only where {} ranks wrong answers. "
    "To learn right answers, use a longer SFT warm-up (sft_steps) or an easier start (curriculum_steps, "
    "curriculum_args)"
)
EASY_BUT_GRADED = (
    "  warning: the model is almost always right, so groups are informative only where {} ranks right answers. "
    "To learn more right answers, use harder prompts (task_args)"
)


def spread(success: float, k: int, any_right: float, sizes: Sequence[int] = SIZES) -> dict[int, float]:
    """The fraction of groups with both right and wrong answers, for each group size G: 1 - p^G - (1-p)^G over prompts.

    p is assumed to have a beta distribution over prompts with mean `success`; its concentration is fitted to
    `any_right`, the fraction of prompts with a right answer among k.
    """
    low, high = -7.0, 9.0  # log of the concentration
    for _ in range(60):
        middle = (low + high) / 2
        total = math.exp(middle)
        low, high = (middle, high) if _moment((1 - success) * total, total, k) > 1 - any_right else (low, middle)
    total = math.exp((low + high) / 2)
    right, wrong = success * total, (1 - success) * total
    return {g: max(0.0, 1 - _moment(right, total, g) - _moment(wrong, total, g)) for g in sizes}


def _moment(a: float, total: float, g: int) -> float:
    """The mean of p^g where p has the beta distribution (a, total - a)."""
    return math.prod((a + j) / (total + j) for j in range(g))


def describe_difficulty(success: float, k: int, any_right: float, size: int, graded: Sequence[str] = ()) -> list[str]:
    """Lines about a model before it is trained with groups of that size. `graded` are the rewards that can pay answers
    differently that are all right or all wrong."""
    names = " or ".join(graded)
    if success < TOO_HARD_BELOW:
        return [HARD_BUT_GRADED.format(names) if graded else TOO_HARD]
    if success > TOO_EASY_ABOVE:
        return [EASY_BUT_GRADED.format(names) if graded else TOO_EASY]
    if k < 2:
        return []
    shares = spread(success, k, any_right, sorted({*SIZES, size}))
    listed = ", ".join(f"{share:.0%} with {g}" for g, share in shares.items())
    lines = [f"  expected groups with spread, by num_generations (now {size}): {listed}"]
    better = next((g for g, share in shares.items() if g > size and share >= 0.3), None)
    if shares[size] < 0.15 and better:
        lines.append(f"  most groups would have no spread: num_generations={better} would give more of them spread")
    return lines
