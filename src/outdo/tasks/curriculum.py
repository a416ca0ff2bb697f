"""Which prompts come next: the task's own, first those of an easier variant of it, or those that teach most."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from outdo.recipe.schema import Recipe
from outdo.seeds import seed_of
from outdo.tasks.task import Task
from outdo.tasks.worn_out import WINDOW, is_worn_out
from outdo.types import Group, Prompt

FLOOR = 0.1  # how often a prompt that teaches nothing is still taken when it comes up, against one that teaches most
FADES = 0.5  # what an earlier measurement of a pass rate counts for when there is a newer one: the model has changed
MOST_RATES = 200_000  # prompts whose pass rate is kept; the oldest are forgotten


class Curriculum:
    """Starts on `curriculum_args` for at most `curriculum_steps` steps.

    With `curriculum_informative` it moves on as soon as a smaller share of the easier groups still has any spread:
    there is nothing more to learn there. With `curriculum_pass_rate` a prompt that comes up again is taken with a
    chance that grows with p(1 - p), p being its measured pass rate; one that was never tried is always taken.
    """

    def __init__(self, task: Task, recipe: Recipe) -> None:
        self.recipe = recipe
        self.easy = recipe.curriculum_steps > 0
        self._steps = 0
        self._shares: list[float] = []
        self._drawn = {"task": 0, "easier": 0}  # prompts that came up in each
        self._rates: dict[str, tuple[float, float]] = {}  # of each prompt that was tried: right answers, and answers
        self._sources = {
            "task": _endless(task, recipe.seed),
            "easier": _endless(task.with_args(recipe.curriculum_args), recipe.seed),
        }

    def draw(self, count: int) -> list[Prompt]:
        """The next prompts, all different within one call where the task has so many."""
        source = "easier" if self.easy else "task"
        chosen: dict[str, Prompt] = {}
        for came in range(20 * count):
            prompt = self._next(source)
            while came < 10 * count and not self._is_taken(prompt, source):
                prompt = self._next(source)
            chosen.setdefault(prompt.id, prompt)
            if len(chosen) == count:
                return list(chosen.values())
        # Fewer problems than a step wants: some come twice, under names of their own so that their answers differ.
        few = list(chosen.values())
        twice = [
            replace(few[i % len(few)], id=f"{few[i % len(few)].id}~{i // len(few)}") for i in range(len(few), count)
        ]
        return few + twice

    def _next(self, source: str) -> Prompt:
        self._drawn[source] += 1
        return next(self._sources[source])

    def _is_taken(self, prompt: Prompt, source: str) -> bool:
        """By a coin of this place in the stream: the same run takes the same prompts."""
        right, tried = self._rates.get(_key(prompt), (0.0, 0.0)) if self._rates else (0.0, 0.0)
        if not tried:
            return True
        p = (right + 0.5) / (tried + 1.0)  # none of a few is not never
        coin = seed_of("taken", self.recipe.seed, source, self._drawn[source]) / 2**63
        return coin < max(FLOOR, 4.0 * p * (1.0 - p))

    def state(self) -> dict[str, Any]:
        """Where it stands, for a checkpoint."""
        stands = {"easy": self.easy, "steps": self._steps, "shares": list(self._shares), "drawn": dict(self._drawn)}
        return {**stands, "rates": dict(self._rates)} if self._rates else stands

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from there. Prompts are drawn again up to that place: a task is made by its seed."""
        self.easy, self._steps, self._shares = bool(state["easy"]), int(state["steps"]), list(state["shares"])
        self._rates = {key: (float(right), float(tried)) for key, (right, tried) in state.get("rates", {}).items()}
        for source, count in state["drawn"].items():
            for _ in range(count - self._drawn[source]):
                next(self._sources[source])
            self._drawn[source] = count

    def observe(self, informative: float, groups: Sequence[Group] = ()) -> None:
        """Told after each step what share of its groups had any spread, and the groups themselves."""
        if self.recipe.curriculum_pass_rate:
            self._measure(groups)
        if not self.easy:
            return
        self._steps += 1
        self._shares = [*self._shares[1 - WINDOW :], informative]
        worn_out = is_worn_out(self._shares, self.recipe.curriculum_informative)
        self.easy = self._steps < self.recipe.curriculum_steps and not worn_out

    def _measure(self, groups: Sequence[Group]) -> None:
        for group in groups:
            verdicts = [grade.verdict for grade in group.grades if grade.verdict != "broken"]
            if not verdicts:
                continue
            right, tried = self._rates.pop(_key(group.prompt), (0.0, 0.0))  # the newest go to the end
            newest = FADES * right + verdicts.count("right"), FADES * tried + len(verdicts)
            self._rates[_key(group.prompt)] = newest
        for key in list(self._rates)[: max(0, len(self._rates) - MOST_RATES)]:
            del self._rates[key]


def _key(prompt: Prompt) -> str:
    return f"{seed_of(prompt.id):016x}"


def _endless(task: Task, seed: int) -> Iterator[Prompt]:
    for epoch in range(2**31):
        yield from task.prompts("train", seed_of("prompts", seed, epoch))
