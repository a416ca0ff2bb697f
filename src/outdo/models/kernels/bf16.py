"""Stochastic rounding and AdamW with moments in bfloat16 (in plain torch: `learn/bf16.py`), each in one pass."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def _rounded(x, noise):
    """float32 to bfloat16, up where the 16 bits of noise and those that are cut off carry over."""
    bits = x.to(tl.int32, bitcast=True) + noise
    return ((bits >> 16) << 16).to(tl.float32, bitcast=True).to(tl.bfloat16)


@triton.jit(do_not_specialize=["seed", "count"])
def _store_rounded(target_ptr, values_ptr, seed, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    x = tl.load(values_ptr + at, mask=inside, other=0.0)
    noise = tl.randint(seed, at).to(tl.int32, bitcast=True)
    tl.store(target_ptr + at, _rounded(x, noise & 0xFFFF), mask=inside)


def store_rounded(target: Tensor, values: Tensor, seed: int) -> None:
    """Writes contiguous float32 values to a bfloat16 tensor. The noise of an element is a hash of the seed and its
    place, of which there are fewer than 2^31."""
    _store_rounded[(triton.cdiv(values.numel(), BLOCK),)](target, values, seed, values.numel(), BLOCK=BLOCK)


@triton.jit(do_not_specialize=["seed", "count", "rate", "decay", "correction", "correction_sq"])
def _adamw_bf16(
    weight_ptr, grad_ptr, mean_ptr, square_ptr, seed, count, rate, decay, beta1, beta2, eps, correction, correction_sq,
    BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    grad = tl.load(grad_ptr + at, mask=inside, other=0.0).to(tl.float32)
    mean = tl.load(mean_ptr + at, mask=inside, other=0.0).to(tl.float32)
    square = tl.load(square_ptr + at, mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + at, mask=inside, other=0.0)
    mean += (grad - mean) * (1.0 - beta1)
    square = square * beta2 + grad * grad * (1.0 - beta2)
    noise = tl.randint(seed, at).to(tl.int32, bitcast=True)
    tl.store(mean_ptr + at, _rounded(mean, noise & 0xFFFF), mask=inside)
    tl.store(square_ptr + at, _rounded(square, (noise >> 16) & 0xFFFF), mask=inside)
    change = mean * correction / (tl.sqrt(square * correction_sq) + eps)
    tl.store(weight_ptr + at, weight * decay - rate * change, mask=inside)


def adamw_bf16(
    weight: Tensor, grad: Tensor, mean: Tensor, square: Tensor, *, rate: float, decay: float,
    betas: tuple[float, float], eps: float, step: int, seed: int,
) -> None:  # fmt: skip
    """One step, in place, of contiguous tensors of fewer than 2^31 elements: the weight is float32, the moments are
    bfloat16. `decay` is what the weight is multiplied by."""
    corrections = 1.0 / (1.0 - betas[0] ** step), 1.0 / (1.0 - betas[1] ** step)
    numbers = (seed, weight.numel(), rate, decay, *betas, eps, *corrections)
    _adamw_bf16[(triton.cdiv(weight.numel(), BLOCK),)](weight, grad, mean, square, *numbers, BLOCK=BLOCK)
