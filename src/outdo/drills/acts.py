"""What drills do: fall ill and be cured, or ship the wrong weights and be caught."""

from __future__ import annotations

import shutil
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from outdo.doctor.finding import Finding
from outdo.doctor.read import run_history
from outdo.doctor.rules import diagnose
from outdo.drills.desk import Desk
from outdo.drills.draw import draw, draw_shares
from outdo.drills.drill import Check, Drill, Keys, Marked, Outcome, Panel
from outdo.drills.judge import named, no_longer, turned
from outdo.errors import RunError
from outdo.evals.loading import run_with_model
from outdo.evals.report import EvalResult, compare, format_difference, format_interval
from outdo.evals.settings import EvalSettings
from outdo.evals.suite import build_eval_suite, evaluate_model
from outdo.rewards.audit import audit
from outdo.rewards.compose import find_rewards
from outdo.runs import checkpoint
from outdo.runs.files import disk_errors
from outdo.tasks.task import find_task
from outdo.training.treating import treat


def ill_and_cured(drill: Drill, desk: Desk) -> Outcome:
    """A run is made ill, the doctor looks at its folder, one change is made, and the signals must turn round."""
    checks = [refused(drill.refused, desk)] if drill.refused else []
    desk.say(f"  ill: {told(drill.ill)}")
    ill = desk.train("ill", drill.ill)
    history = run_history(ill)
    findings = diagnose(history)
    checks.append(named(findings, drill.code))
    desk.say(f"  {checks[-1].line}")
    facts: dict[str, Any] = {"findings": [finding.row() for finding in findings]}
    if drill.cure is None and findings[0].change is None:
        return Outcome((*checks, Check("the doctor has no change to make", False)), facts)
    cured, start = _cured(drill, desk, ill, findings[0])
    treated = run_history(cured)
    treated = treated.since(int(np.searchsorted(treated.steps, start)))
    after = diagnose(treated)
    checks += [turned(history, treated, signal) for signal in drill.signals]
    checks.append(no_longer(after, drill.code))
    checks += [drill.more(ill, cured)] if drill.more else []
    facts |= {"cured": [finding.row() for finding in after], "change": _change(drill, findings[0]), "start": start}
    seen = (Marked(findings[0].step, f"the doctor: {findings[0].code}"),)
    changed = (Marked(start, "changed here"),) if start else ()
    panels = Panel("ill", ill, seen), Panel(f"cured: {_change(drill, findings[0])}", cured, changed)
    with suppress(RunError):  # the lines say the same where there is no matplotlib
        picture = draw(panels, drill.signals, drill.name, desk.folder / "picture.png")
        return Outcome(tuple(checks), facts, picture)
    return Outcome(tuple(checks), facts)


def _cured(drill: Drill, desk: Desk, ill: Path, finding: Finding) -> tuple[Path, int]:
    """The run with the change, and the step that it was made at: the doctor's from before it began, another's anew."""
    if drill.cure is not None:
        desk.say(f"  change: {told(drill.cure)}")
        return desk.train("cured", {**drill.ill, **drill.cure}), 0
    desk.say(f"  change, the doctor's own: {finding.change.pair() if finding.change else ''}")
    with desk.console("cured") as console:
        done = treat(ill, console, drill.steps, desk.folder / "cured")
    return done.folder, done.start


def _change(drill: Drill, finding: Finding) -> str:
    if drill.cure is not None:
        return told(drill.cure)
    return finding.change.pair() if finding.change else ""


def told(keys: Keys) -> str:
    """Keys as they are typed, without where the drills' own functions live."""
    return " ".join(f"{key}={_typed(value)}" for key, value in keys.items())


def _typed(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(_typed, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_typed(inner)}" for key, inner in value.items()) + "}"
    shown = f"{value:g}" if isinstance(value, float) else str(value)
    return shown.removeprefix("outdo.drills.rewards:").removeprefix("outdo.drills.tasks:")


def refused(name: str, desk: Desk) -> Check:
    """`outdo audit` finds out, before any training, that the reward is not fit for it."""
    prompts = list(islice(find_task("arithmetic", {"ops": "+"}).prompts("train", desk.seed), 20))
    found = audit(find_rewards([name], [], name, max_completion_length=32), prompts)
    short = name.rpartition(":")[2]
    if found.fit:
        return Check(f"the audit should refuse the reward {short}, and finds it fit", False)
    line = f"the audit would have refused the reward {short}: {found.failures[0].words}"
    desk.say(f"  {line}")
    return Check(line, True)


def wrong_weights(drill: Drill, desk: Desk) -> Outcome:
    """The weights from before training are shipped in place of the trained ones; problems answered by both tell."""
    desk.say(f"  train: {told(drill.ill)}")
    run = desk.train("run", drill.ill)
    shipped = {name: desk.folder / name for name in ("shipped-wrong", "shipped-right")}
    sources = run / "checkpoints" / checkpoint.name_of(0), run / "model"
    for folder, source in zip(shipped.values(), sources, strict=True):
        with disk_errors(folder):
            shutil.copytree(source, folder)
    desk.say("  evaluate: the run's own model, and both that were shipped, on the same held-out problems")
    settings = EvalSettings(size=200, samples=0, max_completion_length=32, seed=desk.seed)
    suite = build_eval_suite(["arithmetic"], ["test"], settings.size, task_args={"ops": "+"})
    names = [str(run / "model"), *map(str, shipped.values())]
    trained, wrong, right = (
        run_with_model(name, settings, lambda policy, name=name: evaluate_model(name, policy, suite, settings)[0])  # type: ignore[misc]
        for name in names
    )
    checks = (_caught(wrong, trained), _passes(right, trained))
    rows = {"trained": trained, "shipped wrong": wrong, "shipped right": right}
    facts = {name: result.evaluation.row() for name, result in rows.items()}
    with suppress(RunError):
        picture = draw_shares({name: result.evaluation for name, result in rows.items()}, drill, desk.folder)
        return Outcome(checks, facts, picture)
    return Outcome(checks, facts)


def _caught(shipped: EvalResult, trained: EvalResult) -> Check:
    difference = compare(shipped, trained)["success"]
    words = f"shipped {_share(shipped)} against the run's {_share(trained)}: {format_difference(difference)}"
    if difference.high < 0:
        return Check(f"caught, these are not the weights that were trained: {words}", True)
    return Check(f"not caught, the interval should be below 0: {words}", False)


def _passes(shipped: EvalResult, trained: EvalResult) -> Check:
    difference = compare(shipped, trained)["success"]
    words = f"shipped {_share(shipped)} against the run's {_share(trained)}: {format_difference(difference)}"
    if shipped.answers.success_by_problem() == trained.answers.success_by_problem():
        return Check(f"the right weights pass, problem for problem: {words}", True)
    return Check(f"the right weights should answer every problem alike: {words}", False)


def _share(result: EvalResult) -> str:
    e = result.evaluation
    return format_interval(e.success_rate, e.low, e.high)
