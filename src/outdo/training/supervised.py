"""One supervised run: held-out success or loss before, the lessons, and the same after."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from outdo.learn.sft import Imitator, encode, imitate
from outdo.runs.reader import read_rows
from outdo.tasks.lessons import Lessons, held_out_lessons
from outdo.training.keeping import After, Before, Keeper, Parts

SAVE_EVERY = 60.0  # seconds between two checkpoints at least: its steps are short


class Supervised(Keeper[Imitator]):
    """Where the task has no verifier there is no success to measure, and the loss on held-out examples is."""

    command = "sft"

    def __init__(self, parts: Parts, *, lessons: Lessons) -> None:
        super().__init__(parts)
        self.lessons, self.total = lessons, lessons.steps
        self.unseen = None if self.rewards else held_out_lessons(self.recipe, self.task)
        self.saved_at = time.monotonic()

    def _phases(self) -> tuple[Before, After]:
        learner = Imitator(self.policy, self.recipe, self.total)
        learner.say = self.reporter.note
        with self.undivided():
            if self.start:
                self._put_back(learner, self.start)
                self.reporter.note(f"going on after step {self.done}")
            self.learner = learner
        before = self._look(0, "before")
        size = f"{self.total} steps of {self.lessons.batch_size} examples"
        self.reporter.begin(f"imitating {self.lessons.name}: {size}")
        with self._timed(learner):
            imitate(learner, self.lessons, self._told, self._after, self.undivided)
        self.sampler.update(learner, version=self.done)
        after = self._look(self.total, "after")
        self._finish()
        return before, after

    def _look(self, step: int, when: str) -> list[Any]:
        if self.unseen or self.splits or (self.final_splits and step == self.total):
            self.reporter.begin(f"{when}: held-out {'problems' if self.rewards else 'examples'}")
        if self.unseen and step not in held_out_losses(self.run.folder):
            assert self.learner
            unseen = encode(self.policy, self.unseen.examples(), self.recipe.sft_max_length)
            loss, tokens = self.learner.loss_on(unseen)
            row = {"step": step, "held_out_loss": loss, "held_out_tokens": tokens}
            with self.undivided():
                self.run.record_sft(row)
            self.trackers.taught(row)
            self.reporter.note(f"  test: loss {loss:.4f} on {self.unseen.num_examples} examples")
        return self._evaluate(step)

    def _told(self, rows: list[dict[str, Any]]) -> None:
        assert self.learner
        self.done = self.learner.done
        self._taught(rows, self.total)

    def _after(self) -> None:
        every = self.recipe.save_steps
        if every and self.done % every == 0 and time.monotonic() - self.saved_at > SAVE_EVERY:
            with self.undivided():
                self._save()
            self.saved_at = time.monotonic()

    def _beside(self) -> tuple[dict[str, Any], Callable[[Path], None]]:
        assert self.learner
        self._told(self.learner.read())  # rows of steps that are saved are on the disk first
        return super()._beside()


def held_out_losses(folder: Path) -> dict[int, float]:
    """By step, as they are recorded."""
    rows = read_rows(folder / "sft.jsonl")
    return {row["step"]: row["held_out_loss"] for row in rows if "held_out_loss" in row}
