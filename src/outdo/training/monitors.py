"""The callbacks that every run has, in the order in which they are called."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from outdo.doctor.finding import Finding
from outdo.doctor.show import note as finding_line
from outdo.doctor.watch import Watch
from outdo.errors import Halted, NumericsError, OutdoError
from outdo.evals.held_out import Evaluation, describe_limits
from outdo.learn.memory import peak_memory
from outdo.metrics.measure import Metrics
from outdo.models.hub import push_model, repository_of, why_no_upload
from outdo.parallel.world import get_world
from outdo.report.write import try_report
from outdo.runs.manifest import Status
from outdo.runs.writer import Tokens
from outdo.training.callbacks import Callback, notify
from outdo.training.console import interval, reward
from outdo.training.drift import GraderDrift
from outdo.training.trackers import Trackers
from outdo.types import Group

if TYPE_CHECKING:
    from outdo.training.run import TrainingRun

KL_PATIENCE = 3  # measured steps in a row past kl_limit before the guard acts
KL_AT_ONCE = 3  # KL passes 1 by this step: the first updates did it
KL_KEYS = ("kl_limit", "kl_guard", "beta", "learning_rate", "num_iterations")  # decide whether it acts again


def built_in_callbacks(run: TrainingRun[Any]) -> list[Callback]:
    """What measures comes first, then recording: what the others report must be on the disk. Schedules come last."""
    recorder = Recorder()
    if not get_world().is_first:
        return [Schedule(recorder)]
    trackers = Trackers.of(run.writer, run.recipe, run.reporter.note)
    upload = [Upload()] if run.recipe.push_to_hub else []
    return [GraderDrift(), recorder, trackers, Doctor(), KLGuard(), Console(), *upload, Schedule(recorder)]


class Recorder(Callback):
    """Writes every row into the run's folder."""

    def __init__(self) -> None:
        self.saving = 0.0  # seconds that the last checkpoint delayed the run

    def on_sft_step(self, run: TrainingRun[Any], row: Mapping[str, Any]) -> None:
        run.writer.record_sft(row)
        run.writer.heartbeat()

    def on_step(self, run: TrainingRun[Any], step: int, metrics: Metrics, groups: Sequence[Group]) -> None:
        metrics |= {"memory": float(peak_memory(run.policy.device)), "time/save": self.saving}
        metrics["time/step"] = (metrics["time/step"] or 0.0) + self.saving
        self.saving = 0.0
        run.writer.record_step(step, metrics, groups, logged_tokens(run, groups[: run.recipe.log_tokens]))
        run.writer.heartbeat()

    def on_eval(self, run: TrainingRun[Any], step: int, evaluations: Sequence[Evaluation]) -> None:
        with run.uninterruptible():
            for evaluation in evaluations:
                run.writer.record_answers(step, evaluation.split, evaluation.answers)
                run.writer.record_eval(evaluation.row(step))
            run.writer.heartbeat()

    def on_finding(self, run: TrainingRun[Any], step: int, finding: Finding) -> None:
        run.writer.record_finding(step, finding.row())


class Doctor(Callback):
    """Reports each finding once. Halts a run that cannot recover; with `doctor: halt`, at any critical finding."""

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
                run.halt(_halted_by(finding, run))
        for finding in self.watch.confirmed:  # reported before the run was resumed, too
            if finding.unrecoverable and run.recipe.doctor != "note":
                run.halt(_halted_by(finding, run))


def _halted_by(finding: Finding, run: TrainingRun[Any]) -> Halted:
    """What happened, what to change, and what is kept. A policy that has collapsed resumes from before that."""
    reason = f"halted at step {run.done} by the doctor: {finding_line(finding).strip().removeprefix('doctor: ')}"
    change = finding.change
    pair, keys = (change.pair(), (change.key,)) if change else ("", ())
    if not finding.unrecoverable:
        remedy = f"--force {pair}" if pair else "doctor=note"
        return Halted(f"{reason}. The model so far is kept", keys=keys, remedy=remedy)
    saved = run.keep_from_before(finding.step)
    kept = f"{saved} is from before it" if saved else "no checkpoint is from before it, so start a new run"
    return Halted(
        f"{reason}. The policy has collapsed, and no later step would learn; {kept}. doctor=note lets it continue",
        keys=keys,
        remedy=f"--force {pair}" if pair and saved else "",
        onset=finding.step,
    )


class KLGuard(Callback):
    """Acts when KL to the starting model has been past `kl_limit` for some steps in a row."""

    def __init__(self) -> None:
        self.past_limit = 0
        self.since = 0  # the step that was the first of these

    def state(self) -> dict[str, Any]:
        return {"past_limit": self.past_limit, "since": self.since}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.past_limit, self.since = int(state["past_limit"]), int(state.get("since", 0))

    def on_step(self, run: TrainingRun[Any], step: int, metrics: Metrics, groups: Sequence[Group]) -> None:
        recipe, kl = run.recipe, metrics["kl_mean"]
        if kl is None or recipe.kl_limit is None:  # not measured at this step (kl_steps)
            return
        self.past_limit = self.past_limit + 1 if kl > recipe.kl_limit else 0
        self.since = step if self.past_limit == 1 else self.since
        if self.past_limit < KL_PATIENCE:
            return
        reason = f"KL to the starting model is {kl:.3f}, past kl_limit={recipe.kl_limit} for {KL_PATIENCE} steps"
        if recipe.kl_guard == "stop":
            advice = f"Raise beta (now {metrics['beta']:g}), lower learning_rate (now {metrics['lr']:.2g})"
            advice += ", let the guard halve it (kl_guard=lower_rate), or set kl_limit=null to switch the guard off. "
            advice += "The model so far is kept"
            run.keep_from_before(self.since)
            divisor = 4 if kl <= 1 else 30 if self.since <= KL_AT_ONCE else 10  # as the doctor's findings
            remedy = f"--force learning_rate={recipe.learning_rate / divisor:.2g}"
            error = f"halted at step {run.done}: {reason}. {advice}"
            return run.halt(NumericsError(error, keys=KL_KEYS, remedy=remedy, onset=self.since))
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
            passes += f"  reward {reward(one)}" if one.has_partial_credit else ""
            unjudged = f"  {one.unjudged}" if one.unjudged else ""
            run.reporter.note(f"  {one.split}: success {interval(one)}{passes}{unjudged}")
        for line in run.evaluator.warnings(evaluations):
            run.reporter.note(f"  {line}")

    def on_finding(self, run: TrainingRun[Any], step: int, finding: Finding) -> None:
        run.reporter.note(finding_line(finding))

    def on_end(self, run: TrainingRun[Any], status: Status, why: str) -> None:
        try_report(run.folder, run.reporter.note)


class Upload(Callback):
    """Uploads the model to the hub when the run is done. Where that fails, it reports how to do it later."""

    def on_start(self, run: TrainingRun[Any]) -> None:
        if problem := why_no_upload():
            run.reporter.note(f"  warning: push_to_hub=true, and {problem}. The model will be kept in the run's folder")

    def on_end(self, run: TrainingRun[Any], status: Status, why: str) -> None:
        if status != "done":
            return
        recipe = run.recipe
        repo = repository_of(recipe.hub_model_id, run.folder)
        try:
            address = push_model(str(run.folder), repo, private=recipe.hub_private_repo, revision=recipe.hub_revision)
        except OutdoError as error:
            run.reporter.note(f"  warning: {error}")
            run.reporter.note(f"  upload it later with: {shlex.join(['outdo', 'push', str(run.folder), repo])}")
            return
        run.writer.update_manifest(pushed=address)
        run.reporter.note(f"uploaded to {address}")


class Schedule(Callback):
    """Evaluates and saves by the recipe's strategies."""

    everywhere = True

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def on_step_end(self, run: TrainingRun[Any], done: int) -> None:
        run.evaluate_if_due()
        if done < run.recipe.max_steps and run.save_is_due():
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
