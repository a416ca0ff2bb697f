"""What a run is made of, put together once from the command or the call: the recipe and the manifest are read here."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from outdo.bridges.backend import refuse_backend
from outdo.errors import RecipeError
from outdo.evals.held_out import Evaluation
from outdo.recipe.launchers import with_launcher
from outdo.recipe.load import load_recipe
from outdo.recipe.schema import Recipe
from outdo.recipe.trust import refuse_untrusted, remember
from outdo.rewards.choose import rewards_of
from outdo.rewards.compose import Rewards
from outdo.rollout.play import Play, play_of
from outdo.runs.manifest import Manifest, read_manifest
from outdo.serve.agents import agent_of
from outdo.tasks.lengths import epochs_to_steps, steps_per_epoch
from outdo.tasks.mixture import task_of
from outdo.tasks.task import Task, refuse_no_task
from outdo.training.best import Best
from outdo.training.callbacks import Callback, find_callbacks, make_callback
from outdo.training.console import make_reporter
from outdo.training.given import Given, take_objects
from outdo.training.tiny import refuse_on_tiny
from outdo.types import Reporter

Kind = Literal["grpo", "sft", "harvest", "stages"]
RewardLike = str | Callable[..., Any]
COMMANDS = {"grpo": "train", "sft": "sft"}  # of `outdo`, that resume such a run
OBJECT = "object:"  # marks the name of a function while the recipe is read, so that no other trainer's reward is meant


@dataclass(frozen=True)
class PriorEvals:
    """Evaluations of the same model that a run starts from, measured in the same way by an earlier run."""

    run: str
    evaluations: tuple[Evaluation, ...]


@dataclass(frozen=True)
class Result:
    """The result of a run. The numbers by step are in `folder`."""

    folder: Path
    model: Path
    before: list[Evaluation]
    after: list[Evaluation]
    recipe: Recipe
    stages: tuple[StageResult, ...] = ()  # of a recipe with several
    harvest: Path | None = None  # demonstrations that a harvest wrote
    best: Best | None = None  # with load_best_model_at_end: the step whose weights `model` has


@dataclass(frozen=True)
class StageResult:
    """One stage of a run, with its evaluations before and after. A harvest has none."""

    name: str
    recipe: Recipe
    before: list[Evaluation]
    after: list[Evaluation]


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """One run, before anything is loaded."""

    kind: Kind
    recipe: Recipe
    task: Task
    rewards: Rewards | None  # None: supervised training on a task without a verifier
    reporter: Reporter
    callbacks: tuple[Callback, ...] = ()
    resume: Path | None = None
    manifest: Manifest | None = None  # of the run to resume
    force: bool = False  # resume though something changed
    prior_evals: PriorEvals | None = None
    own_task: Task | None = None  # given as an object: stages use it too
    given: Given = field(default_factory=Given)  # a model and data that are objects
    trust: bool = False  # whatever a folder names is used
    reward_objects: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    tools: Sequence[Any] | None = None  # given as objects
    environment: Any = None  # a class, or several by name, given as objects
    agent: Callable[..., Any] | None = None  # given as an object

    @cached_property
    def play(self) -> Play | None:
        """How answers of several turns are played; None where they have one."""
        agent = agent_of(self.recipe, self.agent, self.task.agent)
        return agent or play_of(self.recipe, self.task.environment, self.tools, self.environment)

    def for_stage(self, kind: Kind, recipe: Recipe, prior_evals: PriorEvals | None) -> RunContext:
        """A new run of one stage."""
        if self.reward_objects:  # given by the call, for all stages
            recipe = recipe.model_copy(update={"reward_funcs": self.recipe.reward_funcs})
        task, rewards = build_task(kind, recipe, self.own_task, self.reward_objects)
        updated = replace(self, kind=kind, recipe=fit_lengths(kind, recipe, task), task=task, rewards=rewards)
        return replace(updated, prior_evals=prior_evals, resume=None, manifest=None)

    def for_resumed_stage(self, folder: Path, manifest: Manifest, prior_evals: PriorEvals | None) -> RunContext:
        """A stage that was interrupted, by its own recipe."""
        rewards = list(self.reward_objects) or None  # among the recipe's names may be those of objects
        recipe = load_recipe(None, base_of=_base(manifest.recipe, rewards))
        named, outer = recipe.model_dump(mode="json"), self.recipe.model_dump(mode="json")
        command = f"outdo train --resume {shlex.quote(str(folder.parent))}"
        refuse_untrusted(folder, named, outer, command, trust=self.trust, force=self.force)
        kind: Kind = manifest.kind  # type: ignore[assignment]
        return replace(self.for_stage(kind, recipe, prior_evals), resume=folder, manifest=manifest)


def make_context(
    recipe: str | Path | Recipe | None = None,
    *,
    kind: Kind | None = None,
    task: str | Task | None = None,
    reward_funcs: RewardLike | Sequence[RewardLike] | None = None,
    callbacks: Callback | str | Sequence[Callback | str] | None = None,
    tools: Any = None,
    environment_factory: Any = None,
    agent: str | Callable[..., Any] | None = None,
    reporter: Reporter | None = None,
    resume: str | Path | None = None,
    force: bool = False,
    trust: bool = False,
    overrides: Mapping[str, Any] | None = None,
    where: str = "keys given",
    **keys: Any,
) -> RunContext:
    """By the recipe with the keys over it, or by that of the run to `resume`. `overrides` are keys too, as a mapping;
    `where` is what messages call them. `trust` uses the code and the addresses that the folder of a run to resume
    names, although this user did not start it here. Raises a subclass of OutdoError, before anything is loaded."""
    reporter = reporter or make_reporter()
    keys, given = take_objects({**keys, **(overrides or {})}, task, resume is not None)
    if not isinstance(recipe, (str, Path, Recipe, type(None))):
        raise RecipeError(
            f"the recipe is a {type(recipe).__name__}: pass the path of a YAML file or an outdo.Recipe. Keys are "
            "passed by name, as train(max_steps=2) or train(**keys)"
        )
    if isinstance(task, str):
        keys, task = {"task": task, **keys}, None
    if task is not None:
        refuse_no_task(task)
    rewards_given = None if reward_funcs is None else as_reward_list("reward_funcs", reward_funcs)
    if rewards_given is not None:
        keys = {**keys, "reward_funcs": [f if isinstance(f, str) else OBJECT + reward_name(f) for f in rewards_given]}
    callbacks = [callbacks] if isinstance(callbacks, (str, Callback)) else callbacks
    if names := [one for one in callbacks or () if isinstance(one, str)]:
        keys = {**keys, "callbacks": names}
    keys, tool_objects = names_or_objects(keys, "tools", tools)
    keys, environment = names_or_objects(keys, "environment_factory", environment_factory)
    keys, agent_object = ({**keys, "agent": agent}, None) if isinstance(agent, str) else (keys, agent)
    manifest = None
    if resume is not None:
        manifest = read_manifest(Path(resume))
        resolved = load_recipe(None, keys, reporter.note, _base(manifest.recipe, rewards_given), where)
        _refuse_elsewhere(Path(resume), manifest.recipe.get("output_dir"), resolved.output_dir)
        _refuse_untrusted(Path(resume), manifest, resolved, keys, trust, force)
    elif not isinstance(recipe, Recipe):
        resolved = load_recipe(recipe, keys, reporter.note, where=where)
    elif keys:
        base = _base(recipe.model_dump(exclude_unset=True), rewards_given)
        resolved = load_recipe(None, keys, reporter.note, base, where)
    else:
        resolved = recipe
    resolved = _as_launched(resolved, resume, reporter)
    names = [name.removeprefix(OBJECT) for name in resolved.reward_funcs]
    if names != resolved.reward_funcs:
        resolved = resolved.model_copy(update={"reward_funcs": names})
    objects = {reward_name(f): f for f in rewards_given or () if not isinstance(f, str)}
    kind = _kind(kind, resolved, manifest)
    _refuse_for_kind(kind, resolved, given)
    if kind in ("grpo", "stages"):
        refuse_backend(resolved)
    task = task or given.task(resolved)
    built, rewards = build_task(kind, resolved, task, objects)
    refuse_on_tiny(resolved, built)
    resolved = fit_lengths(kind, resolved, built)
    own = [make_callback(type(one).__name__, one, resolved) for one in callbacks or () if not isinstance(one, str)]
    context = RunContext(
        kind=kind,
        recipe=resolved,
        task=built,
        rewards=rewards,
        reporter=reporter,
        callbacks=(*find_callbacks(resolved), *own),
        resume=Path(resume) if resume is not None else None,
        manifest=manifest,
        force=force,
        trust=trust,
        own_task=task,
        given=given,
        reward_objects=objects,
        tools=tool_objects,
        environment=environment,
        agent=agent_object,
    )
    context.play  # noqa: B018  # what is wrong with tools and environments is refused now
    return context


def _as_launched(recipe: Recipe, resume: str | Path | None, reporter: Reporter) -> Recipe:
    """With what `accelerate launch` asks for. A run that is resumed has what it was started with."""
    if resume is not None:
        return recipe
    recipe, lines = with_launcher(recipe, os.environ)
    for line in lines:
        reporter.note(line)
    return recipe


def build_task(
    kind: Kind, recipe: Recipe, own_task: Task | None, objects: Mapping[str, Callable[..., Any]]
) -> tuple[Task, Rewards | None]:
    """The task and its rewards. What a run would refuse of them is refused here."""
    task = task_of(recipe, own_task)
    if kind == "stages":
        return task, None
    for split in (*recipe.eval_split, *recipe.final_eval_split):
        next(task.prompts(split, recipe.seed))  # a split that does not exist is refused now
    has_verifier = task.rewards or task.parts or recipe.reward_funcs
    return task, rewards_of(recipe, task, objects) if has_verifier or kind != "sft" else None


def fit_lengths(kind: Kind, recipe: Recipe, task: Task) -> Recipe:
    """With the lengths that a kind of run needs: epochs as steps, and one epoch of supervised training by default."""
    if kind == "sft" and not recipe.sft_steps and not recipe.sft_epochs:
        recipe = recipe.model_copy(update={"sft_epochs": 1.0})
    if kind not in ("grpo", "sft"):
        return recipe
    recipe = epochs_to_steps(recipe, task)
    epoch_of(kind, recipe, task)  # refused now where there are no epochs
    return recipe


def epoch_of(kind: Kind, recipe: Recipe, task: Task) -> float:
    """Steps of an epoch, where evaluations or checkpoints go by epochs; else 0. Raises RecipeError, TaskError."""
    keys = [key for key in ("eval", "save") if getattr(recipe, f"{key}_strategy") == "epoch"]
    if not keys:
        return 0.0
    key, instead = f"{keys[0]}_strategy=epoch", f"{keys[0]}_strategy=steps and {keys[0]}_steps"
    if kind == "sft" and not recipe.sft_epochs:
        raise RecipeError(f"{key}: sft_steps draws examples endlessly: set sft_epochs, or {instead}")
    return steps_per_epoch(recipe, task, key, instead) if kind == "grpo" else 1.0


def as_reward_list(key: str, given: Any) -> list[RewardLike]:
    """One reward or several, as names or functions. Raises RecipeError where it is neither."""
    if isinstance(given, str):
        return [name.strip() for name in given.split(",") if name.strip()]
    rewards = [given] if callable(given) else list(given) if isinstance(given, (list, tuple)) else None
    if rewards is None or not all(isinstance(one, str) or callable(one) for one in rewards):
        raise RecipeError(f"{key}={given!r:.80}: expected names, functions, or a list of them")
    return rewards


def names_or_objects(keys: dict[str, Any], key: str, given: Any) -> tuple[dict[str, Any], Any]:
    """The keys with what was given under this one where a recipe can name it; else that, as objects."""
    if given is None:
        return keys, None
    parts = given.values() if isinstance(given, Mapping) else given if isinstance(given, (list, tuple)) else [given]
    if all(isinstance(one, (str, Mapping)) for one in parts):
        return {**keys, key: given}, None
    return keys, given if isinstance(given, (list, tuple, Mapping)) or key != "tools" else [given]


def reward_name(reward: RewardLike) -> str:
    """What a reward is called; a callable object, by its class."""
    return reward if isinstance(reward, str) else getattr(reward, "__name__", type(reward).__name__)


def _refuse_for_kind(kind: Kind, recipe: Recipe, given: Given) -> None:
    if kind == "sft" and recipe.load_best_model_at_end:
        raise RecipeError("load_best_model_at_end=true: SFT is evaluated only before and after; leave it out")
    if given.model and kind in ("harvest", "stages"):
        raise RecipeError(f"a loaded model cannot be given to {kind}: save it, and give its folder")


def _kind(wanted: Kind | None, recipe: Recipe, manifest: Manifest | None) -> Kind:
    if recipe.stages:
        if wanted == "sft":
            raise RecipeError("this recipe has stages: `outdo train` runs them, one after the other")
        return "stages"
    if wanted is not None:
        return wanted
    return "sft" if manifest is not None and manifest.kind == "sft" else "grpo"


def _base(recipe: Mapping[str, Any], rewards_given: Sequence[RewardLike] | None) -> dict[str, Any]:
    """A recipe without the rewards that others are given for: among their names may be those of objects."""
    return {key: value for key, value in recipe.items() if rewards_given is None or key != "reward_funcs"}


def _refuse_untrusted(
    folder: Path, manifest: Manifest, recipe: Recipe, keys: Mapping[str, Any], trust: bool, force: bool
) -> None:
    """Before anything that the folder names is imported. What is accepted needs no flag the next time."""
    command = f"outdo {COMMANDS.get(manifest.kind, 'train')} --resume {shlex.quote(str(folder))}"
    names = recipe.model_dump(mode="json")
    has_hashes = manifest.reward_files is not None
    refuse_untrusted(folder, names, keys, command, trust=trust, force=force, has_hashes=has_hashes)
    remember(folder, names)


def _refuse_elsewhere(folder: Path, before: Any, output_dir: str | None) -> None:
    """A run resumes where it is: another `output_dir` is refused, not ignored."""
    if output_dir not in (None, before) and Path(str(output_dir)).resolve() != folder.resolve():
        raise RecipeError(
            f"{folder} resumes where it is, not in output_dir={output_dir}: leave that out, or copy the folder there "
            "and resume the copy"
        )
