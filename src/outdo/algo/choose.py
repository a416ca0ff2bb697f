"""Which tokens of an update a loss treats apart. The choice is made once, over the whole update: a quantile or a
covariance of a part would be another one.

Legend: M trained tokens of an update, in the order of its samples.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

MOST = 2**24  # values that torch.quantile takes
ROUNDING = 1e-5  # of an entropy


class Tokens(NamedTuple):
    """Of a whole update, on the CPU in float32."""

    advantages_M: Tensor
    logprobs_M: Tensor  # of the policy before the update
    sampler_logprobs_M: Tensor
    entropies_M: Tensor | None = None


def top_entropy(entropies_M: Tensor, share: float) -> Tensor:
    """The tokens whose entropy is at or above the quantile 1 - `share` (Wang et al. 2025, Beyond the 80/20 rule).

    Siblings begin with the same tokens and so have equal entropies: rounding must not choose between them."""
    if not len(entropies_M):
        return torch.zeros(0, dtype=torch.bool)
    if len(entropies_M) <= MOST:
        return entropies_M >= torch.quantile(entropies_M, 1.0 - share) - ROUNDING
    return entropies_M >= entropies_M.kthvalue(1 + round((1.0 - share) * (len(entropies_M) - 1))).values - ROUNDING


def covariances(tokens: Tokens) -> Tensor:
    """Each token's part of the covariance of advantage and log-probability: what it does to the policy's entropy."""
    advantages_M, logprobs_M = tokens.advantages_M.double(), tokens.logprobs_M.double()
    return (advantages_M - advantages_M.mean()) * (logprobs_M - logprobs_M.mean())


def within_covariance(
    tokens: Tokens, share: float, lower: float, upper: float, epsilon: float, epsilon_high: float, seed: int
) -> Tensor:
    """Clip-Cov: a random `share` of all tokens, one at least, out of those with a covariance between the bounds that
    the clip of the ratio leaves a gradient."""
    chosen = torch.zeros(len(tokens.logprobs_M), dtype=torch.bool)
    ratio_M = (tokens.logprobs_M - tokens.sampler_logprobs_M).exp()
    above = (tokens.advantages_M > 0) & (ratio_M > 1.0 + epsilon_high)
    below = (tokens.advantages_M < 0) & (ratio_M < 1.0 - epsilon)
    cov_M = covariances(tokens)
    places = ((cov_M > lower) & (cov_M < upper) & ~above & ~below).nonzero()[:, 0]
    order = torch.randperm(len(places), generator=torch.Generator().manual_seed(seed))
    chosen[places[order[: _count(share, len(chosen))]]] = True
    return chosen


def largest_covariance(tokens: Tokens, share: float) -> Tensor:
    """KL-Cov: the `share` of all tokens with the largest covariances, one at least."""
    chosen = torch.zeros(len(tokens.logprobs_M), dtype=torch.bool)
    if len(chosen):
        chosen[covariances(tokens).topk(min(_count(share, len(chosen)), len(chosen))).indices] = True
    return chosen


def _count(share: float, total: int) -> int:
    return max(1, int(share * total))
