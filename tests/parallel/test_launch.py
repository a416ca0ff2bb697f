"""What a launcher says of its processes, and what is refused."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from outdo.cli.app import app
from outdo.errors import Halted, RecipeError
from outdo.parallel.launch import Launch, read_launch
from outdo.training.interrupts import Interrupted

ADDRESS = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, Launch()),
        ({"WORLD_SIZE": "1", "RANK": "0"}, Launch()),
        ({"WORLD_SIZE": "8"}, Launch()),  # a job's own variable, not a launch's
        ({"WORLD_SIZE": "2", "RANK": "1", **ADDRESS}, Launch(1, 2, 1, 2)),
        ({"WORLD_SIZE": "4", "RANK": "3", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", **ADDRESS}, Launch(3, 4, 1, 2)),
    ],
)
def test_read(given: dict[str, str], expected: Launch) -> None:
    assert read_launch(given) == expected


@pytest.mark.parametrize(
    "given",
    [
        {"WORLD_SIZE": "2", "RANK": "2", **ADDRESS},
        {"WORLD_SIZE": "two", "RANK": "0", **ADDRESS},
        {"WORLD_SIZE": "2", "RANK": "-1", **ADDRESS},
        {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "2", **ADDRESS},
        {"WORLD_SIZE": "2", "RANK": "0"},  # no address: it was not torchrun
    ],
)
def test_refused(given: dict[str, str]) -> None:
    with pytest.raises(RecipeError):
        read_launch(given)


def test_what_is_wrong_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    done = subprocess.run(
        [sys.executable, "-m", "outdo", "train"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and "torchrun" in done.stderr


def test_sweep_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in {"WORLD_SIZE": "2", "RANK": "0", **ADDRESS}.items():
        monkeypatch.setenv(name, value)
    done = CliRunner().invoke(app, ("sweep", "seed=0,1"))
    assert isinstance(done.exception, RecipeError) and "process 0 of 2" in str(done.exception)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("error", [Interrupted(15), Halted("KL", keys=("beta",), remedy="beta=0.1", onset=3)])
def test_errors_travel(error: BaseException) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error) and str(again) == str(error) and vars(again) == vars(error)
