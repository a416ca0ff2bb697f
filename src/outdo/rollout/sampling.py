"""Choosing the next token: temperature, top-k, top-p, and noise that depends on nothing but the answer's own seed."""

from __future__ import annotations

import torch
from torch import Tensor

from outdo.types import SampleParams

_MASK = (1 << 64) - 1


def _signed(value: int) -> int:
    """A 64-bit constant as torch's int64 holds it."""
    return value - (1 << 64) if value >> 63 else value


def uniforms(seeds_B: Tensor, position: int) -> Tensor:
    """One number in [0, 1) for each seed at this position: splitmix64, the same on every device."""
    gamma = _signed(0x9E3779B97F4A7C15 * (position + 1) & _MASK)
    z = seeds_B + gamma  # int64 wraps around, as splitmix wants
    z = (z ^ _shift(z, 30)) * _signed(0xBF58476D1CE4E5B9)
    z = (z ^ _shift(z, 27)) * _signed(0x94D049BB133111EB)
    z = z ^ _shift(z, 31)
    # 24 bits, what float32 holds exactly; odd, since a draw of 0 would choose the first token however unlikely it is.
    return (_shift(z, 40) | 1).to(torch.float32) * 2.0**-24


def _shift(z: Tensor, bits: int) -> Tensor:
    """Logical right shift; torch's own keeps the sign."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def pick(logits_BV: Tensor, noise_B: Tensor, params: SampleParams) -> tuple[Tensor, Tensor]:
    """The next tokens and their log-probabilities.

    The log-probability is that of softmax(logits / temperature), the distribution that the learner differentiates,
    also where top-k or top-p cut its tail off. Greedy choices get the log-probability at temperature 1.
    """
    logits_BV = logits_BV.float()
    if params.temperature > 0:
        logits_BV = logits_BV / params.temperature
    logprobs_BV = logits_BV.log_softmax(-1)
    if params.temperature == 0:
        tokens_B = logits_BV.argmax(-1)
    else:
        kept_BV = _kept(logprobs_BV.exp(), params)
        cdf_BV = kept_BV.cumsum(-1)
        # The first token whose cumulated probability exceeds the draw; one of probability 0 never does.
        draw_B1 = noise_B[:, None] * cdf_BV[:, -1:]
        tokens_B = ((cdf_BV > draw_B1) & (kept_BV > 0)).int().argmax(-1)
    return tokens_B, logprobs_BV.gather(-1, tokens_B[:, None])[:, 0]


def _kept(probs_BV: Tensor, params: SampleParams) -> Tensor:
    """Probabilities with the tail set to 0: the top_k likeliest, and of those the fewest that make up top_p."""
    if params.top_k and params.top_k < probs_BV.shape[-1]:
        least_B1 = probs_BV.topk(params.top_k, dim=-1).values[:, -1:]
        probs_BV = torch.where(probs_BV >= least_B1, probs_BV, 0.0)
    if params.top_p < 1.0:
        sorted_BV, order_BV = probs_BV.sort(dim=-1, descending=True)
        before_BV = sorted_BV.cumsum(-1) - sorted_BV
        kept_BV = torch.where(before_BV < params.top_p * sorted_BV.sum(-1, keepdim=True), sorted_BV, 0.0)
        probs_BV = torch.zeros_like(probs_BV).scatter(-1, order_BV, kept_BV)
    return probs_BV
