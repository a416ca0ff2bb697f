"""Kernels that start while the one before them still runs (programmatic dependent launch, from Hopper on)."""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def start_next(PDL: tl.constexpr):
    """Lets the kernel after this one start: it waits before it reads this one's output."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def wait(PDL: tl.constexpr):
    """Waits until the kernel before this one is done. Before this, its output must not be read and nothing written."""
    if PDL:
        tl.extra.cuda.gdc_wait()


def can_overlap(x: Tensor) -> bool:
    return x.is_cuda and torch.version.cuda is not None and _capability(x.get_device()) >= (9, 0)


@cache
def _capability(device: int) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


def launch(overlaps: bool) -> dict[str, bool]:
    """Launch options of an overlapping kernel."""
    return {"launch_pdl": True} if overlaps else {}
