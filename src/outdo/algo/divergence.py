"""KL to the reference, estimated per sampled token.

With d = log p_ref - log p: k1 = -d is unbiased with high variance, k2 = d^2 / 2 is biased with low variance,
k3 = exp(d) - d - 1 is unbiased with low variance and never negative: the default.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def k1_kl(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    return logprobs - ref_logprobs


def k2_kl(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    return (ref_logprobs - logprobs) ** 2 / 2


def k3_kl(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    # expm1 keeps small divergences exact, where exp(d) - d - 1 rounds to noise (and below 0).
    d = ref_logprobs - logprobs
    return (torch.expm1(d) - d).clamp(min=0.0)


ESTIMATORS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"k1": k1_kl, "k2": k2_kl, "k3": k3_kl}


def adapt_beta(beta: float, kl: float, target: float, rate: float = 0.1) -> float:
    """The next KL coefficient: raised if KL is above the target, lowered if below, by at most `rate` x 20% a step.

    The proportional controller of Ziegler et al. (2019), with the error clipped at +-20%.
    """
    if target <= 0:
        raise ValueError(f"target={target}: the KL target must be positive")
    error = max(-0.2, min(0.2, kl / target - 1.0))
    return beta * (1.0 + rate * error)
