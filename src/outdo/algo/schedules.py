"""Learning-rate schedules: linear warm-up, then a curve down to a floor."""

from __future__ import annotations

import math
from collections.abc import Callable

# Recipe key `lr_scheduler_type`: the share of the peak rate at progress 0..1 after the warm-up.
SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda progress: 1.0,
    "constant_with_warmup": lambda progress: 1.0,
    "linear": lambda progress: 1.0 - progress,
    "cosine": lambda progress: 0.5 * (1.0 + math.cos(math.pi * progress)),
    "cosine_with_min_lr": lambda progress: 0.5 * (1.0 + math.cos(math.pi * progress)),
}


def rate_at(step: int, total: int, peak: float, schedule: str, warmup: int, floor: float = 0.0) -> float:
    """The learning rate of this step: linear over `warmup` steps, then the schedule, down to the share `floor`."""
    if step < warmup:
        return peak * (step + 1) / warmup
    share = SCHEDULES[schedule]((step - warmup) / max(total - warmup, 1))
    return peak * (floor + (1.0 - floor) * share)
