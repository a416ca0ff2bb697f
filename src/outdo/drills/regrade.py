"""Grades the answers of a run again, with another run's rewards."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outdo.drills.drill import Check
from outdo.recipe.load import load_recipe
from outdo.rewards.choose import rewards_of
from outdo.rewards.compose import grade
from outdo.runs.manifest import read_manifest
from outdo.runs.reader import read_groups
from outdo.tasks.mixture import task_of
from outdo.types import Group, Prompt, Trajectory

LAST_STEPS = 5  # whose answers are graded again


def no_longer_paid(failing: Path, fixed: Path) -> Check:
    """The last answers of the failing run get less than half of their reward from the rewards of the fixed run."""
    recipe = load_recipe(None, {}, base_of=read_manifest(fixed).recipe)
    rewards = rewards_of(recipe, task_of(recipe), {})
    rows = list(read_groups(failing))
    last = [row for row in rows if row["step"] > rows[-1]["step"] - LAST_STEPS]
    old = [answer["reward"] for row in last for answer in row["completions"]]
    new = [graded.reward or 0.0 for row in last for graded in grade(_group(row), rewards).grades]
    before, after = sum(old) / len(old), sum(new) / len(new)
    text = f"the last answers of the failing run got reward {before:.2f}, and get {after:.2f} from the fixed reward"
    return Check(text, after < before / 2)


def _group(row: Mapping[str, Any]) -> Group:
    """A stored group, to be graded again. Its tokens are placeholders: only their number is stored."""
    trajectories = tuple(
        Trajectory.single((0,) * a["num_tokens"], (0.0,) * a["num_tokens"], a["text"], a["finish"], 0)
        for a in row["completions"]
    )
    return Group(Prompt(row["prompt_id"], tuple(row["messages"]), row["answer"]), (0,), trajectories)
