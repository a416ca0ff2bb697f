"""The optimizer and its schedule."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn


def adamw(
    model: nn.Module, lr: float, weight_decay: float, betas: tuple[float, float], eps: float = 1e-8
) -> torch.optim.AdamW:
    """AdamW that decays matrices only: norms and biases are left alone."""
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=lr, betas=betas, eps=eps, fused=True)


# Recipe key `lr_scheduler_type`: the share of the full rate at progress 0..1.
SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda progress: 1.0,
    "linear": lambda progress: 1.0 - progress,
    "cosine": lambda progress: 0.5 * (1.0 + math.cos(math.pi * progress)),
}


def rate_at(step: int, total: int, peak: float, schedule: str, warmup: int) -> float:
    """The learning rate of this step: a linear climb over `warmup` steps, then the schedule."""
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * SCHEDULES[schedule]((step - warmup) / max(total - warmup, 1))


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate
