"""Callbacks: whatever watches a run or steers it. Subclass `Callback` and override what you need.

    class StopWhenSolved(Callback):
        def on_eval(self, run, step, evaluations):
            if evaluations[0].success_rate > 0.95:
                run.finish_early("held-out success is above 0.95")

`train(callbacks=[StopWhenSolved()])`, or by name in a recipe: `callbacks: [my_file.py:StopWhenSolved]`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outdo.errors import OutdoError, RecipeError
from outdo.metrics.headline import FIELDS, deciding_metric
from outdo.metrics.measure import Metrics
from outdo.parallel.world import get_world
from outdo.recipe import plugins
from outdo.types import Group

if TYPE_CHECKING:
    from outdo.doctor.finding import Finding
    from outdo.evals.held_out import Evaluation
    from outdo.recipe.schema import Recipe
    from outdo.runs.manifest import Status
    from outdo.training.run import TrainingRun


class Callback:
    """`run` is the run itself: its recipe, folder, policy, learner, reporter and steps done. To steer it, use
    `run.halt(error)`, `run.finish_early(reason)`, and in GRPO `run.learner.scale_rate(factor)` or
    `run.learner.scale_beta(factor)`.

    What a callback raises ends the run as failed; the model so far is saved.

    Where several processes train, callbacks run in the first one, and how they steer the run is shared. One that is
    `everywhere` runs in all, after the others; only there may it evaluate or save.
    """

    everywhere = False

    @classmethod
    def from_recipe(cls, recipe: Recipe) -> Callback:
        """The callback that a recipe names; one with settings takes them from the recipe's keys."""
        return cls()

    def on_start(self, run: TrainingRun[Any]) -> None:
        """Training starts, after the warm-up; `run.done` steps are done already where the run was resumed."""

    def on_sft_step(self, run: TrainingRun[Any], row: Mapping[str, Any]) -> None:
        """An update of supervised training, of the warm-up too."""

    def on_step(self, run: TrainingRun[Any], step: int, metrics: Metrics, groups: Sequence[Group]) -> None:
        """A GRPO step is done; the first is 1. Weights and rows are changed together here: an interrupt waits until it
        is over."""

    def on_step_end(self, run: TrainingRun[Any], done: int) -> None:
        """`done` steps are complete, and nothing is half done."""

    def on_eval(self, run: TrainingRun[Any], step: int, evaluations: Sequence[Evaluation]) -> None:
        """Held-out problems were evaluated after `step` steps; at 0, before training, this comes before `on_start`."""

    def on_finding(self, run: TrainingRun[Any], step: int, finding: Finding) -> None:
        """The doctor reports something that was not reported before."""

    def on_save(self, run: TrainingRun[Any], step: int, folder: Path) -> None:
        """A checkpoint is complete."""

    def on_end(self, run: TrainingRun[Any], status: Status, why: str) -> None:
        """The run is over, whatever ended it."""

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of it, as JSON, so that a resumed run goes as if it had not been interrupted."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None: ...


class EarlyStopping(Callback):
    """Ends a run, as done, when held-out success (or the mean reward, by `eval_metric`) has not improved by more than
    `threshold` for `patience` evaluations."""

    def __init__(self, patience: int = 3, threshold: float = 0.0) -> None:
        self.patience, self.threshold = patience, threshold
        self.best: float | None = None
        self.metric, self.since = "success", 0  # what `best` is of, and the evaluations since

    @classmethod
    def from_recipe(cls, recipe: Recipe) -> Callback:
        evaluates = recipe.eval_strategy == "epoch" or (recipe.eval_strategy == "steps" and recipe.eval_steps)
        if not evaluates and not recipe.stages:
            raise RecipeError("early stopping needs evaluations during training: set eval_steps, for example 10")
        return cls(recipe.early_stopping_patience or 3, recipe.early_stopping_threshold)

    def on_start(self, run: TrainingRun[Any]) -> None:
        if not run.done:
            self.best, self.since = None, 0  # another stage had a task of its own

    def state(self) -> dict[str, Any]:
        return {"best": self.best, "since": self.since, "metric": self.metric}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.best, self.since = state["best"], int(state["since"])
        self.metric = state.get("metric", "success")

    def on_eval(self, run: TrainingRun[Any], step: int, evaluations: Sequence[Evaluation]) -> None:
        if not evaluations or not step or step >= run.total:
            return
        first, had_success = evaluations[0], self.best is not None and self.metric == "success" and self.best > 0
        metric = "success" if had_success else deciding_metric(run.recipe.eval_metric, [first.row()])
        if metric != self.metric:  # the first right answer: from now on success decides
            self.best, self.since, self.metric = None, 0, metric
        value = getattr(first, FIELDS[metric])
        is_better = self.best is None or value > self.best + self.threshold
        self.best, self.since = (value, 0) if is_better else (self.best, self.since + 1)
        if self.since >= self.patience:
            name = "success" if metric == "success" else "mean reward"
            best = f"best {self.best:.3f}"
            run.finish_early(f"held-out {name} has not improved for {self.patience} evaluations ({best})")


CALLBACKS: dict[str, type[Callback]] = {"early_stopping": EarlyStopping}


class CallbackError(OutdoError, RuntimeError):
    """A callback raised."""


def notify(callbacks: Sequence[Callback], event: str, *arguments: Any) -> None:
    """Calls every callback in order. What one raises names it; errors of ours and interrupts pass as they are."""
    for callback in callbacks:
        try:
            getattr(callback, event)(*arguments)
        except (OutdoError, OSError):
            raise
        except Exception as error:
            name = f"{type(callback).__module__}.{type(callback).__qualname__}"
            raise CallbackError(f"callback {name} failed in {event}: {type(error).__name__}: {error}") from error


def notify_everywhere(run: TrainingRun[Any], event: str, *arguments: Any) -> None:
    """Calls the callbacks of a run. Of several processes the first one does, and the others are steered as it is."""
    world = get_world()
    if not world.is_shared:
        return notify(run.callbacks, event, run, *arguments)
    own = [one for one in run.callbacks if not one.everywhere]

    def call() -> Mapping[str, Any]:
        notify(own, event, run, *arguments)
        return run.steering()

    run.steer(world.first(call, f"callbacks ({event})"))
    notify([one for one in run.callbacks if one.everywhere], event, run, *arguments)


def find_callbacks(recipe: Recipe) -> list[Callback]:
    """The callbacks that a recipe names, and early stopping where it sets the patience. Raises RecipeError."""
    names = list(recipe.callbacks)
    if recipe.early_stopping_patience and "early_stopping" not in names:
        names.append("early_stopping")
    found = {name: plugins.find(name, CALLBACKS, "outdo.callbacks", RecipeError) for name in names}
    return [make_callback(name, given, recipe) for name, given in found.items()]


def make_callback(name: str, given: Any, recipe: Recipe) -> Callback:
    """A Callback, or one made from its class. Raises RecipeError where it is neither."""
    callback = given
    if isinstance(given, type):
        callback = given.from_recipe(recipe) if issubclass(given, Callback) else given()
    if not isinstance(callback, Callback):
        raise RecipeError(f"callback {name} is a {type(callback).__name__}, not a subclass of outdo.Callback")
    return callback
