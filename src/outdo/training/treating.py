"""A diagnosis that is tested: the change is made, the run goes on from before it fell ill, the signal is watched."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from outdo import api
from outdo.doctor.finding import Change, Direction, Expect, Finding
from outdo.doctor.history import History
from outdo.doctor.playbook import PLAYBOOK
from outdo.doctor.read import run_history
from outdo.doctor.rules import diagnose
from outdo.doctor.signals import Curve, Shift, finite, noise
from outdo.errors import Halted, RecipeError
from outdo.recipe.load import load_recipe
from outdo.recipe.parse import parse_overrides
from outdo.rewards.choose import rewards_of
from outdo.runs import checkpoint
from outdo.runs.files import disk_errors
from outdo.runs.manifest import read_manifest, write_manifest
from outdo.tasks.mixture import task_of
from outdo.training.console import PlainLines

FROM_START = {"sft_steps"}  # decide what a run begins with: they cannot change in the middle
ROWS = ("metrics.jsonl", "evals.jsonl", "sft.jsonl", "findings.jsonl")
SURE = 2.0  # errors between ill and treated
LEAST = 0.03  # of the signal, that it must have moved


@dataclass(frozen=True)
class Treatment:
    """What came of a change: the signal where the run was ill, and at the end of what was run on."""

    finding: Finding
    folder: Path
    start: int  # the step that it went on from; 0: from the beginning
    steps: int
    signal: str
    ill: float
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
            "before": _finite(self.ill),
            "after": _finite(self.treated),
            "answered": self.answered,
            "now": self.now,
        }


class _Enough(Halted):
    """So many steps were asked for, and they are done."""


class _Until(PlainLines):
    """Ends the run after a step, so that its schedule need not be shortened."""

    def __init__(self, console: Console, last: int) -> None:
        super().__init__(console)
        self.last = last

    def step(self, step: int, total: int, row: Mapping[str, Any]) -> None:
        super().step(step, total, row)
        if step >= self.last and step + 1 < total:
            raise _Enough(f"treated up to step {step}")


def treat(folder: Path, console: Console, steps: int | None = None, out: Path | None = None) -> Treatment:
    """Sets the first finding's change and runs on. Raises RecipeError where there is nothing to treat."""
    history = run_history(folder)
    finding = diagnose(history)[0]
    if finding.severity == "info":
        raise RecipeError(f"{folder} is {finding.code}: there is nothing to treat")
    if finding.change is None or finding.expect is None:
        raise RecipeError(f"{finding.code} in {folder}: no single key would mend it; {PLAYBOOK[finding.code].do}")
    whole = out or folder.with_name(f"{folder.name}-treated-{finding.code}")
    if whole.exists():
        raise RecipeError(f"{whole} is there already: move it away, or name another folder with --out")
    found = None if finding.change.key in FROM_START else _before(folder, finding.step)
    start = checkpoint.step_of(found) if found else 0
    last = start + steps - 1 if found and steps else finding.step + (steps or finding.expect.steps)
    keys = _keys(folder, finding.change, finding.expect, last)
    base = {**read_manifest(folder).recipe, "output_dir": str(whole)}
    recipe = load_recipe(None, keys, base_of=base)
    rewards_of(recipe, task_of(recipe), {})  # what cannot be trained with is refused before anything is made
    console.print(f"{finding.code}: {finding.change.describe()}", markup=False, soft_wrap=True)
    where = f"from step {start}" if found else "from the start (no checkpoint is from before it)"
    console.print(f"running on {where}, in {whole}", markup=False, soft_wrap=True)
    reporter = _Until(console, last)
    with suppress(Halted):  # enough, or a guard: what there is is judged
        if found:
            _copy(folder, whole, found)
            api.train(resume=whole, force=True, reporter=reporter, **keys)
        else:
            api.train(recipe, reporter=reporter)
    return _judged(history, finding, finding.expect, whole, start)


def _keys(folder: Path, change: Change, expect: Expect, last: int) -> dict[str, Any]:
    """The change, in a run that is long enough, and looked at where held-out success should answer."""
    keys = parse_overrides([change.pair()])
    if "max_steps" not in keys and int(read_manifest(folder).recipe["max_steps"]) <= last:
        keys["max_steps"] = last + 1
    return {**keys, "eval_steps": last} if expect.signal == "eval_success_rate" else keys


def _before(folder: Path, step: int) -> Path | None:
    """The newest whole checkpoint from before a step."""
    there = [one for one in checkpoint.existing(folder / "checkpoints") if checkpoint.step_of(one) <= step]
    return next((one for one in reversed(there) if not checkpoint.corruption(one)), None)


def _copy(folder: Path, whole: Path, found: Path) -> None:
    """The run up to a checkpoint, to be gone on with elsewhere. Rows since are taken back when it goes on."""
    manifest = read_manifest(folder)
    recipe = {**manifest.recipe, "output_dir": str(whole)}
    why = f"copied from {folder} to be treated"
    with disk_errors(whole):
        (whole / "checkpoints").mkdir(parents=True)
        shutil.copytree(found, whole / "checkpoints" / found.name)
        for name in ("groups", "reference"):
            if (folder / name).exists():
                shutil.copytree(folder / name, whole / name)
        for name in ROWS:
            if (folder / name).exists():
                shutil.copy(folder / name, whole / name)
    write_manifest(whole, manifest.updated(recipe=recipe, status="stopped", why=why, treats=str(folder)))


def _judged(history: History, finding: Finding, expect: Expect, folder: Path, start: int) -> Treatment:
    """Against the ill run at the same steps: what grows with every step would look cured in any shorter run."""
    treated = run_history(folder)
    after = treated.since(int(np.searchsorted(treated.steps, start)))
    if expect.signal == "eval_success_rate":  # measured at the end, and seldom before
        ill, after = history, replace(after, held=tuple(one for one in treated.held if one.step >= start))
    else:
        ill = history.until(int(np.searchsorted(history.steps, max(treated.steps, default=0), side="right")))
    move, answered = answer(ill, after, expect.signal, expect.direction)
    codes = ", ".join(one.code for one in diagnose(after))
    return Treatment(finding, folder, start, len(after), expect.signal, move.before, move.after, answered, codes)


def _finite(value: float) -> float | None:
    """JSON has no NaN."""
    return value if np.isfinite(value) else None


def answer(ill: History, treated: History, signal: str, way: Direction) -> tuple[Shift, bool]:
    """How far a signal is from where the ill run ended, and whether that is the right way and more than noise."""
    move = _held(ill, treated) if signal == "eval_success_rate" else _between(ill, treated, signal)
    gain = move.gain if way == "up" else -move.gain
    return move, bool(gain > LEAST * abs(move.before) and gain > SURE * move.error)


def _held(ill: History, treated: History) -> Shift:
    """Held-out success at the end of either."""
    if not ill.held or not treated.held:
        return Shift(float("nan"), float("nan"), float("inf"))
    first, last = ill.held[-1], treated.held[-1]
    return Shift(first.success, last.success, float(np.sqrt(0.25 / first.n + 0.25 / last.n)))


def _between(ill: History, treated: History, signal: str) -> Shift:
    """The signal at the end of the ill run and at the end of the treated one."""
    if not ill.has(signal, least=1) or not treated.has(signal, least=1):
        return Shift(float("nan"), float("nan"), float("inf"))
    (before, e0), (after, e1) = (_level(one[signal]) for one in (ill, treated))
    return Shift(before, after, float(np.hypot(e0, e1)))


def _level(curve: Curve) -> tuple[float, float]:
    values = finite(curve)
    size = max(1, min(len(values), max(5, len(values) // 4)))
    spread = noise(values)
    return float(np.median(values[-size:])), (spread if np.isfinite(spread) else 0.0) * 1.25 / float(np.sqrt(size))
