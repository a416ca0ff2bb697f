"""Where a drill works: a folder, the warmed-up model that all start from, and runs that are told of in a few lines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from outdo import api
from outdo.drills.drill import Keys, Say
from outdo.errors import RunError
from outdo.recipe.load import load_recipe
from outdo.recipe.schema import Recipe
from outdo.runs.files import disk_errors
from outdo.runs.layout import MODEL
from outdo.runs.manifest import holds_run, read_manifest
from outdo.training.console import PlainLines

# Two digits, and a few problems of three: enough to know their form, too few to be right.
WARM_UP: Keys = {
    "model_name_or_path": "tiny",
    "dataset_mixture": [
        {"dataset_name": "arithmetic", "name": "two", "weight": 6, "task_args": {"ops": "+"}},
        {"dataset_name": "arithmetic", "name": "three", "weight": 1, "task_args": {"ops": "+", "digits": 3}},
    ],
    "max_completion_length": 40,
    "sft_steps": 400,
    "sft_batch_size": 32,
    "sft_learning_rate": 2e-3,
    "eval_split": ["test/two"],
    "eval_size": 50,
    "eval_samples": 0,
}
# What all runs of drills share. No guard ends an ill run, the audit lets its rewards pass, and there is a checkpoint
# from before whatever happens.
SHARED: Keys = {
    "dataset_name": "arithmetic",
    "task_args": {"ops": "+"},
    "max_completion_length": 32,
    "per_device_train_batch_size": 48,
    "num_generations": 8,
    "learning_rate": 3e-4,
    "beta": 1e-3,
    "kl_limit": None,
    "reward_audit": False,
    "save_steps": 4,
    "save_total_limit": 50,
    "eval_split": ["test"],
    "eval_size": 50,
    "eval_samples": 0,
}
LINES = re.compile(r"\s*(step|warm-up) (\d+)/(\d+)  (.*)")
TOLD = 4  # lines of progress for one run


@dataclass(frozen=True)
class Desk:
    folder: Path
    warm: Path  # a model's folder
    seed: int
    say: Say

    def recipe(self, name: str, keys: Keys) -> Recipe:
        whole: dict[str, Any] = {**SHARED, **keys, "seed": self.seed, "model_name_or_path": str(self.warm)}
        return load_recipe(None, {}, base_of={**whole, "output_dir": str(self.folder / name)})

    def train(self, name: str, keys: Keys) -> Path:
        """One run of the drill, in a folder of that name."""
        recipe = self.recipe(name, keys)
        with self.console(name) as console:
            return api.train(recipe, reporter=PlainLines(console)).folder

    @contextmanager
    def console(self, name: str) -> Iterator[Console]:
        """All that a run prints is kept in NAME.log; some of it is told."""
        with told_in_part(self.folder / f"{name}.log", name, self.say) as console:
            yield console


@contextmanager
def told_in_part(log: Path, name: str, say: Say) -> Iterator[Console]:
    with disk_errors(log):
        log.parent.mkdir(parents=True, exist_ok=True)
        file = log.open("a", encoding="utf-8")
    with file:
        yield Console(file=_Both(file, name, say), width=200, highlight=False)  # type: ignore[arg-type]


class _Both:
    """A file that also tells of progress, now and then."""

    def __init__(self, file: Any, name: str, say: Say) -> None:
        self.file, self.name, self.say = file, name, say

    def write(self, text: str) -> int:
        for found in map(LINES.fullmatch, text.splitlines()):
            if found and _due(int(found[2]), int(found[3])):
                self.say(f"  {self.name:<7} {found[2]:>3}/{found[3]}  {found[4]}")
        return int(self.file.write(text))

    def flush(self) -> None:
        self.file.flush()


def _due(step: int, total: int) -> bool:
    """A run prints a line every few steps: the first of each stretch that passes a quarter is told."""
    every = max(1, total // 20)
    return step == total or ((step // every) % max(1, 20 // TOLD) == 0 and step % every == 0)


def warmed_up(parent: Path, seed: int, say: Say) -> Path:
    """The model that all drills of a seed start from: made once, gone on with where it was stopped, then found."""
    run = parent / f"drill-warm-{seed}"
    keys = {**WARM_UP, "seed": seed, "output_dir": str(run)}
    if not holds_run(run):
        say(f"warm-up: a tiny model imitates a careless teacher, once for all drills, in {run}")
        with told_in_part(parent / f"{run.name}.log", "warm-up", say) as console:
            return api.sft(load_recipe(None, {}, base_of=keys), reporter=PlainLines(console)).model
    had = read_manifest(run)
    if load_recipe(None, {}, base_of=had.recipe) != load_recipe(None, {}, base_of=keys):  # a key may have come since
        raise RunError(f"{run} is another warm-up than drills have: move it away, or choose another --out")
    if had.status != "done":
        say(f"warm-up: going on with {run}")
        with told_in_part(parent / f"{run.name}.log", "warm-up", say) as console:
            return api.sft(resume=run, reporter=PlainLines(console)).model
    return run / MODEL
