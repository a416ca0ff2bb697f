"""A harvest as a run of its own: a folder that says what it was made from, and can be gone on with."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from outdo.errors import RecipeError
from outdo.recipe.schema import Recipe
from outdo.rewards.compose import Rewards
from outdo.rollout import make_sampler
from outdo.runs.writer import RunWriter, default_folder
from outdo.seeds import seed_of
from outdo.tasks.task import Task, held_out
from outdo.training import signals
from outdo.training.console import LiveTable, PlainLines
from outdo.training.harvest import Tally, harvest
from outdo.training.launch import Result, fitted
from outdo.training.plan import policy_for
from outdo.types import Prompt, SampleParams

FILE = "demonstrations.jsonl"
# Keys that decide what is asked and answered: a file is gone on with by the same ones only.
DECIDING = (
    *("model_name_or_path", "dtype", "dataset_name", "dataset_mixture", "task_args", "columns", "system_prompt"),
    *("max_prompt_length", "max_completion_length", "temperature", "top_p", "top_k", "min_p", "stop"),
    *("reward_funcs", "harvest_size"),
)


def harvesting(
    recipe: Recipe,
    task: Task,
    rewards: Rewards,
    reporter: PlainLines | LiveTable,
    resume: Path | None = None,
    out: Path | None = None,
    split: str = "train",
) -> Result:
    """Harvests by the recipe's keys, to `out` or into a run's folder. Raises RecipeError where nothing was right."""
    model = Path(recipe.model_name_or_path)
    if out:
        _reap(recipe, task, rewards, reporter, out, split)
        return Result(out.parent, model, [], [], harvest=out)
    run = _open(recipe, task, resume)
    with run.until_done():
        tally = _reap(recipe, task, rewards, reporter, run.folder / FILE, split)
        facts = {"model": recipe.model_name_or_path, "harvest": str(run.folder / FILE)}
        run.update_manifest(**facts, tally=vars(tally))
    return Result(run.folder, model, [], [], harvest=run.folder / FILE)


def _open(recipe: Recipe, task: Task, resume: Path | None) -> RunWriter:
    if resume:
        run = RunWriter.reopen(resume, "harvest")
        run.update_manifest(status="running", why="")
        return run
    folder = Path(recipe.output_dir) if recipe.output_dir else default_folder(f"harvest-{task.name}")
    return RunWriter.create(folder, recipe.model_dump(mode="json"), {"kind": "harvest"})


def _reap(
    recipe: Recipe, task: Task, rewards: Rewards, reporter: PlainLines | LiveTable, out: Path, split: str
) -> Tally:
    policy = policy_for(recipe, learns=False)
    prompts = held_out(fitted(recipe, task, policy, reporter.note), split, recipe.harvest_size)
    sampler = make_sampler(policy, recipe, learns=False, notify=reporter.note)
    how = (recipe.temperature, recipe.top_p, recipe.top_k, recipe.min_p, tuple(recipe.stop))
    params = SampleParams(recipe.max_completion_length, *how)
    _teacher(recipe, task)  # says now, not after all was sampled, that there is none
    reporter.begin(f"harvest: {len(prompts)} prompts of {task.name} x {recipe.harvest_samples} answers")

    def told(tally: Tally) -> None:
        words = f"solved {tally.solved / tally.prompts:.2f}  kept {tally.kept}"
        reporter.progress("prompt", tally.prompts - 1, len(prompts), words)

    with signals.heard():
        tally = harvest(
            prompts,
            sampler,
            rewards,
            params,
            out,
            {"split": split, **{key: getattr(recipe, key) for key in DECIDING}},
            samples=recipe.harvest_samples,
            keep=recipe.harvest_keep,
            seed=seed_of("harvest", recipe.seed),
            teacher=_teacher(recipe, task),
            told=told,
        )
    reporter.close()
    reporter.note(f"  {tally}")
    if not tally.kept and not recipe.harvest_teacher:
        raise RecipeError(
            f"not one of {tally.sampled} answers was right and came to its end: nothing to imitate. Take more samples, "
            "an easier task or a better model, or raise max_completion_length"
        )
    reporter.note(f"  demonstrations are in {out}")
    return tally


def _teacher(recipe: Recipe, task: Task) -> Callable[[Prompt], str | None] | None:
    if not recipe.harvest_teacher:
        return None
    teacher = task.teacher
    if teacher is None:
        raise RecipeError(f"harvest_teacher=true: {task.name} has no demonstrations of its own")
    rng = random.Random(seed_of("teacher", recipe.seed))
    return lambda prompt: teacher(prompt, rng)
