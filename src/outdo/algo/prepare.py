"""From grades to a batch: advantages inside each group, then the samples that the learner trains on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from outdo.algo.advantage import ESTIMATORS
from outdo.types import Batch, Group, Sample, Trajectory


def with_advantages(
    groups: Sequence[Group],
    estimator: str = "grpo",
    scale: str = "group",
    penalties: Sequence[Sequence[float]] | None = None,
) -> list[Group]:
    """The same groups with their advantages. `penalties`, one for each answer, are taken off the rewards first; what is
    divided by is the spread of the rewards alone.

    An answer whose penalty is no number gets an advantage that is none, so that no update is made of it.
    """
    if not groups:
        return []
    sizes = {len(group.grades) for group in groups}
    assert len(sizes) == 1, f"groups of one batch have one size, not {sorted(sizes)}"
    rewards = [reward for group in groups for reward in group.rewards]
    flat = [penalty for of_group in penalties or () for penalty in of_group] or [0.0] * len(rewards)
    paid = [None if r is None or not math.isfinite(p) else r - p for r, p in zip(rewards, flat, strict=True)]
    group_size = sizes.pop()
    advantages = ESTIMATORS[estimator](paid, group_size, scale, rewards if penalties else None).tolist()
    advantages = [a if math.isfinite(p) else math.nan for a, p in zip(advantages, flat, strict=True)]
    return [
        replace(group, advantages=tuple(advantages[i * group_size : (i + 1) * group_size]))
        for i, group in enumerate(groups)
    ]


def prepare(groups: Sequence[Group], mask_truncated: bool = False) -> Batch:
    """The batch of a step. Unjudged answers are left out, and with `mask_truncated` those cut off at the limit too."""
    samples = [
        as_sample(p, trajectory, advantage)
        for p, group in enumerate(groups)
        for trajectory, grade, advantage in zip(group.trajectories, group.grades, group.advantages, strict=True)
        if grade.verdict != "broken" and not (mask_truncated and trajectory.finish == "length")
    ]
    version = min(trajectory.version for group in groups for trajectory in group.trajectories)
    return Batch(tuple(group.prompt_ids for group in groups), tuple(samples), version)


def as_sample(prompt: int, trajectory: Trajectory, advantage: float = 0.0) -> Sample:
    """A trajectory as the learner takes it, as an answer to the batch's prompt of that index."""
    one = trajectory
    return Sample(prompt, one.token_ids, one.logprobs, advantage, one.support, one.mask)
