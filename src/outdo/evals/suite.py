"""An eval suite: the splits of one or several tasks that a model is evaluated on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from outdo.errors import RecipeError, TaskError
from outdo.evals.held_out import Progress, no_progress, sample_and_grade, summarize
from outdo.evals.report import EvalResult
from outdo.evals.settings import EvalSettings
from outdo.models.load import Policy
from outdo.recipe.schema import Recipe
from outdo.rewards.compose import find_rewards
from outdo.rollout import make_sampler
from outdo.rollout.play import Play, play_of
from outdo.serve.agents import agent_of
from outdo.tasks.task import Task, find_task, held_out
from outdo.types import Prompt, RewardFunction


@dataclass(frozen=True)
class EvalSplit:
    """The problems of one split of a task, and the reward that judges answers to them."""

    task: str
    split: str
    prompts: list[Prompt]
    reward: str
    functions: Mapping[str, RewardFunction] = field(default_factory=dict)  # rewards given as objects, by name
    options: Mapping[str, Any] = field(default_factory=dict)  # further ones of `find_rewards`
    play: Play | None = None  # of answers of several turns


def build_eval_suite(
    tasks: Sequence[str | Task],
    splits: Sequence[str],
    size: int,
    *,
    task_args: Mapping[str, Any] | None = None,
    reward: str | None = None,
    reward_options: Mapping[str, Any] | None = None,
    functions: Mapping[str, RewardFunction] | None = None,
    system_prompt: str | None = None,
    playing: Recipe | None = None,
) -> list[EvalSplit]:
    """Every split of every task. `task_args` are for all tasks; a mapping under a task's name is for that task alone.
    `playing` has the keys that decide how answers of several turns are played.

    Raises TaskError or RecipeError before any model is loaded.
    """
    suite = []
    names = [task.name if isinstance(task, Task) else task for task in tasks]
    for name, given in zip(names, tasks, strict=True):
        args = {key: value for key, value in (task_args or {}).items() if key not in names}
        args |= (task_args or {}).get(name, {})
        task = given if isinstance(given, Task) else find_task(given, args, system_prompt)
        if reward is None and not task.rewards:
            raise RecipeError(f"{name} has no verifier of its own: name one, as --reward numeric or exact does")
        judge = reward or task.rewards[0]
        options = reward_options or {}
        find_rewards([judge], [], judge, own=functions, **options)  # refuses an unknown name now
        own = functions or {}
        keys = playing or Recipe.model_validate({})
        play = agent_of(keys, own=task.agent) or play_of(keys, task.environment)
        for split in splits:
            suite.append(EvalSplit(name, split, held_out(task, split, size), judge, own, options, play))
    return suite


def evaluate_model(
    model: str, policy: Policy, suite: Sequence[EvalSplit], settings: EvalSettings, progress: Progress = no_progress
) -> list[EvalResult]:
    """One model on the whole suite. Problems that leave no room for an answer are skipped and counted."""
    limit = min(settings.max_completion_length, policy.context // 2)
    params, results = settings.params(limit), []
    for part in suite:
        bar = settings.pass_threshold
        rewards = find_rewards(
            [part.reward], [], part.reward, limit, part.functions, pass_threshold=bar, **part.options
        )
        prompts, sampler = _fitting(policy, part, limit), make_sampler(policy, play=part.play)
        with progress(f"{model} on {part.task} {part.split}", len(prompts) * (1 + settings.samples)) as advance:
            answers = sample_and_grade(prompts, sampler, rewards, params, settings.samples, settings.seed, advance)
        evaluation = summarize(answers, part.split, settings.ks, params)
        evaluation = replace(evaluation, too_long=len(part.prompts) - len(prompts))
        results.append(EvalResult(model, part.task, evaluation, answers))
    return results


def _fitting(policy: Policy, part: EvalSplit, limit: int) -> list[Prompt]:
    lengths = [len(ids) for ids in policy.renderer.encode_all(part.prompts)]
    fitting = [prompt for prompt, n in zip(part.prompts, lengths, strict=True) if n + limit <= policy.context]
    if part.prompts and not fitting:
        raise TaskError(
            f"{part.task}: none of {len(part.prompts):,} {part.split} problems fits the model's {policy.context} "
            f"tokens with max_completion_length={limit} (the shortest has {min(lengths)}): lower it"
        )
    return fitting
