"""`outdo doctor` as a user runs it, and a run that it watches."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from outdo.errors import GraderError
from outdo.recipe.load import load_recipe
from outdo.rewards.choose import rewards_of
from outdo.runs.reader import read_rows
from outdo.tasks.mixture import task_of
from support.basics import QUICK

Outdo = Callable[..., subprocess.CompletedProcess[str]]

HASTY = ["learning_rate=0.003", "beta=1e-6", "kl_limit=null", "save_steps=5", "eval_size=4", "eval_samples=0"]
HASTY += ["sft_steps=300", "sft_batch_size=32", "per_device_train_batch_size=32", "lr_scheduler_type=constant"]


def test_files_and_bad_input(outdo: Outdo, tmp_path: Path) -> None:
    rows = [{"step": i, "reward": 0.4, "kl": 0.02 * i, "entropy": 0.5} for i in range(40)]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    said = outdo("doctor", "log.jsonl")
    assert said.returncode == 0 and "kl_blowup" in said.stdout and "lower learning_rate 4×" in said.stdout
    assert all(len(line) <= 80 for line in said.stdout.splitlines())
    findings = json.loads(outdo("doctor", "log.jsonl", "--json").stdout)
    assert findings[0]["code"] == "kl_blowup" and findings[0]["expect"]["signal"] == "kl_mean"
    (tmp_path / "spoilt.jsonl").write_text("garbage\n" + (tmp_path / "log.jsonl").read_text())
    spoilt = outdo("doctor", "spoilt.jsonl", "--json")
    assert spoilt.returncode == 0 and json.loads(spoilt.stdout) == findings
    assert spoilt.stderr.startswith("skipped 1 line") and spoilt.stderr.endswith("spoilt.jsonl: line 1\n")
    (tmp_path / "garbage.jsonl").write_text("{garbage\n[1]\n")
    for words in (
        ["nothere"],
        [],
        ["garbage.jsonl"],
        ["log.jsonl", "--treat"],
        ["log.jsonl", "--steps", "9"],
        ["--system", "--treat"],
    ):
        wrong = outdo("doctor", *words)
        assert wrong.returncode == 2 and "outdo:" in wrong.stderr and "Traceback" not in wrong.stderr, words


def test_system(outdo: Outdo) -> None:
    done = outdo("doctor", "--system", "--json")
    found = {check["name"]: check["worth"] for check in json.loads(done.stdout)}
    assert done.returncode == 0 and found["python"] == found["torch"] == "ok" and "sandbox" in found


def test_audit_reward(outdo: Outdo, tmp_path: Path) -> None:
    done = outdo("train", "output_dir=run", "reward_funcs=format", "audit_reward=tag_count", *QUICK)
    assert done.returncode == 0, done.stderr
    for row in read_rows(tmp_path / "run" / "metrics.jsonl"):
        assert row["audit_reward_mean"] == row["reward/tag_count"] and row["reward_mean"] == row["reward/format"]
    assert json.loads(outdo("doctor", "run", "--json").stdout)[0]["code"] == "too_early"
    recipe = load_recipe(None, {"audit_reward": "numeric"})
    with pytest.raises(GraderError, match="is trained on"):
        rewards_of(recipe, task_of(recipe), {})


@pytest.mark.slow
def test_watch_halt_treat(outdo: Outdo, tmp_path: Path) -> None:
    done = outdo("train", "output_dir=ill", "max_steps=40", "doctor=halt", *HASTY)
    assert done.returncode == 3 and "halted" in done.stderr and "doctor: steps_too_big" in done.stdout
    (finding,) = read_rows(tmp_path / "ill" / "findings.jsonl")
    assert finding["code"] == "steps_too_big" and "kl_blowup" in finding["also"]
    assert finding["step"] <= finding["seen"] < 40
    treated = outdo("doctor", "ill", "--treat", "--json", "--steps", "10")
    told = json.loads(treated.stdout)
    assert treated.returncode == 0 and told["answered"] and told["after"] > told["before"] + 0.1
    assert (tmp_path / told["folder"] / "run.json").exists()
    again = outdo("doctor", "ill", "--treat")
    assert again.returncode == 2 and "already exists" in again.stderr
