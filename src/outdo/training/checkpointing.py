"""Checkpoints of a run: copied while the run waits, written in a thread while it continues."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from outdo.learn.update import BaseLearner
from outdo.metrics.headline import FIELDS, deciding_metric
from outdo.models.load import Policy, save_policy
from outdo.runs import checkpoint
from outdo.runs.files import Writer
from outdo.runs.reader import read_evals
from outdo.runs.writer import RunWriter

STATE, OPTIMIZER = "state.json", "optimizer.safetensors"


class Checkpointer:
    """Writes one checkpoint at a time. A disk that is full costs a checkpoint, not the run: the one before is valid."""

    def __init__(
        self, writer: RunWriter, keep: int, eval_kind: str, notify: Callable[[str], None], eval_metric: str = "auto"
    ) -> None:
        self.writer, self.keep, self.eval_kind, self.notify = writer, keep, eval_kind, notify
        self.eval_metric = eval_metric
        self.last_step = -1  # of the last checkpoint that was written
        self._thread: threading.Thread | None = None
        self._writing = -1  # the step of the checkpoint that the thread writes

    def save(self, step: int, policy: Policy, learner: BaseLearner, state: Mapping[str, Any], more: Writer) -> None:
        """Starts to write a checkpoint. The tensors are copied here; the disk is the thread's business."""
        self.wait()
        weights = {name: value.detach().to("cpu", copy=True) for name, value in learner.weights().items()}
        tensors, plain = learner.state()
        text = json.dumps({"step": step, "learner": plain, **state, "offsets": self.writer.offsets()})

        def write(folder: Path) -> None:
            save_policy(policy, folder, weights)
            save_file(tensors, folder / OPTIMIZER)
            more(folder)
            (folder / STATE).write_text(text, encoding="utf-8")

        self._writing = step
        self._thread = threading.Thread(target=self._write, args=(step, write), name="checkpoint")
        self._thread.start()

    def wait(self) -> int | None:
        """Until the last checkpoint is on the disk: its step, the first time that this is known."""
        if not self._thread:
            return None
        self._thread.join()
        self._thread = None
        return self.last_step if self.last_step == self._writing else None

    def _write(self, step: int, write: Writer) -> None:
        try:
            checkpoint.save(self.writer.checkpoints, step, write)
            self.last_step = step
            checkpoint.prune(self.writer.checkpoints, self.keep, self._best())
        except Exception as error:
            self.notify(f"  warning: no checkpoint of step {step}: {error}; the run continues")

    def _best(self) -> list[int]:
        """The evaluated step with the highest success or mean reward that has a checkpoint; of a mixture, summed over
        its tasks."""
        saved = {checkpoint.step_of(folder) for folder in checkpoint.existing(self.writer.checkpoints)}
        scores: dict[int, float] = {}
        rows = [row for row in read_evals(self.writer.folder) if row["split"].partition("/")[0] == self.eval_kind]
        name = FIELDS[deciding_metric(self.eval_metric, rows)]
        for row in rows:
            if row["step"] in saved:
                scores[row["step"]] = scores.get(row["step"], 0.0) + row[name]
        return [max(scores, key=lambda step: (scores[step], step))] if scores else []


def load_optimizer(learner: BaseLearner, folder: Path, state: Mapping[str, Any]) -> None:
    learner.load_state(load_file(folder / OPTIMIZER), state["learner"])


def read_state(folder: Path) -> dict[str, Any]:
    """The state of a checkpoint whose hashes were checked."""
    return json.loads((folder / STATE).read_text(encoding="utf-8"))
