"""The prompts of a run as the rows of a trainer's data set, drawn as the run draws them, step by step."""

from __future__ import annotations

import logging
from typing import Any

from outdo.tasks.curriculum import Curriculum
from outdo.types import Prompt

ROW = "outdo_row"  # the column that says which of the rows a prompt is


class DrawnPrompts:
    """Row r is a prompt of step `start + r // per_step`. A loader may ask for those of the next step before this one is
    done, so the curriculum's state at the start of each step is kept until that step is over."""

    def __init__(self, curriculum: Curriculum, per_step: int, start: int) -> None:
        self.curriculum, self.per_step, self.start = curriculum, per_step, start
        self._steps: dict[int, list[Prompt]] = {}
        self._states: dict[int, dict[str, Any]] = {}  # before the prompts of a step were drawn
        self._drawn = start  # the next step to draw for

    def __getitem__(self, row: int) -> Prompt:
        step = self.start + row // self.per_step
        while self._drawn <= step:
            self._states[self._drawn] = self.curriculum.state()
            self._steps[self._drawn] = self.curriculum.draw(self.per_step)
            self._drawn += 1
        return self._steps[step][row % self.per_step]

    def state(self, step: int) -> dict[str, Any]:
        """Of the curriculum, before the prompts of that step."""
        return self._states.get(step) or self.curriculum.state()

    def forget(self, before: int) -> None:
        """Drops the prompts of steps that are over."""
        for step in [step for step in self._steps if step < before]:
            del self._steps[step], self._states[step]


def data_set(prompts: DrawnPrompts, num_rows: int, as_text: bool) -> Any:
    """A `datasets.Dataset` whose rows are made when they are read. `as_text`: the model has no chat template."""
    from datasets import Dataset

    def read(batch: dict[str, list[int]]) -> dict[str, list[Any]]:
        found = [prompts[row] for row in batch[ROW]]
        shown = [one.text if as_text else [dict(message) for message in one.messages] for one in found]
        return {"prompt": shown, ROW: list(batch[ROW])}

    logging.getLogger("datasets.fingerprint").setLevel(logging.ERROR)  # nothing is cached: it need not be hashed
    return Dataset.from_dict({ROW: list(range(num_rows))}).with_transform(read)
