"""`outdo train --dry-run --preflight`: the model is loaded and answers a few prompts, before anything is trained."""

from __future__ import annotations

from itertools import islice

from outdo.doctor import foothold
from outdo.evals.estimate import mean_interval
from outdo.recipe.schema import Recipe
from outdo.rewards.choose import graded, rewards_of
from outdo.rewards.compose import grade_all
from outdo.rollout import make_sampler
from outdo.seeds import seed_of
from outdo.tasks.mixture import task_of
from outdo.training.console import LiveTable, PlainLines
from outdo.training.launch import fitted
from outdo.training.plan import policy_for
from outdo.types import SampleParams

PROMPTS, ANSWERS = 32, 8


def preflight(recipe: Recipe, reporter: PlainLines | LiveTable) -> None:
    """Says how often the model is right on training prompts, and which groups would see a spread."""
    task = task_of(recipe)
    rewards = rewards_of(recipe, task, {})
    policy = policy_for(recipe)
    task = fitted(recipe, task, policy, reporter.note)
    sampler = make_sampler(policy, recipe, learns=False, notify=reporter.note)
    how = (recipe.temperature, recipe.top_p, recipe.top_k, recipe.min_p, tuple(recipe.stop))
    params = SampleParams(recipe.max_completion_length, *how)
    prompts = list(islice(task.prompts("train", recipe.seed), PROMPTS))
    groups = grade_all(sampler.sample(prompts, ANSWERS, params, seed_of("preflight", recipe.seed)), rewards)
    shares = [
        sum(grade.verdict == "right" for grade in group.grades) / len(group.grades)
        for group in groups
        if all(grade.verdict != "broken" for grade in group.grades)
    ]
    if not shares:
        reporter.note("preflight: no group could be judged as a whole; see outdo audit")
        return
    success = sum(shares) / len(shares)
    low, high = mean_interval(shares)
    warm = ", before its warm-up" if recipe.sft_steps or recipe.sft_epochs else ""
    reporter.note(
        f"preflight: right in {success:.3f} [{low:.2f}, {high:.2f}] of {ANSWERS} answers to each of {len(shares)} "
        f"training prompts{warm}"
    )
    any_right = sum(share > 0 for share in shares) / len(shares)
    others = graded(rewards, success > 0.5)
    for line in foothold.words(success, ANSWERS, any_right, recipe.num_generations, others):
        reporter.note(line)
