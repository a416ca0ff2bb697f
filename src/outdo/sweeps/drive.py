"""Runs the cells of a sweep: each in a process of its own, so that a crash costs one cell.

FOLDER/sweep.json        a row per cell, replaced atomically after every cell
FOLDER/prepare/          the run that all cells start from, where the recipe has one
FOLDER/cell-NAME/        a run folder; beside it cell-NAME.yaml, its recipe, and cell-NAME.log, its output
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol

import yaml

from outdo.doctor.run_row import Outcome, read_run_row
from outdo.errors import EngineError, RecipeError, RunError
from outdo.recipe.schema import Recipe
from outdo.recipe.trust import code_refs
from outdo.runs.files import acquire_lock, disk_errors, write_atomic
from outdo.runs.layout import MODEL
from outdo.runs.manifest import holds_run, read_manifest
from outdo.runs.no_links import refuse_links
from outdo.sweeps.analysis import Setting, settings_of
from outdo.sweeps.choice import Choice, choose
from outdo.sweeps.devices import GpuPool, Share, default_jobs, takes_gpu, visible_gpus
from outdo.sweeps.grid import SWEEP_FILE, Cell, Sweep, changed_keys
from outdo.training import interrupts
from outdo.untrusted.parse import parse_json

Notify = Callable[[str], None]
ENDED = ("done", "halted")  # such a cell is not resumed
POLL_SECONDS = 0.1
TAIL_BYTES = 4000  # of a log, in which its last error is
STOP_SECONDS = 60.0  # that a child has to save and exit


class Child(Protocol):
    """A process that was started."""

    def poll(self) -> int | None: ...

    def send(self, number: int) -> None: ...


Children = list[tuple[Child, Cell, float, str]]  # with the start time, and the GPU
Start = Callable[[Sequence[str], Path, Share], Child]  # arguments of `outdo`, its log, its share of the machine


@dataclass
class Drive:
    """One sweep in one folder."""

    sweep: Sweep
    folder: Path
    start: Start
    lock: IO[str]  # held as long as this is
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)  # by cell name
    skipped: dict[str, list[str]] = field(default_factory=dict)  # by cell name: lines that are not JSON rows

    def save(self) -> None:
        path = self.folder / SWEEP_FILE
        with disk_errors(path):
            write_atomic(path, json.dumps(self.summary(), indent=1) + "\n")

    @property
    def settings(self) -> list[Setting]:
        return settings_of(list(self.rows.values()), self.sweep.cells[0].recipe.eval_metric)

    @property
    def choice(self) -> Choice:
        return choose(self.settings, self.sweep.default)

    def summary(self) -> dict[str, Any]:
        return {
            "title": self.sweep.title,
            "varied": list(self.sweep.varied),
            "default": self.sweep.default or None,
            "prepare": self.sweep.prepared,
            "pick": self.choice.row(),
            "cells": list(self.rows.values()),
            "definitions": self.sweep.definitions,
        }

    def run_folder(self, cell: Cell) -> Path:
        return self.folder / f"cell-{cell.name}"

    def read_row(self, cell: Cell) -> dict[str, Any]:
        """The row of a cell, from its run folder."""
        run = self.run_folder(cell)
        skipped = self.skipped[cell.name] = list[str]()
        row: dict[str, Any] = {"name": cell.name, "setting": cell.setting, "keys": cell.keys, "folder": run.name}
        if not holds_run(run):
            return row | _empty_row("waiting")
        try:
            return row | read_run_row(run, skipped)
        except RunError as error:  # an unreadable folder costs this cell only
            return row | _empty_row("failed", str(error))


def _empty_row(status: Outcome, why: str = "") -> dict[str, Any]:
    return {"status": status, "why": why, "troubles": [status], "passes": {}, "findings": []}


def open_folder(sweep: Sweep, folder: Path, start: Start) -> Drive:
    """Opens the sweep's folder, new or to be resumed. Another sweep's folder is refused; cells may be added."""
    if (folder / SWEEP_FILE).exists():
        _refuse_another(sweep, folder)
    elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RecipeError(f"{folder} already exists and holds no sweep: choose another --out")
    with disk_errors(folder, "choose another --out"):
        folder.mkdir(parents=True, exist_ok=True)
    refuse_links(folder)
    drive = Drive(sweep, folder, start, acquire_lock(folder))
    for cell in sweep.cells:
        drive.rows[cell.name] = drive.read_row(cell)
    drive.save()
    return drive


def _refuse_another(sweep: Sweep, folder: Path) -> None:
    saved, definitions = read_sweep_file(folder), sweep.definitions
    advice = "choose another --out, or give the arguments that it was started with"
    for name, definition in saved["definitions"].items():
        if name not in definitions:
            raise RecipeError(f"{folder} holds another sweep: it has a cell {name} that this one lacks; {advice}")
        if keys := changed_keys(definition, definitions[name]):
            values = f"{keys[0]} was {definition.get(keys[0])!r} and is {definitions[name].get(keys[0])!r}"
            raise RecipeError(f"{folder} holds another sweep: in its cell {name}, {values}; {advice}")
    before, now = saved.get("prepare"), sweep.prepared
    if (before is None) != (now is None) or changed_keys(before or {}, now or {}):
        raise RecipeError(f"{folder} holds another sweep: it has another sweep.prepare; {advice}")


def read_sweep_file(folder: Path) -> dict[str, Any]:
    """The content of sweep.json. Raises RunError where it is not a sweep's."""
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        saved = parse_json((folder / SWEEP_FILE).read_text(encoding="utf-8"))
        recipes = (*saved["definitions"].values(), saved.get("prepare") or {})
        if isinstance(saved["cells"], list) and all(isinstance(recipe, dict) for recipe in recipes):
            return dict(saved)
    raise RunError(f"{folder / SWEEP_FILE} cannot be read: move it away to have it rebuilt from the runs")


def run_cells(drive: Drive, jobs: int | None, notify: Notify, only: Sequence[str] = ()) -> None:
    """Runs the cells that have not ended, `jobs` at a time; None: as many as there are GPUs, one without. Each gets one
    GPU. Raises KeyboardInterrupt once the children stopped."""
    chosen = [cell for cell in drive.sweep.cells if not only or cell.setting in only or cell.name in only]
    remaining = {cell.name for cell in chosen if drive.rows[cell.name]["status"] not in ENDED}
    if len(remaining) < len(chosen):
        notify(f"{len(chosen) - len(remaining)} of {len(chosen)} cells are already done")
    if not remaining:
        return
    pool = GpuPool(visible_gpus())
    jobs = jobs or default_jobs([cell.recipe for cell in chosen], pool.gpus)
    if pool.gpus:
        notify(f"{len(pool.gpus)} GPUs, {jobs} cells at once")
    with interrupts.listen():
        children: Children = []
        try:
            sweep = _prepare(drive, pool, notify)
            _run_all(drive, [cell for cell in sweep.cells if cell.name in remaining], children, jobs, pool, notify)
        except BaseException:
            if children:
                notify(f"stopping {len(children)} cells; each saves a checkpoint")
            _stop([child for child, *_ in children])
            for _, cell, *_ in children:
                drive.rows[cell.name] = drive.read_row(cell)
            with suppress(RunError):  # the first error is the one to report
                drive.save()
            raise


def _prepare(drive: Drive, pool: GpuPool, notify: Notify) -> Sweep:
    """Trains the model that all cells start from, once."""
    recipe = drive.sweep.prepare
    if recipe is None:
        return drive.sweep
    run = drive.folder / "prepare"
    if not _is_done(run):
        notify("preparing the model that every cell starts from")
        gpu = pool.take() if takes_gpu(recipe) else ""
        child = _start_child(drive.start, "sft", recipe, run, Share(threads(1), gpu))
        try:
            _wait([child])
        except BaseException:
            _stop([child])
            raise
        pool.give_back(gpu)
        if not _is_done(run):
            raise EngineError(f"the preparation failed, and no cell was started: {_last_line(run)}")
    return drive.sweep.started_from(str((run / MODEL).resolve()))


def _is_done(run: Path) -> bool:
    return holds_run(run) and read_manifest(run).status == "done"


def _run_all(drive: Drive, cells: Sequence[Cell], children: Children, jobs: int, pool: GpuPool, notify: Notify) -> None:
    queue, ended, start = list(cells), 0, time.monotonic()
    while queue or children:
        while queue and len(children) < jobs:
            cell = queue.pop(0)
            share = Share(threads(jobs), pool.take() if takes_gpu(cell.recipe) else "")
            child = _start_child(drive.start, "train", cell.recipe, drive.run_folder(cell), share)
            children.append((child, cell, time.monotonic(), share.gpu))
            drive.rows[cell.name] |= {"status": "running", "troubles": ["running"]}
            drive.save()
        _wait([child for child, *_ in children])
        for child, cell, began, gpu in [each for each in children if each[0].poll() is not None]:
            children.remove((child, cell, began, gpu))
            pool.give_back(gpu)
            ended += 1
            row = _ended_row(drive, cell, child.poll() or 0) | {"wall_seconds": round(time.monotonic() - began, 1)}
            drive.rows[cell.name] = row
            drive.save()
            eta = (time.monotonic() - start) / ended * (len(cells) - ended)
            duration = f"{eta / 60:.0f} min" if eta > 90 else f"{eta:.0f} s"
            notify(f"[{ended}/{len(cells)}] {describe_cell(row)}  ETA {duration}")


def describe_cell(row: dict[str, Any]) -> str:
    """A cell in one line."""
    signals = {
        "success_rate": "success {success_rate:.3f} [{low:.2f}, {high:.2f}]",
        "sampled": "sampled {sampled:.3f}",
        "reward": "reward {reward:.3f} [{reward_low:.2f}, {reward_high:.2f}]",
        "kl_mean": "KL {kl_mean:.3f}",
        "wall_seconds": "{wall_seconds:.0f} s",
    }
    values = {**row, "sampled": (row.get("passes") or {}).get("pass@1", {}).get("value")}
    values |= {} if row.get("partial") else {"reward": None}
    known = [form.format_map(values) for name, form in signals.items() if values.get(name) is not None]
    others = list((row.get("splits") or {}).items())[1:]
    known[1:1] = [f"{name} {split['success_rate']:.3f}" for name, split in others if split["success_rate"] is not None]
    parts = [row["name"], row["status"], *known]
    if row["status"] != "done" and row["why"]:
        parts.append(" ".join(str(row["why"]).split()))
    return "  ".join(parts)


def _ended_row(drive: Drive, cell: Cell, status: int) -> dict[str, Any]:
    """The row of a cell whose process has ended with that exit status."""
    row = drive.read_row(cell)
    if row["status"] in ENDED:
        return row
    how = f"killed by {signal.Signals(-status).name}" if status < 0 else _last_line(drive.run_folder(cell))
    why = row["why"] if row["status"] == "failed" else how
    return row | {"status": "failed", "why": why or f"exit status {status}", "troubles": ["failed"]}


def threads(jobs: int) -> int:
    """Of one child: OMP_NUM_THREADS, or an even share of the cores."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    return int(given) if given.isdecimal() and int(given) else max(1, len(os.sched_getaffinity(0)) // jobs)


def _start_child(start: Start, command: str, recipe: Recipe, run: Path, share: Share) -> Child:
    """Starts or resumes a run, from a recipe that is saved beside it so that it can be run alone."""
    path, log = run.with_name(f"{run.name}.yaml"), run.with_name(f"{run.name}.log")
    if holds_run(run):
        words = ["--trust"] if _names_same_code(run, recipe) else []  # the user has named it, for the sweep
        return start([command, "--resume", str(run), *words], log, share)
    keys = recipe.model_dump(mode="json", exclude_unset=True)
    keys |= {"model_name_or_path": recipe.model_name_or_path, "output_dir": str(run)}
    with disk_errors(path):
        write_atomic(path, yaml.safe_dump(keys, sort_keys=False))
    return start([command, str(path)], log, share)


def _names_same_code(run: Path, recipe: Recipe) -> bool:
    return set(code_refs(read_manifest(run).recipe)) <= set(code_refs(recipe.model_dump(mode="json")))


def _wait(children: Sequence[Child]) -> None:
    """Until one has ended."""
    while all(child.poll() is None for child in children):
        time.sleep(POLL_SECONDS)


def _stop(children: Sequence[Child]) -> None:
    """Asks each to save and exit, and kills those that do not."""
    for number, seconds in ((signal.SIGTERM, STOP_SECONDS), (signal.SIGKILL, 5.0)):
        for child in children:
            child.send(number)
        deadline = time.monotonic() + seconds
        while any(child.poll() is None for child in children) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)


def _last_line(run: Path) -> str:
    """The last error message of a process, else the last line of its log."""
    try:
        with run.with_name(f"{run.name}.log").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            lines = file.read().decode(errors="replace").strip().splitlines()
    except OSError:
        return ""
    errors = [line.removeprefix("outdo: ").strip() for line in lines if line.startswith("outdo: ")]
    return (errors or lines or [""])[-1]
