"""Which prompts come next: the task's own, first those of an easier variant of it, or the most informative ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from outdo.errors import RecipeError, TaskError
from outdo.recipe.schema import Recipe
from outdo.seeds import seed_of
from outdo.tasks.saturation import WINDOW, is_saturated
from outdo.tasks.sources import Source
from outdo.tasks.task import Task, endless_prompts, find_task
from outdo.types import Group, Prompt

MIN_CHANCE = 0.1  # of drawing a prompt with a pass rate of 0 or 1, relative to one with a pass rate of 1/2
DECAY = 0.5  # weight of older measurements of a pass rate when a new one arrives: the model has changed since
MAX_RATES = 200_000  # prompts whose pass rate is kept; the oldest are dropped


class Curriculum:
    """Draws from the easier task for at most `curriculum_steps` steps, then from the task.

    With `curriculum_informative` it moves on once a smaller share of the easier groups has any reward spread: there is
    nothing more to learn there. With `curriculum_pass_rate` a prompt that was measured before is accepted with a chance
    that grows with p(1 - p), p being its pass rate; a new prompt always is.
    """

    def __init__(self, task: Task, recipe: Recipe) -> None:
        self.recipe = recipe
        self.easy = recipe.curriculum_steps > 0
        self._steps = 0
        self._shares: list[float] = []
        self._drawn = {"task": 0, "easier": 0}  # prompts taken from each source
        self._rates: dict[str, tuple[float, float]] = {}  # by prompt: number of right answers, number of answers
        self._sources = {
            "task": endless_prompts(task, "prompts", recipe.seed),
            "easier": endless_prompts(easier_task(recipe, task), "prompts", recipe.seed),
        }

    def draw(self, count: int) -> list[Prompt]:
        """The next prompts, all different if the task has that many."""
        source = "easier" if self.easy else "task"
        chosen: dict[str, Prompt] = {}
        for attempt in range(20 * count):
            prompt = self._next(source)
            while attempt < 10 * count and not self._accepts(prompt, source):
                prompt = self._next(source)
            chosen.setdefault(prompt.id, prompt)
            if len(chosen) == count:
                return list(chosen.values())
        # The task has fewer prompts than the step needs: repeat some under new ids, so that their answers differ.
        few = list(chosen.values())
        repeated = [
            replace(few[i % len(few)], id=f"{few[i % len(few)].id}~{i // len(few)}") for i in range(len(few), count)
        ]
        return few + repeated

    def _next(self, source: str) -> Prompt:
        self._drawn[source] += 1
        return next(self._sources[source])

    def _accepts(self, prompt: Prompt, source: str) -> bool:
        """At random, by the position in the stream: the same run draws the same prompts."""
        right, total = self._rates.get(_key(prompt), (0.0, 0.0)) if self._rates else (0.0, 0.0)
        if not total:
            return True
        p = (right + 0.5) / (total + 1.0)  # smoothed: 0 of a few answers does not mean a pass rate of 0
        draw = seed_of("taken", self.recipe.seed, source, self._drawn[source]) / 2**63
        return draw < max(MIN_CHANCE, 4.0 * p * (1.0 - p))

    def state(self) -> dict[str, Any]:
        """Its position, for a checkpoint."""
        state = {"easy": self.easy, "steps": self._steps, "shares": list(self._shares), "drawn": dict(self._drawn)}
        return {**state, "rates": dict(self._rates)} if self._rates else state

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restores a position, by drawing the prompts up to it again."""
        self.easy, self._steps, self._shares = bool(state["easy"]), int(state["steps"]), list(state["shares"])
        self._rates = {key: (float(right), float(total)) for key, (right, total) in state.get("rates", {}).items()}
        for source, count in state["drawn"].items():
            for _ in range(count - self._drawn[source]):
                next(self._sources[source])
            self._drawn[source] = count

    def observe(self, informative: float, groups: Sequence[Group] = ()) -> None:
        """Called after each step with the share of its groups that had reward spread, and the groups."""
        if self.recipe.curriculum_pass_rate:
            self._measure(groups)
        if not self.easy:
            return
        self._steps += 1
        self._shares = [*self._shares[1 - WINDOW :], informative]
        saturated = is_saturated(self._shares, self.recipe.curriculum_informative)
        self.easy = self._steps < self.recipe.curriculum_steps and not saturated

    def _measure(self, groups: Sequence[Group]) -> None:
        for group in groups:
            verdicts = [grade.verdict for grade in group.grades if grade.verdict != "broken"]
            if not verdicts:
                continue
            right, total = self._rates.pop(_key(group.prompt), (0.0, 0.0))  # re-inserted at the end, as the newest
            self._rates[_key(group.prompt)] = DECAY * right + verdicts.count("right"), DECAY * total + len(verdicts)
        for key in list(self._rates)[: max(0, len(self._rates) - MAX_RATES)]:
            del self._rates[key]


def _key(prompt: Prompt) -> str:
    return f"{seed_of(prompt.id):016x}"


def easier_task(recipe: Recipe, task: Task) -> Task:
    """The task of `curriculum_dataset_name`, or this one, with the arguments of the curriculum."""
    return task.easier or task.with_args(recipe.curriculum_args)


def with_easier(recipe: Recipe, task: Task) -> Task:
    """The task with that of `curriculum_dataset_name`, checked. Raises RecipeError and TaskError. Needs no model."""
    name = recipe.curriculum_dataset_name
    if name is None:
        try:
            next(easier_task(recipe, task).prompts("train", recipe.seed))
        except TaskError as error:
            raise TaskError(f"curriculum_args: {error}") from None
        return task
    try:
        source = Source(name, columns=dict(recipe.columns))
        easier = find_task(name, recipe.curriculum_args, recipe.system_prompt, source)
    except TaskError as error:
        raise TaskError(f"curriculum_dataset_name: {error}") from None
    if easier.rewards and not recipe.reward_funcs and easier.rewards[:1] != task.rewards[:1]:
        raise RecipeError(
            f"curriculum_dataset_name={name}: its verifier is {easier.rewards[0]}, and that of {task.name} is "
            f"{task.rewards[0] if task.rewards else 'not set'}: set reward_funcs to rewards that can judge both"
        )
    return replace(task, easier=easier)
