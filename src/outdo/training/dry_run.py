"""`outdo train --dry-run`: what a run would do. What a run would refuse before its first step is refused here too."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

from outdo.doctor.difficulty import describe_difficulty
from outdo.doctor.recipe_check import check_recipe
from outdo.metrics.estimate import mean_interval
from outdo.models.load import load_tokenizer
from outdo.models.renderer import encode_prompts
from outdo.models.shape import shape_of
from outdo.models.sources import find_source
from outdo.recipe.schema import Recipe
from outdo.rewards.choose import dense_rewards, refuse_unfit_rewards
from outdo.rewards.compose import grade_all
from outdo.rollout import make_sampler
from outdo.rollout.source import sample_params
from outdo.seeds import seed_of
from outdo.tasks.demonstrations import find_demonstrations
from outdo.tasks.lengths import fit_to_context
from outdo.tasks.overlap import describe_data
from outdo.tasks.task import Task
from outdo.training.context import RunContext
from outdo.training.plan import describe, policy_for
from outdo.training.stages import read_stages
from outdo.training.start import without_long_prompts
from outdo.training.trackers import select_trackers

PREFLIGHT_PROMPTS, PREFLIGHT_ANSWERS = 32, 8


def describe_run(context: RunContext) -> list[str]:
    """The plan, line by line. Raises as the run would: a subclass of OutdoError."""
    recipe, task = context.recipe, context.task
    select_trackers(recipe.report_to)
    stages = read_stages(recipe)
    if not stages:
        _refuse_unfit(context)
        find_demonstrations(recipe, task)
    trained = [stage.recipe for stage in stages if stage.kind == "grpo"] if stages else [recipe]
    warnings = [f"warning   {line}" for one in trained for line in check_recipe(one, _num_parameters(one))]
    lines = [*describe(recipe), *describe_data(task), *(stage.describe() for stage in stages), *warnings]
    for stage in stages:  # the demonstrations of a stage may be for an earlier one to make
        staged = context.for_stage(stage.kind, stage.recipe, None)
        if stage.kind == "grpo":
            _refuse_unfit(staged)
        _long_prompts(staged.recipe, staged.task)
    return [*lines, *(_long_prompts(recipe, task) if not stages else ())]


def _num_parameters(recipe: Recipe) -> int:
    return shape_of(find_source(recipe.model_name_or_path)).parameters


def _refuse_unfit(context: RunContext) -> None:
    if context.recipe.reward_audit and context.rewards:
        refuse_unfit_rewards(context.rewards, context.task, context.recipe.seed)


def _long_prompts(recipe: Recipe, task: Task) -> list[str]:
    """What is reported of prompts that are too long. Raises where no other remains."""
    source = find_source(recipe.model_name_or_path)
    tokenizer, context = load_tokenizer(source), shape_of(source).context
    lines: list[str] = []
    short = fit_to_context(
        recipe, task, context, lambda prompts: [len(ids) for ids in encode_prompts(tokenizer, prompts)], lines.append
    )
    next(short.prompts("train", recipe.seed))  # an endless task is measured as it comes
    return lines


def preflight(context: RunContext) -> None:
    """Loads the model and reports how often it is right on training prompts, and which groups would have spread."""
    if context.kind == "stages":
        context = context.for_stage("grpo", read_stages(context.recipe)[0].recipe, None)
    recipe, reporter, rewards = context.recipe, context.reporter, context.rewards
    assert rewards
    policy = policy_for(recipe)
    context = replace(context, task=without_long_prompts(recipe, context.task, policy, reporter.note))
    sampler = make_sampler(policy, recipe, learns=False, notify=reporter.note, play=context.play)
    prompts = list(islice(context.task.prompts("train", recipe.seed), PREFLIGHT_PROMPTS))
    seed = seed_of("preflight", recipe.seed)
    groups = grade_all(sampler.sample(prompts, PREFLIGHT_ANSWERS, sample_params(recipe), seed), rewards)
    shares = [
        sum(grade.verdict == "right" for grade in group.grades) / len(group.grades)
        for group in groups
        if all(grade.verdict != "broken" for grade in group.grades)
    ]
    if not shares:
        reporter.note("preflight: in no group could all answers be judged; see outdo audit")
        return
    success = sum(shares) / len(shares)
    low, high = mean_interval(shares)
    warm = ", before its warm-up" if recipe.sft_steps or recipe.sft_epochs else ""
    reporter.note(
        f"preflight: right in {success:.3f} [{low:.2f}, {high:.2f}] of {PREFLIGHT_ANSWERS} answers to each of "
        f"{len(shares)} training prompts{warm}"
    )
    any_right = sum(share > 0 for share in shares) / len(shares)
    partial = dense_rewards(rewards, success > 0.5)
    for line in describe_difficulty(success, PREFLIGHT_ANSWERS, any_right, recipe.num_generations, partial):
        reporter.note(line)
