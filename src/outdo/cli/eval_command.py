"""An evaluation as an `outdo eval` command: what `outdo train` ends with. It is printed, never parsed back."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from outdo.evals.from_recipe import EvalPlan, plans_from_recipe
from outdo.evals.settings import EvalSettings
from outdo.recipe.schema import Recipe
from outdo.untrusted.parse import parse_yaml


def eval_commands(recipe: Recipe, model: Path | str, splits: Sequence[str]) -> list[str]:
    """The commands that evaluate a model as a run by this recipe does."""
    return [format_eval_command(plan, model) for plan in plans_from_recipe(recipe, splits)]


def format_eval_command(plan: EvalPlan, model: Path | str) -> str:
    """A command with every value that is not the default."""
    default = EvalPlan()
    words = ["outdo", "eval", str(model), "--task", ",".join(plan.tasks)]
    if plan.reward:
        words += ["--reward", plan.reward]
    for key, value in _flat_args(plan):
        words += ["--task-arg", f"{key}={_format_value(value)}"]
    words += [f"{key}={_format_value(value)}" for key, value in plan.playing.items()]
    if plan.splits != default.splits:
        words += ["--split", ",".join(plan.splits)]
    if plan.system_prompt:
        words += ["--system-prompt", plan.system_prompt]
    for each in fields(EvalSettings):
        value = getattr(plan.settings, each.name)
        if value != getattr(default.settings, each.name):
            words += _option(each.name, value)
    return shlex.join(words)


def _option(name: str, value: Any) -> list[str]:
    if name == "stop":
        return [word for text in value for word in ("--stop", text)]
    option = "--k" if name == "ks" else f"--{name.replace('_', '-')}"
    if isinstance(value, tuple):
        return [option, ",".join(map(str, value))]
    return [option, f"{value:g}" if isinstance(value, float) else str(value)]


def _flat_args(plan: EvalPlan) -> Iterator[tuple[str, Any]]:
    for key, value in plan.task_args.items():
        if isinstance(value, Mapping) and (key == "columns" or key in plan.tasks):
            yield from ((f"{key}.{inner}", each) for inner, each in value.items())
        else:
            yield key, value


def _format_value(value: Any) -> str:
    """As it is typed, so that YAML reads the same value."""
    is_names = isinstance(value, (list, tuple)) and all(isinstance(one, str) for one in value)
    text = f"[{','.join(value)}]" if is_names else str(value)
    try:
        same = parse_yaml(text) == (list(value) if is_names else value)
    except (yaml.YAMLError, ValueError):
        same = isinstance(value, str)  # text that is not YAML is read as it is
    return text if same else json.dumps(value, default=str)
