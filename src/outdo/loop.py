"""The algorithm. Prompts become groups of answers, answers get grades, grades become advantages, advantages weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from outdo.algo.prepare import prepare, with_advantages
from outdo.config import Recipe
from outdo.grade.compose import Rewards, grade_all, halt_if_broken
from outdo.seeds import seed_of
from outdo.tasks.curriculum import Curriculum
from outdo.track.measure import Clock, measure
from outdo.types import Group, Learner, SampleParams, Sampler

Row = dict[str, float | None]


class Recorder(Protocol):
    def __call__(self, step: int, row: Row, groups: Sequence[Group]) -> None: ...


def run_loop(
    recipe: Recipe, curriculum: Curriculum, sampler: Sampler, rewards: Rewards, learner: Learner, record: Recorder
) -> None:
    """All steps of a run. `record` gets each step's signals and groups, and may raise to halt."""
    for step in range(recipe.max_steps):
        clock = Clock()
        tried, groups = collect(recipe, curriculum, sampler, rewards, step, clock)
        groups = with_advantages(
            groups, recipe.advantage_estimator, recipe.scale_rewards, penalties=learner.penalties(groups)
        )
        batch = prepare(groups, recipe.mask_truncated_completions)
        with clock("update"):
            learned = learner.update(batch, step)
        sampler.load(learner.weights(), version=step + 1)
        row = measure(tried, groups, learned, clock)
        curriculum.observe(row["informative"] or 0.0)
        record(step, row, groups)


def collect(
    recipe: Recipe, curriculum: Curriculum, sampler: Sampler, rewards: Rewards, step: int, clock: Clock
) -> tuple[list[Group], list[Group]]:
    """Graded groups of one step: all that were sampled, and those to train on.

    With `dynamic_sampling`, groups without spread are replaced by new prompts' until the step is full or the budget
    is spent; what is still missing then is made up from the ones without spread, so that a step keeps its size.
    """
    want = recipe.prompts_per_step
    params = SampleParams(recipe.max_completion_length, recipe.temperature, recipe.top_p, recipe.top_k)
    budget = int(want * recipe.max_resample) if recipe.dynamic_sampling else 0
    tried: list[Group] = []
    missing = want
    while missing:
        prompts = curriculum.draw(missing)
        seed = seed_of(recipe.seed, step, len(tried))
        with clock("rollout"):  # grading goes on beside it, from the first group that is done
            sampled = sampler.sample(prompts, recipe.num_generations, params, seed)
            tried += grade_all(sampled, rewards, waiting=clock("grade"))
        halt_if_broken(tried, recipe.broken_limit)
        alive = sum(group.has_spread for group in tried)
        missing = min(want - alive, budget) if recipe.dynamic_sampling else 0
        budget -= missing
    tried.sort(key=lambda group: group.prompt.id)  # samplers may hand groups on in any order
    return tried, sorted(tried, key=lambda group: not group.has_spread)[:want]
