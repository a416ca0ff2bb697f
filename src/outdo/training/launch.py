"""Starting a run, or going on with one: the folder, the model, and the session that trains it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from outdo.errors import RecipeError, RunError
from outdo.evals.held_out import Evaluation
from outdo.models.load import Policy
from outdo.recipe.load import load_recipe
from outdo.recipe.schema import Recipe
from outdo.rewards.choose import refuse_unfit_rewards
from outdo.rewards.compose import Rewards
from outdo.rollout import make_sampler
from outdo.runs import checkpoint
from outdo.runs.manifest import library_versions
from outdo.runs.reader import read_rows
from outdo.runs.writer import RunWriter, default_folder
from outdo.tasks.lengths import within
from outdo.tasks.lessons import Lessons, find_lessons
from outdo.tasks.overlap import find_overlap
from outdo.tasks.task import Task
from outdo.training import resuming
from outdo.training.console import LiveTable, PlainLines
from outdo.training.keeping import Known, Parts, Start
from outdo.training.plan import policy_for
from outdo.training.session import Session
from outdo.training.supervised import Supervised


@dataclass(frozen=True)
class Result:
    """What a run came to. The numbers by step are in `folder`."""

    folder: Path
    model: Path
    before: list[Evaluation]
    after: list[Evaluation]
    stages: tuple[tuple[str, list[Evaluation]], ...] = ()  # of a recipe with several: each one's name, and after it
    harvest: Path | None = None  # demonstrations that a stage made for the next


@dataclass(frozen=True)
class Job:
    """What a run is made of, before anything is loaded."""

    kind: Literal["grpo", "sft"]
    recipe: Recipe
    task: Task
    rewards: Rewards | None  # None: a supervised run of a task without a verifier
    reporter: PlainLines | LiveTable
    known: Known | None = None  # of the model that it starts from

    @property
    def data(self) -> str:
        return resuming.fingerprint(self.task, self.recipe.seed)

    @property
    def reward_files(self) -> dict[str, str]:
        return resuming.reward_files(self.rewards)


def start(job: Job) -> Result:
    """A new run. What cannot work is refused before a folder is made."""
    recipe, task, reporter = job.recipe, job.task, job.reporter
    if recipe.reward_audit and job.rewards and job.kind == "grpo":
        refuse_unfit_rewards(job.rewards, task, recipe.seed)
    shared = find_overlap(task)
    if shared:
        reporter.note(shared.words())
    lessons, data = find_lessons(recipe, task), job.data
    folder = Path(recipe.output_dir) if recipe.output_dir else default_folder(task.name)
    policy = policy_for(recipe, folder=folder)
    job = replace(job, task=fitted(recipe, task, policy, reporter.note))
    facts = {
        **policy.facts,
        "kind": job.kind,
        "lessons": lessons.fingerprint if lessons else None,
        "data": data,
        "reward_files": job.reward_files,
        "overlap": shared.row() if shared else None,
    }
    run = RunWriter.create(folder, recipe.model_dump(mode="json"), facts)
    adapter = f", an adapter of {policy.adapter.description} learns" if policy.adapter else ""
    reporter.note(f"{policy.num_parameters:,} parameters on {policy.device}{adapter}; writing to {folder}")
    try:
        return _trained(job, policy, run, None, lessons)
    finally:
        run.close()


def go_on(job: Job, folder: Path, force: bool) -> Result:
    """Goes on with a run where its newest whole checkpoint is; from the start where there was none, or by force."""
    run = RunWriter.reopen(folder, job.kind)
    try:
        return _resumed(job, run, force)
    finally:
        run.close()


def _resumed(job: Job, run: RunWriter, force: bool) -> Result:
    recipe, reporter, folder = job.recipe, job.reporter, run.folder
    for changed in resuming.check(run, recipe, job.data, job.reward_files, library_versions(), force):
        reporter.note(f"changed since: {changed}")
    was_done = run.manifest.status == "done"
    lessons = find_lessons(recipe, job.task) if job.kind == "sft" else None
    if lessons and run.manifest.lessons not in (None, lessons.fingerprint) and not force:
        raise RecipeError(
            f"{folder} cannot be gone on with: {lessons.name} shows other examples than it did; see --force"
        )
    steps = lessons.steps if lessons else recipe.max_steps
    had = steps if lessons else load_recipe(None, base_of=run.manifest.recipe).max_steps
    if was_done and steps <= had:
        reporter.note(f"nothing left to do: {folder} is done, after {had} steps")
        return finished(folder, had)
    newest, state, passed = resuming.newest(run)
    for words in passed:
        reporter.note(f"passed over {words}")
    if newest is None and was_done:
        raise RunError(f"{folder} is done and has no checkpoint to go on from: start a new run with its model")
    if newest is None and checkpoint.ever_saved(run.checkpoints) and not force:
        raise RecipeError(
            f"{folder} cannot be gone on with: none of its checkpoints can be used. Put a whole one back, or begin "
            "again with --force: its rows and checkpoints so far are then kept, in a folder before-N inside it"
        )
    if newest and state["step"] > steps:
        raise RecipeError(f"{folder} has done {state['step']} steps already: max_steps={steps} is behind it")
    policy = policy_for(recipe, str(newest) if newest else None)
    task = fitted(recipe, job.task, policy, reporter.note)
    device = run.manifest.device or str(policy.device)
    if device != str(policy.device):
        reporter.note(f"changed since: device was {device} and is {policy.device}")
    run.update_manifest(recipe=recipe.model_dump(mode="json"), reward_files=job.reward_files, device=str(policy.device))
    if newest is None:
        _begin_again(run, reporter)
        lessons = lessons or find_lessons(recipe, job.task)
    return _trained(replace(job, task=task), policy, run, Start(newest, state) if newest else None, lessons)


def _begin_again(run: RunWriter, reporter: PlainLines | LiveTable) -> None:
    """Steps and checkpoints are set aside, never erased; a warm-up alone is done again, and gives the same rows."""
    had = checkpoint.ever_saved(run.checkpoints)
    what = f"{run.folder} has {'no checkpoint that can be used' if had else 'no checkpoint yet'}: it begins again"
    if had or any(read_rows(run.folder / "metrics.jsonl")):
        what += f"; its rows so far are in {run.archive()}"
    else:
        run.rewind({})
    reporter.note(what)
    run.update_manifest(status="running", why="")


def finished(folder: Path, steps: int | None = None) -> Result:
    """What a run that is done came to, after so many steps or its last."""
    rows = list(read_rows(folder / "evals.jsonl"))
    steps = max((row["step"] for row in rows), default=0) if steps is None else steps
    before, after = ([Evaluation.of(row) for row in rows if row["step"] == step] for step in (0, steps))
    return Result(folder, folder / "model", before, after)


def _trained(job: Job, policy: Policy, run: RunWriter, start: Start | None, lessons: Lessons | None) -> Result:
    sampler = make_sampler(policy, job.recipe, notify=job.reporter.note)
    parts = Parts(
        recipe=job.recipe,
        task=job.task,
        rewards=job.rewards,
        policy=policy,
        sampler=sampler,
        run=run,
        reporter=job.reporter,
        start=start,
        known=job.known,
    )
    if job.kind == "sft":
        assert lessons
        before, after = Supervised(parts, lessons=lessons).train()
    else:
        before, after = Session(parts, lessons=lessons).train()
    return Result(run.folder, run.model_folder, before, after)


def fitted(recipe: Recipe, task: Task, policy: Policy, say: Callable[[str], None]) -> Task:
    """Without the prompts that are too long."""
    return within(
        recipe, task, policy.context, lambda prompts: [len(ids) for ids in policy.renderer.encode_all(prompts)], say
    )
