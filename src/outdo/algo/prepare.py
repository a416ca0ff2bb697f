"""From grades to a batch: advantages inside each group, then the samples to train on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

from torch import Tensor

from outdo.algo.advantage import CORRECTIONS, ESTIMATORS, gdpo_advantages
from outdo.types import Batch, Group, Sample, Trajectory


def with_advantages(
    groups: Sequence[Group],
    estimator: str = "grpo",
    scale: str = "group",
    penalties: Sequence[Sequence[float]] | None = None,
    eps: float = 1e-4,
    std: str = "population",
    weights: Sequence[Mapping[str, float]] | None = None,
) -> list[Group]:
    """The same groups with their advantages. `penalties`, one per answer, are subtracted from the rewards first; the
    divisor is the spread of the rewards alone: their `std`, population or sample, plus `eps`.

    `weights`, those of the rewards of each group by name, normalise each reward by itself (GDPO) in place of the
    estimator. An answer with a non-finite penalty gets the advantage NaN, so that its update is skipped.
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
    if weights is None:
        estimated = ESTIMATORS[estimator](penalised, group_size, scale, rewards if penalties else None, **divisor)
    else:
        estimated = _of_each_reward(groups, weights, group_size, divisor)
    advantages = estimated.tolist()
    advantages = [a if math.isfinite(p) else math.nan for a, p in zip(advantages, flat, strict=True)]
    values = iter(advantages)
    return [replace(group, advantages=tuple(islice(values, group_size))) for group in groups]


def _of_each_reward(
    groups: Sequence[Group], weights: Sequence[Mapping[str, float]], size: int, divisor: Mapping[str, Any]
) -> Tensor:
    """GDPO's advantages. Tasks of a mixture may pay different rewards, or one with different weights: each pair of a
    name and a weight is a reward, which says nothing of the answers to other tasks."""
    names = dict.fromkeys((name, weight) for own in weights for name, weight in own.items() if weight)
    parts = [
        (
            weight,
            [
                grade.parts.get(name) if own.get(name) == weight else None
                for group, own in zip(groups, weights, strict=True)
                for grade in group.grades
            ],
        )
        for name, weight in names
    ]
    judged = [reward is not None for group in groups for reward in group.rewards]
    return gdpo_advantages(parts, judged, size, **divisor)


class Owned(NamedTuple):
    """A sample, and whose it is: the index of its group, and of its trajectory in that."""

    sample: Sample
    group: int
    trajectory: int


def prepare(groups: Sequence[Group], mask_truncated: bool = False) -> Batch:
    """The batch of a step, without unjudged answers and, with `mask_truncated`, without truncated ones."""
    prompts, owned = samples_of(groups)
    samples, group_of = [], dict(enumerate(range(len(groups))))
    for sample, g, t in owned:
        group = groups[g]
        group_of[sample.prompt] = g
        is_cut = mask_truncated and group.trajectories[t].finish == "length"
        if group.grades[t].verdict != "broken" and not is_cut:
            samples.append(replace(sample, advantage=group.advantages[t]))
    version = min(trajectory.version for group in groups for trajectory in group.trajectories)
    return Batch(prompts, tuple(samples), version, tuple(group_of[prompt] for prompt in range(len(prompts))))


def samples_of(groups: Sequence[Group]) -> tuple[tuple[tuple[int, ...], ...], list[Owned]]:
    """The prompts of a batch and its samples, without advantages. Samples of one prompt are neighbours: a trajectory's
    branch with a prompt of its own comes after all that answer the group's. One without a token is left out."""
    prompts, owned = [group.prompt_ids for group in groups], []
    for g, group in enumerate(groups):
        own = []
        for t, trajectory in enumerate(group.trajectories):
            for branch in filter(lambda branch: branch.num_tokens, trajectory.branches):
                prompt_ids = branch.segments[0].prompt_ids
                if prompt_ids is None:
                    owned.append(Owned(_sample(g, branch), g, t))
                else:
                    own.append(Owned(_sample(len(prompts), branch), g, t))
                    prompts.append(prompt_ids)
        owned += own
    return tuple(prompts), owned


def _sample(prompt: int, branch: Trajectory) -> Sample:
    return Sample(prompt, branch.token_ids, branch.logprobs, 0.0, branch.support, branch.mask)
