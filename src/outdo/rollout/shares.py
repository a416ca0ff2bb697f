"""Several processes sample one set of prompts: each its share, and all get all groups.

A group is sampled and graded in one process, as its siblings are compared; then it is sent to the others, so that every
process has the whole step: the same curriculum, advantages and metrics everywhere, whatever the number of processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from outdo.errors import EngineError, RecipeError
from outdo.parallel.world import World, get_world, set_common
from outdo.rewards.compose import Rewards, grade_step, graded
from outdo.rollout.deal import Deal
from outdo.types import Group, Prompt, SampleParams, Sampler, Trajectory

SAMPLING, GRADING = "sampling and grading", "grading"
Sample = Callable[[Deal], Iterable[Group]]
Waiting = AbstractContextManager[None] | None  # entered while only grades are outstanding


@dataclass(frozen=True)
class Share:
    """What one process sampled; graded too, unless a grader failed."""

    groups: tuple[Group, ...]
    error: BaseException | None = None


def sample_graded(
    prompts: Sequence[Prompt],
    sample: Sample,
    rewards: Rewards,
    waiting: Waiting = None,
    keep: Callable[[list[Group]], None] = lambda groups: None,
) -> Iterator[Group]:
    """The graded groups of all prompts; in one process, each once it and those before it are graded. `keep` gets all
    groups as soon as they are sampled, also where grading fails then."""
    world = get_world()
    if not world.is_shared:
        yield from graded(_kept(sample(Deal(prompts, world)), keep), rewards, waiting)
        return
    at_once = rewards.batch == "step"
    if at_once and rewards.needs_play:
        raise RecipeError(
            "reward_batch=step with a reward that reads `environments` works in one process only: the environments "
            "are where their answers were sampled. Use reward_batch=group"
        )
    mine = Deal(prompts, world)
    shares = world.gather(
        lambda: _share(world, sample(mine), None if at_once else rewards, waiting), SAMPLING, may_stop=True
    )
    groups = _in_order([group for share in shares for group in share.groups], prompts)
    keep([replace(group, grades=()) for group in groups])
    if error := next((share.error for share in shares if share.error), None):
        raise set_common(error)
    if at_once:
        grades = world.first(lambda: [group.grades for group in grade_step(groups, rewards)], GRADING)
        groups = [replace(group, grades=own) for group, own in zip(groups, grades, strict=True)]
    yield from groups


def sample_share(
    sampler: Sampler, deal: Deal, n: int, params: SampleParams, seed: int, at_once: int | None = None
) -> Iterator[Group]:
    """A process's groups, of up to `at_once` prompts in one call of the sampler. One that can draws from the deal
    while it samples; the others sample their share."""
    if deal.world.is_shared and at_once is None and (sample_dealt := getattr(sampler, "sample_dealt", None)):
        yield from sample_dealt(deal, n, params, seed)
        return
    prompts = [deal.prompts[place] for place in deal.share()]
    size = at_once or max(1, len(prompts))
    for start in range(0, len(prompts), size):
        yield from sampler.sample(prompts[start : start + size], n, params, seed)


def _kept(groups: Iterable[Group], keep: Callable[[list[Group]], None]) -> Iterator[Group]:
    sampled = []
    for group in groups:
        sampled.append(group)
        yield group
    keep(sampled)


def _share(world: World, groups: Iterable[Group], rewards: Rewards | None, waiting: Waiting) -> Share:
    """An error of a grader, once all is sampled, does not lose what was sampled."""
    sampled: list[Group] = []
    try:
        done = list(
            _kept(groups, sampled.extend)
            if rewards is None
            else graded(_kept(groups, sampled.extend), rewards, waiting)
        )
    except BaseException as error:
        if not sampled:
            raise
        return Share(tuple(map(_portable, sampled)), world.portable(error))
    return Share(tuple(map(_portable, done)))


def _portable(group: Group) -> Group:
    """Without what the others have, or cannot get: of the prompt only its id, and no object of the user's."""
    answers = tuple(map(_without_objects, group.trajectories))
    return replace(group, prompt=Prompt(group.prompt.id, ()), trajectories=answers)


def _without_objects(one: Trajectory) -> Trajectory:
    if one.episode is None or one.episode.environment is None:
        return one
    return replace(one, episode=replace(one.episode, environment=None))


def _in_order(groups: Sequence[Group], prompts: Sequence[Prompt]) -> list[Group]:
    """With their prompts, in the order of these: it does not depend on who sampled them."""
    by_id = {group.prompt.id: group for group in groups}
    if missing := [prompt.id for prompt in prompts if prompt.id not in by_id]:
        raise EngineError(f"no process sampled {len(missing)} of {len(prompts)} prompts; the first: {missing[0]}")
    return [replace(by_id[prompt.id], prompt=prompt) for prompt in prompts]
