"""Memory that runs out: the run halts in words, keeps what it has, and the doctor names the change."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from outdo import train
from outdo.doctor.history import from_rows
from outdo.doctor.read import run_history
from outdo.doctor.rules import diagnose
from outdo.errors import ModelError, OutOfMemory
from outdo.learn.learner import LocalLearner
from outdo.learn.memory import is_out_of_memory
from outdo.runs import checkpoint, layout
from outdo.runs.manifest import read_manifest
from support.fakes import QuietReporter

CPU_ERROR = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 99614720 bytes. Error code 12"
SMALL: dict[str, Any] = {
    **{"sft_steps": 2, "sft_batch_size": 4, "max_steps": 4, "num_generations": 4, "per_device_train_batch_size": 32},
    **{"max_completion_length": 8, "eval_size": 2, "eval_samples": 0, "eval_split": ["test"], "device": "cpu"},
}


def test_run_halts_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    update, calls = LocalLearner.update, []

    def fails(self: LocalLearner, batch: Any, step: int) -> Any:
        calls.append(step)
        if len(calls) == 3:
            monkeypatch.setattr("outdo.learn.update.pack", _no_memory)  # where tensors of a micro-batch are made
        return update(self, batch, step)

    monkeypatch.setattr(LocalLearner, "update", fails)
    folder = tmp_path / "run"
    with pytest.raises(OutOfMemory) as halted:
        train(reporter=QuietReporter(), output_dir=str(folder), **SMALL)
    assert halted.value.exit_status == 3
    manifest = read_manifest(folder)
    assert manifest.status == "stopped" and "in the update after step 2 (95 MiB more" in manifest.why
    assert (folder / layout.MODEL).exists() and checkpoint.newest_valid(folder / layout.CHECKPOINTS)
    finding, *others = diagnose(run_history(folder))
    assert finding.code == "out_of_memory" and finding.severity == "critical" and not others
    assert finding.change is not None and finding.change.key == "tokens_per_micro_batch"
    assert f"resume with {finding.change.pair()}" in manifest.why and 8 <= finding.change.new < 32 * 8


def _no_memory(*arguments: Any) -> Any:
    raise RuntimeError(CPU_ERROR)


@pytest.mark.parametrize(
    ("error", "is_it"),
    [
        (RuntimeError(CPU_ERROR), True),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), True),
        (MemoryError(), True),
        (RuntimeError("shape mismatch"), False),
        (ModelError("out of memory with one answer of 9 tokens"), False),  # in words already
    ],
)
def test_which_errors(error: BaseException, is_it: bool) -> None:
    assert is_out_of_memory(error) is is_it


@pytest.mark.parametrize(
    ("why", "recipe", "pair"),
    [
        ("out of memory in the update after step 3 (x)", {"max_completion_length": 32}, "tokens_per_micro_batch=1024"),
        ("out of memory in the update", {"tokens_per_micro_batch": 64, "max_completion_length": 32}, None),
        (
            "out of memory with one answer of 9,000 tokens",
            {"gradient_checkpointing": True},
            "max_completion_length=128",
        ),
        ("out of memory while sampling after step 3 (x)", {"generation_batch_size": 64}, "rollout_rows=16"),
        ("failed: CUDA out of memory. Tried to allocate 2 GiB", {}, "tokens_per_micro_batch=1024"),
    ],
)
def test_change(why: str, recipe: dict[str, Any], pair: str | None) -> None:
    history = from_rows([{"step": i, "tokens": 4100, "reward_mean": 0.1} for i in range(3)], recipe=recipe)
    finding = diagnose(replace(history, ended=why))[0]
    assert finding.code == "out_of_memory" and finding.change is not None
    assert finding.change.pair() == (pair or "gradient_checkpointing=true")


def test_other_ends_are_not_named() -> None:
    history = from_rows([{"step": 0, "tokens": 4100, "reward_mean": 0.1}])
    assert diagnose(replace(history, ended="interrupted after step 3"))[0].code != "out_of_memory"
