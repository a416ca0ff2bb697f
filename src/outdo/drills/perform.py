"""Drills one after the other, from one warmed-up model; each result is kept in its folder."""

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
from outdo.runs.files import disk_errors


@dataclass(frozen=True)
class Performed:
    """A drill that was done. Its seconds are the drill's own: the warm-up is shared."""

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
            "checks": [{"line": check.line, "held": check.held} for check in outcome.checks],
            "seed": self.seed,
            "seconds": round(self.seconds, 1),
            "cpu_seconds": round(self.cpu_seconds, 1),
            "folder": str(self.folder),
            "picture": str(outcome.picture) if outcome.picture else None,
            **outcome.facts,
        }


def perform(drills: Sequence[Drill], parent: Path, seed: int, say: Say) -> Iterator[Performed]:
    """Does each, and yields it as soon as it is done."""
    warm = warmed_up(parent, seed, say)
    for number, drill in enumerate(drills, 1):
        say(f"\n[{number}/{len(drills)}] {drill.name}: {drill.shows}")
        folder = _new(parent, f"drill-{drill.name}")
        start, cpu = time.monotonic(), _cpu()
        outcome = drill.act(drill, Desk(folder, warm, seed, say))
        done = Performed(drill, folder, outcome, seed, time.monotonic() - start, _cpu() - cpu)
        path = folder / "drill.json"
        with disk_errors(path):
            path.write_text(json.dumps(done.row(), indent=2, default=str) + "\n", encoding="utf-8")
        yield done


def _cpu() -> float:
    """Of this process and of those it had: graders run in others."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _new(parent: Path, name: str) -> Path:
    """A folder that was not there: what an earlier drill left is kept."""
    for suffix in ("", *(f"-{i}" for i in range(2, 1000))):
        folder = parent / (name + suffix)
        with disk_errors(folder):
            try:
                folder.mkdir(parents=True)
            except FileExistsError:
                continue
            return folder
    raise RunError(f"{parent / name} and a thousand like it exist: choose another --out")
