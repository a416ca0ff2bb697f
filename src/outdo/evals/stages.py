"""The evaluations of a run in stages: each stage has a task and splits of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from outdo.evals.estimate import format_share
from outdo.evals.held_out import Evaluation
from outdo.recipe.schema import Recipe
from outdo.runs.manifest import read_manifest
from outdo.runs.reader import read_evals


@dataclass(frozen=True)
class StageEvals:
    """One stage: its recipe, and its evaluations before and after. A harvest has none."""

    name: str
    recipe: Recipe
    before: dict[str, Evaluation]  # by split
    after: dict[str, Evaluation]


def read_stage(folder: Path) -> StageEvals:
    """From the folder of a stage that is done."""
    rows = list(read_evals(folder))
    last = max((row["step"] for row in rows), default=0)
    before, after = ({row["split"]: Evaluation.of(row) for row in rows if row["step"] == step} for step in (0, last))
    return StageEvals(folder.name, Recipe(**read_manifest(folder).recipe), before, after)


def stages_table(stages: Sequence[StageEvals]) -> Table:
    """A row per stage and split, with the stage's task."""
    table = Table("stage", "task", "held out", "before [95%]", "after [95%]", box=None, padding=(0, 1))
    for stage in stages:
        name, task = stage.name, stage.recipe.dataset_name
        for split, evaluation in stage.after.items():
            before = stage.before.get(split)
            table.add_row(name, task, f"{split} ({evaluation.n})", _interval(before), _interval(evaluation))
            name = task = ""
        if not stage.after:
            table.add_row(name, task, "–", "–", "–")
    return table


def _interval(e: Evaluation | None) -> str:
    return f"{format_share(e.success_rate)} [{e.low:.2f}, {e.high:.2f}]" if e else "–"
