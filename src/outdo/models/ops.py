"""The parts of a Llama-like layer that are not matrix products, each with its own backward.

On a GPU each is one kernel (`kernels/`); elsewhere a few torch operations. The residual stream may be in a
higher precision than the weights: sums are in its type, products in the weights'.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

try:
    from outdo.models import kernels as _kernels
except ImportError:  # no Triton: usually a machine without a GPU
    _kernels = None  # type: ignore[assignment]


def kernels(x: Tensor, head_size: int = 16) -> ModuleType | None:
    """The kernels, where they support this tensor (and heads of that size)."""
    return _kernels if x.is_cuda and head_size in (16, 32, 64, 128, 256) else None


def sent(values: Sequence[int] | np.ndarray, device: torch.device) -> Tensor:
    """Copies values to the device without waiting for the work under way there."""
    x = torch.from_numpy(np.asarray(values))
    return x.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else x


def differentiable_add_norm(
    x_ND: Tensor, delta_ND: Tensor | None, weight_D: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """x + delta, and its RMS norm times the weight."""
    return _AddNorm.apply(x_ND, delta_ND, weight_D, eps)


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, delta_ND: Tensor | None, weight_D: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        total, y, rstd = add_norm(x_ND, delta_ND, weight_D, eps)
        ctx.save_for_backward(total, rstd, weight_D)
        ctx.low = None if delta_ND is None else delta_ND.dtype
        return (total.view_as(total) if delta_ND is None else total), y

    @staticmethod
    def backward(ctx: Any, dsum_ND: Tensor, dy_ND: Tensor) -> tuple[Tensor | None, ...]:
        x, rstd, weight = ctx.saved_tensors
        dx, dlow, dw, _ = norm_backward(dy_ND, dsum_ND, x, rstd, weight, ctx.low)
        return dx, dlow, dw, None


def add_norm(x_ND: Tensor, delta_ND: Tensor | None, weight_D: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """x + delta, its RMS norm times the weight, and the reciprocal RMS of each row."""
    if k := kernels(x_ND):
        return k.add_norm(x_ND, delta_ND, weight_D, eps)
    total = x_ND if delta_ND is None else x_ND + delta_ND
    wide = total.float()
    rstd = torch.linalg.vecdot(wide, wide).div_(wide.shape[-1]).add_(eps).rsqrt_()
    return total, (wide * rstd[:, None]).mul_(weight_D.float()).to(weight_D.dtype), rstd


def norm_backward(
    dy_ND: Tensor, dsum_ND: Tensor | None, x_ND: Tensor, rstd_N: Tensor, weight_D: Tensor, low: torch.dtype | None
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """Gradients of x, of delta in its own type `low` (None: there is none), and of the weight; and the norm's output
    recomputed, for the gradient of the product after it."""
    if k := kernels(x_ND):
        return k.norm_backward(dy_ND, dsum_ND, x_ND, rstd_N, weight_D, low)
    unit = x_ND.float() * rstd_N[:, None]
    dy = dy_ND.float()
    dw = torch.linalg.vecdot(dy, unit, dim=0)
    dx = dy * weight_D.float()
    along = torch.linalg.vecdot(dx, unit).div_(dx.shape[-1])
    dx.addcmul_(unit, along[:, None], value=-1).mul_(rstd_N[:, None])
    dx = dx.to(x_ND.dtype) if dsum_ND is None else dx.to(x_ND.dtype).add_(dsum_ND)
    y = unit.mul_(weight_D.float()).to(weight_D.dtype)
    return dx, None if low is None else dx.to(low), dw.to(weight_D.dtype), y


def rotate(
    x_NHD: Tensor, cos_ND: Tensor, sin_ND: Tensor, rotated: int, sign: float = 1.0, inplace: bool = False
) -> Tensor:
    """RoPE: rotates the first `rotated` heads of each token by its position (in halves, as Llama does).

    `sin_ND` carries the signs: minus in the first half. `inplace` allows it to overwrite `x_NHD`.
    """
    if k := kernels(x_NHD, x_NHD.shape[-1]):
        return k.rotate(x_NHD, cos_ND, sin_ND, rotated, sign, inplace)
    out = x_NHD if inplace else x_NHD.clone()
    heads = out[:, :rotated]
    swapped = heads.roll(x_NHD.shape[-1] // 2, dims=-1)
    heads.copy_((heads * cos_ND[:, None]).addcmul_(swapped, sin_ND[:, None], value=sign))
    return out


def swiglu(x_N2F: Tensor) -> Tensor:
    """silu(gate) * up, of a tensor with both side by side."""
    if k := kernels(x_N2F):
        return k.swiglu(x_N2F)
    gate, up = x_N2F.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)


def swiglu_backward(dy_NF: Tensor, x_N2F: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient, and the output recomputed."""
    if k := kernels(x_N2F):
        return k.swiglu_backward(dy_NF, x_N2F)
    gate, up = x_N2F.chunk(2, dim=-1)
    dx = torch.empty_like(x_N2F)
    dgate, dup = dx.chunk(2, dim=-1)
    activated = F.silu(gate)
    torch.mul(activated, dy_NF, out=dup)
    dgate.copy_(torch.ops.aten.silu_backward(dy_NF * up, gate))
    return dx, activated.mul_(up)


def head_logits(hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None, cap: float | None = None) -> Tensor:
    """hidden @ weight.T in float32: on a GPU products in the weights' own type, summed and kept in float32.

    `cap` is Gemma's: logits are softly capped at it.
    """
    if weight_VD.dtype == torch.float32 or not hidden_ND.is_cuda:
        logits = F.linear(hidden_ND, weight_VD, bias_V).float()
    else:
        logits = torch.mm(hidden_ND, weight_VD.T, out_dtype=torch.float32)
        logits = logits if bias_V is None else logits.add_(bias_V)
    return logits if cap is None else logits.div_(cap).tanh_().mul_(cap)


def wide_product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b, summed and kept in float32."""
    return torch.mm(a, b, out_dtype=torch.float32) if a.is_cuda and a.dtype != torch.float32 else (a @ b).float()


def place_together(parts: Sequence[torch.nn.Parameter]) -> None:
    """Moves weights to one piece of memory, one after the other, so that `joined` needs no copy."""
    if _as_one(parts) is None:
        whole = torch.cat([p.data for p in parts])
        for p, part in zip(parts, whole.split([len(p) for p in parts]), strict=True):
            p.data = part


def joined(parts: Sequence[Tensor]) -> Tensor:
    """The tensors as one along the first axis; the same memory, where they are neighbours."""
    return _Joined.apply(*parts)


class _Joined(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *parts: Tensor) -> Tensor:
        ctx.sizes = [len(part) for part in parts]
        whole = _as_one(parts)
        return torch.cat(parts) if whole is None else whole

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        return grad.split(ctx.sizes)


def _as_one(parts: Sequence[Tensor]) -> Tensor | None:
    """Neighbours in memory as one tensor. None: they are not neighbours."""
    first = parts[0]
    start, shape = first.storage_offset(), first.shape[1:]
    end = start
    for part in parts:
        same = part.untyped_storage().data_ptr() == first.untyped_storage().data_ptr() and part.dtype == first.dtype
        if not same or part.storage_offset() != end or not part.is_contiguous() or part.shape[1:] != shape:
            return None
        end += part.numel()
    size = torch.Size((sum(map(len, parts)), *shape))
    return first.new_empty(0).set_(first.untyped_storage(), start, size, first.stride())
