"""The decoder of `stack.py` with the products of its layers in 8 bits, for sampling.

Weights are rounded to float8_e4m3fn with a scale for each output, their inputs with a scale for each token; sums, the
residual stream, attention and the head are as they are without it. A product then takes half the time and half the
memory traffic, and its result has an error of a few percent, so that sampler and learner differ by more than rounding
to bfloat16: the importance weights must correct for it.
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
    """A layer's weights as `stack.Layer` has them, those of products in 8 bits with the scales of their outputs."""

    norm: Tensor
    qkv: Tensor
    qkv_scale: Tensor
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    out: Tensor
    out_scale: Tensor
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
    for name in ("qkv", "out", "gate_up", "down"):
        weights[name], weights[f"{name}_scale"] = round_rows(weights[name])
    return RoundedLayer(**weights)


def round_rows(x_ND: Tensor) -> Rounded:
    if (k := ops.kernels(x_ND)) and x_ND.shape[1] <= 16384:
        return Rounded(*k.fp8.round_rows(x_ND))
    wide = x_ND.float()
    scale_N = wide.abs().amax(-1).clamp(min=SMALLEST) / LARGEST
    return Rounded((wide / scale_N[:, None]).to(torch.float8_e4m3fn), scale_N)


def product(x: Rounded, w_ND: Tensor, w_scale_N: Tensor, bias_N: Tensor | None, dtype: torch.dtype) -> Tensor:
    if not w_ND.is_cuda:
        return F.linear(_wide(x), _wide(Rounded(w_ND, w_scale_N)), None if bias_N is None else bias_N.float()).to(dtype)
    scales = x.scale_N[:, None], w_scale_N[None]
    out = torch._scaled_mm(x.values_ND, w_ND.T, *scales, out_dtype=dtype, use_fast_accum=True)
    return out if bias_N is None else out.add_(bias_N)


def product_parts(x: Rounded, w_ND: Tensor, w_scale_N: Tensor, dtype: torch.dtype) -> Tensor:
    """The product as parts that are still to be summed."""
    k, tiles = ops.kernels(x.values_ND), -(-len(x.values_ND) // 128) * -(-len(w_ND) // 128)
    if k and tiles < FULL_TILES:
        return k.fp8.split_product(*x, w_ND, w_scale_N)
    return product(x, w_ND, w_scale_N, None, dtype)[None]


def add_norm(x_ND: Tensor, parts_SND: Tensor | None, weight_D: Tensor, eps: float) -> tuple[Tensor, Rounded]:
    """x + the sum of the parts, and its RMS norm times the weight."""
    if k := ops.kernels(x_ND):
        total, *rounded = k.fp8.add_norm(x_ND, parts_SND, weight_D, eps)
        return total, Rounded(*rounded)
    total, y, _ = ops.add_norm(x_ND, _summed(parts_SND, weight_D.dtype), weight_D, eps)
    return total, round_rows(y)


def swiglu(x_N2F: Tensor) -> Rounded:
    if k := ops.kernels(x_N2F):
        return Rounded(*k.fp8.swiglu(x_N2F))
    return round_rows(ops.swiglu(x_N2F))


def _wide(x: Rounded) -> Tensor:
    return x.values_ND.float() * x.scale_N[:, None]


def _summed(parts_SND: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if parts_SND is None else parts_SND.sum(0).to(dtype)
