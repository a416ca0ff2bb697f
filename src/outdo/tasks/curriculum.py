"""Which prompts come next: the task's own, or first those of an easier variant of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from outdo.config import Recipe
from outdo.seeds import seed_of
from outdo.tasks.task import Task
from outdo.types import Prompt

WINDOW = 5  # steps over which the informative share is averaged


class Curriculum:
    """Starts on `curriculum_args` for at most `curriculum_steps` steps.

    With `curriculum_informative` it moves on as soon as a smaller share of the easier groups still has any spread:
    there is nothing more to learn there.
    """

    def __init__(self, task: Task, recipe: Recipe) -> None:
        self.recipe = recipe
        self.easy = recipe.curriculum_steps > 0
        self._steps = 0
        self._shares: list[float] = []
        self._drawn = {"task": 0, "easier": 0}  # prompts taken from each
        self._sources = {
            "task": _endless(task, recipe.seed),
            "easier": _endless(task.with_args(recipe.curriculum_args), recipe.seed),
        }

    def draw(self, count: int) -> list[Prompt]:
        """The next prompts, all different within one call where the task has so many."""
        source = "easier" if self.easy else "task"
        chosen: dict[str, Prompt] = {}
        for _ in range(20 * count):
            prompt = next(self._sources[source])
            self._drawn[source] += 1
            chosen.setdefault(prompt.id, prompt)
            if len(chosen) == count:
                return list(chosen.values())
        # Fewer problems than a step wants: some come twice, under names of their own so that their answers differ.
        few = list(chosen.values())
        twice = [
            replace(few[i % len(few)], id=f"{few[i % len(few)].id}~{i // len(few)}") for i in range(len(few), count)
        ]
        return few + twice

    def state(self) -> dict[str, Any]:
        """Where it stands, for a checkpoint."""
        return {"easy": self.easy, "steps": self._steps, "shares": list(self._shares), "drawn": dict(self._drawn)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from there. Prompts are drawn again up to that place: a task is made by its seed."""
        self.easy, self._steps, self._shares = bool(state["easy"]), int(state["steps"]), list(state["shares"])
        for source, count in state["drawn"].items():
            for _ in range(count - self._drawn[source]):
                next(self._sources[source])
            self._drawn[source] = count

    def observe(self, informative: float) -> None:
        """Told after each step what share of its groups had any spread."""
        if not self.easy:
            return
        self._steps += 1
        self._shares = [*self._shares[1 - WINDOW :], informative]
        worn_out = len(self._shares) == WINDOW and sum(self._shares) / WINDOW < self.recipe.curriculum_informative
        self.easy = self._steps < self.recipe.curriculum_steps and not worn_out


def _endless(task: Task, seed: int) -> Iterator[Prompt]:
    for epoch in range(2**31):
        yield from task.prompts("train", seed_of("prompts", seed, epoch))
