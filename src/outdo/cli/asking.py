"""How a run asked its model, as commands that ask again: what `outdo train` ends with and `outdo eval` goes by."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from outdo.errors import PlaceError, RecipeError, TaskError
from outdo.evals.suite import Settings
from outdo.recipe import plugins
from outdo.recipe.schema import Recipe
from outdo.rewards.registry import GRADERS
from outdo.runs.manifest import read_manifest
from outdo.tasks import gsm8k
from outdo.tasks.mixture import Entry
from outdo.tasks.sources import SOURCE_KEYS, Source, is_source
from outdo.tasks.task import TASKS


def words_of_run(models: Sequence[str]) -> list[str]:
    """Of the first of these models that a run trained: the words of `outdo eval` that ask as the run did. Without one,
    none. Raises RecipeError where a person has to say it: of several tasks which, and whether code is to be trusted."""
    for model in models:
        recipe = _recipe_of(Path(model))
        if recipe is None:
            continue
        entries = [Entry(**entry) for entry in recipe.dataset_mixture]
        named = [recipe.dataset_name, *recipe.reward_funcs]
        named += [name for entry in entries for name in (entry.dataset_name, *entry.reward_funcs)]
        code = ", ".join(dict.fromkeys(name for name in named if ":" in name))
        if code:  # it came with the folder, and naming the folder is no word of trust in it
            raise RecipeError(f"{model} was trained with code, {code}: if you trust it, name it by --task or --reward")
        splits = [*recipe.eval_split, *recipe.final_eval_split] or ["test"]
        if entries:
            splits = [f"test/{entry.name or entry.dataset_name}" for entry in entries]
        commands = eval_commands(recipe, Path(model), splits)
        if len(commands) > 1:
            raise RecipeError("\n  ".join([f"{model} was trained on several tasks; ask by one of these:", *commands]))
        return shlex.split(commands[0])[2:]
    return []


def _recipe_of(model: Path) -> Recipe | None:
    """Of the run that this is, or that this is the model or a checkpoint of."""
    for folder in (model, Path("runs", model), model.resolve().parent, model.resolve().parent.parent):
        if (folder / "run.json").is_file():
            try:
                return Recipe(**read_manifest(folder).recipe)
            except (PlaceError, ValueError):  # of another version, or broken: then nothing is known of it
                return None
    return None


def eval_commands(recipe: Recipe, model: Path, splits: Sequence[str]) -> list[str]:
    """The commands that measure the model again, as the run did: one, for a mixture as many as it takes to tell its
    tasks apart, and none of what has nothing held out. `splits` are those that the run looked at."""
    if not recipe.dataset_mixture:
        return [_eval_command(model, recipe, [recipe.model_dump()], splits)] if splits else []
    entries = [Entry(**entry).model_dump() for entry in recipe.dataset_mixture]
    names = [entry["dataset_name"] for entry in entries]
    alike: list[dict[str, Any]] = []  # that one command can ask
    commands: list[str] = []
    for entry, name in zip(entries, names, strict=True):
        entry["reward_funcs"] = entry["reward_funcs"] or recipe.reward_funcs
        own = [kind for kind, _, part in (split.partition("/") for split in splits) if part == (entry["name"] or name)]
        if name in TASKS and names.count(name) == 1 and "test" in own and not entry["system_prompt"]:
            alike.append(entry)
        elif own:
            commands.append(_eval_command(model, recipe, [entry], own))
    return [_eval_command(model, recipe, alike, ["test"]), *commands] if alike else commands


def _eval_command(model: Path, recipe: Recipe, asked: list[dict[str, Any]], splits: Sequence[str]) -> str:
    """One command for tasks by the keys that a recipe has for them."""
    words = ["outdo", "eval", str(model), "--task", ",".join(keys["dataset_name"] for keys in asked)]
    usual = Source("")
    for keys in asked:
        prefix = f"{keys['dataset_name']}." if len(asked) > 1 else ""
        given = {**keys["task_args"], **{f"columns.{ours}": theirs for ours, theirs in keys["columns"].items()}}
        for key, field in SOURCE_KEYS.items():
            if key != "columns" and keys[key] != getattr(usual, field):
                given[key] = keys[key]
        if judge := _judge(keys["dataset_name"], keys["reward_funcs"]):
            words += ["--reward", judge]
        for key, value in given.items():
            words += ["--task-arg", f"{prefix}{key}={_typed(value)}"]
    return shlex.join([*words, *_manner(recipe, asked[0]["system_prompt"], splits)])


def _judge(task: str, rewards: list[str]) -> str | None:
    """The reward that decided success, where it is not the task's own."""
    if not rewards or task in (*TASKS, gsm8k.HUB) or task.startswith("reasoning_gym/"):
        return None
    if not is_source(task) and plugins.find(task, TASKS, "outdo.tasks", TaskError).rewards:
        return None
    judges = [name for name in rewards if name not in GRADERS or GRADERS[name].judges]
    return (judges or rewards)[0]


def _manner(recipe: Recipe, own_prompt: str | None, splits: Sequence[str]) -> list[str]:
    """How the run asked, where `outdo eval` would ask otherwise by itself."""
    usual, words = Settings(), list[str]()
    if "test" not in splits:
        words += ["--split", ",".join(splits)]
    if prompt := own_prompt or recipe.system_prompt:
        words += ["--system-prompt", prompt]
    if recipe.max_completion_length != usual.max_completion_length:
        words += ["--max-completion-length", str(recipe.max_completion_length)]
    if recipe.temperature != usual.temperature:
        words += ["--temperature", f"{recipe.temperature:g}"]
    return [*words, *(word for text in recipe.stop for word in ("--stop", text))]


def _typed(value: Any) -> str:
    """A value as it is typed, so that it is read as what it is."""
    text = str(value)
    try:
        same = yaml.safe_load(text) == value
    except yaml.YAMLError:
        same = isinstance(value, str)  # what is no YAML is read as the text that it is
    return text if same else json.dumps(value, default=str)
