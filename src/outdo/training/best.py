"""The best checkpoint of a run, by its evaluations on held-out problems."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from outdo.errors import RecipeError
from outdo.metrics.headline import FIELDS, deciding_metric
from outdo.recipe.schema import Recipe

NAMES = {"success": "success_rate", "accuracy": "success_rate", "reward": "reward_mean"}  # other names of fields
NO_METRICS = ("step", "split", "n", "problems", "verdicts")


@dataclass(frozen=True)
class Best:
    """A step and what its evaluation came to."""

    step: int
    metric: str
    value: float

    def row(self) -> dict[str, Any]:
        return asdict(self)

    def describe(self) -> str:
        when = f"step {self.step}" if self.step else "the start, before the first step"
        return f"{when}, with {self.metric} {self.value:.3f}"


def deciding_number(row: Mapping[str, Any], metric: str) -> tuple[str, float]:
    """The number of an evaluation's row that decides which checkpoint is the best, with its name. `metric` may have
    the prefix eval_, as other trainers write it. Raises RecipeError where evaluations do not measure it."""
    wanted = metric.removeprefix("eval_")
    name = NAMES.get(wanted, wanted)
    value = row.get(name)
    if name in NO_METRICS or isinstance(value, bool) or not isinstance(value, (int, float)):
        numbers = [key for key, value in row.items() if key not in NO_METRICS and isinstance(value, (int, float))]
        raise RecipeError(f"metric_for_best_model={metric}: evaluations do not measure it; use {', '.join(numbers)}")
    return name, float(value)


def best_of(
    rows: Iterable[Mapping[str, Any]], kind: str, recipe: Recipe, saved: Collection[int] | None = None
) -> Best | None:
    """The evaluated step with the best number, of those that were `saved`; of equal ones the last. `kind` is the split
    that decides; a mixture has one for each of its tasks, and the mean over them decides."""
    values: dict[int, list[float]] = {}
    own = [row for row in rows if row["split"].partition("/")[0] == kind]
    name = recipe.metric_for_best_model or FIELDS[deciding_metric(recipe.eval_metric, own)]
    for row in own:
        if saved is None or row["step"] in saved:
            name, value = deciding_number(row, name)
            values.setdefault(row["step"], []).append(value)
    means = {step: sum(each) / len(each) for step, each in values.items()}
    sign = -1.0 if recipe.greater_is_better is False else 1.0
    step = max(means, key=lambda step: (sign * means[step], step), default=None)
    return None if step is None else Best(step, name, means[step])
