"""Where a drill works: a folder, the warmed-up model that all start from, and runs that are told of in a few lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outdo import api
from outdo.drills.drill import Keys, Say
from outdo.errors import RunError
from outdo.metrics.measure import Metrics
from outdo.recipe.load import load_recipe
from outdo.recipe.schema import Recipe
from outdo.runs import layout
from outdo.runs.files import disk_errors
from outdo.runs.manifest import holds_run, read_manifest
from outdo.training.callbacks import Callback
from outdo.training.console import PlainLines, signal_line
from outdo.training.run import TrainingRun
from outdo.training.treat import treat
from outdo.types import Group, Reporter
from outdo.untrusted.terminal import PrintableConsole

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
    "doctor": "note",
    "reward_audit": False,
    "save_steps": 4,
    "save_total_limit": 50,
    "eval_split": ["test"],
    "eval_size": 200,
    "eval_samples": 0,
}
PROGRESS_LINES = 4  # of one run


@dataclass(frozen=True)
class Desk:
    folder: Path
    warm: Path  # a model's folder
    seed: int
    say: Say
    callbacks: tuple[Callback, ...] = ()  # of every run

    def recipe(self, name: str, keys: Keys) -> Recipe:
        resolved: dict[str, Any] = {**SHARED, **keys, "seed": self.seed, "model_name_or_path": str(self.warm)}
        return load_recipe(None, {}, base_of={**resolved, "output_dir": str(self.folder / name)})

    def train(self, name: str, keys: Keys) -> Path:
        """One run of the drill, in a folder of that name."""
        recipe = self.recipe(name, keys)
        with logged(self.folder / f"{name}.log") as reporter:
            progress = [ShowProgress(name, self.say), *self.callbacks]
            return api.train(recipe, reporter=reporter, callbacks=progress).folder

    def treat(self, failing: Path, name: str) -> tuple[Path, int]:
        """The failing run with the doctor's change, up to the same step; and the step that it resumes from."""
        with logged(self.folder / f"{name}.log") as reporter:
            progress = [ShowProgress(name, self.say), *self.callbacks]
            return treat_to_end(failing, self.folder / name, reporter, progress)


def treat_to_end(failing: Path, out: Path, reporter: Reporter, callbacks: Sequence[Callback]) -> tuple[Path, int]:
    """The doctor's change, tested up to the failing run's own last step: both runs learn equally long."""
    last = int(read_manifest(failing).recipe["max_steps"])
    treatment = treat(failing, reporter, out=out, callbacks=callbacks, last=last, trust=True)
    return treatment.folder, treatment.start


class ShowProgress(Callback):
    """A few lines of progress for each run."""

    def __init__(self, name: str, say: Say) -> None:
        self.name, self.say = name, say

    def on_sft_step(self, run: TrainingRun[Any], row: Mapping[str, Any]) -> None:
        if "loss" in row:
            self._show(row["step"], run.recipe.sft_steps, f"SFT  loss {row['loss']:.3f}")

    def on_step(self, run: TrainingRun[Any], step: int, metrics: Metrics, groups: Sequence[Group]) -> None:
        self._show(step, run.recipe.max_steps, signal_line(metrics))

    def _show(self, step: int, total: int, line: str) -> None:
        if step == total or step % max(1, total // PROGRESS_LINES) == 0:
            self.say(f"  {self.name:<7} {step:>3}/{total}  {line}")


@contextmanager
def logged(log: Path) -> Iterator[PlainLines]:
    """A reporter that writes to a file."""
    with disk_errors(log):
        log.parent.mkdir(parents=True, exist_ok=True)
        file = log.open("a", encoding="utf-8")
    with file:
        yield PlainLines(PrintableConsole(file=file, width=200))


def warmed_up(parent: Path, seed: int, say: Say) -> Path:
    """The model that all drills of a seed start from: trained once, resumed where it was interrupted, then reused."""
    run = parent / f"drill-warm-{seed}"
    recipe = load_recipe(None, {}, base_of={**WARM_UP, "seed": seed, "output_dir": str(run)})
    manifest = read_manifest(run) if holds_run(run) else None
    if manifest and load_recipe(None, {}, base_of=manifest.recipe) != recipe:  # its keys may be older
        raise RunError(f"{run} is another warm-up than the drills': move it away, or choose another --out")
    if manifest and manifest.status == "done":
        return run / layout.MODEL
    new = f"SFT of a tiny model on careless demonstrations, once for all drills, in {run}"
    say(f"warm-up: resuming {run}" if manifest else f"warm-up: {new}")
    with logged(parent / f"{run.name}.log") as reporter:
        given: dict[str, Any] = {"resume": run} if manifest else {"recipe": recipe}
        return api.sft(**given, reporter=reporter, callbacks=[ShowProgress("warm-up", say)]).model
