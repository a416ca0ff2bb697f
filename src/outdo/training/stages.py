"""Several stages of one recipe: supervised, GRPO, harvest, in any order, each from the model of the one before.

    stages:
      - {stage: sft, epochs: 3}
      - {stage: grpo, max_steps: 200}
      - {stage: harvest, samples: 16}
      - {stage: sft}

Each is a run in a folder of its own inside the recipe's (`01-sft`, `02-grpo`, …), with the recipe's common keys and its
own over them. A harvest hands on the model that it had, and its demonstrations to the supervised stages after it. The
first of those starts from the recipe's first model unless it says `from: previous`.

A model that an earlier stage has evaluated in the same way is not evaluated again: the rows are carried over.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from outdo.bridges.backend import refuse_backend
from outdo.errors import RecipeError, RunError
from outdo.evals.held_out import Evaluation
from outdo.parallel.launch import resume_command
from outdo.parallel.world import get_world
from outdo.recipe.load import load_recipe
from outdo.recipe.schema import Recipe
from outdo.report.write import try_report
from outdo.runs.manifest import holds_run, read_manifest
from outdo.runs.writer import RunWriter, default_folder
from outdo.training.backend import Runner, runner_of
from outdo.training.context import Kind, PriorEvals, Result, RunContext, StageResult
from outdo.training.given import Given
from outdo.training.grpo import run_grpo
from outdo.training.harvest import run_harvest
from outdo.training.resume import changes, refuse_changes
from outdo.training.sft import run_sft
from outdo.training.start import finished_result, open_writer, remember_run

RUNNERS: dict[str, Runner] = {"sft": run_sft, "grpo": run_grpo, "harvest": run_harvest}
STARTS = ("first", "previous")  # the recipe's own model, or that of the stage before
TRL = {  # names that TRL's SFT has
    "num_train_epochs": "sft_epochs",
    "max_seq_length": "sft_max_length",
    "max_steps": "sft_steps",
    "per_device_train_batch_size": "sft_batch_size",
}
TASK_KEYS = ("dataset_name", "task_args", "columns")  # mean the same everywhere: what success is measured on
# Keys that decide what a model's held-out success comes to, beside the problems, which have a fingerprint. The seed is
# that of the samples, and of the weights where a model is made from scratch.
MEASURING_KEYS = (
    *("dtype", "device", "load_in_4bit", "sampler", "seed", "max_completion_length", "temperature", "stop"),
    *("dataset_name", "task_args", "columns", "dataset_config", "dataset_train_split", "dataset_test_split"),
    *("eval_fraction", "pass_threshold"),
    *("dataset_mixture", "system_prompt", "max_prompt_length", "eval_samples", "eval_ks", "eval_sampling"),
    *("reward_funcs", "reward_weights", "reward_gate", "reward_timeout", "reward_args", "reward_input", "reward_batch"),
)


@dataclass(frozen=True)
class Stage:
    """One run of the recipe. Its model and data are known when the stages before it are done."""

    name: str  # its folder
    kind: Kind
    recipe: Recipe
    start: str  # of STARTS
    own_data: bool  # it names its demonstrations itself

    def describe(self) -> str:
        """In a line."""
        r = self.recipe
        length = f"{r.sft_epochs or 1:g} epochs" if not r.sft_steps else f"{r.sft_steps} steps"
        how = {
            "sft": f"{length}, batches of {r.sft_batch_size}, rate {r.sft_learning_rate:g}",
            "grpo": f"{r.max_steps} steps of {r.prompts_per_step} prompts x {r.num_generations} answers",
            "harvest": f"{r.harvest_size or 'all'} prompts x {r.harvest_samples} answers, {r.harvest_keep} kept",
        }
        return f"{self.name:<12}from the {self.start} model: {how[self.kind]}"


def prefixed(kind: str, keys: Mapping[str, Any]) -> dict[str, Any]:
    """Keys as they are meant where there is one kind of training: in `sft`, epochs is sft_epochs."""

    def full(key: str) -> str:
        if f"{kind}_{key}" in Recipe.model_fields and key not in TASK_KEYS:
            return f"{kind}_{key}"
        return TRL.get(key, key) if kind == "sft" else key

    return {full(key): value for key, value in keys.items()}


def read_stages(recipe: Recipe) -> list[Stage]:
    """The stages with their whole recipes. Raises RecipeError, which names the stage."""
    common = recipe.model_dump(exclude_unset=True) | {"stages": [], "resume": "never", "output_dir": None}
    stages: list[Stage] = []
    for number, given in enumerate(recipe.stages, 1):
        where = f"stage {number}"
        keys = dict(given)
        kind, start = keys.pop("stage", None), keys.pop("from", None)
        if kind not in RUNNERS:
            raise RecipeError(f"{where}: stage={kind!r} is not one of {', '.join(RUNNERS)}")
        after_harvest = kind == "sft" and bool(stages) and stages[-1].kind == "harvest"
        start = start or ("first" if after_harvest or not stages else "previous")
        if start not in STARTS:
            raise RecipeError(f"{where}, {kind}: from={start!r} is not one of {', '.join(STARTS)}")
        if refused := sorted({"stages", "output_dir", "resume", "backend_python"} & keys.keys()):
            raise RecipeError(f"{where}, {kind}: {refused[0]} belongs to the whole recipe, not to a stage")
        keys = prefixed(kind, keys)
        own_data = "sft_dataset_name" in keys
        base = common if kind == "sft" else common | {"sft_steps": 0, "sft_epochs": 0.0}  # a warm-up is a stage here
        try:
            resolved = load_recipe(None, keys, base_of=base)
            if kind == "grpo":
                refuse_backend(resolved)
        except RecipeError as error:
            raise RecipeError(f"{where}, {kind}: {str(error).removeprefix('command line: ')}") from None
        stages.append(Stage(f"{number:02d}-{kind}", kind, resolved, start, own_data))
    return stages


def run_stages(context: RunContext) -> Result:
    """All stages in order. Resumed, stages that are done are skipped and the one that was interrupted is resumed."""
    recipe, reporter, world = context.recipe, context.reporter, get_world()
    stages = read_stages(recipe)
    names, resolved = [stage.name for stage in stages], recipe.model_dump(mode="json")
    if context.resume:
        resumed = context.resume
        writer = open_writer(lambda: RunWriter.reopen(resumed, "stages", context.manifest))
        try:
            changed = changes(writer.manifest.recipe, resolved)
            with_force = "--force takes it for the stages that are not started"
            refuse_changes(writer.folder, changed, context.force, with_force)
        except RecipeError:
            writer.close()
            raise
        writer.update_manifest(status="running", why="", recipe=resolved, stages=names)
    else:
        default = partial(default_folder, recipe.dataset_name, recipe.run_name)
        folder = Path(recipe.output_dir) if recipe.output_dir else world.first(default)
        recipe = context.given.place(recipe, folder)
        resolved, stages = recipe.model_dump(mode="json"), read_stages(recipe)
        writer = open_writer(lambda: RunWriter.create(folder, resolved, {"kind": "stages", "stages": names}))
        world.first(lambda: remember_run(context, folder, recipe))
        world.first(lambda: context.given.write(folder))
    context = replace(context, recipe=recipe, given=Given())  # what was given is in the folder
    try:
        with writer.until_done():
            results = _run_all(context, stages, writer.folder)
            world.first(lambda: _link(writer.model_folder, results[-1].model))
            writer.link_model()
    except KeyboardInterrupt:
        command = f"outdo train --resume {shlex.quote(str(writer.folder))}"
        reporter.note(f"resume with: {resume_command(command)}")
        raise
    finally:
        if world.is_first:
            try_report(writer.folder, reporter.note)
    outcomes = tuple(StageResult(s.name, r.recipe, r.before, r.after) for s, r in zip(stages, results, strict=True))
    first = next((result.before for result in results if result.before), [])
    last = next((outcome.after for outcome in reversed(outcomes) if outcome.after), [])
    return Result(writer.folder, results[-1].model, first, last, recipe, outcomes)


def _run_all(context: RunContext, stages: Sequence[Stage], parent: Path) -> list[Result]:
    first = context.recipe.model_name_or_path
    results: list[Result] = []
    model, harvest = first, None
    for stage in stages:
        folder = parent / stage.name
        context.reporter.note(f"\n{stage.name}")
        keys: dict[str, Any] = {"output_dir": str(folder)}
        keys["push_to_hub"] = context.recipe.push_to_hub and stage is stages[-1]
        keys["hub_model_id"] = context.recipe.hub_model_id or parent.resolve().name
        keys["model_name_or_path"] = first if stage.start == "first" else model
        if stage.kind == "sft" and harvest and not stage.own_data:
            keys |= {"sft_dataset_name": str(harvest), "sft_task_args": {}, "sft_columns": {}}
        results.append(_run_one(context, stage.kind, stage.recipe.model_copy(update=keys), folder, results))
        model, harvest = str(results[-1].model), results[-1].harvest or harvest
    return results


def _run_one(context: RunContext, kind: Kind, recipe: Recipe, folder: Path, earlier: Sequence[Result]) -> Result:
    world = get_world()
    manifest = world.first(lambda: read_manifest(folder) if holds_run(folder) else None)
    if manifest is None:
        prior = world.first(lambda: prior_evals(recipe.model_dump(mode="json"), kind, earlier))
        stage_context = context.for_stage(kind, recipe, prior)
        return runner_of(stage_context, RUNNERS)(stage_context)
    if manifest.status != "done":
        prior = world.first(lambda: prior_evals(manifest.recipe, kind, earlier))
        stage_context = context.for_resumed_stage(folder, manifest, prior)
        return runner_of(stage_context, RUNNERS)(stage_context)
    context.reporter.note("  done before")
    result = world.first(lambda: finished_result(folder, recipe))
    harvest = manifest.harvest
    return replace(result, model=Path(manifest.model), harvest=Path(harvest)) if harvest else result


def prior_evals(recipe: Mapping[str, Any], kind: str, earlier: Sequence[Result]) -> PriorEvals | None:
    """What the newest of the earlier stages measured of the model that this recipe starts from, in the same way. After
    a warm-up it is another model. One trained on four bits is rounded to them anew when loaded: another, too."""
    if _warms_up(recipe, kind):
        return None
    for result in reversed(earlier):
        manifest = read_manifest(result.folder)
        before = manifest.recipe
        limits = ("top_p", "top_k", "min_p") if recipe.get("eval_sampling") == "rollout" else ()
        if any(before.get(key) != recipe.get(key) for key in (*MEASURING_KEYS, *limits)):
            continue
        evaluations: Sequence[Evaluation] = ()
        if Path(recipe["model_name_or_path"]).resolve() == result.model.resolve():
            evaluations = result.after if not recipe["load_in_4bit"] else ()
        elif recipe["model_name_or_path"] == before["model_name_or_path"] and not _warms_up(before, manifest.kind):
            evaluations = result.before
        if evaluations:
            return PriorEvals(result.folder.name, tuple(evaluations))
    return None


def _warms_up(recipe: Mapping[str, Any], kind: str) -> bool:
    return kind == "grpo" and bool(recipe["sft_steps"] or recipe["sft_epochs"])


def _link(link: Path, model: Path) -> None:
    """The last stage's model is the model of the whole run."""
    target, folder = model.resolve(), link.parent.resolve()
    if not target.is_dir():
        return  # a harvest of a model by name
    try:
        link.unlink(missing_ok=True)
        link.symlink_to(target.relative_to(folder) if folder in target.parents else target)
    except OSError as error:
        raise RunError(f"cannot write {link}: {error}") from error
