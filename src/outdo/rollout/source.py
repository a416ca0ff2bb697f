"""Where a step's groups come from: sampled when they are asked for, with the weights of that very step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from outdo.metrics.measure import Clock
from outdo.recipe.schema import Recipe
from outdo.rewards.compose import Rewards, halt_if_broken
from outdo.rollout.shares import Sample, sample_graded, sample_share
from outdo.rollout.stored import read_rounds, write_rounds
from outdo.seeds import seed_of
from outdo.tasks.curriculum import Curriculum
from outdo.types import Group, Prompt, Rollouts, SampleParams, Sampler, WeightSource

Rounds = list[list[Group]]  # sampled and not yet graded; what replaces groups without spread is a round of its own


class SyncSource:
    """Samples, grades and returns a step's groups. Rollouts of an interrupted step are kept and not sampled again."""

    max_staleness = 0

    def __init__(self, recipe: Recipe, curriculum: Curriculum, sampler: Sampler, rewards: Rewards) -> None:
        self.recipe, self.curriculum, self.sampler, self.rewards = recipe, curriculum, sampler, rewards
        self.pending: Rounds = []
        self._last: list[Group] = []  # sampled for the step in hand
        self._boundary = curriculum.state()

    def next(self, step: int) -> Rollouts:
        """Graded groups. With `dynamic_sampling`, groups without spread are replaced by new prompts' until the step is
        full or the budget is spent; the rest is filled up with groups without spread, so that a step keeps its size.

        Raises BrokenGraders where too many answers could not be judged.
        """
        recipe, clock = self.recipe, Clock()
        num_groups = recipe.prompts_per_step
        budget = int(num_groups * recipe.max_resample) if recipe.dynamic_sampling else 0
        sampled: list[Group] = []
        idle = getattr(self.sampler, "idle", None)  # of answers of several turns
        idle_before = idle.seconds if idle else 0.0
        missing, num_rounds = num_groups, 0
        while missing:
            prompts = self.curriculum.draw(missing)
            with clock("rollout"):  # grading runs beside it, from the first group that is done
                sample = self._sampling(prompts, step, num_rounds, seed_of(recipe.seed, step, len(sampled)))
                rewards = replace(self.rewards, step=step, num_steps=recipe.max_steps)
                sampled += sample_graded(prompts, sample, rewards, clock("grade"), partial(self._keep, num_rounds))
            num_rounds += 1
            halt_if_broken(sampled, recipe.broken_limit)
            informative = sum(group.has_spread for group in sampled)
            missing = min(num_groups - informative, budget) if recipe.dynamic_sampling else 0
            budget -= missing
        sampled.sort(key=lambda group: group.prompt.id)  # engines finish groups in any order
        self._last = sampled
        kept = sorted(sampled, key=lambda group: not group.has_spread)[:num_groups]
        waited = {"wait": idle.seconds - idle_before} if idle else {}
        return Rollouts(sampled, kept, {**clock.spent, **waited})

    def publish(self, learner: WeightSource, version: int) -> None:
        """Hands the weights to the engine, which has nothing to do where both share one model."""
        self.sampler.update(learner, version)
        without_spread = sum(not group.has_spread for group in self._last)
        self.curriculum.observe(1.0 - without_spread / max(len(self._last), 1), self._last)
        self.pending.clear()
        self._boundary = self.curriculum.state()

    def state(self) -> dict[str, Any]:
        return self._boundary

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.curriculum.load_state(state)
        self._boundary = self.curriculum.state()

    def pending_writer(self, name: str) -> Callable[[Path], None]:
        """Writes the rollouts as they are now into a file of that name, in a folder that is named later."""
        rounds = [list(groups) for groups in self.pending]
        return lambda folder: write_rounds(folder / name, rounds)

    def read_pending(self, path: Path) -> None:
        self.pending[:] = read_rounds(path)

    def _sampling(self, prompts: list[Prompt], step: int, index: int, seed: int) -> Sample:
        """How to sample a round: anew, or by taking what was sampled before an interrupt."""
        recipe = self.recipe
        if index < len(self.pending) and _matches(self.pending[index], prompts, recipe.num_generations, step):
            stored = {group.prompt.id: group for group in self.pending[index]}
            # Prompts are drawn again: one may hold what no file does.
            return lambda deal: [replace(stored[deal.prompts[i].id], prompt=deal.prompts[i]) for i in deal.share()]
        del self.pending[index:]
        params = sample_params(recipe, step)
        return lambda deal: sample_share(self.sampler, deal, recipe.num_generations, params, seed)

    def _keep(self, index: int, groups: list[Group]) -> None:
        """Once all are there, they are a round that need not be sampled again."""
        self.pending[index : index + 1] = [groups]


def sample_params(recipe: Recipe, step: int = 0) -> SampleParams:
    """How a recipe samples at that step."""
    truncation = recipe.top_p, recipe.top_k, recipe.min_p
    return SampleParams(recipe.max_completion_length, recipe.temperature_at(step), *truncation, stop=tuple(recipe.stop))


def _matches(groups: Sequence[Group], prompts: Sequence[Prompt], num_generations: int, step: int) -> bool:
    """Whether stored rollouts are what would be sampled now."""
    same_shape = all(len(g.trajectories) == num_generations and g.trajectories[0].version == step for g in groups)
    return same_shape and {g.prompt.id for g in groups} == {p.id for p in prompts}
