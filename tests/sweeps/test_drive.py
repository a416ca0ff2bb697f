"""Sweeps in folders that are corrupt, older or foreign."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from outdo.cli import app
from outdo.doctor.run_row import read_run_row
from outdo.errors import OutdoError, RunError
from outdo.runs.manifest import holds_run
from outdo.runs.writer import RunWriter
from outdo.sweeps.devices import Share
from outdo.sweeps.drive import Child, open_folder, run_cells
from outdo.sweeps.grid import Sweep, read_sweep


class Ended:
    """A process that has ended."""

    def __init__(self, status: int) -> None:
        self.status = status

    def poll(self) -> int:
        return self.status

    def send(self, number: int) -> None: ...


def corrupt_run(words: Sequence[str], log: Path, share: Share) -> Child:
    """Leaves a run whose rows cannot be read, as a full disk might."""
    run = Path(str(log).removesuffix(".log"))
    if not holds_run(run):
        writer = RunWriter.create(run, {"max_steps": 1}, {})
        writer.finish("done")
        writer.close()
    (run / "metrics.jsonl").write_text('{"step": 0, "rew\n')
    return Ended(0)


@pytest.fixture
def sweep() -> Sweep:
    return read_sweep(None, ["seed=0,1", "sft_steps=0"])


def test_unreadable_cell(tmp_path: Path, sweep: Sweep) -> None:
    lines: list[str] = []
    run_cells(open_folder(sweep, tmp_path / "s", corrupt_run), 1, lines.append)
    rows = json.loads((tmp_path / "s" / "sweep.json").read_text())["cells"]
    assert [row["status"] for row in rows] == ["failed", "failed"] and "JSON row" in rows[1]["why"]
    assert "[2/2]" in lines[-1]
    (tmp_path / "s" / "cell-the-recipe-seed-0" / "run.json").write_text("{")
    with pytest.raises(RunError, match="is being written by process"):
        again = open_folder(sweep, tmp_path / "s", corrupt_run)
        open_folder(sweep, tmp_path / "s", corrupt_run)
    assert again.rows["the-recipe-seed-0"]["status"] == "failed"


def finished(folder: Path) -> Path:
    """A run of three steps."""
    writer = RunWriter.create(folder, {"max_steps": 3}, {})
    for step in range(3):
        writer.record_step(step + 1, {"reward_mean": step / 4, "time/step": 1.0}, [])
        writer.record_eval({"step": step, "split": "test", "n": 10, "success_rate": step / 10, "low": 0.0, "high": 1.0})
    writer.finish("done")
    writer.close()
    return folder


def corrupt(run: Path) -> list[str]:
    """Inserts lines that are not JSON rows into a run; returns how they are reported."""
    for name, line in (("metrics.jsonl", "garbage"), ("evals.jsonl", "[1]"), ("groups/steps-000000.jsonl", "3")):
        path = run / name
        rows = path.read_text().splitlines()
        path.write_text("\n".join([*rows[:1], line, *rows[1:]]) + "\n")
    return [f"{run}/metrics.jsonl: line 2", f"{run}/evals.jsonl: line 2", f"{run}/groups/steps-000000.jsonl: line 1"]


def test_skipped_lines(tmp_path: Path) -> None:
    run, skipped = finished(tmp_path / "run"), list[str]()
    expected = read_run_row(run, skipped)
    assert (expected["steps"], expected["success_rate"], expected["reward_mean"], skipped) == (3, 0.2, 0.25, [])
    lines = corrupt(run)
    assert read_run_row(run, skipped) == expected and skipped == lines


def test_skipped_lines_are_reported(
    tmp_path: Path, sweep: Sweep, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    runs = [finished(tmp_path / "s" / f"cell-{cell.name}") for cell in sweep.cells]
    lines = corrupt(runs[1])
    app(["compare", *map(str, runs), "--json"], standalone_mode=False)
    shown = capsys.readouterr()
    assert shown.err.startswith("skipped 3 lines") and shown.err.endswith(f"{', '.join(lines)}\n")
    assert [run["steps"] for run in json.loads(shown.out)["runs"]] == [3, 3]
    aside = (tmp_path / "s").rename(tmp_path / "aside")
    open_folder(sweep, tmp_path / "s", corrupt_run).lock.close()
    shutil.copytree(aside, tmp_path / "s", dirs_exist_ok=True)
    app(["sweep", "seed=0,1", "sft_steps=0", "--out", "s", "--report", "page.md", "--json"], standalone_mode=False)
    shown = capsys.readouterr()
    assert shown.err.count("skipped") == 1 and "s/cell-the-recipe-seed-1/metrics.jsonl: line 2" in shown.err
    assert [row["status"] for row in json.loads(shown.out)["cells"]] == ["done", "done"]
    assert "2 of 2 ended" in (tmp_path / "page.md").read_text()


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"cells": [], "definitions": {"a": 3}}', '{"cells": [], "definitions": []}', "[" * 9999]
)
def test_corrupt_sweep_file(tmp_path: Path, sweep: Sweep, text: str) -> None:
    (tmp_path / "sweep.json").write_text(text)
    with pytest.raises(OutdoError, match=r"sweep\.json cannot be read"):
        open_folder(sweep, tmp_path, corrupt_run)


def test_older_sweep_resumes(tmp_path: Path, sweep: Sweep) -> None:
    open_folder(sweep, tmp_path / "s", corrupt_run).lock.close()
    path = tmp_path / "s" / "sweep.json"
    saved: dict[str, Any] = json.loads(path.read_text())
    for definition in saved["definitions"].values():
        del definition["min_p"]
    path.write_text(json.dumps(saved))
    open_folder(sweep, tmp_path / "s", corrupt_run).lock.close()
    for definition in saved["definitions"].values():
        definition["min_p"] = 0.5
    path.write_text(json.dumps(saved))
    with pytest.raises(OutdoError, match=r"min_p was 0\.5 and is 0\.0"):
        open_folder(sweep, tmp_path / "s", corrupt_run)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("groups/steps-000000.jsonl", '{"completions": [{}, {}]}'),
        ("metrics.jsonl", '{"step": 0, "kl_mean": "high"}'),
    ],
)
def test_foreign_rows(tmp_path: Path, name: str, line: str) -> None:
    writer = RunWriter.create(tmp_path / "run", {"max_steps": 1}, {})
    writer.finish("done")
    writer.close()
    (tmp_path / "run" / name).write_text(line + "\n")
    with pytest.raises(RunError, match="run"):
        read_run_row(tmp_path / "run", [])
