"""A GRPO run whose steps another trainer takes (`backend`). All around them is as in any run: the warm-up, evaluations,
checkpoints, callbacks and the run's folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from outdo.bridges.backend import OWN, Backend, find_backend
from outdo.bridges.keys import differences
from outdo.errors import EngineError, OutdoError, RecipeError, describe
from outdo.learn.memory import is_out_of_memory
from outdo.parallel.world import get_world
from outdo.rollout.play import EnvironmentPlay, play_of
from outdo.tasks.curriculum import Curriculum
from outdo.training.context import Result, RunContext
from outdo.training.grpo import evaluate_first
from outdo.training.run import ResumePoint, TrainingRun
from outdo.training.sft import warm_up
from outdo.training.start import Opened, make_run, open_run

if TYPE_CHECKING:
    from outdo.bridges.trl import TRLLearner

Run = TrainingRun[Any]  # of a TRLLearner
Runner = Callable[[RunContext], Result]


def runner_of(context: RunContext, runners: Mapping[str, Runner]) -> Runner:
    """What runs it: that of its kind, or of GRPO, where the recipe names another trainer, this."""
    return run_backend if context.kind == "grpo" and context.recipe.backend != OWN else runners[context.kind]


def run_backend(context: RunContext) -> Result:
    backend = find_backend(context.recipe, get_world().size)
    assert backend, "the recipe names one"
    refuse_config(backend, context)
    opened = open_run(context)
    if isinstance(opened, Result):
        return opened
    run: Run = make_run(opened)
    run.writer.update_manifest(backend={"name": context.recipe.backend, "versions": backend.versions})
    recipe = run.recipe
    with run.session():
        for line in differences(recipe, backend.title):
            run.reporter.note(f"  {line}")
        before = _prepare(run, backend, opened)
        if run.is_finishing:
            run.end_early(run.done, f"step {run.done}")
        elif run.done < recipe.max_steps:
            size = f"{recipe.prompts_per_step} prompts x {recipe.num_generations} answers"
            run.begin(f"GRPO by {backend.name}: {recipe.max_steps} steps of {size}")
            _train(run, backend)
        if run.evaluator.splits or run.evaluator.final_splits:
            run.reporter.begin("after GRPO: held-out problems")
        after = run.evaluate(run.total)
        run.finish()
    return run.result(before, after)


def refuse_config(backend: Backend, context: RunContext) -> None:
    """Raises RecipeError where the trainer does not take the recipe's settings, before anything is loaded."""
    if backend.is_last:
        return
    with _as_refusal(backend):
        import_module("outdo.bridges.trl").refuse_config(backend, context.recipe)


@contextmanager
def _as_refusal(backend: Backend) -> Iterator[None]:
    """What the trainer raises when it is made is said of the recipe."""
    try:
        yield
    except Exception as error:
        if isinstance(error, OutdoError) or is_out_of_memory(error):
            raise
        raise RecipeError(f"{backend.name} cannot run this recipe: {describe(error, 1000)}") from error


def _train(run: Run, backend: Backend) -> None:
    """Raises EngineError where the trainer fails; what the run's own parts raise passes on."""
    try:
        with run.uninterruptible():
            run.learner.train(run)
    except Exception as error:
        if isinstance(error, OutdoError) or is_out_of_memory(error):
            raise
        saved = run.checkpointer.last_step
        kept = f"; the checkpoint of step {saved} is valid: outdo train --resume {run.folder}" if saved > 0 else ""
        raise EngineError(f"{backend.name} failed in step {run.done + 1}: {describe(error)}{kept}") from error


def _prepare(run: Run, backend: Backend, opened: Opened) -> list[Any]:
    """All that comes before the first step: the warm-up, the trainer, and the first evaluation."""
    point = opened.point
    if opened.demonstrations:
        warm_up(run, opened.demonstrations, point)
    curriculum = Curriculum(run.context.task, run.recipe)
    run.checkpoint_state = lambda: {"curriculum": run.learner.prompts.state(run.done)}
    run.checkpoint_files = lambda: lambda folder: None
    run.has_pending = lambda: False
    if point and not point.in_warm_up:
        return _resume(run, backend, curriculum, point)
    with run.uninterruptible():
        was_warmed_up = run.warm_up is not None
        learner = make_learner(run, backend, curriculum, 0)
        learner.fetch()
        run.warm_up, run.learner = None, learner
        if was_warmed_up:
            run.save()
    before = evaluate_first(run)
    with run.uninterruptible():
        run.save()
    return before


def _resume(run: Run, backend: Backend, curriculum: Curriculum, point: ResumePoint) -> list[Any]:
    with run.uninterruptible():
        curriculum.load_state(point.state["curriculum"])
        run.restore(make_learner(run, backend, curriculum, int(point.state["step"])), point)
    run.evaluate_if_due()
    return run.world.first(lambda: run.evaluator.recorded(0)) or evaluate_first(run)


def make_learner(run: TrainingRun[Any], backend: Backend, curriculum: Curriculum, start: int) -> TRLLearner:
    """The trainer, from that step on."""
    trl = import_module("outdo.bridges.trl")
    context, rewards = run.context, run.context.rewards
    assert rewards, "GRPO has rewards"
    play = context.play
    if isinstance(play, EnvironmentPlay):  # the trainer counts the turns itself
        unlimited = context.recipe.model_copy(update={"max_tool_calling_iterations": None})
        play = play_of(unlimited, context.task.environment, context.tools, context.environment)
    job = trl.Job(
        backend=backend,
        recipe=run.recipe,
        policy=run.policy,
        rewards=rewards,
        curriculum=curriculum,
        notify=run.reporter.note,
        reference=run.writer.reference_folder,
        interruptible=run.world.interruptible,
        play=play,
    )
    with _as_refusal(backend):
        return trl.TRLLearner(job, start)
