"""Starting a run or resuming one: the folder, the model, and the checkpoint to resume from."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from outdo.doctor.recipe_check import check_recipe
from outdo.errors import RecipeError, RunError
from outdo.learn.memory import with_kl_steps
from outdo.learn.shard_plan import with_sharding
from outdo.models.load import Policy
from outdo.parallel.world import get_world
from outdo.recipe.schema import Recipe
from outdo.recipe.trust import remember
from outdo.rewards.choose import refuse_unfit_rewards
from outdo.rollout import make_sampler
from outdo.runs import checkpoint, layout
from outdo.runs.manifest import Manifest, library_versions, read_manifest
from outdo.runs.reader import read_evals, read_metrics
from outdo.runs.silent import SilentWriter
from outdo.runs.values import as_int
from outdo.runs.writer import RunWriter, default_folder
from outdo.tasks.demonstrations import Demonstrations, find_demonstrations
from outdo.tasks.lengths import fit_to_context
from outdo.tasks.overlap import find_overlap
from outdo.tasks.task import Task
from outdo.training import resume
from outdo.training.best import Best
from outdo.training.context import Result, RunContext
from outdo.training.evaluation import recorded_evals
from outdo.training.plan import policy_for
from outdo.training.run import ResumePoint, TrainingRun


@dataclass(frozen=True)
class Opened:
    """A run whose folder is locked and whose model is loaded."""

    context: RunContext
    policy: Policy
    writer: RunWriter
    point: ResumePoint | None  # None: it starts
    demonstrations: Demonstrations | None


def open_run(context: RunContext) -> Opened | Result:
    """A new run, or the one to resume; or the result of one that has nothing to do. The caller closes the writer."""
    if context.resume is None:
        return _start(context)
    folder = context.resume
    writer = open_writer(lambda: RunWriter.reopen(folder, context.kind, context.manifest))
    try:
        opened = _resume(context, writer)
    except BaseException:
        writer.close()
        raise
    if isinstance(opened, Result):
        writer.close()
    return opened


def open_writer(make: Callable[[], RunWriter]) -> RunWriter:
    """The run folder's one writer, in the first process; in the others of a launch, one that writes nothing."""
    made: list[RunWriter] = []

    def first() -> tuple[Path, Manifest]:
        made.append(make())
        return made[0].folder, made[0].manifest

    folder, manifest = get_world().first(first, "opening the run's folder")
    return made[0] if made else SilentWriter(folder, manifest)


def remember_run(context: RunContext, folder: Path, recipe: Recipe) -> None:
    """A run that was started here is resumed without further words."""
    if problem := remember(folder, recipe.model_dump(mode="json")):
        context.reporter.note(f"warning: {problem}")


def make_run(opened: Opened) -> TrainingRun[Any]:
    """The run of an opened folder, which is released where the run cannot be made."""
    context, world = opened.context, get_world()
    try:
        recipe = with_sharding(opened.policy, context.recipe)
        if context.kind == "grpo":
            sharded = recipe
            recipe = world.first(lambda: with_kl_steps(opened.policy, sharded))
        context = replace(context, recipe=recipe)
        if world.is_shared:
            context.reporter.note(f"{world.size} processes, parallel.sharding={recipe.parallel_sharding}")
        sampler = make_sampler(
            opened.policy, context.recipe, learns=True, notify=context.reporter.note, play=context.play
        )
        if tool_format := getattr(sampler, "tool_format", None):
            opened.writer.update_manifest(tool_format=tool_format.name)
        return TrainingRun(context, opened.policy, sampler, opened.writer)
    except BaseException:
        opened.writer.close()
        raise


def _start(context: RunContext) -> Opened:
    """A new run. What cannot work is refused before a folder is made."""
    began, world = time.monotonic(), get_world()
    recipe, task, reporter = context.recipe, context.task, context.reporter
    if recipe.reward_audit and context.rewards and context.kind == "grpo":
        rewards = context.rewards
        for line in world.first(lambda: refuse_unfit_rewards(rewards, task, recipe.seed), "the audit of rewards"):
            reporter.note(line)
    overlap = world.first(lambda: find_overlap(task), "comparing splits")
    if overlap:
        reporter.note(overlap.describe())
    demonstrations = find_demonstrations(recipe, task)
    data = resume.fingerprint(task, recipe.seed)
    folder = world.first(lambda: _new_folder(recipe, task))
    recipe = context.given.place(recipe, folder)
    policy = world.in_turn(lambda: policy_for(recipe, folder=folder, given=context.given.model), "loading the model")
    task = without_long_prompts(recipe, task, policy, reporter.note)
    facts = {
        **policy.facts,
        "kind": context.kind,
        "world_size": world.size,
        "lessons": demonstrations.fingerprint if demonstrations else None,
        "data": data,
        "reward_files": resume.reward_files(context.rewards),
        "overlap": overlap.row() if overlap else None,
    }
    writer = open_writer(lambda: RunWriter.create(folder, recipe.model_dump(mode="json"), facts, began))
    try:
        world.first(lambda: _remember_and_keep(context, folder, recipe, policy), "keeping what was given")
    except BaseException as error:
        writer.finish("failed", str(error))
        writer.close()
        raise
    adapter = f", training an adapter of {policy.adapter.description}" if policy.adapter else ""
    processes = f" in each of {world.size} processes" if world.is_shared else ""
    where = f"{policy.device}{processes}{adapter}"
    reporter.note(f"{policy.num_parameters:,} parameters on {where}; writing to {folder}")
    for line in check_recipe(recipe, policy.num_parameters) if context.kind == "grpo" else ():
        reporter.note(f"warning: {line}")
    context = _with_cache(replace(context, recipe=recipe), task, writer)
    return Opened(context, policy, writer, None, demonstrations)


def _new_folder(recipe: Recipe, task: Task) -> Path:
    return Path(recipe.output_dir) if recipe.output_dir else default_folder(task.name, recipe.run_name)


def _remember_and_keep(context: RunContext, folder: Path, recipe: Recipe, policy: Policy) -> None:
    remember_run(context, folder, recipe)
    context.given.write(folder, policy)


def _resume(context: RunContext, writer: RunWriter) -> Opened | Result:
    """From the newest valid checkpoint; from the start where there never was one, or with `force`."""
    recipe, reporter, folder, manifest = context.recipe, context.reporter, writer.folder, writer.manifest
    reward_files = resume.reward_files(context.rewards)
    data, world = resume.fingerprint(context.task, recipe.seed), get_world()
    settings = recipe, data, reward_files, library_versions(), context.force
    for change in world.first(lambda: resume.check(writer, *settings)):
        reporter.note(f"changed since: {change}")
    was_done = manifest.status == "done"
    demonstrations = _same_demonstrations(context, manifest, folder) if context.kind == "sft" else None
    steps = demonstrations.steps if demonstrations else recipe.max_steps
    steps_before = steps if demonstrations else int(manifest.recipe["max_steps"])
    if was_done and steps <= steps_before:
        reporter.note(f"nothing to do: {folder} is done")
        return world.first(lambda: finished_result(folder, recipe))
    at_most, advice = resume.after_halt(manifest, recipe)
    for line in advice:
        reporter.note(line)
    point, skipped = world.first(lambda: resume.newest_checkpoint(writer, at_most), "reading checkpoints")
    for line in skipped:
        reporter.note(f"skipped {line}")
    if point is None and was_done:
        raise RunError(f"{folder} is done and has no checkpoint to resume from: start a new run with its model")
    if point is None and checkpoint.ever_saved(writer.checkpoints) and not context.force:
        raise RecipeError(
            f"{folder} cannot be resumed: all of its checkpoints are corrupt. Restore a valid one, or restart with "
            "--force: its rows and checkpoints so far are then moved to a folder before-N inside it"
        )
    if point and point.state["step"] > steps:
        raise RecipeError(f"{folder} has done {point.state['step']} steps already, more than max_steps={steps}")
    name = str(point.folder) if point else None
    policy = world.in_turn(lambda: policy_for(recipe, name), "loading the model")
    task = without_long_prompts(recipe, context.task, policy, reporter.note)
    for line in _moved(manifest, policy):
        reporter.note(f"changed since: {line}")
    where = {"device": str(policy.device), "world_size": world.size}
    facts = {"recipe": recipe.model_dump(mode="json"), "reward_files": reward_files, **where}
    writer.update_manifest(**facts)
    if point is None:
        world.first(lambda: _restart(writer, reporter.note))
        demonstrations = demonstrations or find_demonstrations(recipe, context.task)
    elif point.in_warm_up:
        demonstrations = _same_demonstrations(context, manifest, folder)
    return Opened(_with_cache(context, task, writer), policy, writer, point, demonstrations)


def _moved(manifest: Manifest, policy: Policy) -> list[str]:
    """Where the run was, and where it is now."""
    device, processes = manifest.device or str(policy.device), as_int(manifest.world_size) or 1
    lines = [f"device was {device} and is {policy.device}"] if device != str(policy.device) else []
    if processes != (now := get_world().size):
        lines.append(f"{processes} {'process' if processes == 1 else 'processes'} then, {now} now")
    return lines


def _with_cache(context: RunContext, task: Task, writer: RunWriter) -> RunContext:
    """Rewards keep what they paid for in the run's folder."""
    rewards = context.rewards and replace(context.rewards, cache=str(writer.folder / layout.JUDGE))
    return replace(context, task=task, rewards=rewards)


def _same_demonstrations(context: RunContext, manifest: Manifest, folder: Path) -> Demonstrations | None:
    """Those that the run was started with. Raises RecipeError where the data has other ones now, unless forced."""
    found = find_demonstrations(context.recipe, context.task)
    if found and manifest.lessons not in (None, found.fingerprint) and not context.force:
        raise RecipeError(f"{folder} cannot be resumed: {found.name} has other examples than it had; see --force")
    return found


def _restart(writer: RunWriter, notify: Callable[[str], None]) -> None:
    """Steps and checkpoints are moved away, never erased; a warm-up alone is repeated, and gives the same rows."""
    had_checkpoints = checkpoint.ever_saved(writer.checkpoints)
    state = "no valid checkpoint" if had_checkpoints else "no checkpoint yet"
    line = f"{writer.folder} has {state}: restarted from the beginning"
    if had_checkpoints or any(read_metrics(writer.folder)):
        line += f"; its rows so far were moved to {writer.archive()}"
    else:
        writer.rewind({})
    notify(line)
    writer.update_manifest(status="running", why="", halted=None)


def finished_result(folder: Path, recipe: Recipe, steps: int | None = None) -> Result:
    """What a run that is done came to, after so many steps or its last."""
    steps = max((row["step"] for row in read_evals(folder)), default=0) if steps is None else steps
    before, after = (recorded_evals(folder, step) for step in (0, steps))
    manifest = read_manifest(folder)
    best = Best(**manifest.best) if isinstance(manifest.best, dict) else None
    return Result(folder, folder / layout.MODEL, before, after, recipe, best=best)


def without_long_prompts(recipe: Recipe, task: Task, policy: Policy, notify: Callable[[str], None]) -> Task:
    return fit_to_context(
        recipe, task, policy.context, lambda prompts: [len(ids) for ids in policy.renderer.encode_all(prompts)], notify
    )
