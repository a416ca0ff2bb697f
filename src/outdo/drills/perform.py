"""Runs drills one after the other, from one warmed-up model; each result is saved in its folder."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outdo.drills.desk import Desk, warmed_up
from outdo.drills.drill import Drill, Outcome, Say
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


def perform(drills: Sequence[Drill], parent: Path, seed: int, notify: Say) -> Iterator[Performed]:
    """Yields each drill as soon as it is finished."""
    warm = warmed_up(parent, seed, notify)
    for number, drill in enumerate(drills, 1):
        notify(f"\n[{number}/{len(drills)}] {drill.name}: {drill.shows}")
        folder = _new_folder(parent, f"drill-{drill.name}")
        start, cpu = time.monotonic(), _cpu_seconds()
        outcome = drill.act(drill, Desk(folder, warm, seed, notify))
        done = Performed(drill, folder, outcome, seed, time.monotonic() - start, _cpu_seconds() - cpu)
        path = folder / "drill.json"
        with disk_errors(path):
            write_atomic(path, json.dumps(done.row(), indent=2, default=str) + "\n")
        yield done


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
