"""What drills do: a run fails and is fixed, or wrong weights are shipped and detected."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from outdo.doctor.history import Held, from_rows
from outdo.doctor.read import run_history
from outdo.doctor.rules import diagnose
from outdo.drills.desk import Desk
from outdo.drills.draw import HELD_OUT, draw, draw_shares
from outdo.drills.drill import Check, Drill, Keys, Outcome, Panel, Signal
from outdo.drills.judge import cured, improved, named, no_longer
from outdo.drills.rewards import NEW_STANDARD
from outdo.errors import RunError
from outdo.evals.loading import run_with_model
from outdo.evals.report import EvalResult, compare, format_difference, format_interval
from outdo.evals.settings import EvalSettings
from outdo.evals.suite import build_eval_suite, evaluate_model
from outdo.rewards.audit import audit
from outdo.rewards.compose import find_rewards
from outdo.runs import checkpoint
from outdo.runs.files import disk_errors, write_atomic
from outdo.runs.layout import CHECKPOINTS, MODEL
from outdo.runs.reader import read_evals
from outdo.tasks.task import find_task
from outdo.training.callbacks import Callback
from outdo.training.run import TrainingRun


def fail_and_fix(drill: Drill, desk: Desk) -> Outcome:
    """A run fails, the doctor diagnoses its folder, one change is made, and the signals must improve."""
    checks = [audit_refuses(drill.refused, desk)] if drill.refused else []
    desk.say(f"  failing run: {format_keys(drill.failing)}")
    failing = desk.train("ill", drill.failing)
    history = run_history(failing)
    findings = diagnose(history)
    checks.append(named(findings, drill.code))
    desk.say(f"  {checks[-1].line}")
    facts: dict[str, Any] = {"findings": [finding.row() for finding in findings]}
    if drill.fix is not None:
        change = format_keys(drill.fix)
        desk.say(f"  change: {change}")
        fixed, start = desk.train("cured", {**drill.failing, **drill.fix}), 0
    elif findings[0].change:
        change = findings[0].change.pair()
        desk.say(f"  change, by the doctor: {change}")
        fixed, start = desk.treat(failing, "cured")
    else:
        return Outcome((*checks, Check("the doctor proposes no change", False)), facts)
    fixed_history = run_history(fixed)
    # The evaluation before training stays: both runs start from that model, and the last one is compared with it.
    since = fixed_history.since(int(np.searchsorted(fixed_history.steps, start, side="right")))
    fixed_history = replace(since, held=fixed_history.held)
    after = diagnose(fixed_history)
    before, now = held_out(failing), held_out(fixed)
    checks += cured(before, now, drill.lost)
    checks += [improved(history, fixed_history, signal) for signal in drill.signals]
    checks.append(no_longer(after, drill.code))
    checks += [drill.extra_check(failing, fixed)] if drill.extra_check else []
    facts["held_out"] = {split: _held_facts(before[split], now.get(split, ())) for split in before}
    facts |= {"cured": [finding.row() for finding in after], "change": change, "start": start}
    onset = {findings[0].step: f"the doctor: {findings[0].code}"}
    resumed = {start: "changed here"} if start else {}
    panels = Panel("ill", failing, onset), Panel(f"cured: {change}", fixed, resumed)  # as in docs/images
    picture = None
    with suppress(RunError):  # without matplotlib there is no picture
        signals = drill.signals or [Signal(f"{HELD_OUT}/{split}", "up") for split in before]
        picture = draw(panels, signals, drill.name, desk.folder / "picture.png")
    return Outcome(tuple(checks), facts, picture)


def held_out(run: Path) -> Mapping[str, tuple[Held, ...]]:
    """The evaluations of a run, by split."""
    return from_rows([], list(read_evals(run))).splits


def _held_facts(failing: Sequence[Held], fixed: Sequence[Held]) -> dict[str, float | None]:
    points = {"before": failing[:1], "failing": failing[-1:], "fixed": fixed[-1:]}
    return {name: point[0].success if point else None for name, point in points.items()}


def change_standard(drill: Drill, desk: Desk) -> Outcome:
    """`fail_and_fix` with a grader that follows a file, which changes during either run."""
    standard = ChangeStandard(desk.folder / "standard.txt")
    standard.write(0)
    failing = {**drill.failing, "task_args": {"standard": str(standard.file)}}
    return fail_and_fix(replace(drill, failing=failing), replace(desk, callbacks=(standard,)))


class ChangeStandard(Callback):
    """Rewrites the file that a grader follows, in the middle of a run."""

    def __init__(self, file: Path, after: int = 4) -> None:
        self.file, self.after = file, after

    def on_start(self, run: TrainingRun[Any]) -> None:
        self.write(run.done)

    def on_step_end(self, run: TrainingRun[Any], done: int) -> None:
        self.write(done)

    def write(self, done: int) -> None:
        with disk_errors(self.file):
            write_atomic(self.file, NEW_STANDARD if done >= self.after else "right sums")


def format_keys(keys: Keys) -> str:
    """Keys as they are typed, without the module of the drills' own functions."""
    return " ".join(f"{key}={_format_value(value)}" for key, value in keys.items())


def _format_value(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(_format_value, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_format_value(inner)}" for key, inner in value.items()) + "}"
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text.removeprefix("outdo.drills.rewards:").removeprefix("outdo.drills.tasks:")


def audit_refuses(name: str, desk: Desk) -> Check:
    """`outdo audit` refuses the reward before any training."""
    prompts = list(islice(find_task("arithmetic", {"ops": "+"}).prompts("train", desk.seed), 20))
    report = audit(find_rewards([name], [], name, max_completion_length=32), prompts)
    short = name.rpartition(":")[2]
    if report.fit:
        return Check(f"the audit should refuse the reward {short}, but accepts it", False)
    line = f"the audit refuses the reward {short}: {report.failures[0].detail}"
    desk.say(f"  {line}")
    return Check(line, True)


def wrong_weights(drill: Drill, desk: Desk) -> Outcome:
    """The weights from before training are shipped instead of the trained ones; a paired evaluation detects it."""
    desk.say(f"  train: {format_keys(drill.failing)}")
    run = desk.train("run", drill.failing)
    shipped = {name: desk.folder / name for name in ("shipped-wrong", "shipped-right")}
    sources = run / CHECKPOINTS / checkpoint.name_of(0), run / MODEL
    for folder, source in zip(shipped.values(), sources, strict=True):
        with disk_errors(folder):
            shutil.copytree(source, folder)
    desk.say("  evaluate: the run's own model, and both that were shipped, on the same held-out problems")
    settings = EvalSettings(size=200, samples=0, max_completion_length=32, seed=desk.seed)
    suite = build_eval_suite(["arithmetic"], ["test"], settings.size, task_args={"ops": "+"})
    names = [str(run / MODEL), *map(str, shipped.values())]
    trained, wrong, right = (
        run_with_model(name, settings, lambda policy, name=name: evaluate_model(name, policy, suite, settings)[0])  # type: ignore[misc]
        for name in names
    )
    checks = (_caught(wrong, trained), _passes(right, trained))
    rows = {"trained": trained, "shipped wrong": wrong, "shipped right": right}
    facts = {name: result.evaluation.row() for name, result in rows.items()}
    picture = None
    with suppress(RunError):
        picture = draw_shares({name: result.evaluation for name, result in rows.items()}, drill, desk.folder)
    return Outcome(checks, facts, picture)


def _caught(shipped: EvalResult, trained: EvalResult) -> Check:
    if compare(shipped, trained)["success"].high < 0:
        return Check(f"caught, these are not the weights that were trained: {_versus(shipped, trained)}", True)
    return Check(f"not caught, the interval should be below 0: {_versus(shipped, trained)}", False)


def _passes(shipped: EvalResult, trained: EvalResult) -> Check:
    if shipped.answers.success_by_problem() == trained.answers.success_by_problem():
        return Check(f"the right weights pass, problem for problem: {_versus(shipped, trained)}", True)
    return Check(f"the right weights should answer every problem alike: {_versus(shipped, trained)}", False)


def _versus(shipped: EvalResult, trained: EvalResult) -> str:
    ours, theirs = (format_interval(e.success_rate, e.low, e.high) for e in (shipped.evaluation, trained.evaluation))
    return f"shipped {ours} against the run's {theirs}: {format_difference(compare(shipped, trained)['success'])}"
