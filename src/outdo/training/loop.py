"""The algorithm. Prompts become groups of answers, answers get grades, grades become advantages, advantages weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from outdo.algo.prepare import prepare, with_advantages
from outdo.errors import NumericsError, RecipeError
from outdo.metrics.measure import Clock, Metrics, measure
from outdo.recipe.schema import Recipe
from outdo.types import Group, Learner, Prompt, RolloutSource

WeightsOf = Callable[[Prompt], Mapping[str, float]]


class Events(Protocol):
    """Who is notified of what happens. All of them may raise to halt the run."""

    def step(self, step: int, metrics: Metrics, groups: Sequence[Group]) -> None:
        """A step is done: its signals, and the groups that were trained on."""

    def step_end(self, done: int) -> bool:
        """`done` steps are complete and nothing is half done. False: stop here."""

    def step_failed(self, step: int, groups: Sequence[Group]) -> None:
        """The update with these groups failed, and the run is about to halt."""


def run_loop(
    recipe: Recipe,
    source: RolloutSource,
    learner: Learner,
    events: Events,
    *,
    start: int = 0,
    audit_reward: str = "",
    weights_of: WeightsOf | None = None,
    uninterruptible: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> None:
    """The steps of a run from `start` on. `audit_reward` names a reward that is measured and never trained on;
    `weights_of` a prompt are those of its rewards, where each is normalised by itself."""
    for step in range(start, recipe.max_steps):
        clock = Clock()
        rollouts = source.next(step)
        groups = _with_advantages(recipe, learner, rollouts.groups, weights_of)
        batch = prepare(groups, recipe.mask_truncated_completions)
        with uninterruptible():  # weights, positions and rows change together
            try:
                with clock("update"):
                    stats = learner.update(batch, step)
            except NumericsError:
                events.step_failed(step, groups)
                raise
            source.publish(learner, version=step + 1)
            clock.spent = {**rollouts.seconds, **clock.spent}
            events.step(step, measure(rollouts.sampled, groups, stats, clock, audit_reward), groups)
        if not events.step_end(step + 1):
            return


def _with_advantages(
    recipe: Recipe, learner: Learner, groups: Sequence[Group], weights_of: WeightsOf | None
) -> list[Group]:
    how = recipe.advantage_estimator, recipe.scale_rewards, learner.penalties(groups), recipe.adv_eps, recipe.adv_std
    weights = [weights_of(group.prompt) for group in groups] if weights_of else None
    try:
        return with_advantages(groups, *how, weights)
    except ValueError as error:  # rewards that the estimator cannot use
        raise RecipeError(str(error)) from None
