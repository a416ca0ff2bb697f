"""The algorithm. Prompts become groups of answers, answers get grades, grades become advantages, advantages weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Protocol

from outdo.algo.prepare import prepare, with_advantages
from outdo.errors import NumericsError
from outdo.metrics.measure import Clock, measure
from outdo.recipe.schema import Recipe
from outdo.rewards.compose import Rewards, grade_all, halt_if_broken
from outdo.seeds import seed_of
from outdo.tasks.curriculum import Curriculum
from outdo.types import Group, Learner, Prompt, SampleParams, Sampler

Row = dict[str, float | None]
Rounds = list[list[Group]]  # what was sampled for a step, before it was graded; refills are rounds of their own


class Recorder(Protocol):
    """Who is told what happened, and may raise to halt."""

    def record(self, step: int, row: Row, groups: Sequence[Group]) -> None:
        """A step is done."""

    def after(self, done: int) -> None:
        """So many steps are done, and nothing is half done."""

    def failed(self, step: int, groups: Sequence[Group]) -> None:
        """The update with these answers went wrong, and the run is about to halt."""


def run_loop(
    recipe: Recipe,
    curriculum: Curriculum,
    sampler: Sampler,
    rewards: Rewards,
    learner: Learner,
    recorder: Recorder,
    *,
    start: int = 0,
    made: Rounds | None = None,
    undivided: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> None:
    """The steps of a run from `start` on. `made` holds the rollouts of the step in hand, those of before included."""
    made = [] if made is None else made
    for step in range(start, recipe.max_steps):
        clock = Clock()
        tried, groups = collect(recipe, curriculum, sampler, rewards, step, clock, made)
        groups = with_advantages(
            groups, recipe.advantage_estimator, recipe.scale_rewards, penalties=learner.penalties(groups)
        )
        batch = prepare(groups, recipe.mask_truncated_completions)
        with undivided():  # weights, counts and rows change together
            try:
                with clock("update"):
                    learned = learner.update(batch, step)
            except NumericsError:
                recorder.failed(step, groups)
                raise
            sampler.update(learner, version=step + 1)
            row = measure(tried, groups, learned, clock, rewards.audit)
            curriculum.observe(row["informative"] or 0.0, tried)
            made.clear()
            recorder.record(step, row, groups)
        recorder.after(step + 1)


def collect(
    recipe: Recipe,
    curriculum: Curriculum,
    sampler: Sampler,
    rewards: Rewards,
    step: int,
    clock: Clock,
    made: Rounds,
) -> tuple[list[Group], list[Group]]:
    """Graded groups of one step: all that were sampled, and those to train on.

    With `dynamic_sampling`, groups without spread are replaced by new prompts' until the step is full or the budget
    is spent; what is still missing then is made up from the ones without spread, so that a step keeps its size.
    """
    want = recipe.prompts_per_step
    how = (recipe.temperature_at(step), recipe.top_p, recipe.top_k, recipe.min_p, tuple(recipe.stop))
    params = SampleParams(recipe.max_completion_length, *how)
    budget = int(want * recipe.max_resample) if recipe.dynamic_sampling else 0
    tried: list[Group] = []
    missing, rounds = want, 0
    while missing:
        prompts = curriculum.draw(missing)
        seed = seed_of(recipe.seed, step, len(tried))
        with clock("rollout"):  # grading goes on beside it, from the first group that is done
            if rounds < len(made) and fits(made[rounds], prompts, recipe.num_generations, step):
                sampled: Iterable[Group] = with_prompts(made[rounds], prompts)
            else:
                del made[rounds:]
                sampled = kept(sampler.sample(prompts, recipe.num_generations, params, seed), made)
            tried += grade_all(sampled, rewards, waiting=clock("grade"))
        rounds += 1
        halt_if_broken(tried, recipe.broken_limit)
        alive = sum(group.has_spread for group in tried)
        missing = min(want - alive, budget) if recipe.dynamic_sampling else 0
        budget -= missing
    tried.sort(key=lambda group: group.prompt.id)  # samplers may hand groups on in any order
    return tried, sorted(tried, key=lambda group: not group.has_spread)[:want]


def kept(groups: Iterable[Group], made: Rounds) -> Iterator[Group]:
    """The same groups; when all have come they are a round that need not be sampled again."""
    so_far = []
    for group in groups:
        so_far.append(group)
        yield group
    made.append(so_far)


def fits(groups: Sequence[Group], prompts: Sequence[Prompt], num_generations: int, step: int) -> bool:
    """Whether rollouts of before are what would be sampled now."""
    answers = all(len(g.trajectories) == num_generations and g.trajectories[0].version == step for g in groups)
    return answers and {g.prompt.id for g in groups} == {p.id for p in prompts}


def with_prompts(groups: Sequence[Group], prompts: Sequence[Prompt]) -> list[Group]:
    """Rollouts of before, with the prompts that are drawn again: a prompt may hold what no file does."""
    by_id = {prompt.id: prompt for prompt in prompts}
    return [replace(group, prompt=by_id[group.prompt.id]) for group in groups]
