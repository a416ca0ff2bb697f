"""Trackers: a run's numbers, handed on to the tools that people keep them in. A run is never hurt by one.

Each tool works on a thread and a queue of its own. What it raises is said once and ends it; where it hangs, the queue
fills and further rows are dropped; at the end it is waited for a while and no longer. What training does is the same
with it and without.
"""

from __future__ import annotations

import json
import math
import os
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
from typing import Any, Protocol

from outdo.errors import RecipeError, RunError
from outdo.runs.reader import read_rows
from outdo.runs.writer import RunWriter
from outdo.training import tools
from outdo.types import Group

ROOM = 2000  # rows that wait for a tool; further ones are dropped
PATIENCE = 15.0  # seconds at the end in which a tool must do something
TABLES = 10  # of answers in a run, about
ROWS = 8  # answers in one of them
CUT = 1000  # characters of a text in them


class Sink(Protocol):
    """What a tool is told. `step` counts what is done: 0 is before the first. Rows of the warm-up are `sft/…`, and
    count its updates."""

    def numbers(self, step: int, values: Mapping[str, float]) -> None: ...

    def answers(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None: ...

    def finding(self, step: int, code: str, words: str) -> None: ...

    def end(self, is_whole: bool) -> None:
        """The last word; `is_whole` where the run came to its end."""


@dataclass(frozen=True)
class Tracker:
    """A tool: its package, and what opens it."""

    package: str
    install: str
    open: Callable[[tools.Subject], Sink]


TRACKERS: dict[str, Tracker] = {
    "tensorboard": Tracker("tensorboard", "tensorboard", tools.TensorBoard),
    "wandb": Tracker("wandb", "wandb", tools.Wandb),
    "mlflow": Tracker("mlflow", "mlflow", tools.MLflow),
    "trackio": Tracker("trackio", "trackio", tools.Trackio),
}


def chosen(report_to: Iterable[str]) -> list[str]:
    """The trackers that a recipe asks for; `all` are those that are installed. Raises RecipeError where one is not."""
    names = list(dict.fromkeys(report_to))
    there = [name for name, tracker in TRACKERS.items() if find_spec(tracker.package)]
    if "all" in names:
        return there
    if missing := [name for name in names if name not in there]:
        packages = " ".join(TRACKERS[name].install for name in missing)
        raise RecipeError(f"report_to={','.join(names)}: {missing[0]} is not installed: pip install {packages}")
    return names


# --- what the tools are told


def clean(name: str) -> str:
    """A name that every tool takes: mlflow allows letters, digits, and a few signs."""
    return re.sub(r"[^-\w./ ]", "_", name.replace("@", "_at_"))


def of_step(row: Mapping[str, Any]) -> dict[str, float]:
    """A row of metrics.jsonl: train/reward_mean, train/reward/NAME, time/update."""
    return _named(row, lambda key: key if key.startswith("time/") else f"train/{key}")


def of_eval(row: Mapping[str, Any]) -> dict[str, float]:
    """A row of evals.jsonl: eval/test/success_rate, eval/test/pass_at_10."""
    return _named(row, lambda key: f"eval/{row['split']}/{key}")


def of_sft(row: Mapping[str, Any]) -> dict[str, float]:
    return _named(row, lambda key: f"sft/{key}")


def _named(row: Mapping[str, Any], name: Callable[[str], str]) -> dict[str, float]:
    """What was measured, under its name."""
    numbers = {key: float(value) for key, value in row.items() if key != "step" and isinstance(value, (int, float))}
    return {clean(name(key)): value for key, value in numbers.items() if math.isfinite(value)}


def samples(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """A few answers: of each of the first groups the best and the worst paid."""
    rows = []
    for group in groups[: ROWS // 2]:
        paid = [i for i, grade in enumerate(group.grades) if grade.reward is not None] or [0]
        order = sorted(paid, key=lambda i: group.grades[i].reward or 0.0)
        for i in sorted({order[0], order[-1]}):
            grade = group.grades[i]
            rows.append(
                {
                    "prompt": str(group.prompt.messages[-1]["content"])[:CUT],
                    "answer": group.trajectories[i].text[:CUT],
                    "reward": grade.reward,
                    "advantage": group.advantages[i] if group.advantages else None,
                    "verdict": grade.verdict,
                    "reason": grade.reason[:CUT],
                }
            )
    return rows


# --- how they are told


@dataclass(frozen=True)
class _Word:
    """Something to be told once: `step` of a series is told after all before it."""

    series: str
    step: int
    tell: Callable[[Sink], None]


def _step_word(row: Mapping[str, Any]) -> _Word:
    values, step = of_step(row), int(row["step"]) + 1
    return _Word("train", step, lambda sink: sink.numbers(step, values))


def _eval_word(row: Mapping[str, Any]) -> _Word:
    values, step = of_eval(row), int(row["step"])
    return _Word(f"eval/{row['split']}", step, lambda sink: sink.numbers(step, values))


def _sft_word(row: Mapping[str, Any]) -> _Word:
    """An update of the warm-up, or of a supervised run; or its loss on held-out examples."""
    is_held_out = "held_out_loss" in row
    values, step = of_sft(row), int(row["step"]) + (not is_held_out)
    return _Word("sft/held_out" if is_held_out else "sft", step, lambda sink: sink.numbers(step, values))


def _past(folder: Path) -> list[_Word]:
    """What a run that is gone on with has in its files; rows that nobody can read are not told."""
    files = (("sft.jsonl", _sft_word), ("evals.jsonl", _eval_word), ("metrics.jsonl", _step_word))
    words: list[_Word] = []
    for name, word in files:
        with suppress(RunError, OSError, KeyError, TypeError, ValueError):
            words += map(word, read_rows(folder / name))
    return words


class _Worker:
    """One tool on its thread. What it was told is noted first, so that a run that is gone on with tells nothing twice,
    and what was not told before: `past` is all that the run's files have."""

    def __init__(self, name: str, subject: tools.Subject, past: Sequence[_Word]) -> None:
        self.name, self.subject, self.past = name, subject, past
        self.words: queue.Queue[_Word | None] = queue.Queue(ROOM)
        self.ledger = subject.folder / "trackers" / f"{name}.json"
        self.told: dict[str, int] = _read(self.ledger)
        self.done, self.is_late, self.is_gone, self.is_whole = 0, False, False, False
        self.thread = threading.Thread(target=self._work, name=f"tracker-{name}", daemon=True)
        self.thread.start()

    def put(self, word: _Word) -> None:
        if self.is_gone:
            return
        try:
            self.words.put_nowait(word)
        except queue.Full:
            if not self.is_late:
                self.subject.say(f"  warning: {self.name} is {ROOM} rows behind: further ones are not sent to it")
            self.is_late = True

    def _work(self) -> None:
        try:
            sink = TRACKERS[self.name].open(self.subject)
            for word in chain(self.past, iter(self.words.get, None)):
                if word.step > self.told.get(word.series, -1):
                    self.told[word.series] = word.step
                    self._note()
                    word.tell(sink)
                self.done += 1
            sink.end(self.is_whole)
        except (Exception, SystemExit) as error:
            said = " ".join(str(error).split())[:300]
            self.subject.say(f"  warning: {self.name} failed and is left out: {type(error).__name__}: {said}")
            self.is_gone = True

    def _note(self) -> None:
        self.ledger.parent.mkdir(exist_ok=True)
        aside = self.ledger.with_suffix(".tmp")
        aside.write_text(json.dumps(self.told), encoding="utf-8")
        os.replace(aside, self.ledger)

    def close(self, is_whole: bool) -> None:
        """Waits as long as it gets on."""
        self.is_whole = is_whole
        is_told, done, since = False, self.done, time.monotonic()
        while self.thread.is_alive() and time.monotonic() - since < PATIENCE:
            if is_told:
                self.thread.join(0.1)
            else:
                with suppress(queue.Full):
                    self.words.put(None, timeout=0.1)
                    is_told = True
            if self.done != done:
                done, since = self.done, time.monotonic()
        if self.thread.is_alive():
            self.subject.say(f"  warning: {self.name} did not answer for {PATIENCE:g} s and is left behind")


class Trackers:
    """All that a recipe asks for; none by default."""

    def __init__(self, names: Sequence[str], subject: tools.Subject, max_steps: int) -> None:
        past = _past(subject.folder) if names else []
        self.workers = [_Worker(name, subject, past) for name in names]
        self.every = max(1, max_steps // TABLES)

    @classmethod
    def of(cls, run: RunWriter, recipe: Any, say: Callable[[str], None]) -> Trackers:
        """Of a run's recipe. A run that is gone on with is the same one in every tool, by an id in run.json."""
        names = chosen(recipe.report_to)
        is_new = not run.manifest.tracked
        if names and is_new:
            run.update_manifest(tracked=uuid.uuid4().hex[:16])
        key = str(run.manifest.tracked)
        name = recipe.run_name or run.folder.resolve().name
        facts = {key: getattr(run.manifest, key) for key in ("kind", "device", "num_parameters", "versions", "git")}
        keys = recipe.model_dump(mode="json")
        return cls(
            names, tools.Subject(key, name, recipe.project, run.folder, keys, facts, say, is_new), recipe.max_steps
        )

    def step(self, step: int, row: Mapping[str, Any], groups: Sequence[Group]) -> None:
        if not self.workers:
            return
        self._tell(_step_word({**row, "step": step}))
        if step == 0 or (step + 1) % self.every == 0:
            rows = samples(groups)
            self._tell(_Word("answers", step + 1, lambda sink: sink.answers(step + 1, rows)))

    def evaluated(self, row: Mapping[str, Any]) -> None:
        if self.workers:
            self._tell(_eval_word(row))

    def taught(self, row: Mapping[str, Any]) -> None:
        if self.workers:
            self._tell(_sft_word(row))

    def found(self, step: int, code: str, words: str) -> None:
        self._tell(_Word(f"finding/{code}", step + 1, lambda sink: sink.finding(step + 1, code, words)))

    def _tell(self, word: _Word) -> None:
        for worker in self.workers:
            worker.put(word)

    def close(self, is_whole: bool) -> None:
        for worker in self.workers:
            worker.close(is_whole)


def _read(path: Path) -> dict[str, int]:
    """How far each series was told; from the start where that cannot be read."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {str(series): int(step) for series, step in found.items()}
    except (OSError, ValueError, AttributeError):
        return {}
