"""Several processes of one launch are refused before anything is written."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from outdo import api
from outdo.cli.app import app
from outdo.errors import RecipeError
from outdo.parallel.ranks import refuse_several_processes


def test_torchrun_of_two(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0"]
    words += ["-m", "outdo", "train", "output_dir=run", "max_steps=1"]
    done = subprocess.run(words, cwd=tmp_path, env=os.environ, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode != 0 and "of 2 (RANK and WORLD_SIZE" in done.stderr
    assert "exitcode  : 2" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("call", [api.train, api.sft, api.harvest])
def test_in_python(call: Callable[..., object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "3")
    with pytest.raises(RecipeError, match="process 3 of 4"):
        call(output_dir=str(tmp_path / "run"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", [("sweep", "seed=0,1"), ("harvest", "tiny", "--out", "right.jsonl"), ("sft",)])
def test_commands(command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    done = CliRunner().invoke(app, command)
    assert isinstance(done.exception, RecipeError) and "process 0 of 2" in str(done.exception)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("given", [{}, {"WORLD_SIZE": "1", "RANK": "0"}, {"WORLD_SIZE": "8"}])
def test_one_process_passes(given: dict[str, str]) -> None:
    refuse_several_processes(given)
