"""Kernels that start while the one before them is still at work (programmatic dependent launch, from Hopper on)."""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def ahead(PDL: tl.constexpr):
    """The kernel after this one may start: it will wait before it reads what this one makes."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def wait(PDL: tl.constexpr):
    """Until the kernel before this one is done. Nothing that it makes is read, and nothing is written, before this."""
    if PDL:
        tl.extra.cuda.gdc_wait()


def can_overlap(x: Tensor) -> bool:
    return x.is_cuda and torch.version.cuda is not None and _capability(x.get_device()) >= (9, 0)


@cache
def _capability(device: int) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


def launch(overlaps: bool) -> dict[str, bool]:
    """The options of such a kernel's launch."""
    return {"launch_pdl": True} if overlaps else {}
