"""Runs by Unsloth, in an environment that has it: `make bridges`. Without a GPU it trains on the CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("trl")
if not (Path(sys.prefix) / "lib").is_dir() or not any(Path(sys.prefix).glob("lib/python*/site-packages/unsloth")):
    pytest.skip("unsloth is not installed", allow_module_level=True)  # importing it edits TRL for all other tests

RUN = ["backend=unsloth", "max_steps=3", "eval_size=4", "eval_samples=0", "per_device_train_batch_size=32"]


def train(folder: Path, *keys: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "outdo", "train", *RUN, *keys, f"output_dir={folder}"]
    return subprocess.run(words, cwd=folder.parent, capture_output=True, text=True, timeout=300, check=False)


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unsloth") / "run"
    done = train(folder, "sft_steps=150")
    assert done.returncode == 0, done.stderr
    assert "by Unsloth" in done.stdout
    return folder


def test_all_weights(run: Path) -> None:
    assert [row["step"] for row in rows(run)] == [1, 2, 3]
    assert all(row["grad_norm"] > 0 and row["kl_mean"] is not None for row in rows(run))
    first, last = (load_file(run / "checkpoints" / f"step-{n:06d}" / "model.safetensors") for n in (0, 3))
    moved = max(float((last[name] - first[name]).abs().max()) for name in first)
    assert 1e-5 < moved < 1e-2
    assert all(torch.isfinite(value).all() for value in last.values())
    assert not list(run.parent.glob("*unsloth*"))  # it leaves nothing beside the run


def test_an_adapter(run: Path, tmp_path: Path) -> None:
    keys = ["use_peft=true", "learning_rate=1e-3", "task=arithmetic", "task_args.ops=+", "max_completion_length=32"]
    done = train(tmp_path / "run", f"model_name_or_path={run / 'model'}", *keys, "reward_audit=false")
    assert done.returncode == 0, done.stderr
    factors = load_file(tmp_path / "run" / "adapter" / "adapter_model.safetensors")
    grown = [float(value.abs().max()) for name, value in factors.items() if "lora_B" in name]
    assert len(grown) == 28 and all(1e-5 < value < 1e-2 for value in grown)  # they begin at 0


def test_its_own_settings(run: Path, tmp_path: Path) -> None:
    done = train(tmp_path / "run", f"model_name_or_path={run / 'model'}", "backend_args.fast_inferense=true")
    assert done.returncode == 2 and "fast_inference" in done.stderr, done.stderr
