"""Experiment trackers: they receive a run's metrics, and can never harm the run.

Each tool has a thread and a queue of its own. An exception is reported once and disables the tool; if it hangs, the
queue fills and further rows are dropped; at the end it has a limited time. Training is the same without trackers.
"""

from __future__ import annotations

import json
import math
import queue
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from outdo.doctor.finding import Finding
from outdo.doctor.show import note
from outdo.errors import RecipeError, RunError
from outdo.evals.held_out import Evaluation
from outdo.metrics.measure import Metrics
from outdo.runs.files import write_atomic
from outdo.runs.manifest import Status
from outdo.runs.reader import read_evals, read_metrics, read_sft
from outdo.runs.writer import RunWriter
from outdo.training import tracker_backends
from outdo.training.callbacks import Callback
from outdo.types import Group
from outdo.untrusted.parse import parse_json

if TYPE_CHECKING:
    from outdo.training.run import TrainingRun

QUEUE_SIZE = 2000  # rows that wait for a tool; further ones are dropped
CLOSE_TIMEOUT = 15.0  # seconds without progress, at the end
NUM_TABLES = 10  # of answers in a run, about
ANSWERS_PER_TABLE = 8
MAX_TEXT_CHARS = 1000  # in these tables


class Sink(Protocol):
    """A tool. `step` is the number of completed steps; of SFT rows, whose names start with `sft/`, of SFT updates."""

    def numbers(self, step: int, values: Mapping[str, float]) -> None: ...

    def answers(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None: ...

    def finding(self, step: int, code: str, text: str) -> None: ...

    def close(self, completed: bool) -> None: ...


@dataclass(frozen=True)
class Tracker:
    """A tool: its package, and its constructor."""

    package: str
    install: str
    open: Callable[[tracker_backends.Subject], Sink]


TRACKERS: dict[str, Tracker] = {
    "tensorboard": Tracker("tensorboard", "tensorboard", tracker_backends.TensorBoard),
    "wandb": Tracker("wandb", "wandb", tracker_backends.Wandb),
    "mlflow": Tracker("mlflow", "mlflow", tracker_backends.MLflow),
    "trackio": Tracker("trackio", "trackio", tracker_backends.Trackio),
}


def select_trackers(report_to: Iterable[str]) -> list[str]:
    """The trackers of a recipe; `all` are those that are installed. Raises RecipeError where one is not."""
    names = list(dict.fromkeys(report_to))
    installed = [name for name, tracker in TRACKERS.items() if find_spec(tracker.package)]
    if "all" in names:
        return installed
    if missing := [name for name in names if name not in installed]:
        packages = " ".join(TRACKERS[name].install for name in missing)
        raise RecipeError(f"report_to={','.join(names)}: {missing[0]} is not installed: pip install {packages}")
    return names


# --- what is sent


def step_values(row: Mapping[str, Any]) -> dict[str, float]:
    """A row of metrics: train/reward_mean, train/reward/NAME, time/update."""
    return _named(row, lambda key: key if key.startswith("time/") else f"train/{key}")


def eval_values(row: Mapping[str, Any]) -> dict[str, float]:
    """A row of an evaluation: eval/test/success_rate, eval/test/pass_at_10."""
    return _named(row, lambda key: f"eval/{row['split']}/{key}")


def _named(row: Mapping[str, Any], name: Callable[[str], str]) -> dict[str, float]:
    """The finite numbers of a row, under names that every tool accepts: mlflow allows few characters."""
    numbers = {key: float(value) for key, value in row.items() if key != "step" and isinstance(value, (int, float))}
    names = {key: re.sub(r"[^-\w./ ]", "_", name(key).replace("@", "_at_")) for key in numbers}
    return {names[key]: value for key, value in numbers.items() if math.isfinite(value)}


def sample_answers(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """A few answers: those with the highest and the lowest reward of each of the first groups."""
    rows: list[dict[str, Any]] = []
    for group in groups[: ANSWERS_PER_TABLE // 2]:
        graded = [i for i, grade in enumerate(group.grades) if grade.reward is not None] or [0]
        order = sorted(graded, key=lambda i: group.grades[i].reward or 0.0)
        for i in sorted({order[0], order[-1]}):
            grade, advantage = group.grades[i], group.advantages[i] if group.advantages else None
            texts = str(group.prompt.text), group.trajectories[i].text, grade.reason
            prompt, answer, reason = (text[:MAX_TEXT_CHARS] for text in texts)
            values = (prompt, answer, grade.reward, advantage, grade.verdict, reason)
            rows.append(dict(zip(tracker_backends.COLUMNS, values, strict=True)))
    return rows


# --- how it is sent


@dataclass(frozen=True)
class _Event:
    """Sent once: the steps of a series are sent in order."""

    series: str
    step: int
    send: Callable[[Sink], None]


def _step_event(row: Mapping[str, Any]) -> _Event:
    values, step = step_values(row), int(row["step"])
    return _Event("train", step, lambda sink: sink.numbers(step, values))


def _eval_event(row: Mapping[str, Any]) -> _Event:
    values, step = eval_values(row), int(row["step"])
    return _Event(f"eval/{row['split']}", step, lambda sink: sink.numbers(step, values))


def _sft_event(row: Mapping[str, Any]) -> _Event:
    """An SFT update, or the loss on held-out examples."""
    is_held_out = "held_out_loss" in row
    values, step = _named(row, "sft/{}".format), int(row["step"])
    return _Event("sft/held_out" if is_held_out else "sft", step, lambda sink: sink.numbers(step, values))


def _stored_events(folder: Path) -> list[_Event]:
    """The rows that a resumed run already has; a file is dropped from its first malformed row on."""
    events: list[_Event] = []
    for read, event in ((read_sft, _sft_event), (read_evals, _eval_event), (read_metrics, _step_event)):
        with suppress(RunError, OSError, KeyError, TypeError, ValueError):
            events += map(event, read(folder))
    return events


class _Worker:
    """One tool on its thread. What was sent is recorded first, so that a resumed run sends nothing twice, and sends
    those of the `stored` events of its files that were not sent before."""

    def __init__(self, name: str, subject: tracker_backends.Subject, stored: Sequence[_Event]) -> None:
        self.name, self.subject, self.stored = name, subject, stored
        self.events: queue.Queue[_Event | None] = queue.Queue(QUEUE_SIZE)
        self.ledger = subject.folder / "trackers" / f"{name}.json"
        self.sent: dict[str, int] = _read_ledger(self.ledger)
        self.num_handled, self.is_behind, self.has_failed, self.completed = 0, False, False, False
        self.thread = threading.Thread(target=self._work, name=f"tracker-{name}", daemon=True)
        self.thread.start()

    def put(self, event: _Event) -> None:
        if self.has_failed:
            return
        try:
            self.events.put_nowait(event)
        except queue.Full:
            if not self.is_behind:
                self.subject.notify(f"  warning: {self.name} is {QUEUE_SIZE} rows behind: further rows are dropped")
            self.is_behind = True

    def _work(self) -> None:
        try:
            sink = TRACKERS[self.name].open(self.subject)
            for event in chain(self.stored, iter(self.events.get, None)):
                if event.step > self.sent.get(event.series, -1):
                    self.sent[event.series] = event.step
                    self._write_ledger()
                    event.send(sink)
                self.num_handled += 1
            sink.close(self.completed)
        except (Exception, SystemExit) as error:
            message = " ".join(str(error).split())[:300]
            self.subject.notify(f"  warning: {self.name} failed and is disabled: {type(error).__name__}: {message}")
            self.has_failed = True

    def _write_ledger(self) -> None:
        """Atomic but not flushed to the disk: it is written for every row."""
        self.ledger.parent.mkdir(exist_ok=True)
        write_atomic(self.ledger, json.dumps(self.sent), flush=False)

    def close(self, completed: bool) -> None:
        """Waits as long as the tool makes progress."""
        self.completed = completed
        is_closing, handled, since = False, self.num_handled, time.monotonic()
        while self.thread.is_alive() and time.monotonic() - since < CLOSE_TIMEOUT:
            if is_closing:
                self.thread.join(0.1)
            else:
                with suppress(queue.Full):
                    self.events.put(None, timeout=0.1)
                    is_closing = True
            if self.num_handled != handled:
                handled, since = self.num_handled, time.monotonic()
        if self.thread.is_alive():
            self.subject.notify(f"  warning: {self.name} made no progress for {CLOSE_TIMEOUT:g} s and is abandoned")


class Trackers(Callback):
    """Hands every row on to the trackers of a recipe; none by default."""

    def __init__(self, names: Sequence[str], subject: tracker_backends.Subject, max_steps: int) -> None:
        stored = _stored_events(subject.folder) if names else []
        self.workers = [_Worker(name, subject, stored) for name in names]
        self.table_every = max(1, max_steps // NUM_TABLES)

    @classmethod
    def of(cls, run: RunWriter, recipe: Any, notify: Callable[[str], None]) -> Trackers:
        """The trackers of a run. A resumed run is the same one in every tool, by an id in its manifest."""
        names = select_trackers(recipe.report_to)
        is_new = not run.manifest.tracked
        if names and is_new:
            run.update_manifest(tracked=uuid.uuid4().hex[:16])
        id, name = str(run.manifest.tracked), recipe.run_name or run.folder.resolve().name
        facts = {key: getattr(run.manifest, key) for key in ("kind", "device", "num_parameters", "versions", "git")}
        keys = recipe.model_dump(mode="json")
        subject = tracker_backends.Subject(id, name, recipe.project, run.folder, keys, facts, notify, is_new)
        return cls(names, subject, recipe.max_steps)

    def on_sft_step(self, run: TrainingRun[Any], row: Mapping[str, Any]) -> None:
        if self.workers:
            self._put(_sft_event(row))

    def on_step(self, run: TrainingRun[Any], step: int, metrics: Metrics, groups: Sequence[Group]) -> None:
        if not self.workers:
            return
        self._put(_step_event({**metrics, "step": step}))
        if step == 1 or step % self.table_every == 0:
            rows = sample_answers(groups)
            self._put(_Event("answers", step, lambda sink: sink.answers(step, rows)))

    def on_eval(self, run: TrainingRun[Any], step: int, evaluations: Sequence[Evaluation]) -> None:
        for evaluation in evaluations if self.workers else ():
            self._put(_eval_event(evaluation.row(step)))

    def on_finding(self, run: TrainingRun[Any], step: int, finding: Finding) -> None:
        code, text = finding.code, note(finding).strip()
        self._put(_Event(f"finding/{code}", step, lambda sink: sink.finding(step, code, text)))

    def on_end(self, run: TrainingRun[Any], status: Status, why: str) -> None:
        for worker in self.workers:
            worker.close(status == "done")

    def _put(self, event: _Event) -> None:
        for worker in self.workers:
            worker.put(event)


def _read_ledger(path: Path) -> dict[str, int]:
    """The last step that was sent of each series; empty where the file cannot be read."""
    try:
        ledger = parse_json(path.read_text(encoding="utf-8"))
        return {str(series): int(step) for series, step in ledger.items()}
    except (OSError, ValueError, AttributeError):
        return {}
