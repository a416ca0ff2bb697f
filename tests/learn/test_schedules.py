"""Schedules: the learning rate is transformers' after the climb, and the learner knows the sampler's temperature."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import torch
from rich.console import Console
from transformers import get_scheduler

from outdo import train
from outdo.algo.schedules import rate_at
from outdo.training.console import PlainLines


@pytest.mark.parametrize(
    ("name", "floor"),
    [("constant_with_warmup", 0.0), ("linear", 0.0), ("cosine", 0.0), ("cosine_with_min_lr", 0.1)],
)
def test_rates_equal_transformers_after_warm_up(name: str, floor: float) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2.0)
    more = {"min_lr_rate": floor} if floor else None
    theirs = get_scheduler(name, optimizer, num_warmup_steps=4, num_training_steps=20, scheduler_specific_kwargs=more)
    for step in range(20):
        if step >= 4:
            assert rate_at(step, 20, 2.0, name, 4, floor) == pytest.approx(theirs.get_last_lr()[0])
        optimizer.step()
        theirs.step()
    assert [rate_at(step, 20, 2.0, name, 4, floor) for step in range(4)] == [0.5, 1.0, 1.5, 2.0]


def test_the_temperature_falls_and_the_learner_follows(tmp_path: Path) -> None:
    """Were a step's answers judged at another temperature than they were sampled at, the two would not agree."""
    result = train(
        reporter=PlainLines(Console(file=io.StringIO())),
        output_dir=str(tmp_path / "run"),
        max_steps=3,
        sft_steps=0,
        num_generations=4,
        per_device_train_batch_size=16,
        max_completion_length=8,
        eval_size=2,
        eval_samples=0,
        temperature=1.5,
        temperature_end=0.5,
        beta=0.05,
        kl_in_reward=True,
    )
    rows = [json.loads(line) for line in (result.folder / "metrics.jsonl").open()]
    assert all(row["mismatch_kl"] < 1e-6 for row in rows)
    assert rows[0]["kl_mean"] == pytest.approx(0.0, abs=1e-6)  # policy and reference at one temperature
    assert rows[0]["entropy_mean"] > rows[2]["entropy_mean"] + 0.02
