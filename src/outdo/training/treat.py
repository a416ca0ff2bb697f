"""A diagnosis that is tested: the change is made, the run continues from before it failed, the signal is watched."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from outdo.doctor.finding import Change, Direction, Expect, Finding
from outdo.doctor.history import History
from outdo.doctor.playbook import PLAYBOOK
from outdo.doctor.read import run_history
from outdo.doctor.rules import diagnose
from outdo.doctor.signals import Curve, Shift, finite, noise
from outdo.errors import Halted, RecipeError
from outdo.metrics.measure import Metrics
from outdo.recipe.load import load_recipe
from outdo.recipe.parse import parse_overrides
from outdo.recipe.trust import refuse_untrusted
from outdo.rewards.choose import rewards_of
from outdo.runs import checkpoint, layout
from outdo.runs.files import disk_errors
from outdo.runs.manifest import Manifest, read_manifest, write_manifest
from outdo.runs.no_links import refuse_links
from outdo.tasks.mixture import task_of
from outdo.training.callbacks import Callback
from outdo.training.context import make_context
from outdo.training.launch import launch
from outdo.training.run import TrainingRun
from outdo.types import Group, Reporter

START_KEYS = {"sft_steps"}  # decide what a run starts with: they cannot change in the middle
MIN_ERRORS = 2.0  # standard errors between the failing run and the treated one
MIN_CHANGE = 0.03  # of the signal, that it must have moved
UNKNOWN = Shift(float("nan"), float("nan"), float("inf"))


@dataclass(frozen=True)
class Treatment:
    """What came of a change: the signal where the run was failing, and at the end of what was run on."""

    finding: Finding
    folder: Path
    start: int  # the step that it went on from; 0: from the beginning
    steps: int
    signal: str
    failing: float
    treated: float
    answered: bool
    now: str  # what the doctor says of the treated run

    def row(self) -> dict[str, Any]:
        return {
            "finding": self.finding.row(),
            "folder": str(self.folder),
            "start": self.start,
            "steps": self.steps,
            "signal": self.signal,
            "before": self.failing if np.isfinite(self.failing) else None,  # JSON has no NaN
            "after": self.treated if np.isfinite(self.treated) else None,
            "answered": self.answered,
            "now": self.now,
        }


class _StopAfter(Callback):
    """Ends a run after a step, so that its schedule need not be shortened."""

    def __init__(self, last: int) -> None:
        self.last = last

    def on_step(self, run: TrainingRun[Any], step: int, metrics: Metrics, groups: Sequence[Group]) -> None:
        if self.last <= step < run.recipe.max_steps:
            run.halt(f"treated up to step {step}", evaluate=False)


def treat(
    folder: Path,
    reporter: Reporter,
    steps: int | None = None,
    out: Path | None = None,
    callbacks: Sequence[Callback] = (),
    last: int | None = None,
    trust: bool = False,
) -> Treatment:
    """Makes the first finding's change and continues the run with it, for so many `steps` or up to step `last`. Raises
    RecipeError where there is none."""
    history = run_history(folder)
    finding = diagnose(history)[0]
    if finding.severity == "info":
        raise RecipeError(f"{folder} is {finding.code}: there is nothing to treat")
    if finding.change is None or finding.expect is None:
        raise RecipeError(f"{finding.code} in {folder}: no single key would fix it; {PLAYBOOK[finding.code].do}")
    copy = out or folder.with_name(f"{folder.name}-treated-{finding.code}")
    if copy.exists():
        raise RecipeError(f"{copy} already exists: move it away, or name another folder with --out")
    manifest = read_manifest(folder)
    checkpoints = folder / layout.CHECKPOINTS
    from_start = finding.change.key in START_KEYS
    saved = None if from_start else checkpoint.newest_valid(checkpoints, at_most=max(0, finding.step - 2))
    start = checkpoint.step_of(saved) if saved else 0
    last = last or (start + steps if saved and steps else finding.step + (steps or finding.expect.steps))
    keys = _keys(manifest, finding.change, finding.expect, last)
    recipe = load_recipe(None, keys, base_of={**manifest.recipe, "output_dir": str(copy)})
    command = f"outdo doctor {shlex.quote(str(folder))} --treat"
    refuse_untrusted(folder, recipe.model_dump(mode="json"), {}, command, trust=trust)
    rewards_of(recipe, task_of(recipe), {})  # what cannot be trained with is refused before anything is written
    reporter.note(f"{finding.code}: {finding.change.describe()}")
    origin = f"step {start}" if saved else "the start (no checkpoint is from before it)"
    reporter.note(f"continuing from {origin}, in {copy}")
    watchers = [_StopAfter(last), *callbacks]
    with suppress(Halted):  # enough, or a guard: what there is is judged
        if saved:
            _copy_run(folder, manifest, copy, saved)
            launch(make_context(resume=copy, force=True, trust=True, reporter=reporter, callbacks=watchers, **keys))
        else:
            launch(make_context(recipe, reporter=reporter, callbacks=watchers))
    return _judged(history, finding, finding.expect, copy, start)


def _keys(manifest: Manifest, change: Change, expect: Expect, last: int) -> dict[str, Any]:
    """The change, in a run that is long enough, and evaluated where held-out success should respond."""
    keys = parse_overrides([change.pair()])
    if "max_steps" not in keys and int(manifest.recipe["max_steps"]) < last:
        keys["max_steps"] = last
    return {**keys, "eval_steps": max(1, last - 1)} if expect.signal == "eval_success_rate" else keys


def _copy_run(folder: Path, manifest: Manifest, copy: Path, saved: Path) -> None:
    """The run up to a checkpoint, to be resumed elsewhere. Rows since are removed when it resumes."""
    refuse_links(folder)
    with disk_errors(copy):
        (copy / layout.CHECKPOINTS).mkdir(parents=True)
        shutil.copytree(saved, copy / layout.CHECKPOINTS / saved.name)
        for name in (layout.GROUPS, layout.HELD_OUT, layout.JUDGE, layout.REFERENCE, *layout.ROW_FILES):
            if (folder / name).exists():
                (shutil.copytree if (folder / name).is_dir() else shutil.copy)(folder / name, copy / name)
    recipe = {**manifest.recipe, "output_dir": str(copy)}
    why = f"copied from {folder} to be treated"
    write_manifest(copy, manifest.updated(recipe=recipe, status="stopped", why=why, treats=str(folder), halted=None))


def _judged(history: History, finding: Finding, expect: Expect, folder: Path, start: int) -> Treatment:
    """Against the failing run at the same steps: what grows with every step would look fixed in any shorter run."""
    treated = run_history(folder)
    after = treated.since(int(np.searchsorted(treated.steps, start, side="right")))
    if expect.signal == "eval_success_rate":  # measured at the end, and seldom before
        failing, after = history, replace(after, held=tuple(one for one in treated.held if one.step >= start))
    else:
        failing = history.until(int(np.searchsorted(history.steps, max(treated.steps, default=0), side="right")))
    move, answered = answer(failing, after, expect.signal, expect.direction)
    codes = ", ".join(one.code for one in diagnose(after))
    return Treatment(finding, folder, start, len(after), expect.signal, move.before, move.after, answered, codes)


def answer(failing: History, treated: History, signal: str, way: Direction) -> tuple[Shift, bool]:
    """How far a signal is from where the failing run ended, and whether that is the right way and more than noise."""
    move = _held(failing, treated) if signal == "eval_success_rate" else _between(failing, treated, signal)
    gain = move.gain if way == "up" else -move.gain
    return move, bool(gain > MIN_CHANGE * abs(move.before) and gain > MIN_ERRORS * move.error)


def _held(failing: History, treated: History) -> Shift:
    """Held-out success at the end of either."""
    if not failing.held or not treated.held:
        return UNKNOWN
    first, last = failing.held[-1], treated.held[-1]
    return Shift(first.success, last.success, float(np.sqrt(0.25 / first.size + 0.25 / last.size)))


def _between(failing: History, treated: History, signal: str) -> Shift:
    """The signal at the end of the failing run and at the end of the treated one."""
    if not failing.has(signal, least=1) or not treated.has(signal, least=1):
        return UNKNOWN
    (before, e0), (after, e1) = (_level(one[signal]) for one in (failing, treated))
    return Shift(before, after, float(np.hypot(e0, e1)))


def _level(curve: Curve) -> tuple[float, float]:
    values = finite(curve)
    size = max(1, min(len(values), max(5, len(values) // 4)))
    spread = noise(values)
    return float(np.median(values[-size:])), (spread if np.isfinite(spread) else 0.0) * 1.25 / float(np.sqrt(size))
