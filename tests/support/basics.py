"""What many tests use: the repository's root, keys of a quick run, and graded groups made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from outdo.types import Grade, Group, Prompt, Trajectory

ROOT = Path(__file__).resolve().parents[2]
QUICK = [
    "sft_steps=3",
    "sft_batch_size=8",
    "max_steps=2",
    "eval_size=4",
    "eval_samples=2",
    "per_device_train_batch_size=16",
]


def prompt_of(text: str, answer: str = "0", **meta: object) -> Prompt:
    return Prompt(text, ({"role": "user", "content": text},), answer, meta)


def group_of(
    prompt: Prompt, prompt_ids: Sequence[int], answers: Sequence[Sequence[int]], rewards: Sequence[float]
) -> Group:
    """A graded group with made-up log-probabilities."""
    generator = torch.Generator().manual_seed(len(prompt_ids))
    logprobs = [tuple((-torch.rand(len(ids), generator=generator) - 0.5).tolist()) for ids in answers]
    trajectories = tuple(
        Trajectory.single(tuple(ids), its, str(ids), "stop", 0) for ids, its in zip(answers, logprobs, strict=True)
    )
    grades = tuple(Grade(r, "right" if r >= 1 else "wrong", {"numeric": r}) for r in rewards)
    return Group(prompt, tuple(prompt_ids), trajectories, grades)
