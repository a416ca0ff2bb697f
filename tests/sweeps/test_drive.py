"""What a sweep makes of folders that are not as it left them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from outdo.errors import OutdoError, RunError
from outdo.run import Run
from outdo.sweeps.drive import Child, open_folder, run_cells
from outdo.sweeps.grid import Sweep, read_sweep
from outdo.sweeps.rows import row_of


class Ended:
    """A process that is over."""

    def __init__(self, status: int) -> None:
        self.status = status

    def poll(self) -> int:
        return self.status

    def send(self, number: int) -> None: ...


def spoils(words: Sequence[str], log: Path, threads: int) -> Child:
    """Leaves a run whose rows cannot be read, as a full disk might."""
    run = Path(str(log).removesuffix(".log"))
    if not (run / "run.json").exists():
        made = Run.create(run, {"max_steps": 1}, {})
        made.finish("done")
        made.close()
    (run / "metrics.jsonl").write_text('{"step": 0, "rew\n')
    return Ended(0)


@pytest.fixture
def sweep() -> Sweep:
    return read_sweep(None, ["seed=0,1", "sft_steps=0"])


def test_a_folder_that_cannot_be_read_costs_one_cell(tmp_path: Path, sweep: Sweep) -> None:
    said: list[str] = []
    run_cells(open_folder(sweep, tmp_path / "s", spoils), 1, said.append)
    rows = json.loads((tmp_path / "s" / "sweep.json").read_text())["cells"]
    assert [row["status"] for row in rows] == ["failed", "failed"] and "no JSON" in rows[1]["why"]
    assert "[2/2]" in said[-1]
    (tmp_path / "s" / "cell-the-recipe-seed-0" / "run.json").write_text("{")
    with pytest.raises(RunError, match="being swept"):
        again = open_folder(sweep, tmp_path / "s", spoils)
        open_folder(sweep, tmp_path / "s", spoils)
    assert again.rows["the-recipe-seed-0"]["status"] == "failed"


@pytest.mark.parametrize(
    "had", ["{", "[]", '{"cells": [], "definitions": {"a": 3}}', '{"cells": [], "definitions": []}', "[" * 9999]
)
def test_a_file_that_is_no_sweeps_is_refused(tmp_path: Path, sweep: Sweep, had: str) -> None:
    (tmp_path / "sweep.json").write_text(had)
    with pytest.raises(OutdoError, match=r"sweep\.json cannot be read"):
        open_folder(sweep, tmp_path, spoils)


def test_an_older_sweep_goes_on(tmp_path: Path, sweep: Sweep) -> None:
    open_folder(sweep, tmp_path / "s", spoils).lock.close()
    path = tmp_path / "s" / "sweep.json"
    had: dict[str, Any] = json.loads(path.read_text())
    for definition in had["definitions"].values():
        del definition["min_p"]
    path.write_text(json.dumps(had))
    open_folder(sweep, tmp_path / "s", spoils).lock.close()
    for definition in had["definitions"].values():
        definition["min_p"] = 0.5
    path.write_text(json.dumps(had))
    with pytest.raises(OutdoError, match=r"min_p was 0\.5 and is 0\.0"):
        open_folder(sweep, tmp_path / "s", spoils)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("evals.jsonl", '{"split": "test"}'),
        ("groups/steps-000000.jsonl", '{"completions": [{}, {}]}'),
        ("metrics.jsonl", '{"step": 0, "kl_mean": "high"}'),
    ],
)
def test_rows_that_no_run_wrote_are_told_of_in_a_sentence(tmp_path: Path, name: str, line: str) -> None:
    made = Run.create(tmp_path / "run", {"max_steps": 1}, {})
    made.finish("done")
    made.close()
    (tmp_path / "run" / name).write_text(line + "\n")
    with pytest.raises(RunError, match="run"):
        row_of(tmp_path / "run")
