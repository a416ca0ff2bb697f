"""Answers of a run, judged again by another run's rewards."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outdo.drills.drill import Check
from outdo.recipe.load import load_recipe
from outdo.rewards.choose import rewards_of
from outdo.rewards.compose import grade
from outdo.runs.manifest import read_manifest
from outdo.runs.reader import read_rows
from outdo.tasks.mixture import task_of
from outdo.types import Group, Prompt, Trajectory

LATE = 5  # steps whose answers are looked at again


def no_longer_paid(ill: Path, cured: Path) -> Check:
    """What the ill run was paid for at its end is paid less than half by the rewards of the cured one."""
    recipe = load_recipe(None, {}, base_of=read_manifest(cured).recipe)
    rewards = rewards_of(recipe, task_of(recipe), {})
    rows = [row for path in sorted((ill / "groups").glob("*.jsonl")) for row in read_rows(path)]
    late = [row for row in rows if row["step"] > rows[-1]["step"] - LATE]
    then = [answer["reward"] for row in late for answer in row["completions"]]
    now = [graded.reward or 0.0 for row in late for graded in grade(_group(row), rewards).grades]
    before, after = sum(then) / len(then), sum(now) / len(now)
    words = f"the answers that the ill run ended with were paid {before:.2f}, and get {after:.2f} from the mended one"
    return Check(words, after < before / 2)


def _group(row: Mapping[str, Any]) -> Group:
    """A row of groups/, to be graded again: its tokens are counted, not known."""
    made = tuple(
        Trajectory.single((0,) * a["num_tokens"], (0.0,) * a["num_tokens"], a["text"], a["finish"], 0)
        for a in row["completions"]
    )
    return Group(Prompt(row["prompt_id"], tuple(row["messages"]), row["answer"]), (0,), made)
