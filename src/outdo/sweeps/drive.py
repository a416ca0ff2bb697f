"""Cells to run folders: each is made by a process of its own, so that one that dies costs one cell.

FOLDER/sweep.json        the rows, written again after every cell, whole or not at all
FOLDER/prepare/          the run that all start from, where the recipe asks for one
FOLDER/cell-NAME/        a run folder; beside it cell-NAME.yaml, its recipe, and cell-NAME.log, what it printed
"""

from __future__ import annotations

import fcntl
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
from outdo.errors import EngineError, PlaceError, RecipeError, RunError
from outdo.recipe.schema import Recipe
from outdo.runs.files import disk_errors
from outdo.runs.manifest import read_manifest
from outdo.sweeps.analysis import settings_of
from outdo.sweeps.choice import choose
from outdo.sweeps.grid import Cell, Sweep, changed_keys
from outdo.training import signals

Say = Callable[[str], None]
ENDED = ("done", "halted")  # nothing more comes of these
POLL = 0.1  # seconds between two looks at the children
PATIENCE = 60.0  # seconds that a child has to save and end


class Child(Protocol):
    """A process that was started."""

    def poll(self) -> int | None: ...

    def send(self, number: int) -> None: ...


Children = list[tuple[Child, Cell, float]]  # with when each was started
Start = Callable[[Sequence[str], Path, int], Child]  # words of `outdo`, where it prints, how many threads it has


@dataclass
class Drive:
    """One sweep in one folder."""

    sweep: Sweep
    folder: Path
    start: Start
    lock: IO[str]  # held as long as this is
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)  # by the cell's name
    passed: dict[str, list[str]] = field(default_factory=dict)  # by it too: lines of its files that are no rows

    def save(self) -> None:
        """Whole or not at all: written beside, then renamed."""
        path = self.folder / "sweep.json"
        aside = path.with_suffix(".tmp")
        with disk_errors(path):
            aside.write_text(json.dumps(self.summary(), indent=1) + "\n", encoding="utf-8")
            os.replace(aside, path)

    def summary(self) -> dict[str, Any]:
        rows = list(self.rows.values())
        return {
            "title": self.sweep.title,
            "varied": list(self.sweep.varied),
            "default": self.sweep.default or None,
            "prepare": self.sweep.prepare.model_dump(mode="json") if self.sweep.prepare else None,
            "pick": choose(settings_of(rows), self.sweep.default).row(),
            "cells": rows,
            "definitions": {cell.name: cell.definition for cell in self.sweep.cells},
        }


def open_folder(sweep: Sweep, folder: Path, start: Start) -> Drive:
    """The sweep's folder, new or gone on with. One of another sweep is refused; cells may be added."""
    if (folder / "sweep.json").exists():
        _refuse_another(sweep, folder)
    elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RecipeError(f"{folder} is there and holds no sweep: choose another --out")
    with disk_errors(folder, "choose another --out"):
        folder.mkdir(parents=True, exist_ok=True)
    drive = Drive(sweep, folder, start, _locked(folder))
    for cell in sweep.cells:
        drive.rows[cell.name] = _row(drive, cell)
    drive.save()
    return drive


def _locked(folder: Path) -> IO[str]:
    path = folder / ".lock"
    with disk_errors(path):
        file = path.open("a", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise PlaceError(f"{folder} is being swept by another process: wait for it, or stop it first") from None
    except OSError:  # a disk without locks
        return file
    return file


def _refuse_another(sweep: Sweep, folder: Path) -> None:
    had = read_sweep_file(folder)
    ours = {cell.name: cell.definition for cell in sweep.cells}
    advice = "choose another --out, or give the words that it was started with"
    for name, definition in had["definitions"].items():
        if name not in ours:
            raise RecipeError(f"{folder} holds another sweep: it has a cell {name}, and this one has not; {advice}")
        if keys := changed_keys(definition, ours[name]):
            values = f"{keys[0]} was {definition.get(keys[0])!r} and is {ours[name].get(keys[0])!r}"
            raise RecipeError(f"{folder} holds another sweep: in its cell {name}, {values}; {advice}")
    prepare = sweep.prepare.model_dump(mode="json") if sweep.prepare else None
    before = had.get("prepare")
    if (before is None) != (prepare is None) or changed_keys(before or {}, prepare or {}):
        raise RecipeError(f"{folder} holds another sweep: its cells start from another preparation; {advice}")


def read_sweep_file(folder: Path) -> dict[str, Any]:
    """What is in sweep.json. Raises RunError where it is no sweep's."""
    with suppress(OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError):
        had = json.loads((folder / "sweep.json").read_text(encoding="utf-8"))
        rows = (*had["definitions"].values(), had.get("prepare") or {})
        if isinstance(had["cells"], list) and all(isinstance(row, dict) for row in rows):
            return dict(had)
    raise RunError(f"{folder / 'sweep.json'} cannot be read: move it away to have it made again from the runs")


def _row(drive: Drive, cell: Cell) -> dict[str, Any]:
    run, passed = drive.folder / f"cell-{cell.name}", list[str]()
    drive.passed[cell.name] = passed
    row: dict[str, Any] = {"name": cell.name, "setting": cell.setting, "keys": cell.keys, "folder": run.name}
    if not (run / "run.json").exists():
        return row | _nothing("waiting")
    try:
        return row | read_run_row(run, passed)
    except RunError as error:  # what is in the folder cannot be read: that costs this cell only
        return row | _nothing("failed", str(error))


def _nothing(status: Outcome, why: str = "") -> dict[str, Any]:
    return {"status": status, "why": why, "troubles": [status], "passes": {}, "findings": []}


def run_cells(drive: Drive, parallel: int, say: Say, only: Sequence[str] = ()) -> None:
    """Runs what is not ended yet, `parallel` at a time. Raises KeyboardInterrupt after the children were stopped."""
    chosen = [cell for cell in drive.sweep.cells if not only or cell.setting in only or cell.name in only]
    left = [cell for cell in chosen if drive.rows[cell.name]["status"] not in ENDED]
    if len(left) < len(chosen):
        say(f"{len(chosen) - len(left)} of {len(chosen)} cells are done already")
    if not left:
        return
    with signals.heard():
        children: Children = []
        try:
            sweep = _prepared(drive, say)
            _all(drive, [c for c in sweep.cells if c.name in {c.name for c in left}], children, parallel, say)
        except BaseException:
            if children:
                say(f"stopping {len(children)} cells; they save where they are")
            _stop([child for child, _, _ in children])
            for _, cell, _ in children:
                drive.rows[cell.name] = _row(drive, cell)
            with suppress(RunError):  # the error to hear of is on its way
                drive.save()
            raise


def _prepared(drive: Drive, say: Say) -> Sweep:
    """Trains what all start from, once."""
    recipe = drive.sweep.prepare
    if recipe is None:
        return drive.sweep
    run = drive.folder / "prepare"
    if not _is_done(run):
        say("preparing: the model that every cell starts from")
        child = _started(drive.start, "sft", recipe, run, threads(1))
        try:
            _wait([child])
        except BaseException:
            _stop([child])
            raise
        if not _is_done(run):
            raise EngineError(f"the preparation failed, and no cell was started: {_last_words(run)}")
    return drive.sweep.started_from(str((run / "model").resolve()))


def _is_done(run: Path) -> bool:
    return (run / "run.json").exists() and read_manifest(run).status == "done"


def _all(
    drive: Drive,
    cells: Sequence[Cell],
    children: Children,
    parallel: int,
    say: Say,
) -> None:
    queue, ended, start = list(cells), 0, time.monotonic()
    while queue or children:
        while queue and len(children) < parallel:
            cell = queue.pop(0)
            run = drive.folder / f"cell-{cell.name}"
            child = _started(drive.start, "train", cell.recipe, run, threads(parallel))
            children.append((child, cell, time.monotonic()))
            drive.rows[cell.name] |= {"status": "running", "troubles": ["running"]}
            drive.save()
        _wait([child for child, _, _ in children])
        for child, cell, began in [each for each in children if each[0].poll() is not None]:
            children.remove((child, cell, began))
            ended += 1
            row = _ended(drive, cell, child.poll() or 0) | {"wall_seconds": round(time.monotonic() - began, 1)}
            drive.rows[cell.name] = row
            drive.save()
            left = (time.monotonic() - start) / ended * (len(cells) - ended)
            say(f"[{ended}/{len(cells)}] {told(row)}  left {_span(left)}")


def _span(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds > 90 else f"{seconds:.0f} s"


def told(row: dict[str, Any]) -> str:
    """A cell in a line."""
    words = [row["name"], row["status"]]
    if row.get("success_rate") is not None:
        words.append(f"success {row['success_rate']:.3f} [{row['low']:.2f}, {row['high']:.2f}]")
    if row.get("kl_mean") is not None:
        words.append(f"KL {row['kl_mean']:.3f}")
    if row.get("wall_seconds") is not None:
        words.append(f"{row['wall_seconds']:.0f} s")
    if row["status"] != "done" and row["why"]:
        words.append(" ".join(str(row["why"]).split()))
    return "  ".join(words)


def _ended(drive: Drive, cell: Cell, status: int) -> dict[str, Any]:
    """The row of a cell whose process has ended, whatever it left."""
    row = _row(drive, cell)
    if row["status"] in ENDED:
        return row
    how = f"killed by {signal.Signals(-status).name}" if status < 0 else _last_words(drive.folder / f"cell-{cell.name}")
    why = row["why"] if row["status"] == "failed" else how
    return row | {"status": "failed", "why": why or f"exit status {status}", "troubles": ["failed"]}


def threads(parallel: int) -> int:
    """Of one child: what was set, or an even share of the cores."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    return int(given) if given.isdecimal() and int(given) else max(1, len(os.sched_getaffinity(0)) // parallel)


def _started(start: Start, command: str, recipe: Recipe, run: Path, num_threads: int) -> Child:
    """By a recipe that is kept beside the run, so that a person can start it alone; one that is there goes on."""
    path, log = run.with_name(f"{run.name}.yaml"), run.with_name(f"{run.name}.log")
    if (run / "run.json").exists():
        return start([command, "--resume", str(run)], log, num_threads)
    keys = recipe.model_dump(mode="json", exclude_unset=True)
    keys |= {"model_name_or_path": recipe.model_name_or_path, "output_dir": str(run)}
    with disk_errors(path):
        path.write_text(yaml.safe_dump(keys, sort_keys=False), encoding="utf-8")
    return start([command, str(path)], log, num_threads)


def _wait(children: Sequence[Child]) -> None:
    """Until one has ended."""
    while all(child.poll() is None for child in children):
        time.sleep(POLL)


def _stop(children: Sequence[Child]) -> None:
    """Tells each to save and end; one that does not is ended."""
    for number, patience in ((signal.SIGTERM, PATIENCE), (signal.SIGKILL, 5.0)):
        for child in children:
            child.send(number)
        until = time.monotonic() + patience
        while any(child.poll() is None for child in children) and time.monotonic() < until:
            time.sleep(POLL)


def _last_words(run: Path) -> str:
    """The last line that a process printed."""
    try:
        with run.with_name(f"{run.name}.log").open("rb") as file:
            lines = _tail(file).strip().splitlines()
    except OSError:
        return ""
    ours = [line.removeprefix("outdo: ").strip() for line in lines if line.startswith("outdo: ")]
    return (ours or lines or [""])[-1]


def _tail(file: IO[bytes], size: int = 4000) -> str:
    file.seek(0, os.SEEK_END)
    file.seek(max(0, file.tell() - size))
    return file.read().decode(errors="replace")
