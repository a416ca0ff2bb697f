"""The parts of a layer that are not matrix products (in plain torch: `ops.py`)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


def _warps(width: int) -> int:
    return 1 if width <= 256 else 4 if width <= 4096 else 8


# --- residual, norm


@triton.jit
def _add_norm(x_ptr, delta_ptr, w_ptr, sum_ptr, y_ptr, rstd_ptr, eps, D, ADD: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < D
    x = tl.load(x_ptr + row * D + at, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        x += tl.load(delta_ptr + row * D + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(sum_ptr + row * D + at, x, mask=inside)
        x = x.to(sum_ptr.dtype.element_ty).to(tl.float32)
    rstd = 1.0 / tl.sqrt(tl.sum(x * x, 0) / D + eps)
    w = tl.load(w_ptr + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(y_ptr + row * D + at, x * rstd * w, mask=inside)
    tl.store(rstd_ptr + row, rstd)


def add_norm(x_ND: Tensor, delta_ND: Tensor | None, weight_D: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """x + delta, its RMS norm in the weight's type, and the reciprocal RMS of each row."""
    rows, width = x_ND.shape
    total = x_ND if delta_ND is None else torch.empty_like(x_ND)
    y = torch.empty_like(x_ND, dtype=weight_D.dtype)
    assert x_ND.is_contiguous() and (delta_ND is None or delta_ND.is_contiguous())
    rstd = torch.empty(rows, dtype=torch.float32, device=x_ND.device)
    block = triton.next_power_of_2(width)
    args = (x_ND, x_ND if delta_ND is None else delta_ND, weight_D, total, y, rstd, eps, width)
    _add_norm[(rows,)](*args, ADD=delta_ND is not None, BLOCK=block, num_warps=_warps(block))
    return total, y, rstd


@triton.jit
def _norm_backward(
    dy_ptr, dsum_ptr, x_ptr, rstd_ptr, w_ptr, dx_ptr, dlow_ptr, y_ptr, dw_ptr, N, D,
    ADD: tl.constexpr, LOW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    w = tl.load(w_ptr + at, mask=at < D, other=0.0).to(tl.float32)
    dw = tl.zeros([BLOCK], tl.float32)
    for start in range(0, N, tl.num_programs(0)):
        row = start + program
        base = row * D
        inside = at < tl.where(row < N, D, 0)
        dy = tl.load(dy_ptr + base + at, mask=inside, other=0.0).to(tl.float32)
        rstd = tl.load(rstd_ptr + tl.minimum(row, N - 1))
        unit = tl.load(x_ptr + base + at, mask=inside, other=0.0).to(tl.float32) * rstd
        tl.store(y_ptr + base + at, unit * w, mask=inside)
        dw += dy * unit
        g = dy * w
        dx = rstd * (g - unit * (tl.sum(g * unit, 0) / D))
        if ADD:
            dx += tl.load(dsum_ptr + base + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(dx_ptr + base + at, dx, mask=inside)
        if LOW:
            tl.store(dlow_ptr + base + at, dx, mask=inside)
    tl.store(dw_ptr + program * D + at, dw, mask=at < D)


def norm_backward(
    dy_ND: Tensor, dsum_ND: Tensor | None, x_ND: Tensor, rstd_N: Tensor, weight_D: Tensor, low: torch.dtype | None
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """As `ops.norm_backward`."""
    rows, width = x_ND.shape
    dy_ND, dsum_ND = dy_ND.contiguous(), None if dsum_ND is None else dsum_ND.contiguous()
    dx = torch.empty_like(x_ND)
    y = torch.empty_like(x_ND, dtype=weight_D.dtype)
    dlow = None if low is None or low == x_ND.dtype else torch.empty_like(x_ND, dtype=low)
    programs = min(rows, 1024)
    dw = torch.empty(programs, width, dtype=torch.float32, device=x_ND.device)
    block = triton.next_power_of_2(width)
    out = (dx, dx if dlow is None else dlow, y, dw)
    args = (dy_ND, dy_ND if dsum_ND is None else dsum_ND, x_ND, rstd_N, weight_D, *out)
    options = {"ADD": dsum_ND is not None, "LOW": dlow is not None, "BLOCK": block, "num_warps": _warps(block)}
    _norm_backward[(programs,)](*args, rows, width, **options)
    return dx, (dx if low == x_ND.dtype else dlow), dw.sum(0).to(weight_D.dtype), y


# --- rotary position embedding


@triton.jit
def _rotate(x_ptr, out_ptr, cos_ptr, sin_ptr, ROTATED, HEADS, D: tl.constexpr, SIGN: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    half: tl.constexpr = D // 2
    head = tl.arange(0, BLOCK)[:, None]
    at = tl.arange(0, half)[None, :]
    base = row * HEADS * D + head * D + at
    inside = head < HEADS
    first = tl.load(x_ptr + base, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(x_ptr + base + half, mask=inside, other=0.0).to(tl.float32)
    cos = tl.load(cos_ptr + row * D + at)
    sin = tl.load(sin_ptr + row * D + half + at) * SIGN
    rotated = head < ROTATED
    tl.store(out_ptr + base, tl.where(rotated, first * cos - second * sin, first), mask=inside)
    tl.store(out_ptr + base + half, tl.where(rotated, second * cos + first * sin, second), mask=inside)


def rotate(
    x_NHD: Tensor, cos_ND: Tensor, sin_ND: Tensor, rotated: int, sign: float = 1.0, inplace: bool = False
) -> Tensor:
    """As `ops.rotate`."""
    rows, heads, size = x_NHD.shape
    x_NHD = x_NHD.contiguous()
    out = x_NHD if inplace else torch.empty_like(x_NHD)
    _rotate[(rows,)](
        x_NHD, out, cos_ND, sin_ND, rotated, heads, D=size, SIGN=sign, BLOCK=triton.next_power_of_2(heads), num_warps=2
    )
    return out


# --- the gate


@triton.jit
def _swiglu(x_ptr, out_ptr, F, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < F
    gate = tl.load(x_ptr + row * 2 * F + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x_ptr + row * 2 * F + F + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * F + at, gate * tl.sigmoid(gate) * up, mask=inside)


def swiglu(x_N2F: Tensor) -> Tensor:
    rows, width = x_N2F.shape[0], x_N2F.shape[1] // 2
    out = x_N2F.new_empty(rows, width)
    block = min(1024, triton.next_power_of_2(width))
    _swiglu[(rows, triton.cdiv(width, block))](x_N2F, out, width, BLOCK=block)
    return out


@triton.jit
def _swiglu_backward(dy_ptr, x_ptr, dx_ptr, y_ptr, F, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < F
    dy = tl.load(dy_ptr + row * F + at, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(x_ptr + row * 2 * F + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x_ptr + row * 2 * F + F + at, mask=inside, other=0.0).to(tl.float32)
    s = tl.sigmoid(gate)
    tl.store(dx_ptr + row * 2 * F + at, dy * up * s * (1.0 + gate * (1.0 - s)), mask=inside)
    tl.store(dx_ptr + row * 2 * F + F + at, dy * gate * s, mask=inside)
    tl.store(y_ptr + row * F + at, gate * s * up, mask=inside)


def swiglu_backward(dy_NF: Tensor, x_N2F: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient, and the output recomputed."""
    rows, width = dy_NF.shape
    dx, y = torch.empty_like(x_N2F), torch.empty_like(dy_NF)
    block = min(1024, triton.next_power_of_2(width))
    _swiglu_backward[(rows, triton.cdiv(width, block))](dy_NF.contiguous(), x_N2F, dx, y, width, BLOCK=block)
    return dx, y
