"""Runs that a guard halts: evaluated and saved first, and resumed with a change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from outdo import train
from outdo.doctor import watch
from outdo.doctor.finding import Change, Evidence, Finding
from outdo.doctor.history import History
from outdo.errors import Halted, NumericsError, RecipeError
from outdo.runs.manifest import read_manifest
from outdo.runs.reader import read_evals, read_metrics
from support.fakes import QuietReporter

SMALL: dict[str, Any] = {
    **{"sft_steps": 2, "sft_batch_size": 4, "max_steps": 5, "num_generations": 4, "per_device_train_batch_size": 16},
    **{
        "beta": 0.0,
        "max_completion_length": 8,
        "eval_size": 2,
        "eval_samples": 0,
        "eval_split": ["test"],
        "device": "cpu",
    },
    **{"lr_scheduler_type": "constant", "reward_funcs": "numeric,overlong", "learning_rate": 1e-3, "save_steps": 2},
}


def checkpoints(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def steps(folder: Path) -> list[int]:
    return [row["step"] for row in read_metrics(folder)]


def test_kl_guard_without_beta(tmp_path: Path) -> None:
    """KL is measured, the guard acts on it, and what it halts can be resumed."""
    folder, heard = tmp_path / "run", QuietReporter()
    with pytest.raises(NumericsError, match="past kl_limit=1e-09"):
        train(reporter=heard, output_dir=str(folder), kl_limit=1e-9, **SMALL)
    done = len(steps(folder))
    assert done == 4 and f"step-{done:06d}" in checkpoints(folder)  # the first step has no KL yet
    assert [row["step"] for row in read_evals(folder)] == [0, done]
    assert any("--resume" in line and "--force learning_rate=" in line for line in heard.lines)
    again = QuietReporter()
    with pytest.raises(NumericsError):
        train(reporter=again, resume=folder)
    assert any("will halt again" in line for line in again.lines) and len(steps(folder)) == done + 1
    last = QuietReporter()
    train(reporter=last, resume=folder, kl_limit=None, max_steps=6)
    assert steps(folder) == list(range(1, 7)) and not any("halt again" in line for line in last.lines)
    assert read_manifest(folder).status == "done" and not read_manifest(folder).halted


def collapsed(history: History) -> list[Finding]:
    """A policy that is dead from its fourth step on, while the rate is what it was."""
    if len(history) < 5 or history.recipe["learning_rate"] != 1e-3:
        return []
    change = Change("learning_rate", 1e-3, 1e-4)
    evidence = (Evidence("reward_mean", 0.5, 0.0),)
    return [Finding("entropy_collapse", "critical", 4, evidence, change, unrecoverable=True)]


def test_a_collapse_halts_and_resumes_from_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "diagnose", collapsed)
    folder, heard = tmp_path / "run", QuietReporter()
    keys = {**SMALL, "max_steps": 12, "kl_limit": None, "save_total_limit": 6, "output_dir": str(folder)}
    with pytest.raises(Halted, match="step-000002 is from before it") as error:
        train(reporter=heard, **keys)
    assert error.value.exit_status == 3 and len(steps(folder)) == 10
    assert "step-000002" in checkpoints(folder) and 10 in [row["step"] for row in read_evals(folder)]
    assert heard.lines[-1].endswith("--force learning_rate=0.0001")
    again = QuietReporter()
    with pytest.raises(Halted):
        train(reporter=again, resume=folder, max_steps=40)
    assert any("will halt again" in line for line in again.lines) and len(steps(folder)) < 25
    with pytest.raises(RecipeError, match="learning_rate was"):
        train(reporter=QuietReporter(), resume=folder, learning_rate=1e-4)
    fixed = QuietReporter()
    train(reporter=fixed, resume=folder, force=True, learning_rate=1e-4, max_steps=5)
    assert "resumed after step 2" in fixed.lines and steps(folder) == list(range(1, 6))


def test_note_lets_a_collapsed_run_continue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "diagnose", collapsed)
    keys = {**SMALL, "max_steps": 12, "kl_limit": None, "doctor": "note", "output_dir": str(tmp_path / "run")}
    train(reporter=QuietReporter(), **keys)
    assert len(steps(tmp_path / "run")) == 12
