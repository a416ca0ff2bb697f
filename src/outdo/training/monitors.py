"""The callbacks that every run has, in the order in which they are called."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from outdo.doctor.finding import Finding
from outdo.doctor.show import note as finding_line
from outdo.doctor.watch import Watch
from outdo.errors import Halted, NumericsError
from outdo.evals.held_out import Evaluation, describe_limits
from outdo.learn.memory import peak_memory
from outdo.metrics.measure import Metrics
from outdo.report.write import try_report
from outdo.runs.manifest import Status
from outdo.runs.writer import Tokens
from outdo.training.callbacks import Callback, notify
from outdo.training.console import interval
from outdo.training.drift import GraderDrift
from outdo.training.trackers import Trackers
from outdo.types import Group

if TYPE_CHECKING:
    from outdo.training.run import TrainingRun

KL_PATIENCE = 3  # steps in a row past kl_limit before the guard acts


def built_in_callbacks(run: TrainingRun[Any]) -> list[Callback]:
    """What measures comes first, then recording: what the others report must be on the disk. Schedules come last."""
    recorder = Recorder()
    trackers = Trackers.of(run.writer, run.recipe, run.reporter.note)
    return [GraderDrift(), recorder, trackers, Doctor(), KLGuard(), Console(), Schedule(recorder)]


class Recorder(Callback):
    """Writes every row into the run's folder."""

    def __init__(self) -> None:
        self.saving = 0.0  # seconds that the last checkpoint delayed the run

    def on_sft_step(self, run: TrainingRun[Any], row: Mapping[str, Any]) -> None:
        run.writer.record_sft(row)

    def on_step(self, run: TrainingRun[Any], step: int, metrics: Metrics, groups: Sequence[Group]) -> None:
        metrics |= {"memory": float(peak_memory(run.policy.device)), "time/save": self.saving}
        metrics["time/step"] = (metrics["time/step"] or 0.0) + self.saving
        self.saving = 0.0
        run.writer.record_step(step, metrics, groups, logged_tokens(run, groups[: run.recipe.log_tokens]))

    def on_eval(self, run: TrainingRun[Any], step: int, evaluations: Sequence[Evaluation]) -> None:
        with run.uninterruptible():
            for evaluation in evaluations:
                run.writer.record_eval(evaluation.row(step))

    def on_finding(self, run: TrainingRun[Any], step: int, finding: Finding) -> None:
        run.writer.record_finding(step, finding.row())


class Doctor(Callback):
    """Reports each finding once; halts the run where one is critical and the recipe wants that."""

    def __init__(self) -> None:
        self.watch: Watch | None = None  # from the first step on

    def on_start(self, run: TrainingRun[Any]) -> None:
        self.watch = Watch(run.folder, run.recipe.model_dump(mode="json"))  # knows the rows of before

    def on_step(self, run: TrainingRun[Any], step: int, metrics: Metrics, groups: Sequence[Group]) -> None:
        if run.recipe.doctor == "quiet" or self.watch is None:
            return
        for finding in self.watch.step({"step": step, **metrics}):
            notify(run.callbacks, "on_finding", run, step, finding)
            if run.recipe.doctor == "halt" and finding.severity == "critical":
                line = finding_line(finding).strip().removeprefix("doctor: ")
                run.halt(Halted(f"halted at step {run.done} by the doctor: {line}. The model so far is kept"))


class KLGuard(Callback):
    """Acts when KL to the starting model has been past `kl_limit` for some steps in a row."""

    def __init__(self) -> None:
        self.past_limit = 0

    def state(self) -> dict[str, Any]:
        return {"past_limit": self.past_limit}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.past_limit = int(state["past_limit"])

    def on_step(self, run: TrainingRun[Any], step: int, metrics: Metrics, groups: Sequence[Group]) -> None:
        recipe, kl = run.recipe, metrics["kl_mean"]
        is_past = kl is not None and bool(recipe.kl_limit) and kl > (recipe.kl_limit or 0.0)
        self.past_limit = self.past_limit + 1 if is_past else 0
        if self.past_limit < KL_PATIENCE:
            return
        reason = f"KL to the starting model is {kl:.3f}, past kl_limit={recipe.kl_limit} for {KL_PATIENCE} steps"
        if recipe.kl_guard == "stop":
            advice = f"Raise beta (now {metrics['beta']:g}), lower learning_rate (now {metrics['lr']:.2g})"
            advice += ", or set kl_limit=null to switch the guard off. The model so far is kept"
            return run.halt(NumericsError(f"halted at step {run.done}: {reason}. {advice}"))
        self.past_limit = 0
        if recipe.kl_guard == "lower_rate":
            run.learner.scale_rate(0.5)
            run.reporter.note(f"  guard: {reason}; the learning rate is halved from here on")
        else:
            run.learner.scale_beta(2.0)
            run.reporter.note(f"  guard: {reason}; beta is doubled to {run.learner.beta:g}")


class Console(Callback):
    """Shows the run to a person, and when it is over by its report."""

    def on_step(self, run: TrainingRun[Any], step: int, metrics: Metrics, groups: Sequence[Group]) -> None:
        run.reporter.step(step, run.recipe.max_steps, metrics)

    def on_eval(self, run: TrainingRun[Any], step: int, evaluations: Sequence[Evaluation]) -> None:
        for one in evaluations:
            passes = "".join(f"  pass@{k} {value:.3f}" for k, value in one.pass_at.items())
            passes += describe_limits(one) if passes else ""
            unjudged = f"  {one.unjudged}" if one.unjudged else ""
            run.reporter.note(f"  {one.split}: success {interval(one)}{passes}{unjudged}")

    def on_finding(self, run: TrainingRun[Any], step: int, finding: Finding) -> None:
        run.reporter.note(finding_line(finding))

    def on_end(self, run: TrainingRun[Any], status: Status, why: str) -> None:
        try_report(run.folder, run.reporter.note)


class Schedule(Callback):
    """Evaluates every `eval_steps` steps, and saves every `save_steps`."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def on_step_end(self, run: TrainingRun[Any], done: int) -> None:
        run.evaluate_if_due()
        every = run.recipe.save_steps
        if every and done % every == 0 and done < run.recipe.max_steps:
            start = time.perf_counter()
            with run.uninterruptible():
                run.save()
            self.recorder.saving = time.perf_counter() - start


def logged_tokens(run: TrainingRun[Any], groups: Sequence[Group]) -> list[Tokens]:
    """Each token of these groups' answers: its text, its log-probability when it was sampled, and by what ratio the
    update changed its probability. Tokens of an environment have their text alone."""
    logged: list[Tokens] = []
    for group, logprobs in zip(groups, run.learner.logprobs(groups), strict=True):
        answers = []
        for trajectory, now in zip(group.trajectories, logprobs, strict=True):
            before_T = torch.tensor(trajectory.logprobs, dtype=torch.float32)
            ratios = (torch.tensor(now, dtype=torch.float32) - before_T).exp().tolist()
            numbers = iter(zip(trajectory.logprobs, ratios, strict=True))
            mask = trajectory.mask or (True,) * len(trajectory.token_ids)
            pieces = zip(run.policy.renderer.pieces(trajectory.token_ids), mask, strict=True)
            answers.append([(piece, *(next(numbers) if trained else (None, None))) for piece, trained in pieces])
        logged.append(answers)
    return logged
