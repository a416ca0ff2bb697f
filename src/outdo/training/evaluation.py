"""The held-out evaluations of a run: before, during and after, each measured once however often the run is resumed."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from outdo.evals.from_recipe import eval_params
from outdo.evals.held_out import Evaluation, evaluate_prompts, problems_of
from outdo.evals.remarks import few_problems, unreachable_success
from outdo.recipe.schema import Recipe
from outdo.rewards.compose import Rewards
from outdo.runs.held_out import HeldOutAnswer, read_answers
from outdo.runs.reader import read_evals
from outdo.runs.writer import RunWriter
from outdo.seeds import seed_of
from outdo.tasks.task import Task, held_out
from outdo.training.context import PriorEvals
from outdo.types import Sampler


class Evaluator:
    """Measures `splits` whenever it is called, and `final_splits` at the end only."""

    def __init__(
        self, recipe: Recipe, task: Task, rewards: Rewards | None, writer: RunWriter, prior: PriorEvals | None
    ) -> None:
        self.recipe, self.rewards, self.writer, self.prior = recipe, rewards, writer, prior
        self._warned: set[str] = set()
        self.unreachable: set[str] = set()  # splits where no answer can succeed
        regular = eval_splits(recipe, task) if rewards else []
        final = [split for split in recipe.final_eval_split if split not in regular] if rewards else []
        self.splits = {split: held_out(task, split, recipe.eval_size) for split in regular}
        self.final_splits = {split: held_out(task, split, recipe.eval_size) for split in final}

    def warnings(self, evaluations: Sequence[Evaluation]) -> list[str]:
        """What a reader should know of these splits, once: too few problems, and success that no answer can reach."""
        new = [one for one in evaluations if one.split not in self._warned]
        self._warned |= {one.split for one in new}
        splits = self.splits | self.final_splits
        lines = [few_problems(new)]
        for one in new:
            line = unreachable_success(one, self.rewards, splits.get(one.split, ())) if self.rewards else ""
            if line:
                self.unreachable.add(one.split)
                lines.append(line)
        return list(dict.fromkeys(filter(None, lines)))

    def recorded(self, step: int) -> list[Evaluation]:
        """What was measured at that step before the run was resumed."""
        return recorded_evals(self.writer.folder, step)

    def carried_over(self) -> list[Evaluation]:
        """What an earlier run measured of the model that this one starts from, if it used the same problems."""
        prior = {(each.split, each.problems): each for each in self.prior.evaluations} if self.prior else {}
        wanted = [(split, problems_of(prompt.id for prompt in prompts)) for split, prompts in self.splits.items()]
        return [prior[key] for key in wanted] if all(key in prior for key in wanted) else []

    def measure(self, sampler: Sampler, step: int, is_last: bool, done: Collection[str] = ()) -> list[Evaluation]:
        """Every split that is not `done`."""
        recipe, rewards = self.recipe, self.rewards
        if rewards is None:
            return []
        splits = self.splits | (self.final_splits if is_last else {})
        settings = eval_params(recipe), recipe.eval_samples, seed_of("evaluation", recipe.seed, step), recipe.eval_ks
        return [
            evaluate_prompts(prompts, split, sampler, rewards, *settings)
            for split, prompts in splits.items()
            if split not in done
        ]


def recorded_evals(folder: Path, step: int) -> list[Evaluation]:
    """What a run measured after so many steps, with the answers that it kept."""
    rows = [row for row in read_evals(folder) if row["step"] == step]
    answers = [(row.get("split"), HeldOutAnswer.of(row)) for row in read_answers(folder, step, skipped=[])]
    return [
        replace(Evaluation.of(row), answers=tuple(one for split, one in answers if split == row["split"]))
        for row in rows
    ]


def eval_splits(recipe: Recipe, task: Task) -> list[str]:
    """The splits that are measured all along. One that the task does not have is refused where it is read."""
    if recipe.eval_split:
        return recipe.eval_split
    usual = [s for kind in ("test", "ood") for s in task.splits if s.partition("/")[0] == kind]  # a mixture: test/NAME
    return [split for split in usual if split not in recipe.final_eval_split]
