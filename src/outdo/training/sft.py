"""A supervised run: held-out success or loss before, the demonstrations, and the same after."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from outdo.evals.held_out import Evaluation
from outdo.learn.sft import SFTLearner, encode, run_sft_updates
from outdo.runs.files import Writer
from outdo.runs.reader import held_out_losses
from outdo.tasks.demonstrations import Demonstrations, held_out_demonstrations
from outdo.training.context import Result, RunContext
from outdo.training.run import TrainingRun
from outdo.training.start import make_run, open_run
from outdo.types import Reporter

Run = TrainingRun[SFTLearner]
SAVE_INTERVAL = 60.0  # seconds between two checkpoints at least: steps are short


def run_sft(context: RunContext) -> Result:
    opened = open_run(context)
    if isinstance(opened, Result):
        return opened
    context, recipe, demonstrations = opened.context, opened.context.recipe, opened.demonstrations
    assert demonstrations, "supervised training has demonstrations"
    run: Run = make_run(opened)
    run.total = demonstrations.steps
    run.steps_per_epoch = run.total / recipe.sft_epochs if recipe.sft_epochs else 0.0
    # Without a verifier there is no success to measure, and the loss on held-out demonstrations is measured instead.
    unseen = None if context.rewards else held_out_demonstrations(recipe, context.task)
    learner = SFTLearner(opened.policy, recipe, run.total)
    learner.notify = context.reporter.note

    def record(rows: list[dict[str, Any]]) -> None:
        run.done = learner.done
        run.sft_steps(rows, run.total)

    def write_more() -> Writer:
        record(learner.read())  # rows of the steps that are saved are on the disk first
        return lambda folder: None

    saved_at = time.monotonic()

    def save_if_due() -> None:
        nonlocal saved_at
        is_epoch = recipe.save_strategy == "epoch"
        is_due = run.is_due(recipe.save_strategy, recipe.save_steps)
        if is_due and (is_epoch or time.monotonic() - saved_at > SAVE_INTERVAL) and run.done < run.total:
            with run.uninterruptible():
                run.save()
            saved_at = time.monotonic()

    run.checkpoint_files = write_more
    with run.session():
        with run.uninterruptible():
            if opened.point:
                run.restore(learner, opened.point)
            run.learner = learner
        before = _evaluate(run, 0, "before", unseen)
        run.begin(f"SFT on {demonstrations.name}: {run.total} steps of {demonstrations.batch_size} examples")
        with report_speed(learner, run.reporter):
            run_sft_updates(learner, demonstrations, record, save_if_due, run.uninterruptible)
        run.sampler.update(learner, version=run.done)
        after = _evaluate(run, run.total, "after", unseen)
        run.finish()
    return run.result(before, after)


def _evaluate(run: Run, step: int, when: str, unseen: Demonstrations | None) -> list[Evaluation]:
    evaluator = run.evaluator
    if unseen or evaluator.splits or (evaluator.final_splits and step == run.total):
        run.reporter.begin(f"{when}: held-out {'examples' if unseen else 'problems'}")
    if unseen and step not in held_out_losses(run.folder):
        examples = encode(run.policy, unseen.examples(), run.recipe.sft_max_length)
        loss, tokens = run.learner.loss_on(examples)
        with run.uninterruptible():
            run.sft_steps([{"step": step, "held_out_loss": loss, "held_out_tokens": tokens}], run.total)
        run.reporter.note(f"  test: loss {loss:.4f} on {unseen.num_examples} examples")
    return run.evaluate(step)


@contextmanager
def report_speed(learner: SFTLearner, reporter: Reporter) -> Iterator[None]:
    start = time.monotonic()
    yield
    rate = learner.seen / (time.monotonic() - start)
    reporter.note(f"  {learner.seen:,} tokens with their prompts, {rate:,.0f} a second")
