"""A supervised run: held-out success or loss before, the demonstrations, and the same after."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from outdo.evals.held_out import Evaluation
from outdo.learn.conversations import Dialect
from outdo.learn.sft import SFTLearner, encode, run_sft_updates
from outdo.runs.files import Writer
from outdo.runs.reader import held_out_losses
from outdo.tasks.demonstrations import Demonstrations, held_out_demonstrations
from outdo.training.context import Result, RunContext
from outdo.training.run import ResumePoint, TrainingRun
from outdo.training.start import make_run, open_run
from outdo.types import Reporter

Run = TrainingRun[SFTLearner]
SAVE_INTERVAL = 5.0  # seconds between two checkpoints at least: updates are short
SAVE_SHARE = 0.05  # of the time that checkpoints may take


def run_sft(context: RunContext) -> Result:
    opened = open_run(context)
    if isinstance(opened, Result):
        return opened
    demonstrations = opened.demonstrations
    assert demonstrations, "supervised training has demonstrations"
    run: Run = make_run(opened)
    context, recipe = run.context, run.recipe
    run.total = demonstrations.steps
    run.steps_per_epoch = run.total / recipe.sft_epochs if recipe.sft_epochs else 0.0
    # Without a verifier there is no success to measure, and the loss on held-out demonstrations is measured instead.
    unseen = None if context.rewards else held_out_demonstrations(recipe, context.task)
    learner = SFTLearner(opened.policy, recipe, run.total)
    learner.notify = context.reporter.note
    run.checkpoint_files = lambda: _record_unread(run, learner, "step")
    with run.session():
        with run.uninterruptible():
            if opened.point:
                run.restore(learner, opened.point)
            run.learner = learner
        before = _evaluate(run, 0, "before", unseen)
        run.begin(f"SFT on {demonstrations.name}: {run.total} steps of {demonstrations.batch_size} examples")
        supervise(run, learner, demonstrations, "step", lambda: run.is_due(recipe.save_strategy, recipe.save_steps))
        if run.is_finishing:
            run.end_early(run.done, f"step {run.done}")
        run.sampler.update(learner, version=run.done)
        after = _evaluate(run, run.total, "after", unseen)
        run.finish()
    return run.result(before, after)


def warm_up(run: TrainingRun[Any], demonstrations: Demonstrations, point: ResumePoint | None) -> None:
    """The supervised updates before GRPO, from the start or from a checkpoint in their midst."""
    learner = SFTLearner(run.policy, run.recipe, demonstrations.steps)
    learner.notify = run.reporter.note
    run.checkpoint_files = lambda: _record_unread(run, learner, "warm-up")
    run.has_pending = lambda: True  # all of its checkpoints have the number 0
    with run.uninterruptible():
        if point:
            run.restore_files(learner, point)
        run.warm_up = learner
    run.reporter.begin(f"warm-up: SFT on {demonstrations.name}")
    if point:
        run.reporter.note(f"resumed in the warm-up, after update {learner.done} of {learner.steps}")
    saves = run.recipe.save_strategy != "no" and run.recipe.save_steps > 0
    supervise(run, learner, demonstrations, "warm-up", lambda: saves)


def supervise(
    run: TrainingRun[Any],
    learner: SFTLearner,
    demonstrations: Demonstrations,
    name: str,
    is_due: Callable[[], bool],
) -> None:
    """The updates that remain: recorded, shown, and saved when due: after an epoch, else as far as that is cheap."""
    saved_at, by_epoch = time.monotonic(), run.recipe.save_strategy == "epoch" and not run.warm_up

    def after_update() -> bool:
        nonlocal saved_at
        if not run.warm_up:
            run.done = learner.done
        interval = 0.0 if by_epoch else max(SAVE_INTERVAL, run.checkpointer.seconds / SAVE_SHARE)
        is_time = run.world.first(lambda: time.monotonic() - saved_at > interval)
        if is_due() and learner.done < learner.steps and is_time:
            with run.uninterruptible():
                run.save()
            saved_at = time.monotonic()
        run.world.gather(lambda: None, "supervised training", may_stop=True)
        return not run.is_finishing

    def record(rows: list[dict[str, Any]]) -> None:
        _record(run, learner, rows, name)
        run.raise_if_halted()

    with report_speed(learner, run.reporter):
        run_sft_updates(learner, demonstrations, record, after_update, run.uninterruptible, dialect_of(run))


def _record(run: TrainingRun[Any], learner: SFTLearner, rows: list[dict[str, Any]], name: str) -> None:
    if not run.warm_up:
        run.done = learner.done
    run.sft_steps(rows, learner.steps, name)


def _record_unread(run: TrainingRun[Any], learner: SFTLearner, name: str) -> Writer:
    """Rows of the updates that a checkpoint has are on the disk first."""
    _record(run, learner, learner.read(), name)
    return lambda folder: None


def _evaluate(run: Run, step: int, when: str, unseen: Demonstrations | None) -> list[Evaluation]:
    evaluator = run.evaluator
    if unseen or evaluator.splits or (evaluator.final_splits and step == run.total):
        run.reporter.begin(f"{when}: held-out {'examples' if unseen else 'problems'}")
    if unseen and run.world.first(lambda: step not in held_out_losses(run.folder)):
        examples = encode(run.policy, unseen.examples(), run.recipe.sft_max_length, dialect=dialect_of(run))
        loss, tokens = run.learner.loss_on(examples)
        with run.uninterruptible():
            run.sft_steps([{"step": step, "held_out_loss": loss, "held_out_tokens": tokens}], run.total)
        run.reporter.note(f"  test: loss {loss:.4f} on {unseen.num_examples} examples")
    return run.evaluate(step)


def dialect_of(run: TrainingRun[Any]) -> Dialect:
    """How demonstrations are written, as the run's answers are."""
    play = run.context.play
    return Dialect.named(play.tools_of, play.tool_format, run.policy) if play else Dialect()


@contextmanager
def report_speed(learner: SFTLearner, reporter: Reporter) -> Iterator[None]:
    start = time.monotonic()
    yield
    rate = learner.seen / (time.monotonic() - start)
    reporter.note(f"  {learner.seen:,} tokens with their prompts, {rate:,.0f} a second")
