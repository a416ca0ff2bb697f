"""A recipe in, a run out: puts the parts together. The algorithm itself is in `loop.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outdo import resuming
from outdo.config import Recipe, load_recipe
from outdo.errors import RecipeError, RunError
from outdo.evals.held_out import Evaluation
from outdo.evaluating import Settings, examine, quizzes, with_model
from outdo.grade.choose import refuse_unfit_rewards, rewards_of
from outdo.grade.compose import Rewards
from outdo.host import keep_memory
from outdo.keeping import Start
from outdo.learn.memory import cache_budget
from outdo.models.load import Policy
from outdo.plan import policy_for
from outdo.rollout.hf import HFSampler
from outdo.rollout.local import LocalSampler
from outdo.run import Run, default_folder, read_rows, read_run, versions
from outdo.session import Session
from outdo.tasks.lengths import fitting, in_steps
from outdo.tasks.lessons import Lessons, find_lessons
from outdo.tasks.mixture import task_of
from outdo.tasks.overlap import find_overlap
from outdo.tasks.task import Task
from outdo.track.console import LiveTable, PlainLines, make_reporter
from outdo.types import Sampler

SAMPLERS: dict[str, Callable[[Policy, Recipe], Sampler]] = {
    "local": lambda policy, recipe: LocalSampler(policy, recipe.rollout_rows, cache_budget(policy, recipe)),
    "hf": lambda policy, recipe: HFSampler(policy),
}
SLOW = "{}: outdo's own attention does not give its logits; using transformers' generate, which is slow"


@dataclass(frozen=True)
class Result:
    """What a run came to. The numbers by step are in `folder`."""

    folder: Path
    model: Path
    before: list[Evaluation]
    after: list[Evaluation]


def train(
    recipe: str | Path | Recipe | None = None,
    *,
    task: Task | None = None,
    reward_funcs: Sequence[str | Callable[..., Any]] | None = None,
    reporter: PlainLines | LiveTable | None = None,
    resume: str | Path | None = None,
    force: bool = False,
    **keys: Any,
) -> Result:
    """Trains by a recipe (a YAML path, a Recipe, or the default) with `keys` over it, and returns what came of it.

    `task` and `reward_funcs` may be your own objects instead of names. `resume` is a run's folder to go on with, by its
    own recipe; what has changed since and matters is refused unless `force`. Raises OutdoError's family; an interrupt
    is passed on after the run has been saved.
    """
    reporter = reporter or make_reporter()
    own = {f.__name__: f for f in reward_funcs or () if callable(f)}
    if reward_funcs is not None:
        keys["reward_funcs"] = [f.__name__ if callable(f) else f for f in reward_funcs]
    if resume is not None:
        had = read_run(Path(resume))["recipe"]
        recipe = load_recipe(None, keys, reporter.note, base_of=had)
        resuming.refuse_elsewhere(Path(resume), had.get("output_dir"), recipe.output_dir)
    elif not isinstance(recipe, Recipe):
        recipe = load_recipe(recipe, keys, reporter.note)
    elif keys:
        recipe = load_recipe(None, keys, reporter.note, base_of=recipe.model_dump(exclude_unset=True))
    keep_memory()
    task = task or task_of(recipe)
    recipe = in_steps(recipe, task)
    for split in (*recipe.eval_split, *recipe.final_eval_split):
        next(task.prompts(split, recipe.seed))  # says now that there is no such split
    data = resuming.fingerprint(task, recipe.seed)
    if resume is None and recipe.resume == "auto":
        resume = resuming.unfinished(recipe, data)
    rewards = rewards_of(recipe, task, own)
    if resume is not None:
        run = Run.reopen(Path(resume))
        try:
            return _resumed(recipe, task, rewards, run, data, reporter, force)
        finally:
            run.close()
    if recipe.reward_audit:
        refuse_unfit_rewards(rewards, task, recipe.seed)
    shared = find_overlap(task)
    if shared:
        reporter.note(shared.words())
    lessons = find_lessons(recipe, task)
    policy = policy_for(recipe)
    folder = Path(recipe.output_dir) if recipe.output_dir else default_folder(task.name)
    facts = {**policy.facts, "data": data, "overlap": shared.row() if shared else None}
    run = Run.create(folder, recipe.model_dump(mode="json"), facts)
    adapter = f", an adapter of {policy.adapter.told} learns" if policy.adapter else ""
    reporter.note(f"{policy.num_parameters:,} parameters on {policy.device}{adapter}; writing to {folder}")
    try:
        return _trained(recipe, task, rewards, policy, run, reporter, None, lessons)
    finally:
        run.close()


def _resumed(
    recipe: Recipe,
    task: Task,
    rewards: Rewards,
    run: Run,
    data: str,
    reporter: PlainLines | LiveTable,
    force: bool,
) -> Result:
    """Goes on with a run where its newest whole checkpoint is; from the start where there is none."""
    folder, was_done = run.folder, run.manifest["status"] == "done"
    had = load_recipe(None, base_of=run.manifest["recipe"]).max_steps
    for changed in resuming.check(run, recipe, data, versions(), force):
        reporter.note(f"changed since: {changed}")
    if was_done and recipe.max_steps <= had:
        reporter.note(f"nothing left to do: {folder} is done, after {had} steps")
        rows = list(read_rows(folder / "evals.jsonl"))
        before, after = ([Evaluation.of(row) for row in rows if row["step"] == s] for s in (0, had))
        return Result(folder, run.model_folder, before, after)
    newest, state, passed = resuming.newest(run)
    for words in passed:
        reporter.note(f"passed over {words}")
    if newest is None and was_done:
        raise RunError(f"{folder} is done and has no checkpoint to go on from: start a new run with its model")
    if newest and state["step"] > recipe.max_steps:
        raise RecipeError(f"{folder} has done {state['step']} steps already: max_steps={recipe.max_steps} is behind it")
    policy = policy_for(recipe, str(newest) if newest else None)
    device = run.manifest.get("device", str(policy.device))
    if device != str(policy.device):
        reporter.note(f"changed since: device was {device} and is {policy.device}")
    run.note(recipe=recipe.model_dump(mode="json"), device=str(policy.device))
    if newest is None:
        reporter.note(f"{folder} has no checkpoint yet: it begins again")
        run.rewind({})
        run.note(status="running", why="")
    start, lessons = (Start(newest, state), None) if newest else (None, find_lessons(recipe, task))
    return _trained(recipe, task, rewards, policy, run, reporter, start, lessons)


def _trained(
    recipe: Recipe,
    task: Task,
    rewards: Rewards,
    policy: Policy,
    run: Run,
    reporter: PlainLines | LiveTable,
    start: Start | None,
    lessons: Lessons | None,
) -> Result:
    if policy.plain and recipe.sampler != "hf":
        reporter.note(SLOW.format(type(policy.model).__name__))
    task = _fitted(recipe, task, policy, reporter.note)
    sampler = SAMPLERS["hf" if policy.plain else recipe.sampler](policy, recipe)
    before, after = Session(recipe, task, rewards, policy, sampler, run, reporter, start, lessons=lessons).train()
    return Result(run.folder, run.model_folder, before, after)


def evaluate(
    model: str | Path,
    task: str | Task = "arithmetic",
    split: str = "test",
    *,
    task_args: Mapping[str, Any] | None = None,
    reward: str | None = None,
    system_prompt: str | None = None,
    **settings: Any,
) -> Evaluation:
    """Held-out success of any saved model. `reward` judges instead of the task's own verifier; `settings` are the
    fields of `evaluating.Settings`, such as size (0: the whole split), samples, temperature, dtype and seed."""
    known = Settings.__dataclass_fields__
    if unknown := settings.keys() - known:
        raise RecipeError(f"evaluate takes no {', '.join(unknown)}; it takes {', '.join(known)}")
    how = Settings(**settings)
    asked = quizzes([task], [split], how.size, task_args=task_args, reward=reward, system_prompt=system_prompt)
    (result,) = with_model(model, how, lambda policy: examine(str(model), policy, asked, how))
    return result.evaluation


def _fitted(recipe: Recipe, task: Task, policy: Policy, say: Callable[[str], None]) -> Task:
    """Without the prompts that are too long. Those of a task without end are only measured where the recipe asks."""
    room = policy.context - recipe.max_completion_length
    if room < 1:
        what = f"max_completion_length={recipe.max_completion_length} leaves no room for a prompt"
        raise RecipeError(f"{what}: the model sees {policy.context} tokens")
    if not task.finite and recipe.max_prompt_length is None:
        return task
    limit = min(room, recipe.max_prompt_length or room)
    return fitting(task, lambda prompts: [len(ids) for ids in policy.encode_all(prompts)], limit, say)
