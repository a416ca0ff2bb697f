"""Selects the rewards of a run: the recipe's, or the task's own; each part of a mixture has its own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from outdo.errors import GraderError, RecipeError, did_you_mean
from outdo.recipe.reward_names import canonical_reward
from outdo.recipe.schema import Recipe
from outdo.rewards.audit import refuse_unfit
from outdo.rewards.compose import Rewards, find_rewards
from outdo.rewards.registry import GRADERS
from outdo.tasks.task import Part, Task

Own = Mapping[str, Callable[..., Any]]  # a user's functions by name
MAX_PROMPTS = 100  # of an endless task, checked for missing columns
PARTIAL = (
    "code_fraction",
    "reasoning_gym_partial",
    "llm_judge",
    "environment",
)  # verifiers that score partly right answers
UNCHECKED = ("tokens", "entry_point", "environment")  # columns that training adds, or that only some rows need


def rewards_of(recipe: Recipe, task: Task, own: Own) -> Rewards:
    """The rewards of this recipe and task. Raises RecipeError and GraderError."""
    if not task.parts:
        rewards = _rewards(recipe, task, recipe.reward_funcs, recipe.reward_weights, own)
        _refuse_unused_args(recipe, rewards)
        return rewards
    by_part = {}
    for part in task.parts:
        named: Part | Recipe = part if part.reward_funcs else recipe
        by_part[part.name] = _rewards(recipe, part.task, named.reward_funcs, named.reward_weights, own)
    _refuse_unused_args(recipe, *by_part.values())
    return replace(next(iter(by_part.values())), by_part=by_part)


def _refuse_unused_args(recipe: Recipe, *rewards: Rewards) -> None:
    names = list(dict.fromkeys(part.name for each in rewards for part in each.parts))
    for name in recipe.reward_args:
        if name not in names:
            meant = did_you_mean(name, names)
            raise RecipeError(
                f"reward_args.{name}: no reward of this run has that name{meant}; it has {', '.join(names)}"
            )


def refuse_unfit_rewards(rewards: Rewards, task: Task, seed: int) -> list[str]:
    """Audits the rewards on the task's prompts, a mixture part by part. Returns what could not be tested. Raises
    GraderError."""
    parts = [refuse_unfit_rewards(rewards.by_part[part.name], part.task, seed) for part in task.parts]
    if task.easier:
        parts.append(refuse_unfit_rewards(rewards, task.easier, seed))
    if not task.parts:
        _refuse_missing_columns(rewards, task, seed)
        parts.append(list(filter(None, [refuse_unfit(rewards, lambda: task.prompts("train", seed))])))
    return [note for notes in parts for note in notes]


def _refuse_missing_columns(rewards: Rewards, task: Task, seed: int) -> None:
    """Raises GraderError for a column that a built-in reward needs and a prompt lacks.

    Of a data set every row is checked: one without its gold answer would halt the run only when it is drawn.
    """
    splits = [split for split in ("train", "test") if split in task.splits] if task.finite else ["train"]
    most = None if task.finite else MAX_PROMPTS
    prompts = [prompt for split in splits for prompt in islice(task.prompts(split, seed), most)]
    rows = [{"prompt": prompt.text, "answer": prompt.answer, **prompt.meta} for prompt in prompts]
    present = dict.fromkeys(name for row in rows for name, value in row.items() if _is_present(value))
    for part in rewards.parts:
        needs = part.grader.needs if part.grader and part.name != rewards.audit else ()
        for need in (need for need in needs if need not in UNCHECKED and not need.startswith("[")):
            names = need.split(" or ")
            if not present.keys() & set(names):
                raise GraderError(
                    f"{part.name} needs the column `{need}`, which {task.name} lacks: it has {', '.join(present)}. "
                    f"Set columns.{need.split()[0]}=NAME where it has another name"
                )
            lacking = [row["prompt"] for row in rows if not any(_is_present(row.get(name)) for name in names)]
            if lacking:
                raise GraderError(
                    f"{part.name} needs the column `{need}`, and {len(lacking):,} of {len(rows):,} prompts of "
                    f"{task.name} lack it: fill it in, or remove the rows. The first is {lacking[0]!r:.120}"
                )


def _is_present(value: object) -> bool:
    return value is not None and value == value  # NaN, which Python's JSON may hold, is not equal to itself


def dense_rewards(rewards: Rewards, right: bool) -> list[str]:
    """The rewards that may differ between two right answers, or between two wrong ones.

    These are all with a weight beside the truth, and the truth where it gives partial credit or is a user's function.
    """
    if rewards.by_part:
        return list(dict.fromkeys(name for part in rewards.by_part.values() for name in dense_rewards(part, right)))
    closed = rewards.gate if not right else ""
    weighted = [part for part in rewards.parts if part.weight and closed in ("", part.name)]
    return [part.name for part in weighted if part.name != rewards.truth or part.grader is None or part.name in PARTIAL]


def truth_of(task: Task, names: Sequence[str], own: Collection[str] = ()) -> str:
    """The reward that decides success: the task's own verifier, else the first name that can judge."""
    if not task.rewards and not names:
        raise RecipeError(f"{task.name} has no verifier of its own: name one, such as reward_funcs=numeric or exact")
    for verifier in task.rewards[:1]:
        if verifier in own and verifier in GRADERS:
            raise GraderError(f"your own reward {verifier!r} has the name of the task's verifier: give it another name")
    judges = [name for name in names if name in own or name not in GRADERS or GRADERS[name].judges]
    return task.rewards[0] if task.rewards else (judges or names)[0]


def _rewards(recipe: Recipe, task: Task, funcs: Sequence[str], weights: Sequence[float], own: Own) -> Rewards:
    names = [name if name in own else canonical_reward(name) for name in funcs or task.rewards]
    limits = recipe.max_completion_length, own, recipe.reward_gate, recipe.reward_timeout, recipe.audit_reward
    options: dict[str, Any] = {"batch": recipe.reward_batch, "input": recipe.reward_input, "args": recipe.reward_args}
    truth = truth_of(task, names, own)
    return find_rewards(names, weights if funcs else (), truth, *limits, recipe.pass_threshold, **options)
