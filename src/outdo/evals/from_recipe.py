"""The evaluation that a recipe describes: of a run as it was trained, and of keys given on the command line."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from outdo.errors import PlaceError, RecipeError, TaskError
from outdo.evals.held_out import LIMITS
from outdo.evals.settings import EvalSettings
from outdo.evals.suite import EvalSplit, build_eval_suite
from outdo.recipe import plugins
from outdo.recipe.reward_names import canonical_reward
from outdo.recipe.schema import Recipe
from outdo.recipe.trust import JUDGE, JUDGE_KEYS, names_of
from outdo.rewards.registry import GRADERS
from outdo.runs.layout import MODEL
from outdo.runs.manifest import holds_run, read_manifest
from outdo.tasks import gsm8k
from outdo.tasks.mixture import Entry
from outdo.tasks.sources import SOURCE_KEYS, Source, is_source
from outdo.tasks.task import TASKS
from outdo.types import SampleParams

SETTINGS = {  # recipe key -> field of EvalSettings
    **{"eval_size": "size", "eval_samples": "samples", "eval_ks": "ks"},
    **{name: name for name in ("max_completion_length", "temperature", *LIMITS, "stop", "dtype", "device", "seed")},
    "pass_threshold": "pass_threshold",
}
# Those that decide how answers of several turns are played.
PLAY_KEYS = (
    *("tools", "environment_factory", "environment_args", "max_turns", "max_tool_calling_iterations", "tool_timeout"),
    *("tool_format", "agent", "max_prompt_length"),
)
# The keys of a recipe that decide an evaluation.
KEYS = (
    *PLAY_KEYS,
    *("dataset_name", "task_args", *SOURCE_KEYS, "eval_split", "reward_funcs", "system_prompt", "eval_sampling"),
    *("reward_args", "reward_input"),
    *SETTINGS,
)


@dataclass(frozen=True, kw_only=True)
class EvalPlan:
    """What models are evaluated on, and how."""

    tasks: tuple[str, ...] = ("arithmetic",)
    task_args: Mapping[str, Any] = field(default_factory=dict)  # for all tasks; under a task's name, for that one
    splits: tuple[str, ...] = ("test",)
    reward: str | None = None  # judges instead of the task's own verifier
    reward_options: Mapping[str, Any] = field(default_factory=dict)  # `args` and `input` of `find_rewards`
    system_prompt: str | None = None
    playing: Mapping[str, Any] = field(default_factory=dict)  # keys of a recipe, where they are not the defaults
    settings: EvalSettings = field(default_factory=EvalSettings)

    def suite(self, extra_tasks: Sequence[str] = ()) -> list[EvalSplit]:
        tasks, size = list(dict.fromkeys([*self.tasks, *extra_tasks])), self.settings.size
        return build_eval_suite(
            tasks,
            self.splits,
            size,
            task_args=self.task_args,
            reward=self.reward,
            reward_options=self.reward_options,
            system_prompt=self.system_prompt,
            playing=Recipe.model_validate(self.playing),
        )


def plans_from_recipe(recipe: Recipe, splits: Sequence[str]) -> list[EvalPlan]:
    """The plans that evaluate a model as a run by this recipe does, on those of its splits.

    One plan; for a mixture as many as its tasks need; none without splits. Number of problems and
    samples, device and seed are the defaults.
    """
    if not recipe.dataset_mixture:
        return [_plan(recipe, [recipe.model_dump()], splits)] if splits else []
    entries = [Entry(**entry).model_dump() for entry in recipe.dataset_mixture]
    names = [entry["dataset_name"] for entry in entries]
    built_in: list[dict[str, Any]] = []  # tasks that one plan covers together
    plans: list[EvalPlan] = []
    for entry, name in zip(entries, names, strict=True):
        entry["reward_funcs"] = entry["reward_funcs"] or recipe.reward_funcs
        entry["eval_fraction"] = entry["eval_fraction"] or recipe.eval_fraction
        own = [kind for kind, _, part in (split.partition("/") for split in splits) if part == (entry["name"] or name)]
        if name in TASKS and names.count(name) == 1 and "test" in own and not entry["system_prompt"]:
            built_in.append(entry)
        elif own:
            plans.append(_plan(recipe, [entry], own))
    return [_plan(recipe, built_in, ["test"]), *plans] if built_in else plans


def _reward_options(recipe: Recipe) -> dict[str, Any]:
    """What differs from the defaults of `find_rewards`."""
    given = {"args": recipe.reward_args, "input": recipe.reward_input}
    return {name: value for name, value in given.items() if value not in ({}, "auto")}


def _plan(recipe: Recipe, tasks: Sequence[Mapping[str, Any]], splits: Sequence[str]) -> EvalPlan:
    args = {keys["dataset_name"]: _task_args(keys) for keys in tasks}
    first, alone = tasks[0], len(tasks) == 1
    return EvalPlan(
        tasks=tuple(args),
        task_args=args[first["dataset_name"]] if alone else {name: each for name, each in args.items() if each},
        splits=("test",) if "test" in splits else tuple(splits),
        reward=_own_judge(first["dataset_name"], first["reward_funcs"]) if alone else None,
        reward_options=_reward_options(recipe),
        system_prompt=first["system_prompt"] or recipe.system_prompt,
        playing=playing_keys(recipe),
        settings=_settings(recipe),
    )


def playing_keys(recipe: Recipe, keys: Collection[str] = PLAY_KEYS) -> dict[str, Any]:
    """What differs from the defaults."""
    values = {key: getattr(recipe, key) for key in PLAY_KEYS if key in keys}
    return {key: value for key, value in values.items() if value != Recipe.model_fields[key].default}


def _settings(recipe: Recipe) -> EvalSettings:
    """How a run by this recipe samples the answers of its evaluations; all else is the default."""
    copied = ["max_completion_length", "temperature", "stop", "pass_threshold"]
    copied += LIMITS if recipe.eval_sampling == "rollout" else ()
    return EvalSettings(**{name: _frozen(getattr(recipe, name)) for name in copied})


def eval_params(recipe: Recipe) -> SampleParams:
    """How a run by this recipe samples answers for pass@k: see `eval_sampling`."""
    return _settings(recipe).params(recipe.max_completion_length)


def _task_args(keys: Mapping[str, Any]) -> dict[str, Any]:
    """A task's arguments, and what a recipe says about its data where that is not the default."""
    default = Source("")
    source = {key: keys[key] for key, name in SOURCE_KEYS.items() if keys[key] != getattr(default, name)}
    columns = {"columns": source.pop("columns")} if "columns" in source else {}
    return {**keys["task_args"], **columns, **source}


def _own_judge(task: str, rewards: Sequence[str]) -> str | None:
    """The reward that decides success, where it is not the task's own verifier."""
    if not rewards or task in (*TASKS, gsm8k.HUB) or task.startswith("reasoning_gym/"):
        return None
    if not is_source(task) and plugins.find(task, TASKS, "outdo.tasks", TaskError).rewards:
        return None
    return _judge(rewards)


def _judge(rewards: Sequence[str]) -> str | None:
    judges = [name for name in rewards if name not in GRADERS or GRADERS[name].judges]
    return next(iter([*judges, *rewards]), None)


def trained_tasks(recipe: Recipe) -> list[str]:
    """The tasks of a recipe by name."""
    entries = [Entry(**entry).dataset_name for entry in recipe.dataset_mixture]
    return entries or [recipe.dataset_name]


def plan_of_other_task(recipe: Recipe, tasks: Sequence[str], has_reward: bool) -> EvalPlan:
    """How a run by this recipe would evaluate tasks that it was not trained on. Data has no verifier of its own, so the
    run's reward judges it, unless another is named."""
    is_data = any(task not in TASKS and is_source(task) for task in tasks)
    reward = _judge(recipe.reward_funcs) if is_data and not has_reward else None
    options = _reward_options(recipe) if reward else {}
    plan = EvalPlan(tasks=tuple(tasks), reward=reward, system_prompt=recipe.system_prompt, settings=_settings(recipe))
    return replace(plan, reward_options=options)


def narrow_plans(plans: Sequence[EvalPlan], tasks: Sequence[str]) -> list[EvalPlan]:
    """The plans that cover these tasks, for these tasks alone; all of them where no task is named."""
    if not tasks:
        return list(plans)
    return [_narrowed(plan, tasks) for plan in plans if set(tasks) <= set(plan.tasks)] or list(plans)


def _narrowed(plan: EvalPlan, tasks: Sequence[str]) -> EvalPlan:
    others = set(plan.tasks) - set(tasks)
    task_args = {key: value for key, value in plan.task_args.items() if key not in others}
    return replace(plan, tasks=tuple(tasks), task_args=task_args)


def split_tasks(names: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for name in names.split(",") if name.strip()))


def override_plan(plan: EvalPlan, recipe: Recipe, keys: Collection[str]) -> EvalPlan:
    """The plan with those `keys` of the recipe in place of its own. Arguments of tasks are merged one by one."""
    tasks = plan.tasks
    if "dataset_name" in keys:
        tasks = split_tasks(recipe.dataset_name)
    if not tasks:
        raise RecipeError("--task is empty: name a task, or several separated by commas")
    given = {key: getattr(recipe, key) for key in SOURCE_KEYS if key in keys}
    if "task_args" in keys:
        given |= recipe.task_args
    reward_options = {key: value for key, value in _reward_options(recipe).items() if f"reward_{key}" in keys}
    if "args" in reward_options:  # one by one
        old = plan.reward_options.get("args", {})
        merged = {name: {**old.get(name, {}), **args} for name, args in reward_options["args"].items()}
        reward_options["args"] = {**old, **merged}
    settings = {SETTINGS[key]: _frozen(getattr(recipe, key)) for key in SETTINGS if key in keys}
    return replace(
        plan,
        tasks=tasks,
        task_args=merge_task_args(plan.task_args, given, tasks),
        splits=tuple(recipe.eval_split if "eval_split" in keys else ()) or plan.splits,
        reward=_judge(recipe.reward_funcs) if "reward_funcs" in keys else plan.reward,
        reward_options={**plan.reward_options, **reward_options},
        system_prompt=recipe.system_prompt if "system_prompt" in keys else plan.system_prompt,
        playing={**plan.playing, **playing_keys(recipe, keys)},
        settings=replace(plan.settings, **settings),
    )


def merge_task_args(base: Mapping[str, Any], given: Mapping[str, Any], tasks: Sequence[str]) -> dict[str, Any]:
    """`given` over `base`; `TASK.key` is an argument of that task alone."""
    merged = dict(base)
    for key, value in given.items():
        task, _, inner = key.rpartition(".")
        if task in tasks:
            merged[task] = {**merged.get(task, {}), inner: value}
        elif (key == "columns" or key in tasks) and isinstance(value, Mapping):
            merged[key] = {**merged.get(key, {}), **value}
        else:
            merged[key] = value
    return merged


def recipe_of_model(model: Path) -> Recipe | None:
    """The recipe of the run that this is, or that this is the model or a checkpoint of. Of a run in stages, the recipe
    of the stage that its model is from. None where there is no run, or its recipe is of an incompatible version."""
    try:
        folder = run_of_model(model)
        return Recipe(**read_manifest(folder).recipe) if folder else None
    except (PlaceError, ValueError):
        return None


def run_of_model(model: Path) -> Path | None:
    """The folder of the run that this is, or that this is the model or a checkpoint of; of stages, the stage's."""
    for folder in (model, Path("runs", model), model.resolve().parent, model.resolve().parent.parent):
        if holds_run(folder):
            stage = (folder / MODEL).resolve().parent
            return stage if read_manifest(folder).kind == "stages" and holds_run(stage) else folder
    return None


def code_names(recipe: Recipe, without: Collection[str] = ()) -> list[str]:
    """Tasks, rewards, tools and environments of a recipe that are Python code, `file.py:function`, or ask a judge; not
    those of the keys in `without`."""
    entries = [Entry(**entry) for entry in recipe.dataset_mixture]
    names = {
        "dataset_name": [recipe.dataset_name, *(entry.dataset_name for entry in entries)],
        "reward_funcs": [*recipe.reward_funcs, *(name for entry in entries for name in entry.reward_funcs)],
        "tools": names_of(recipe.tools),
        "environment_factory": names_of(recipe.environment_factory),
        "agent": names_of(recipe.agent),
    }
    names["reward_funcs"] = [canonical_reward(name) for name in names["reward_funcs"]]
    listed = [name for key, each in names.items() if key not in without for name in each]
    return list(dict.fromkeys(name for name in listed if ":" in name or name.endswith(".json") or name == JUDGE))


def judge_settings(recipe: Recipe) -> dict[str, Any]:
    """What a recipe says of where answers are sent and which key goes with them, as keys of the command line."""
    args = recipe.reward_args.get(JUDGE) or {}
    return {f"reward_args.{JUDGE}.{key}": args[key] for key in JUDGE_KEYS if key in args}


def evaluated_splits(recipe: Recipe) -> list[str]:
    """The splits that a run by this recipe is evaluated on, without loading its data."""
    if recipe.dataset_mixture:
        entries = [Entry(**entry) for entry in recipe.dataset_mixture]
        return [f"test/{entry.name or entry.dataset_name}" for entry in entries]
    return [*recipe.eval_split, *recipe.final_eval_split] or ["test"]


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
