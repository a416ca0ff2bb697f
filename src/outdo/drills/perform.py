"""Runs drills, from one warmed-up model for each seed; each result is saved in its folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outdo.drills.desk import Desk, warmed_up
from outdo.drills.drill import Check, Drill, Outcome, Say
from outdo.errors import RunError
from outdo.runs.files import disk_errors, write_atomic


@dataclass(frozen=True)
class Performed:
    """A finished drill. Its seconds exclude the warm-up, which is shared."""

    drill: Drill
    folder: Path
    outcome: Outcome
    seed: int
    seconds: float
    cpu_seconds: float

    def row(self) -> dict[str, Any]:
        outcome = self.outcome
        return {
            "name": self.drill.name,
            "passed": outcome.passed,
            "checks": [vars(check) for check in outcome.checks],
            "seed": self.seed,
            "seconds": round(self.seconds, 1),
            "cpu_seconds": round(self.cpu_seconds, 1),
            "folder": str(self.folder),
            "picture": str(outcome.picture) if outcome.picture else None,
            **outcome.facts,
        }


def perform(drills: Sequence[Drill], parent: Path, seeds: Sequence[int], notify: Say, jobs: int) -> Iterator[Performed]:
    """Yields each drill as soon as it is finished. Several seeds have a folder each; several jobs a process each."""
    parents = {seed: parent / f"seed-{seed}" if len(seeds) > 1 else parent for seed in seeds}
    warm = {seed: warmed_up(folder, seed, notify) for seed, folder in parents.items()}
    tasks = [(drill, seed) for seed in seeds for drill in drills]
    if min(jobs, len(tasks)) > 1:
        yield from _in_processes(tasks, parents, jobs, notify)
        return
    for number, (drill, seed) in enumerate(tasks, 1):
        which = f", seed {seed}" if len(seeds) > 1 else ""
        notify(f"\n[{number}/{len(tasks)}] {drill.name}{which}: {drill.shows}")
        yield _perform(drill, parents[seed], warm[seed], seed, notify)


def _perform(drill: Drill, parent: Path, warm: Path, seed: int, notify: Say) -> Performed:
    folder = _new_folder(parent, f"drill-{drill.name}")
    start, cpu = time.monotonic(), _cpu_seconds()
    outcome = drill.act(drill, Desk(folder, warm, seed, notify))
    done = Performed(drill, folder, outcome, seed, time.monotonic() - start, _cpu_seconds() - cpu)
    path = folder / "drill.json"
    with disk_errors(path):
        write_atomic(path, json.dumps(done.row(), indent=2, default=str) + "\n")
    return done


def _in_processes(
    tasks: Sequence[tuple[Drill, int]], parents: Mapping[int, Path], jobs: int, notify: Say
) -> Iterator[Performed]:
    """Each drill by `outdo drill NAME`, that many at once. What one prints is shown when it is finished."""
    processes: list[subprocess.Popen[str]] = []

    def run(drill: Drill, seed: int) -> tuple[str, str]:
        command = [sys.executable, "-m", "outdo", "drill", drill.name, "--seed", str(seed), "--json"]
        line = [*command, "--out", str(parents[seed])]
        process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        processes.append(process)
        return process.communicate()

    with ThreadPoolExecutor(jobs) as executor:
        futures = {executor.submit(run, drill, seed): (drill, seed) for drill, seed in tasks}
        try:
            for future in as_completed(futures):
                (drill, seed), (out, text) = futures[future], future.result()
                notify(f"\n{drill.name}, seed {seed}: {drill.shows}")
                try:
                    (row,) = json.loads(out)
                except ValueError:
                    raise RunError(f"the drill {drill.name} with seed {seed} failed:\n{text.strip()}") from None
                yield _from_row(drill, row)
        finally:  # an error or an interrupt ends those that still run
            executor.shutdown(wait=False, cancel_futures=True)
            for process in processes:
                process.terminate()


def _from_row(drill: Drill, row: Mapping[str, Any]) -> Performed:
    """What `Performed.row` wrote."""
    known = ("name", "passed", "checks", "seed", "seconds", "cpu_seconds", "folder", "picture")
    facts = {key: value for key, value in row.items() if key not in known}
    picture = Path(row["picture"]) if row["picture"] else None
    outcome = Outcome(tuple(Check(**check) for check in row["checks"]), facts, picture)
    return Performed(drill, Path(row["folder"]), outcome, row["seed"], row["seconds"], row["cpu_seconds"])


def _cpu_seconds() -> float:
    """Of this process and its children, in which graders run."""
    return sum(os.times()[:4])


def _new_folder(parent: Path, name: str) -> Path:
    """A new folder: that of an earlier drill is kept."""
    for suffix in ("", *(f"-{i}" for i in range(2, 1000))):
        folder = parent / (name + suffix)
        with disk_errors(folder):
            try:
                folder.mkdir(parents=True)
            except FileExistsError:
                continue
            return folder
    raise RunError(f"{parent / name} and a thousand like it exist: choose another --out")
