"""`outdo train --dry-run`: what a run would do. What a run would refuse before its first step is refused here too."""

from __future__ import annotations

from outdo.models.load import load_tokenizer
from outdo.models.renderer import encode_prompts
from outdo.models.sources import find_source
from outdo.recipe.schema import Recipe
from outdo.rewards.choose import refuse_unfit_rewards, rewards_of
from outdo.tasks.lengths import in_steps, within
from outdo.tasks.lessons import find_lessons
from outdo.tasks.mixture import task_of
from outdo.tasks.overlap import told
from outdo.tasks.task import Task
from outdo.training.plan import describe, model_shape
from outdo.training.stages import Stage, read_stages
from outdo.training.trackers import chosen


def plan_of(recipe: Recipe) -> list[str]:
    """The plan, line by line. Raises as the run would: OutdoError's family."""
    chosen(recipe.report_to)
    task = task_of(recipe)
    stages = read_stages(recipe)
    if not stages:
        _refuse_unjudged(recipe, task)
        find_lessons(recipe, task)
    lines = [*describe(in_steps(recipe, task)), *told(task), *(stage.told() for stage in stages)]
    for stage in stages:
        _try(stage)
    return [*lines, *(_long(recipe, task) if not stages else ())]


def _try(stage: Stage) -> None:
    """A stage's data and rewards; what it imitates may be for an earlier one to make."""
    task = task_of(stage.recipe)
    if stage.kind == "grpo":
        _refuse_unjudged(stage.recipe, task)
    _long(stage.recipe, task)


def _refuse_unjudged(recipe: Recipe, task: Task) -> None:
    for split in (*recipe.eval_split, *recipe.final_eval_split):
        next(task.prompts(split, recipe.seed))
    rewards = rewards_of(recipe, task, {})
    if recipe.reward_audit:
        refuse_unfit_rewards(rewards, task, recipe.seed)


def _long(recipe: Recipe, task: Task) -> list[str]:
    """What is said of prompts that are too long. Raises where none is left."""
    source = find_source(recipe.model_name_or_path)
    tokenizer = load_tokenizer(source)
    said: list[str] = []
    context = model_shape(source).context
    left = within(
        recipe, task, context, lambda prompts: [len(ids) for ids in encode_prompts(tokenizer, prompts)], said.append
    )
    next(left.prompts("train", recipe.seed))  # one without end is measured as it comes
    return said
