"""What is converted: a recipe with its task and rewards, and what cannot be carried over."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outdo.errors import RecipeError
from outdo.recipe.schema import Recipe
from outdo.rewards.choose import rewards_of
from outdo.rewards.compose import Rewards
from outdo.tasks.lengths import epochs_to_steps
from outdo.tasks.mixture import task_of
from outdo.tasks.task import Task

LONGEST = 300  # characters of a line in a header


@dataclass
class Plan:
    """One conversion. `lost` and `notes` grow while it is written."""

    name: str  # of the recipe, for people
    recipe: Recipe
    task: Task
    rewards: Rewards
    lost: list[str] = field(default_factory=list)  # what decides the training and is not carried over
    notes: list[str] = field(default_factory=list)  # what differs, or is not carried over and decides nothing

    @property
    def updates(self) -> int:
        """Updates of the weights in one step: other trainers call each of them a step."""
        return self.recipe.updates_per_step * self.recipe.num_iterations

    @property
    def header(self) -> list[str]:
        """What was not carried over, as lines for the top of a file."""
        parts = (("Not carried over, and it changes the training:", self.lost), ("What differs:", self.notes))
        return [line for title, items in parts if items for line in (title, *(f"- {one_line(item)}" for item in items))]


def make_plan(recipe: Recipe, name: str) -> Plan:
    """The plan of a recipe. Raises RecipeError for what no other trainer has a form for, TaskError, GraderError."""
    if recipe.stages:
        raise RecipeError("the recipe has stages: convert a recipe of one stage, without `stages`")
    if recipe.dataset_mixture:
        raise RecipeError("the recipe has dataset_mixture: convert a recipe for each of its tasks")
    task = task_of(recipe)
    if recipe.tools or recipe.environment_factory or recipe.agent or task.environment or task.agent:
        raise RecipeError(
            f"{recipe.dataset_name}: answers of several turns (tools, environments, agents) cannot be converted: "
            "only prompts with one answer can"
        )
    return Plan(one_line(name), epochs_to_steps(recipe, task), task, rewards_of(recipe, task, {}))


def refuse_lost(plan: Plan, allow: bool) -> None:
    """Raises RecipeError for what was lost, unless that is allowed."""
    if plan.lost and not allow:
        lines = "\n".join(f"  - {item}" for item in plan.lost)
        raise RecipeError(
            f"{plan.name}: this cannot be carried over, and it would change the training:\n{lines}\n"
            "Change the recipe (key=value), or convert it without them: --allow-missing"
        )


def refuse_existing(paths: Iterable[Path], force: bool) -> None:
    """Raises RecipeError where a file would be overwritten, unless that is forced; a folder in its place always."""
    for path in paths:
        if path.exists() and not force:
            raise RecipeError(f"--out {path}: already exists; name another place, or overwrite it with --force")


def one_line(text: str) -> str:
    """A text that can stand in a comment: it ends no line, and shows what it holds."""
    shown = "".join(c if c.isprintable() else " " for c in text)
    return " ".join(shown.split())[:LONGEST]


def as_comment(lines: Iterable[str], width: int = 116) -> str:
    """Lines as a comment of Python, YAML or the shell, wrapped."""
    out = []
    for line in lines:
        current = "#"
        for word in line.split(" ") if line else []:
            if len(current) + 1 + len(word) > width and current.strip("# "):
                out.append(current)
                current = "#  " if line.startswith("- ") else "#"
            current += " " + word
        out.append(current)
    return "\n".join(out)


def literal(value: Any) -> str:
    """A value as source, with double quotes. Texts of the user are quoted like all others, and nothing else."""
    if isinstance(value, str):
        text = repr(value)
        return f'"{text[1:-1]}"' if text[0] == "'" and not {'"', "\\"}.intersection(value) else text
    if isinstance(value, dict):
        return "{" + ", ".join(f"{literal(k)}: {literal(v)}" for k, v in value.items()) + "}"
    return f"[{', '.join(map(literal, value))}]" if isinstance(value, list) else repr(value)
