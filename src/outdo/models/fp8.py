"""The decoder of `stack.py` with the products of its MLPs in 8 bits, for sampling.

Their weights are rounded to float8_e4m3fn with a scale for each output, their inputs with a scale for each token. A
product then takes about half the time and half the memory traffic, and its result has an error of a few percent, so
that sampler and learner differ by more than rounding to bfloat16: the importance weights must correct for it. The other
products stay exact: they are small, so that rounding them would cost accuracy and gain nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from outdo.models import ops

if TYPE_CHECKING:
    from outdo.models.stack import Layer

LARGEST, SMALLEST = 448.0, 1e-12  # as in `kernels/fp8.py`
FULL_TILES = 100  # tiles of 128 x 128 from which a product occupies a large GPU without being split


class RoundedLayer(NamedTuple):
    """A layer's weights as `stack.Layer` has them, those of the MLP in 8 bits with the scales of their outputs."""

    norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    out: Tensor
    norm_mlp: Tensor
    gate_up: Tensor
    gate_up_scale: Tensor
    down: Tensor
    down_scale: Tensor


class Rounded(NamedTuple):
    """Tokens in 8 bits, and the scale of each."""

    values_ND: Tensor
    scale_N: Tensor


def supports(device: torch.device) -> bool:
    """Whether a GPU has these products. A CPU computes them in float32: right, and slow."""
    return device.type != "cuda" or (torch.version.cuda is not None and torch.cuda.get_device_capability() >= (9, 0))


@torch.no_grad()
def rounded(layer: Layer) -> RoundedLayer:
    weights = layer._asdict()
    for name in ("gate_up", "down"):
        weights[name], weights[f"{name}_scale"] = round_rows(weights[name])
    return RoundedLayer(**weights)


def round_rows(x_ND: Tensor) -> Rounded:
    wide = x_ND.float()
    scale_N = wide.abs().amax(-1).clamp(min=SMALLEST) / LARGEST
    return Rounded((wide / scale_N[:, None]).to(torch.float8_e4m3fn), scale_N)


def product(x: Rounded, w_ND: Tensor, w_scale_N: Tensor, dtype: torch.dtype) -> Tensor:
    if not w_ND.is_cuda:
        return F.linear(_wide(x), _wide(Rounded(w_ND, w_scale_N))).to(dtype)
    scales = x.scale_N[:, None], w_scale_N[None]
    return torch._scaled_mm(x.values_ND, w_ND.T, *scales, out_dtype=dtype, use_fast_accum=True)


def product_parts(x: Rounded, w_ND: Tensor, w_scale_N: Tensor, dtype: torch.dtype) -> Tensor:
    """The product as parts that are still to be summed."""
    k, tiles = ops.kernels(x.values_ND), -(-len(x.values_ND) // 128) * -(-len(w_ND) // 128)
    if k and tiles < FULL_TILES:
        return k.fp8.split_product(*x, w_ND, w_scale_N)
    return product(x, w_ND, w_scale_N, dtype)[None]


def add_norm(x_ND: Tensor, parts_SND: Tensor | None, weight_D: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x + the sum of the parts, and its RMS norm times the weight."""
    if k := ops.kernels(x_ND):
        return k.fp8.add_norm(x_ND, parts_SND, weight_D, eps, rounds=False)[:2]
    delta = None if parts_SND is None else parts_SND.sum(0).to(weight_D.dtype)
    return ops.add_norm(x_ND, delta, weight_D, eps)[:2]


def add_norm_rounded(x_ND: Tensor, delta_ND: Tensor, weight_D: Tensor, eps: float) -> tuple[Tensor, Rounded]:
    """x + delta, and its RMS norm times the weight in 8 bits."""
    if k := ops.kernels(x_ND):
        total, *rounded = k.fp8.add_norm(x_ND, delta_ND[None], weight_D, eps, rounds=True)
        return total, Rounded(*rounded)
    total, y, _ = ops.add_norm(x_ND, delta_ND, weight_D, eps)
    return total, round_rows(y)


def swiglu(x_N2F: Tensor) -> Rounded:
    if k := ops.kernels(x_N2F):
        return Rounded(*k.fp8.swiglu(x_N2F))
    return round_rows(ops.swiglu(x_N2F))


def _wide(x: Rounded) -> Tensor:
    return x.values_ND.float() * x.scale_N[:, None]
