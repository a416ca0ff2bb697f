"""Checkpoints of a run: copied while the run waits, written in a thread while it continues."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from outdo.errors import RecipeError
from outdo.learn.update import BaseLearner
from outdo.models.load import Policy, save_policy
from outdo.parallel.world import get_world
from outdo.recipe.schema import Recipe
from outdo.runs import checkpoint
from outdo.runs.files import Writer
from outdo.runs.reader import read_evals
from outdo.runs.writer import RunWriter
from outdo.training.best import Best, best_of
from outdo.training.optimizer_files import OptimizerWriter, optimizer_writer, read_optimizer
from outdo.untrusted.parse import parse_json

STATE = "state.json"


class Checkpointer:
    """Writes one checkpoint at a time. A disk that is full costs a checkpoint, not the run: the one before is valid."""

    def __init__(self, writer: RunWriter, recipe: Recipe, eval_kind: str, notify: Callable[[str], None]) -> None:
        self.writer, self.recipe, self.eval_kind, self.notify = writer, recipe, eval_kind, notify
        self.last_step = -1  # of the last checkpoint that was written
        self.protected: set[int] = set()  # steps whose checkpoints are kept, whatever came later
        self.seconds = 0.0  # that the last checkpoint took, in the run and in the thread
        self._thread: threading.Thread | None = None
        self._writing = -1  # the step of the checkpoint that the thread writes
        self.world = get_world()

    def save(self, step: int, policy: Policy, learner: BaseLearner, state: Mapping[str, Any], more: Writer) -> None:
        """Starts to write a checkpoint. The tensors are copied here; the disk is the thread's business."""
        self.wait()
        if not (self.world.is_first or learner.masters.is_in_step):
            return  # a replica: the first one has it all
        start = time.monotonic()
        own = learner.weights() if self.world.is_first else {}
        weights = {name: value.detach().to("cpu", copy=True) for name, value in own.items()}
        tensors, plain = learner.state()
        optimizer = optimizer_writer(learner, tensors)
        text = json.dumps({"step": step, "learner": plain, **state, "offsets": self.writer.offsets()})

        def write(folder: Path) -> None:
            optimizer(folder)
            save_policy(policy, folder, weights)
            more(folder)
            (folder / STATE).write_text(text, encoding="utf-8")
            self.seconds = time.monotonic() - start

        self._writing = step
        whole, part = partial(self._write, step, write, optimizer), partial(self._write_part, step, optimizer)
        job = whole if self.world.is_first else part
        self._thread = threading.Thread(target=job, name="checkpoint")
        self._thread.start()

    def wait(self) -> int | None:
        """Until the last checkpoint is on the disk: its step, the first time that this is known."""
        if not self._thread:
            return None
        self._thread.join()
        self._thread = None
        return self.last_step if self.last_step == self._writing else None

    def _write_part(self, step: int, optimizer: OptimizerWriter) -> None:
        """What this process adds to the first one's checkpoint."""
        with suppress(Exception):  # the first process reports it
            optimizer(checkpoint.unfinished(self.writer.checkpoints, step))

    def _write(self, step: int, write: Writer, optimizer: OptimizerWriter) -> None:
        try:
            checkpoint.save(self.writer.checkpoints, step, write)
            self.last_step = step
        except Exception as error:
            optimizer.cancel(error)
            return self.notify(f"  warning: no checkpoint of step {step}: {error}; the run continues")
        keep = set(self.protected)
        try:
            keep |= {best.step} if (best := self.best()) else set()
        except RecipeError as error:  # metric_for_best_model is not measured
            self.notify(f"  warning: the best checkpoint is not known: {error}")
        with suppress(OSError):  # an old checkpoint that stays costs room only
            checkpoint.prune(self.writer.checkpoints, self.recipe.save_total_limit, sorted(keep))

    def best(self) -> Best | None:
        """The best evaluated step that has a checkpoint."""
        saved = {checkpoint.step_of(folder) for folder in checkpoint.existing(self.writer.checkpoints)}
        return best_of(read_evals(self.writer.folder), self.eval_kind, self.recipe, saved)

    def is_best(self, step: int) -> bool:
        """Whether no evaluation was better than that of this step, which may have no checkpoint yet."""
        best = best_of(read_evals(self.writer.folder), self.eval_kind, self.recipe)
        return best is not None and best.step == step


def load_optimizer(learner: BaseLearner, folder: Path, state: Mapping[str, Any]) -> None:
    learner.load_state(read_optimizer(learner, folder), state["learner"])


def read_state(folder: Path) -> dict[str, Any]:
    """The state of a checkpoint whose hashes were checked."""
    return parse_json((folder / STATE).read_text(encoding="utf-8"))
