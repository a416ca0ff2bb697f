"""A recipe in, a run out: puts the parts together. The algorithm itself is in `loop.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from pathlib import Path
from typing import Any, Literal, ParamSpec

from outdo.errors import RecipeError
from outdo.evals.held_out import Evaluation
from outdo.evals.loading import run_with_model
from outdo.evals.settings import EvalSettings
from outdo.evals.suite import build_eval_suite, evaluate_model
from outdo.parallel.host import keep_memory
from outdo.recipe.load import load_recipe
from outdo.recipe.schema import Recipe
from outdo.report.write import try_report
from outdo.rewards.choose import rewards_of
from outdo.runs.manifest import read_manifest
from outdo.tasks.lengths import in_steps
from outdo.tasks.mixture import task_of
from outdo.tasks.sources import SOURCE_KEYS
from outdo.tasks.task import Task, refuse_no_task
from outdo.training import resuming
from outdo.training.console import LiveTable, PlainLines, make_reporter
from outdo.training.harvesting import harvesting
from outdo.training.keeping import Known
from outdo.training.launch import Job, Result, go_on, start
from outdo.training.stages import Runner, run_stages
from outdo.training.trackers import chosen

P = ParamSpec("P")
Object = str | Callable[..., Any]
Objects = Sequence[Object]
HANDED = "object:"  # before the name of a function while the recipe is read: no other trainer's reward is meant
WHERE = "keys given"  # what messages call those of a call


@dataclass(frozen=True)
class Asked:
    """What a run is asked for, its recipe read."""

    recipe: Recipe
    task: Task | None
    reward_funcs: Objects | None
    reporter: PlainLines | LiveTable
    resume: Path | None
    force: bool
    known: Known | None = None  # of the model that a stage starts from


def _asked(
    recipe: str | Path | Recipe | None = None,
    *,
    task: str | Task | None = None,
    reward_funcs: Object | Objects | None = None,
    reporter: PlainLines | LiveTable | None = None,
    resume: str | Path | None = None,
    force: bool = False,
    **keys: Any,
) -> Asked:
    """By the recipe with the keys over it, or by that of the run to go on with."""
    reporter = reporter or make_reporter()
    if not isinstance(recipe, (str, Path, Recipe, type(None))):
        raise RecipeError(
            f"the recipe is a {type(recipe).__name__}: it is a YAML file's path or an outdo.Recipe. Keys are given by "
            "name, as train(max_steps=2) or train(**keys)"
        )
    if isinstance(task, str):
        keys, task = {"task": task, **keys}, None
    if task is not None:
        refuse_no_task(task)
    funcs = None if reward_funcs is None else _listed("reward_funcs", reward_funcs)
    if funcs is not None:
        keys = {**keys, "reward_funcs": [f if isinstance(f, str) else HANDED + _name(f) for f in funcs]}
    if resume is not None:
        had = read_manifest(Path(resume)).recipe
        found = load_recipe(None, keys, reporter.note, _without(had, funcs), WHERE)
        resuming.refuse_elsewhere(Path(resume), had.get("output_dir"), found.output_dir)
    elif not isinstance(recipe, Recipe):
        found = load_recipe(recipe, keys, reporter.note, where=WHERE)
    elif keys:
        base = _without(recipe.model_dump(exclude_unset=True), funcs)
        found = load_recipe(None, keys, reporter.note, base, WHERE)
    else:
        found = recipe
    if funcs is not None:
        found = found.model_copy(update={"reward_funcs": [name.removeprefix(HANDED) for name in found.reward_funcs]})
    return Asked(found, task, funcs, reporter, None if resume is None else Path(resume), force)


def _without(base: Mapping[str, Any], funcs: Objects | None) -> dict[str, Any]:
    """A recipe less the rewards that others are given for: among its names may be those of objects."""
    return {key: value for key, value in base.items() if funcs is None or key != "reward_funcs"}


def _taking(shape: Callable[P, Any]) -> Callable[[Callable[..., Result]], Callable[P, Result]]:
    """For a function that hands all that it is given to `shape`: its parameters are that one's, for type checkers,
    editors and `help`."""

    def of(function: Callable[..., Result]) -> Callable[P, Result]:
        theirs, returned = signature(shape), signature(function).return_annotation
        function.__signature__ = theirs.replace(return_annotation=returned)  # type: ignore[attr-defined]
        return function

    return of


@_taking(_asked)
def train(recipe: str | Path | Recipe | None = None, **given: Any) -> Result:
    """Trains by a recipe (a YAML path, a Recipe, or the default) with `keys` over it, and returns what came of it.

    `task` and `reward_funcs` may be your own objects instead of names. `resume` is a run's folder to go on with, by its
    own recipe; what has changed since and matters is refused unless `force`. A recipe with `stages` runs them one after
    the other. Raises OutdoError's family; an interrupt is passed on after the run has been saved.
    """
    asked = _asked(recipe, **given)
    if asked.recipe.stages:
        return _in_stages(asked)
    kind = read_manifest(asked.resume).kind if asked.resume else "grpo"
    return _sft(asked) if kind == "sft" else _grpo(asked)


@_taking(_asked)
def sft(recipe: str | Path | Recipe | None = None, **given: Any) -> Result:
    """Supervised training alone, by the recipe's sft keys; one epoch where they name no length. Else as `train`."""
    asked = _asked(recipe, **given)
    if asked.recipe.stages:
        raise RecipeError("this recipe has stages: `outdo train` runs them, one after the other")
    return _sft(asked)


@_taking(_asked)
def harvest(recipe: str | Path | Recipe | None = None, **given: Any) -> Result:
    """A harvest by the recipe's harvest keys, in a run's folder: the model as it is, and `Result.harvest`."""
    return _harvest(_asked(recipe, **given))


def _grpo(asked: Asked) -> Result:
    return _run("grpo", asked)


def _sft(asked: Asked) -> Result:
    if not asked.recipe.sft_steps and not asked.recipe.sft_epochs:
        asked = replace(asked, recipe=asked.recipe.model_copy(update={"sft_epochs": 1.0}))
    return _run("sft", asked)


def _harvest(asked: Asked) -> Result:
    keep_memory()
    task = asked.task or task_of(asked.recipe)
    rewards = rewards_of(asked.recipe, task, _own(asked.reward_funcs))
    return harvesting(asked.recipe, task, rewards, asked.reporter, asked.resume)


def _in_stages(whole: Asked) -> Result:
    def runner(work: Callable[[Asked], Result]) -> Runner:
        def run(recipe: Recipe | None = None, *, resume: Path | None = None, known: Known | None = None) -> Result:
            asked = _asked(
                recipe,
                task=whole.task,
                reward_funcs=whole.reward_funcs,
                reporter=whole.reporter,
                resume=resume,
                force=whole.force,
            )
            return work(replace(asked, known=known))

        return run

    resume = whole.resume
    if resume is None and whole.recipe.resume == "auto":
        resume = resuming.unfinished(whole.recipe, "", "stages")
    runners = {"sft": runner(_sft), "grpo": runner(_grpo), "harvest": runner(_harvest)}
    result = run_stages(whole.recipe, runners, whole.reporter, resume, whole.force)
    try_report(result.folder, whole.reporter.note)
    return result


def _own(reward_funcs: Objects | None) -> dict[str, Callable[..., Any]]:
    return {_name(f): f for f in reward_funcs or () if not isinstance(f, str)}


def _listed(key: str, given: Any) -> list[Object]:
    """One reward or several, as names or functions. Raises RecipeError where it is neither."""
    if isinstance(given, str):
        return [name.strip() for name in given.split(",") if name.strip()]
    found = [given] if callable(given) else list(given) if isinstance(given, (list, tuple)) else None
    if found is None or not all(isinstance(one, str) or callable(one) for one in found):
        raise RecipeError(f"{key}={given!r:.80}: expected names, functions, or a list of them")
    return found


def _name(reward: Object) -> str:
    """What a reward is called; an object that can be called, by its class."""
    return reward if isinstance(reward, str) else getattr(reward, "__name__", type(reward).__name__)


def _run(kind: Literal["grpo", "sft"], asked: Asked) -> Result:
    recipe, reporter, resume = asked.recipe, asked.reporter, asked.resume
    chosen(recipe.report_to)  # says now that a tracker is not there
    keep_memory()
    task = asked.task or task_of(recipe)
    recipe = in_steps(recipe, task)
    for split in (*recipe.eval_split, *recipe.final_eval_split):
        next(task.prompts(split, recipe.seed))  # says now that there is no such split
    unjudged = kind == "sft" and not (task.rewards or task.parts or recipe.reward_funcs)
    rewards = None if unjudged else rewards_of(recipe, task, _own(asked.reward_funcs))
    job = Job(kind, recipe, task, rewards, reporter, asked.known)
    if resume is None and recipe.resume == "auto":
        resume = resuming.unfinished(recipe, job.data, kind, job.reward_files)
    return go_on(job, resume, asked.force) if resume else start(job)


def evaluate(
    model: str | Path,
    task: str | Task = "arithmetic",
    split: str = "test",
    *,
    task_args: Mapping[str, Any] | None = None,
    reward: Object | Objects | None = None,
    system_prompt: str | None = None,
    **settings: Any,
) -> Evaluation:
    """Held-out success of any saved model. `reward`, a name or a function, judges instead of the task's own verifier;
    `settings` are the fields of `EvalSettings`, such as size (0: the whole split), samples, temperature, dtype and
    seed."""
    names = ["task_args", "reward", "system_prompt", *EvalSettings.__dataclass_fields__]
    if unknown := [key for key in settings if key not in names]:
        data = f"; {unknown[0]} of data is task_args={{'{unknown[0]}': …}}" if unknown[0] in SOURCE_KEYS else ""
        raise RecipeError(f"evaluate takes no {', '.join(unknown)}; it takes {', '.join(names)}{data}")
    eval_settings = EvalSettings(**settings)
    refuse_no_task(task)
    if not isinstance(task_args, (Mapping, type(None))):
        raise RecipeError(f"task_args={task_args!r:.80}: expected a mapping, such as {{'digits': 3}}")
    judges = [] if reward is None else _listed("reward", reward)
    if len(judges) > 1:
        raise RecipeError(f"reward has {len(judges)} rewards: name the one that decides what is right")
    suite = build_eval_suite(
        [task],
        [split],
        eval_settings.size,
        task_args=task_args,
        reward=_name(judges[0]) if judges else None,
        functions=_own(judges),
        system_prompt=system_prompt,
    )
    (result,) = run_with_model(model, eval_settings, lambda p: evaluate_model(str(model), p, suite, eval_settings))
    return result.evaluation
