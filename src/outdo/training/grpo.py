"""A GRPO run, from the warm-up to the saved model."""

from __future__ import annotations

from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from outdo.doctor.difficulty import describe_difficulty
from outdo.errors import RunError
from outdo.evals.held_out import Evaluation
from outdo.learn.learner import LocalLearner
from outdo.recipe.objective import EACH_REWARD
from outdo.rewards.choose import dense_rewards
from outdo.rollout.source import SyncSource
from outdo.runs import checkpoint
from outdo.tasks.curriculum import Curriculum
from outdo.training.context import Result, RunContext
from outdo.training.loop import run_loop
from outdo.training.run import ResumePoint, TrainingRun
from outdo.training.sft import warm_up
from outdo.training.start import Opened, make_run, open_run

Run = TrainingRun[LocalLearner]
PENDING, WEIGHTS = "rollouts.jsonl", "weights.safetensors"


def run_grpo(context: RunContext) -> Result:
    opened = open_run(context)
    if isinstance(opened, Result):
        return opened
    run: Run = make_run(opened)
    context, recipe, rewards = run.context, run.recipe, run.context.rewards
    assert rewards, "GRPO has rewards"
    with run.session():
        source = SyncSource(recipe, Curriculum(context.task, recipe), run.sampler, rewards)
        before = _prepare(run, source, opened)
        if run.is_finishing:  # by a callback, before the first step
            run.end_early(run.done, f"step {run.done}")
        else:
            size = f"{recipe.prompts_per_step} prompts x {recipe.num_generations} answers"
            run.begin(f"GRPO: {recipe.max_steps} steps of {size}")
            run_loop(
                *(recipe, source, run.learner, run),
                start=run.done,
                audit_reward=rewards.audit,
                weights_of=rewards.weights_of if recipe.multi_objective_aggregation == EACH_REWARD else None,
                uninterruptible=run.uninterruptible,
            )
        if run.evaluator.splits or run.evaluator.final_splits:
            run.reporter.begin("after GRPO: held-out problems")
        after = run.evaluate(run.total)
        run.finish()
    return run.result(before, after)


def _prepare(run: Run, source: SyncSource, opened: Opened) -> list[Evaluation]:
    """All that comes before the first step: the warm-up, the learner, and the first evaluation."""
    point = opened.point
    if opened.demonstrations:
        warm_up(run, opened.demonstrations, point)
    run.checkpoint_state = lambda: {"curriculum": source.state()}
    run.checkpoint_files = lambda: source.pending_writer(PENDING)
    run.has_pending = lambda: bool(source.pending)
    before = _resume(run, source, point) if point and not point.in_warm_up else _start(run)
    run.learner.notify = run.reporter.note
    run.learner.check_memory()
    return before


def _start(run: Run) -> list[Evaluation]:
    """The learner, and the first evaluation."""
    with run.uninterruptible():
        learner = LocalLearner(run.policy, run.recipe)
        _save_reference(run, learner)
        was_warmed_up, run.warm_up = run.warm_up is not None, None
        run.learner = learner
        if was_warmed_up:
            run.save()  # so that the warm-up is not repeated where the evaluation fails
    before = evaluate_first(run)
    with run.uninterruptible():
        run.save()
    return before


def _resume(run: Run, source: SyncSource, point: ResumePoint) -> list[Evaluation]:
    """Restores everything as the checkpoint had it."""
    with run.uninterruptible():
        learner = LocalLearner(run.policy, run.recipe)
        if learner.reference:
            folder = run.writer.reference_folder / checkpoint.name_of(0)
            problem = run.world.first(lambda: checkpoint.corruption(folder), "reading the reference")
            if problem and learner.has_kl_term:
                raise RunError(f"{folder}: {problem}; without the first weights KL cannot be measured: start a new run")
            if problem:
                learner.reference = None
                run.reporter.note(f"KL is not measured: this run has no valid copy of its first weights ({problem})")
            else:
                learner.reference.load_state_dict(load_file(folder / WEIGHTS))
        run.restore(learner, point)
        source.load_state(point.state["curriculum"])
        source.read_pending(point.folder / PENDING)
    run.evaluate_if_due()  # where it was interrupted before that
    return run.world.first(lambda: run.evaluator.recorded(0)) or evaluate_first(run)


def evaluate_first(run: TrainingRun[Any]) -> list[Evaluation]:
    if run.evaluator.splits:
        run.reporter.begin("before GRPO: held-out problems")
    before = run.evaluate(0)
    if before:
        _report_difficulty(run, before[0])
    return before


def _report_difficulty(run: TrainingRun[Any], before: Evaluation) -> None:
    """Reports when GRPO has nothing to start from, and which groups would have spread."""
    passes, rewards = before.pass_at, run.context.rewards
    if before.split in run.evaluator.unreachable:
        return  # success says nothing of how hard the task is
    k, chance = max(passes, default=1), passes.get(1, before.success_rate)
    partial = dense_rewards(rewards, chance > 0.5) if rewards else []
    for line in describe_difficulty(chance, k, passes.get(k, chance), run.recipe.num_generations, partial):
        run.reporter.note(line)


def _save_reference(run: Run, learner: LocalLearner) -> None:
    """The first weights, once. Without them the run could not be resumed, so here a full disk ends it."""
    if not learner.reference:
        return
    reference = learner.reference

    def write() -> None:
        tensors = {name: value.detach().to("cpu", copy=True) for name, value in reference.state_dict().items()}
        try:
            checkpoint.save(run.writer.reference_folder, 0, lambda folder: save_file(tensors, folder / WEIGHTS))
        except (OSError, SafetensorError) as error:
            raise RunError(f"cannot write {run.writer.reference_folder}: {error}") from error

    run.world.first(write, "saving the reference")
