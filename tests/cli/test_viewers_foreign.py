"""The viewers' commands on runs of other trainers."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from support.folders import make_run
from support.foreign import STEPS, events, trl_run, verl_row, write_lines

Outdo = Callable[..., "subprocess.CompletedProcess[str]"]
PAGE, PNG = b"<!doctype html>", b"\x89PNG"


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    make_run(tmp_path / "ours", steps=12).close()
    return trl_run(tmp_path / "theirs")


def test_compare(outdo: Outdo, theirs: Path) -> None:
    done = outdo("compare", "ours", "theirs", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    ours, row = told["runs"]
    assert (ours["run"], row["run"], row["status"], row["steps"]) == ("ours", "theirs", "done", STEPS)
    assert row["success_rate"] == 0.9375 and row["low"] is None and row["device_seconds"] is None
    assert row["adv_noise"] > 0, "from the answers"
    assert told["differing"]["beta"]["theirs"] == 0.04
    assert "dataset_name" not in told["differing"], "a key that is not known differs from nothing"
    assert "2 steps" in done.stderr, "what is not shown"
    table = outdo("compare", "ours", "theirs")
    assert table.returncode == 0 and "TRL" in table.stdout and "0.938" in table.stdout


def test_compare_two_of_them(outdo: Outdo, theirs: Path, tmp_path: Path) -> None:
    trl_run(tmp_path / "again")
    done = outdo("compare", "theirs", "again")
    assert done.returncode == 0, done.stderr
    twice = outdo("compare", "theirs", "./theirs")
    assert twice.returncode == 2 and "Traceback" not in twice.stderr


def test_report_and_plot(outdo: Outdo, theirs: Path, tmp_path: Path) -> None:
    done = outdo("report", "theirs")
    assert done.returncode == 0, done.stderr
    page = (theirs / "report.html").read_bytes()
    assert page.startswith(PAGE) and (theirs / "report.png").read_bytes().startswith(PNG)
    assert b"a run of TRL" in page and b"outdo train" not in page and b"device-seconds" not in page
    assert outdo("report", "theirs").returncode == 0, "its own report may be written again"
    done = outdo("plot", "ours", "theirs", "--out", "both.png")
    assert done.returncode == 0 and (tmp_path / "both.png").read_bytes().startswith(PNG)
    done = outdo("plot", "theirs", "--signals", "completions/max_length")
    assert done.returncode == 0 and (theirs / "curves.png").exists()


def test_nothing_of_theirs_is_overwritten(outdo: Outdo, theirs: Path) -> None:
    (theirs / "report.html").write_text("<html>mine</html>")
    done = outdo("report", "theirs")
    assert done.returncode == 2 and (theirs / "report.html").read_text() == "<html>mine</html>"


def test_doctor(outdo: Outdo, theirs: Path, tmp_path: Path) -> None:
    done = outdo("doctor", "theirs", "--json")
    assert done.returncode == 0, done.stderr
    file = outdo("doctor", f"theirs/checkpoint-{STEPS}/trainer_state.json", "--json")
    codes = [[finding["code"] for finding in json.loads(each.stdout)] for each in (done, file)]
    assert codes[0] == codes[1] != []
    path = events(tmp_path / "board", ((step, {"train/reward": step / 50}) for step in range(1, 31)))
    for name in ("board", str(path)):
        assert outdo("doctor", name).returncode == 0


def test_a_file_of_lines(outdo: Outdo, tmp_path: Path) -> None:
    write_lines(tmp_path / "exp.jsonl", (verl_row(step) for step in range(1, 6)))
    for words in (("report", "exp.jsonl"), ("plot", "exp.jsonl"), ("doctor", "exp.jsonl")):
        done = outdo(*words)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "exp-report.html").exists() and (tmp_path / "exp-curves.png").exists()


def test_what_takes_runs_of_ours_only(outdo: Outdo, theirs: Path) -> None:
    for words in (("train", "--resume", "theirs"), ("doctor", "theirs", "--treat")):
        done = outdo(*words)
        assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert not (theirs / "run.json").exists()


def test_what_is_none(outdo: Outdo, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for command in ("compare", "report", "plot", "doctor"):
        done = outdo(command, "empty", *(["empty2"] if command == "compare" else []))
        assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
