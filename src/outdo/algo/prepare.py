"""From grades to a batch: advantages inside each group, then the samples to train on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

from outdo.algo.advantage import CORRECTIONS, ESTIMATORS
from outdo.types import Batch, Group, Sample, Trajectory


def with_advantages(
    groups: Sequence[Group],
    estimator: str = "grpo",
    scale: str = "group",
    penalties: Sequence[Sequence[float]] | None = None,
    eps: float = 1e-4,
    std: str = "population",
) -> list[Group]:
    """The same groups with their advantages. `penalties`, one per answer, are subtracted from the rewards first; the
    divisor is the spread of the rewards alone: their `std`, population or sample, plus `eps`.

    An answer with a non-finite penalty gets the advantage NaN, so that its update is skipped.
    """
    if not groups:
        return []
    sizes = {len(group.grades) for group in groups}
    assert len(sizes) == 1, f"groups of one batch have one size, not {sorted(sizes)}"
    rewards = [reward for group in groups for reward in group.rewards]
    flat = [penalty for group_penalties in penalties or () for penalty in group_penalties] or [0.0] * len(rewards)
    penalised = [None if r is None or not math.isfinite(p) else r - p for r, p in zip(rewards, flat, strict=True)]
    group_size = sizes.pop()
    divisor = {"eps": eps, "correction": CORRECTIONS[std]}
    estimated = ESTIMATORS[estimator](penalised, group_size, scale, rewards if penalties else None, **divisor)
    advantages = estimated.tolist()
    advantages = [a if math.isfinite(p) else math.nan for a, p in zip(advantages, flat, strict=True)]
    values = iter(advantages)
    return [replace(group, advantages=tuple(islice(values, group_size))) for group in groups]


def prepare(groups: Sequence[Group], mask_truncated: bool = False) -> Batch:
    """The batch of a step, without unjudged answers and, with `mask_truncated`, without truncated ones."""
    samples = [
        as_sample(p, trajectory, advantage)
        for p, group in enumerate(groups)
        for trajectory, grade, advantage in zip(group.trajectories, group.grades, group.advantages, strict=True)
        if grade.verdict != "broken" and not (mask_truncated and trajectory.finish == "length")
    ]
    version = min(trajectory.version for group in groups for trajectory in group.trajectories)
    return Batch(tuple(group.prompt_ids for group in groups), tuple(samples), version)


def as_sample(prompt: int, trajectory: Trajectory, advantage: float = 0.0) -> Sample:
    """The learner's sample of a trajectory; `prompt` is the index of its prompt in the batch."""
    t = trajectory
    return Sample(prompt, t.token_ids, t.logprobs, advantage, t.support, t.mask)
