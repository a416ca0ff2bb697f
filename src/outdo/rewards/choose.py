"""Which rewards judge a task's answers: the recipe's, or the task's own; each part of a mixture has its own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from outdo.errors import GraderError, RecipeError
from outdo.recipe.schema import Recipe
from outdo.rewards.audit import refuse_unfit
from outdo.rewards.compose import Rewards, find_rewards
from outdo.rewards.registry import GRADERS
from outdo.tasks.task import Task

Own = Mapping[str, Callable[..., Any]]  # a user's functions by name
LOOKED_AT = 100  # prompts
IN_PART = ("code_fraction", "reasoning_gym_partial")  # verifiers that pay for part of the way
NOT_ASKED = ("tokens", "entry_point")  # columns that training gives, or that only some rows need


def rewards_of(recipe: Recipe, task: Task, own: Own) -> Rewards:
    """What the recipe rewards this task by. Raises RecipeError and GraderError."""
    if not task.parts:
        return _rewards(recipe, task, recipe.reward_funcs, recipe.reward_weights, own)
    each = {
        part.name: _rewards(
            recipe,
            part.task,
            part.reward_funcs or recipe.reward_funcs,
            part.reward_weights if part.reward_funcs else recipe.reward_weights,
            own,
        )
        for part in task.parts
    }
    return replace(next(iter(each.values())), by_part=each)


def refuse_unfit_rewards(rewards: Rewards, task: Task, seed: int) -> None:
    """Tries the rewards on the task's prompts, those of a mixture part by part. Raises GraderError."""
    for part in task.parts:
        refuse_unfit_rewards(rewards.by_part[part.name], part.task, seed)
    if not task.parts:
        _refuse_missing_columns(rewards, task, seed)
        refuse_unfit(rewards, lambda: task.prompts("train", seed))


def _refuse_missing_columns(rewards: Rewards, task: Task, seed: int) -> None:
    """A column that a built-in reward needs and no prompt has is named, before it is told of in the grader's words. Of
    data every row is looked at: one without its gold would halt the run when it comes up, hours later perhaps."""
    splits = [split for split in ("train", "test") if split in task.splits] if task.finite else ["train"]
    prompts = [
        prompt for split in splits for prompt in islice(task.prompts(split, seed), None if task.finite else LOOKED_AT)
    ]
    found = [{"prompt": prompt.text, "answer": prompt.answer, **prompt.meta} for prompt in prompts]
    have = dict.fromkeys(name for row in found for name, value in row.items() if _is_there(value))
    for part in rewards.parts:
        if part.grader is None or part.name == rewards.audit:
            continue
        for need in part.grader.needs:
            names = need.split(" or ")
            if need in NOT_ASKED or need.startswith("["):
                continue
            if not have.keys() & set(names):
                raise GraderError(
                    f"{part.name} needs the column `{need}`, and {task.name} has none of that name: it has "
                    f"{', '.join(have)}. Where it is called otherwise, columns.{need.split()[0]}=NAME says so"
                )
            without = [row["prompt"] for row in found if not any(_is_there(row.get(name)) for name in names)]
            if without:
                raise GraderError(
                    f"{part.name} needs the column `{need}`, and {len(without):,} of {len(found):,} prompts of "
                    f"{task.name} have none: fill it in, or take the row out. The first is {without[0]!r:.120}"
                )


def _is_there(value: object) -> bool:
    return value is not None and value == value  # JSON as Python writes it has NaN, which is not equal to itself


def dense_rewards(rewards: Rewards, right: bool) -> list[str]:
    """The rewards that may pay two answers differently although both are right, or both wrong: all that are paid beside
    the one that decides success, and that one where it pays for part of the way or is a user's own."""
    if rewards.by_part:
        return list(dict.fromkeys(name for part in rewards.by_part.values() for name in dense_rewards(part, right)))
    shut = rewards.gate if not right else ""
    paid = [part for part in rewards.parts if part.weight and shut in ("", part.name)]
    return [part.name for part in paid if part.name != rewards.truth or part.grader is None or part.name in IN_PART]


def truth_of(task: Task, names: Sequence[str], own: Collection[str] = ()) -> str:
    """The reward that decides success: the task's own verifier, else the first that was asked for and can judge."""
    if not task.rewards and not names:
        raise RecipeError(f"{task.name} has no verifier of its own: name one, such as reward_funcs=numeric or exact")
    for verifier in task.rewards[:1]:
        if verifier in own and verifier in GRADERS:
            raise GraderError(f"your own reward {verifier!r} has the name of the task's verifier: give it another name")
    judges = [name for name in names if name in own or name not in GRADERS or GRADERS[name].judges]
    return task.rewards[0] if task.rewards else (judges or names)[0]


def _rewards(recipe: Recipe, task: Task, funcs: Sequence[str], weights: Sequence[float], own: Own) -> Rewards:
    names = list(funcs or task.rewards)
    limits = recipe.max_completion_length, own, recipe.reward_gate, recipe.reward_timeout, recipe.audit_reward
    return find_rewards(names, weights if funcs else (), truth_of(task, names, own), *limits)
