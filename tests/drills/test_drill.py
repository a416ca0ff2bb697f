"""`outdo drill` as a user runs it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from outdo.doctor.playbook import PLAYBOOK
from outdo.drills.desk import Desk
from outdo.drills.registry import DRILLS
from outdo.training.resume import FREE

Outdo = Callable[..., subprocess.CompletedProcess[str]]

NAMES = ["reward-hack", "sparse", "kl-blowup", "entropy-collapse", "mode-collapse", "thinking-tax", "overfit"]
NAMES += ["noisy-grader", "no-clip", "ood-loss", "small-group", "grader-drift", "out-of-memory"]
NAMES += ["unused-tool", "wrong-checkpoint"]


def test_registry(tmp_path: Path) -> None:
    assert list(DRILLS) == NAMES
    desk = Desk(tmp_path, tmp_path, 0, lambda line: None)
    for drill in DRILLS.values():
        assert drill.shows and len(drill.shows) < 110
        if drill.name != "wrong-checkpoint":
            assert drill.code in PLAYBOOK
        failing = desk.recipe("ill", drill.failing)  # a misspelt key would be refused here
        if drill.fix is not None:
            fixed = desk.recipe("ill", {**drill.failing, **drill.fix})
            follows = {"per_device_train_batch_size"} if "num_generations" in drill.fix else set()
            assert len(drill.fix.keys() - follows) == 1, "one change"
            assert failing != fixed and not drill.fix.keys() & FREE
    by_the_doctor = [drill.name for drill in DRILLS.values() if drill.fix is None and drill.code]
    assert {"reward-hack", "grader-drift", "out-of-memory"} <= set(by_the_doctor) and len(by_the_doctor) >= 4


def test_list_and_wrong_name(outdo: Outdo) -> None:
    listed = outdo("drill")
    assert listed.returncode == 0 and all(name in listed.stdout for name in NAMES)
    assert json.loads(outdo("drill", "--json").stdout).keys() == DRILLS.keys()
    wrong = outdo("drill", "kl-blowupp")
    assert wrong.returncode == 2 and "did you mean 'kl-blowup'?" in wrong.stderr and "Traceback" not in wrong.stderr


@pytest.mark.slow
def test_out_of_memory(outdo: Outdo, tmp_path: Path) -> None:
    done = outdo("drill", "out-of-memory", "wrong-checkpoint", "--jobs", "2", "--json", "--out", "drills")
    assert done.returncode == 0, done.stderr
    halted = next(row for row in json.loads(done.stdout) if row["name"] == "out-of-memory")
    assert halted["findings"][0]["code"] == "out_of_memory" and halted["change"] == "tokens_per_micro_batch=1024"
    manifest = json.loads((tmp_path / "drills" / "drill-out-of-memory" / "ill" / "run.json").read_text())
    assert manifest["status"] == "stopped" and manifest["why"].startswith("out of memory in the update after step 0")


@pytest.mark.slow
def test_kl_blowup(outdo: Outdo, tmp_path: Path) -> None:
    done = outdo("drill", "kl-blowup", "--json", "--out", "drills")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)
    assert row["passed"] and row["findings"][0]["code"] == "kl_blowup" and len(row["findings"]) == 1
    assert row["change"].startswith("learning_rate=")
    for name in ("picture.png", "drill.json", "ill/run.json", "cured/run.json"):
        assert (tmp_path / "drills" / "drill-kl-blowup" / name).exists(), name
    assert "PASS" in done.stderr and "cured" in done.stderr


@pytest.mark.slow
def test_unused_tool(outdo: Outdo) -> None:
    done = outdo("drill", "unused-tool", "--json", "--out", "drills")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)
    assert row["findings"][0]["code"] == "unused_tools" and "dead_all_wrong" in row["findings"][0]["also"]
