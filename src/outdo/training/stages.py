"""Several stages of one recipe: supervised, GRPO, harvest, in any order, each from the model of the one before.

    stages:
      - {stage: sft, epochs: 3}
      - {stage: grpo, max_steps: 200}
      - {stage: harvest, samples: 16}
      - {stage: sft}

Each is a run in a folder of its own inside the recipe's (`01-sft`, `02-grpo`, …), with the recipe's common keys and its
own over them. A harvest hands on the model that it had, and its demonstrations to the supervised stages after it. The
first of those starts from the recipe's first model unless it says `from: previous`.

A model that an earlier stage has measured, asked in the same way, is not measured again: the rows are carried over.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from outdo.errors import RecipeError, RunError
from outdo.evals.held_out import Evaluation
from outdo.recipe.load import load_recipe
from outdo.recipe.schema import Recipe
from outdo.runs.manifest import read_manifest
from outdo.runs.writer import RunWriter, default_folder
from outdo.training import resuming
from outdo.training.console import LiveTable, PlainLines
from outdo.training.keeping import Known
from outdo.training.launch import Result, finished

KINDS = ("sft", "grpo", "harvest")
FROM = ("first", "previous")
TRL = {  # names that TRL's SFT has
    "num_train_epochs": "sft_epochs",
    "max_seq_length": "sft_max_length",
    "max_steps": "sft_steps",
    "per_device_train_batch_size": "sft_batch_size",
}
ITS_TASK = ("dataset_name", "task_args", "columns")  # keys that mean the same everywhere: what success is measured on
# Keys that decide what a model's held-out success comes to, beside the problems, which tell themselves from others. The
# seed is that of the samples, and of the weights where a model is made from nothing.
MEASURING = (
    *("dtype", "device", "load_in_4bit", "sampler", "seed", "max_completion_length", "temperature", "stop"),
    *("dataset_name", "task_args", "columns", "dataset_config", "dataset_train_split", "dataset_test_split"),
    *("dataset_mixture", "system_prompt", "max_prompt_length", "eval_samples", "eval_ks", "eval_sampling"),
    *("reward_funcs", "reward_weights", "reward_gate", "reward_timeout"),
)


class Runner(Protocol):
    """A kind of run: by a recipe, or one to go on with by its own."""

    def __call__(
        self, recipe: Recipe | None = None, *, resume: Path | None = None, known: Known | None = None
    ) -> Result: ...


@dataclass(frozen=True)
class Stage:
    """One run to be. Its model and data are known when those before it are done."""

    name: str  # its folder
    kind: str
    recipe: Recipe
    start: str  # of FROM: the recipe's own model, or that of the stage before
    own_data: bool  # it names its demonstrations itself

    def told(self) -> str:
        """In a line."""
        r = self.recipe
        long = f"{r.sft_epochs or 1:g} epochs" if not r.sft_steps else f"{r.sft_steps} steps"
        how = {
            "sft": f"{long}, batches of {r.sft_batch_size}, rate {r.sft_learning_rate:g}",
            "grpo": f"{r.max_steps} steps of {r.prompts_per_step} prompts x {r.num_generations} answers",
            "harvest": f"{r.harvest_size or 'all'} prompts x {r.harvest_samples} answers, {r.harvest_keep} kept",
        }
        return f"{self.name:<12}from the {self.start} model: {how[self.kind]}"


def prefixed(kind: str, keys: Mapping[str, Any]) -> dict[str, Any]:
    """Keys as they are meant where only one kind of training goes on: in `sft`, epochs is sft_epochs."""
    out: dict[str, Any] = {}
    for key, value in keys.items():
        full = TRL.get(key, key) if kind == "sft" else key
        if f"{kind}_{key}" in Recipe.model_fields and key not in ITS_TASK:
            full = f"{kind}_{key}"
        out[full] = value
    return out


def read_stages(recipe: Recipe) -> list[Stage]:
    """The stages with their whole recipes. Raises RecipeError, which names the stage."""
    common = recipe.model_dump(exclude_unset=True) | {"stages": [], "resume": "never", "output_dir": None}
    found: list[Stage] = []
    for number, given in enumerate(recipe.stages, 1):
        where = f"stage {number}"
        keys = dict(given)
        kind, start = keys.pop("stage", None), keys.pop("from", None)
        if kind not in KINDS:
            raise RecipeError(f"{where}: stage={kind!r} is not one of {', '.join(KINDS)}")
        after_harvest = kind == "sft" and bool(found) and found[-1].kind == "harvest"
        start = start or ("first" if after_harvest or not found else "previous")
        if start not in FROM:
            raise RecipeError(f"{where}, {kind}: from={start!r} is not one of {', '.join(FROM)}")
        if refused := sorted({"stages", "output_dir", "resume"} & keys.keys()):
            raise RecipeError(f"{where}, {kind}: {refused[0]} belongs to the whole recipe, not to a stage")
        keys = prefixed(kind, keys)
        own_data = "sft_dataset_name" in keys
        base = common if kind == "sft" else common | {"sft_steps": 0, "sft_epochs": 0.0}  # a warm-up is a stage here
        try:
            its_recipe = load_recipe(None, keys, base_of=base)
        except RecipeError as error:
            raise RecipeError(f"{where}, {kind}: {str(error).removeprefix('command line: ')}") from None
        found.append(Stage(f"{number:02d}-{kind}", kind, its_recipe, start, own_data))
    return found


def run_stages(
    recipe: Recipe,
    runners: Mapping[str, Runner],
    reporter: PlainLines | LiveTable,
    resume: Path | None = None,
    force: bool = False,
) -> Result:
    """All stages in order. Gone on with, those that are done are passed over and the one in hand is resumed."""
    stages = read_stages(recipe)
    facts = {"kind": "stages", "stages": [stage.name for stage in stages]}
    if resume:
        run = RunWriter.reopen(resume, "stages")
        _refuse_changes(run, recipe, force)
        run.update_manifest(status="running", why="", recipe=recipe.model_dump(mode="json"), stages=facts["stages"])
    else:
        folder = Path(recipe.output_dir) if recipe.output_dir else default_folder(recipe.dataset_name)
        run = RunWriter.create(folder, recipe.model_dump(mode="json"), facts)
    try:
        with run.until_done():
            results = _all(stages, recipe.model_name_or_path, run.folder, runners, reporter)
            _link(run.folder, results[-1].model)
    except KeyboardInterrupt:
        reporter.note(f"go on with: outdo train --resume {shlex.quote(str(run.folder))}")
        raise
    told = [(stage.name, result.after) for stage, result in zip(stages, results, strict=True)]
    first = next((result.before for result in results if result.before), [])
    last = next((after for _, after in reversed(told) if after), [])
    return Result(run.folder, results[-1].model, first, last, tuple(told))


def _refuse_changes(run: RunWriter, recipe: Recipe, force: bool) -> None:
    changed = resuming.changes(run.manifest.recipe, recipe.model_dump(mode="json"))
    if changed and not force:
        run.close()
        raise RecipeError(
            f"{run.folder} cannot be gone on with: {'; '.join(changed)}. Put it back, or start a new run; --force "
            "takes it for the stages that are not begun"
        )


def _all(
    stages: Sequence[Stage],
    first: str,
    parent: Path,
    runners: Mapping[str, Runner],
    reporter: PlainLines | LiveTable,
) -> list[Result]:
    results: list[Result] = []
    model, harvest = first, None
    for stage in stages:
        folder = parent / stage.name
        reporter.note(f"\n{stage.name}")
        keys: dict[str, Any] = {"output_dir": str(folder)}
        keys["model_name_or_path"] = first if stage.start == "first" else model
        if stage.kind == "sft" and harvest and not stage.own_data:
            keys |= {"sft_dataset_name": str(harvest), "sft_task_args": {}, "sft_columns": {}}
        earlier = [result.folder for result in results]
        ready = replace(stage, recipe=stage.recipe.model_copy(update=keys))
        result = _one(ready, folder, earlier, runners[stage.kind], reporter)
        results.append(result)
        model, harvest = str(result.model), result.harvest or harvest
    return results


def _one(
    stage: Stage, folder: Path, earlier: Sequence[Path], runner: Runner, reporter: PlainLines | LiveTable
) -> Result:
    if not (folder / "run.json").exists():
        return runner(stage.recipe, known=known_of(stage.recipe.model_dump(mode="json"), stage.kind, earlier))
    manifest = read_manifest(folder)
    if manifest.status != "done":
        return runner(resume=folder, known=known_of(manifest.recipe, stage.kind, earlier))
    reporter.note("  done before")
    harvest = manifest.harvest
    result = finished(folder)
    return replace(result, model=Path(manifest.model), harvest=Path(harvest)) if harvest else result


def known_of(recipe: Mapping[str, Any], kind: str, earlier: Sequence[Path]) -> Known | None:
    """What the newest of the earlier stages found of the model that this recipe starts from, asked in the same way.

    After a warm-up it is another model than it started from. What was trained on four bits is rounded to them anew when
    it is loaded, so that it is not what was measured.
    """
    if _warms_up(recipe, kind):
        return None
    for folder in reversed(earlier):
        manifest = read_manifest(folder)
        had, result = manifest.recipe, finished(folder)
        limits = ("top_p", "top_k", "min_p") if recipe.get("eval_sampling") == "rollout" else ()
        if any(had.get(key) != recipe.get(key) for key in (*MEASURING, *limits)):
            continue
        found: Sequence[Evaluation] = ()
        if Path(recipe["model_name_or_path"]).resolve() == result.model.resolve():
            found = result.after if not recipe["load_in_4bit"] else ()
        elif recipe["model_name_or_path"] == had["model_name_or_path"] and not _warms_up(had, manifest.kind):
            found = result.before
        if found:
            return Known(folder.name, tuple(found))
    return None


def _warms_up(recipe: Mapping[str, Any], kind: str) -> bool:
    return kind == "grpo" and bool(recipe["sft_steps"] or recipe["sft_epochs"])


def _link(folder: Path, model: Path) -> None:
    """The last stage's model stands for the whole."""
    link, whole = folder / "model", model.resolve()
    inside = folder.resolve() in whole.parents
    if not whole.is_dir():
        return  # a harvest of a model by name
    try:
        link.unlink(missing_ok=True)
        link.symlink_to(whole.relative_to(folder.resolve()) if inside else whole)
    except OSError as error:
        raise RunError(f"cannot write {link}: {error}") from error
