"""Norm and gate that round to 8 bits, and the product after the gate (in plain torch: `models/fp8.py`)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from outdo.models.kernels.layer import _warps

LARGEST = 448.0  # of float8_e4m3fn
SMALLEST = 1e-12  # of a row's largest value: the scale of a row of zeros
SPLITS = 2


@triton.jit
def _add_norm(
    x_ptr, parts_ptr, w_ptr, sum_ptr, y_ptr, scale_ptr, eps, N, D, PARTS: tl.constexpr, ROUND: tl.constexpr,
    LARGEST: tl.constexpr, SMALLEST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < D
    x = tl.load(x_ptr + row * D + at, mask=inside, other=0.0)
    if PARTS:
        delta = tl.zeros([BLOCK], tl.float32)
        for i in tl.static_range(PARTS):
            delta += tl.load(parts_ptr + (i * N + row) * D + at, mask=inside, other=0.0).to(tl.float32)
        x += delta.to(w_ptr.dtype.element_ty).to(tl.float32)
        tl.store(sum_ptr + row * D + at, x, mask=inside)
    w = tl.load(w_ptr + at, mask=inside, other=0.0).to(tl.float32)
    y = x * (1.0 / tl.sqrt(tl.sum(x * x, 0) / D + eps)) * w
    if ROUND:
        scale = tl.maximum(tl.max(tl.abs(y), 0), SMALLEST) / LARGEST
        tl.store(scale_ptr + row, scale)
        y = y / scale
    tl.store(y_ptr + row * D + at, y.to(y_ptr.dtype.element_ty), mask=inside)


def add_norm(
    x_ND: Tensor, parts_SND: Tensor | None, weight_D: Tensor, eps: float, rounds: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """x + the sum of the parts, its RMS norm, and the scale of each row where the norm is rounded to 8 bits."""
    rows, width = x_ND.shape
    assert x_ND.is_contiguous() and x_ND.dtype == torch.float32 and (parts_SND is None or parts_SND.is_contiguous())
    total = x_ND if parts_SND is None else torch.empty_like(x_ND)
    y, scale = _rounded(x_ND)
    y = y if rounds else torch.empty_like(x_ND, dtype=weight_D.dtype)
    block = triton.next_power_of_2(width)
    args = (x_ND, x_ND if parts_SND is None else parts_SND, weight_D, total, y, scale, eps, rows, width)
    parts = 0 if parts_SND is None else len(parts_SND)
    _add_norm[(rows,)](
        *args, PARTS=parts, ROUND=rounds, LARGEST=LARGEST, SMALLEST=SMALLEST, BLOCK=block, num_warps=_warps(block)
    )
    return total, y, scale


@triton.jit
def _gated(x_ptr, row, at, F):
    gate = tl.load(x_ptr + row * 2 * F + at, mask=at < F, other=0.0).to(tl.float32)
    return gate * tl.sigmoid(gate) * tl.load(x_ptr + row * 2 * F + F + at, mask=at < F, other=0.0).to(tl.float32)


@triton.jit
def _swiglu(x_ptr, y_ptr, scale_ptr, F, LARGEST: tl.constexpr, SMALLEST: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    highest = tl.zeros([BLOCK], tl.float32)
    for start in range(0, F, BLOCK):
        highest = tl.maximum(highest, tl.abs(_gated(x_ptr, row, start + at, F)))
    scale = tl.maximum(tl.max(highest, 0), SMALLEST) / LARGEST
    for start in range(0, F, BLOCK):  # the row is read again, from the cache
        y = _gated(x_ptr, row, start + at, F) / scale
        tl.store(y_ptr + row * F + start + at, y.to(y_ptr.dtype.element_ty), mask=start + at < F)
    tl.store(scale_ptr + row, scale)


def swiglu(x_N2F: Tensor) -> tuple[Tensor, Tensor]:
    """silu(gate) * up in 8 bits, and the scale of each row."""
    rows, width = x_N2F.shape[0], x_N2F.shape[1] // 2
    y, scale = _rounded(x_N2F[:, :width])
    block = min(8192, triton.next_power_of_2(width))
    _swiglu[(rows,)](x_N2F, y, scale, width, LARGEST=LARGEST, SMALLEST=SMALLEST, BLOCK=block, num_warps=16)
    return y, scale


def _rounded(like_ND: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.empty(like_ND.shape, dtype=torch.float8_e4m3fn, device=like_ND.device)
    return y, torch.empty(len(like_ND), dtype=torch.float32, device=like_ND.device)


# --- a product of few outputs: split along its sum, else it occupies a part of the GPU


@triton.jit
def _split_product(
    x_desc, w_desc, x_scale_ptr, w_scale_ptr, out_ptr, M, N, K, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    STEP: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    first_row, first_column, split = tl.program_id(0) * ROWS, tl.program_id(1) * COLUMNS, tl.program_id(2)
    steps = tl.cdiv(K, STEP)
    each = tl.cdiv(steps, SPLITS)
    out = tl.zeros([ROWS, COLUMNS], tl.float32)
    for i in tl.range(split * each, tl.minimum((split + 1) * each, steps), num_stages=4):
        x = x_desc.load([first_row, i * STEP])
        w = w_desc.load([first_column, i * STEP])
        out = tl.dot(x, w.T, out)
    row, column = first_row + tl.arange(0, ROWS), first_column + tl.arange(0, COLUMNS)
    out *= tl.load(x_scale_ptr + row, mask=row < M, other=0.0)[:, None]
    out *= tl.load(w_scale_ptr + column, mask=column < N, other=0.0)[None, :]
    place = out_ptr + (split.to(tl.int64) * M + row[:, None]) * N + column[None, :]
    tl.store(place, out, mask=(row < M)[:, None] & (column < N)[None, :])


def split_product(x_MK: Tensor, x_scale_M: Tensor, w_NK: Tensor, w_scale_N: Tensor) -> Tensor:
    """x @ w.T, scaled, as parts [splits, M, N] in float32 that are still to be summed."""
    (rows, width), columns = x_MK.shape, len(w_NK)
    tile = {"ROWS": 64 if rows <= 64 else 128, "COLUMNS": 128}
    out = torch.empty(SPLITS, rows, columns, dtype=torch.float32, device=x_MK.device)
    descriptors = (TensorDescriptor.from_tensor(x, [n, 128]) for x, n in ((x_MK, tile["ROWS"]), (w_NK, 128)))
    grid = triton.cdiv(rows, tile["ROWS"]), triton.cdiv(columns, 128), SPLITS
    args = (*descriptors, x_scale_M, w_scale_N, out, rows, columns, width)
    _split_product[grid](*args, STEP=128, SPLITS=SPLITS, num_warps=4, **tile)
    return out
