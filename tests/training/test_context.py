"""One context a run: the manifest and the recipe are read once, and few hands pass it on to the loop."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from outdo import train
from outdo.cli import app
from outdo.recipe.schema import Recipe
from outdo.training import grpo
from support.fakes import QuietReporter

KEYS: dict[str, Any] = {
    **{"sft_steps": 1, "sft_batch_size": 4, "max_steps": 1, "num_generations": 2, "per_device_train_batch_size": 4},
    **{"max_completion_length": 4, "eval_size": 2, "eval_samples": 0, "device": "cpu", "lr_scheduler_type": "constant"},
    **{"kl_limit": None},
}


def test_resume_reads_everything_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = train(reporter=QuietReporter(), output_dir=str(tmp_path / "run"), **KEYS).folder
    reads: list[str] = []

    read_text = Path.read_text

    def read(path: Path, *args: Any, **kwargs: Any) -> str:
        if path.name == "run.json":
            reads.append("run.json")
        return read_text(path, *args, **kwargs)

    monkeypatch.setattr(Path, "read_text", read)
    make = Recipe.__init__

    def made(recipe: Recipe, **keys: Any) -> None:
        reads.append("Recipe")
        make(recipe, **keys)

    monkeypatch.setattr(Recipe, "__init__", made)
    monkeypatch.setattr("outdo.training.monitors.try_report", lambda folder, notify: None)  # a viewer, after the end
    done = CliRunner().invoke(app, ["train", "--resume", str(run), "max_steps=2"])
    assert done.exit_code == 0, done.output
    assert reads.count("run.json") == 1 and reads.count("Recipe") == 1


def test_three_hand_offs_from_the_command_to_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frames: list[str] = []

    def stop(*args: Any, **kwargs: Any) -> None:
        stack = [frame.frame.f_code for frame in inspect.stack()[1:]]
        frames.extend(code.co_qualname for code in stack if "/outdo/" in code.co_filename)
        raise KeyboardInterrupt

    monkeypatch.setattr(grpo, "run_loop", stop)
    monkeypatch.chdir(tmp_path)
    words = [f"{key}={'null' if value is None else value}" for key, value in KEYS.items()]
    CliRunner().invoke(app, ["train", *words])
    assert frames == ["run_grpo", "launch", "train"], "train calls launch, launch run_grpo, run_grpo the loop"
