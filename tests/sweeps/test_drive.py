"""What a sweep makes of folders that are not as it left them."""

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
from outdo.runs.writer import RunWriter
from outdo.sweeps.drive import Child, open_folder, run_cells
from outdo.sweeps.grid import Sweep, read_sweep


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
        made = RunWriter.create(run, {"max_steps": 1}, {})
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
    assert [row["status"] for row in rows] == ["failed", "failed"] and "metrics.jsonl" in rows[1]["why"]
    assert "[2/2]" in said[-1]
    (tmp_path / "s" / "cell-the-recipe-seed-0" / "run.json").write_text("{")
    with pytest.raises(RunError, match="being swept"):
        again = open_folder(sweep, tmp_path / "s", spoils)
        open_folder(sweep, tmp_path / "s", spoils)
    assert again.rows["the-recipe-seed-0"]["status"] == "failed"


def finished(folder: Path) -> Path:
    """A run of three steps."""
    made = RunWriter.create(folder, {"max_steps": 3}, {})
    for step in range(3):
        made.record(step, {"reward_mean": step / 4, "time/step": 1.0}, [])
        made.record_eval({"step": step, "split": "test", "n": 10, "success_rate": step / 10, "low": 0.0, "high": 1.0})
    made.finish("done")
    made.close()
    return folder


def spoil(run: Path) -> list[str]:
    """Lines that are no rows among those of a run, and how they are told."""
    for name, line in (("metrics.jsonl", "garbage"), ("evals.jsonl", "[1]"), ("groups/steps-000000.jsonl", "3")):
        path = run / name
        rows = path.read_text().splitlines()
        path.write_text("\n".join([*rows[:1], line, *rows[1:]]) + "\n")
    return [f"{run}/metrics.jsonl: line 2", f"{run}/evals.jsonl: line 2", f"{run}/groups/steps-000000.jsonl: line 1"]


def test_lines_that_are_no_rows_are_passed_over_and_told_once(tmp_path: Path) -> None:
    run, passed = finished(tmp_path / "run"), list[str]()
    sound = read_run_row(run, passed)
    assert (sound["steps"], sound["success_rate"], sound["reward_mean"], passed) == (3, 0.2, 0.25, [])
    told = spoil(run)
    assert read_run_row(run, passed) == sound and passed == told


def test_compare_and_sweep_say_what_they_passed_over(
    tmp_path: Path, sweep: Sweep, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    runs = [finished(tmp_path / "s" / f"cell-{cell.name}") for cell in sweep.cells]
    told = spoil(runs[1])
    app(["compare", *map(str, runs), "--json"], standalone_mode=False)
    said = capsys.readouterr()
    assert said.err == f"passed over 3 lines that are no JSON rows: {', '.join(told)}\n"
    assert [run["steps"] for run in json.loads(said.out)["runs"]] == [3, 3]
    aside = (tmp_path / "s").rename(tmp_path / "aside")
    open_folder(sweep, tmp_path / "s", spoils).lock.close()
    shutil.copytree(aside, tmp_path / "s", dirs_exist_ok=True)
    app(["sweep", "seed=0,1", "sft_steps=0", "--out", "s", "--report", "page.md", "--json"], standalone_mode=False)
    said = capsys.readouterr()
    assert (
        said.err.count("passed over") == 1
        and "no JSON rows: s/cell-the-recipe-seed-1/metrics.jsonl: line 2" in said.err
    )
    assert [row["status"] for row in json.loads(said.out)["cells"]] == ["done", "done"]
    assert "2 of 2 ended" in (tmp_path / "page.md").read_text()


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
    made = RunWriter.create(tmp_path / "run", {"max_steps": 1}, {})
    made.finish("done")
    made.close()
    (tmp_path / "run" / name).write_text(line + "\n")
    with pytest.raises(RunError, match="run"):
        read_run_row(tmp_path / "run", [])
