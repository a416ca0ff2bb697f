"""Choosing the next token: temperature, top-k, top-p, min-p, and noise that depends on the answer's seed alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from outdo.models.ops import kernels
from outdo.types import SampleParams

MAX_SUPPORT = 256  # tokens that top_p or min_p alone leave at most: the support travels with the answer
# 64-bit constants as torch's int64 holds them.
SPLITMIX = tuple(value - (1 << 64) for value in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def uniforms(seeds_B: Tensor, positions_B: Tensor | int) -> Tensor:
    """A number in (0, 1) for each seed and position: splitmix64, the same on every device."""
    step, first, second = SPLITMIX
    z = seeds_B + (torch.as_tensor(positions_B, device=seeds_B.device).long() + 1) * step  # int64 wraps around
    z = (z ^ _shift(z, 30)) * first
    z = (z ^ _shift(z, 27)) * second
    z = z ^ _shift(z, 31)
    # 24 bits, what float32 holds exactly; odd, since a draw of 0 would choose the first token however unlikely it is.
    return (_shift(z, 40) | 1).to(torch.float32) * 2.0**-24


def _shift(z: Tensor, bits: int) -> Tensor:
    """Logical right shift; torch's own keeps the sign."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def stop_at(decode: Callable[[tuple[int, ...]], str], ids: Sequence[int], stop: Sequence[str]) -> int | None:
    """How many of the tokens complete the first stop text; None where their text holds none."""

    def stops(count: int) -> bool:
        text = decode(tuple(ids[:count]))
        return any(one in text for one in stop)

    if not stop or not stops(len(ids)):
        return None
    return next(count for count in range(1, len(ids) + 1) if stops(count))


class Picked(NamedTuple):
    """The next token of each row, its log-probability under the distribution that it was drawn from, and, where that
    was truncated, its support: the tokens left to choose from."""

    tokens_B: Tensor
    logprobs_B: Tensor
    support_BK: Tensor | None = None  # likeliest first, padded with -1


def choose(logits_BV: Tensor, seeds_B: Tensor, positions_B: Tensor, params: SampleParams) -> Picked:
    """The next tokens, by the noise of each row's seed at its position."""
    if (k := kernels(logits_BV)) and params.temperature > 0 and not params.truncates:
        return Picked(*k.draw(logits_BV, seeds_B, positions_B, params.temperature, SPLITMIX))
    return pick(logits_BV, uniforms(seeds_B, positions_B), params)


def pick(logits_BV: Tensor, noise_B: Tensor, params: SampleParams) -> Picked:
    """Draws by `noise_B`, a number in (0, 1) for each row. Greedy choices get the log-probability at temperature 1."""
    if params.temperature == 0:
        tokens_B = logits_BV.argmax(-1)
        logprobs_BV = logits_BV.float().log_softmax(-1)
        return Picked(tokens_B, logprobs_BV.gather(-1, tokens_B[:, None])[:, 0])
    if params.truncates:
        return _pick_among(logits_BV.float() / params.temperature, noise_B, params)
    probs_BV = (logits_BV.float() / params.temperature).softmax(-1)
    tokens_B1 = _draw(probs_BV, noise_B)
    return Picked(tokens_B1[:, 0], probs_BV.gather(-1, tokens_B1).log_()[:, 0])


def _draw(weights_BV: Tensor, noise_B: Tensor) -> Tensor:
    """[B, 1]: the first token whose cumulated weight exceeds the draw; never one of weight 0."""
    cdf_BV = weights_BV.cumsum(-1)
    total_B1 = cdf_BV[:, -1:].contiguous()
    below_B1 = total_B1.nextafter(torch.zeros_like(total_B1))  # rounding may move the draw to the very end
    return torch.searchsorted(cdf_BV, torch.minimum(noise_B[:, None] * total_B1, below_B1), right=True)


def _pick_among(logits_BV: Tensor, noise_B: Tensor, params: SampleParams) -> Picked:
    """Draws from the top_k likeliest, of those the fewest that make up top_p, of those the ones that min_p keeps."""
    count = min(params.top_k or MAX_SUPPORT, logits_BV.shape[-1])
    total_B1 = logits_BV.logsumexp(-1, keepdim=True)
    top_BK, ids_BK = logits_BV.topk(count, dim=-1)
    probs_BK = (top_BK - total_B1).exp()
    if params.top_k:  # top_p is a share of what top_k kept
        probs_BK = probs_BK / probs_BK.sum(-1, keepdim=True)
    kept_BK = probs_BK.cumsum(-1) - probs_BK < params.top_p
    kept_BK = kept_BK & (probs_BK >= params.min_p * probs_BK[:, :1])
    probs_BK = torch.where(kept_BK, probs_BK, 0.0)
    place_B1 = _draw(probs_BK, noise_B)
    share_B = (probs_BK.gather(-1, place_B1) / probs_BK.sum(-1, keepdim=True))[:, 0]
    return Picked(ids_BK.gather(-1, place_B1)[:, 0], share_B.log(), torch.where(kept_BK, ids_BK, -1))
