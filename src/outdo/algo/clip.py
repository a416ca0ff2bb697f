"""The clipped ratio: how far one batch may move the policy. Each surrogate is a loss to minimise, token by token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor


@dataclass(frozen=True)
class Surrogate:
    """Token losses, and which tokens the clip left without a gradient."""

    loss_BT: Tensor
    ratio_BT: Tensor  # before any clip, with its gradient; [B, 1] if there is one ratio per answer
    clipped_BT: Tensor


def clipped_ratio(
    log_ratio: Tensor, advantages_B1: Tensor, epsilon: float, epsilon_high: float, delta: float | None = None
) -> Surrogate:
    """PPO's pessimistic `-min(ratio A, clip(ratio, 1 - epsilon, 1 + epsilon_high) A)`.

    A > 0 clips only above, A < 0 only below, and with `delta` also above that. A clipped token's gradient is exactly 0.
    """
    if delta is not None and delta <= 1.0 + epsilon_high:
        raise ValueError(f"delta={delta} bounds the ratio where A < 0: it must be above 1 + {epsilon_high}")
    ratio = log_ratio.exp()
    clipped = ((advantages_B1 > 0) & (ratio > 1.0 + epsilon_high)) | ((advantages_B1 < 0) & (ratio < 1.0 - epsilon))
    bound = ratio.detach().clamp(1.0 - epsilon, 1.0 + epsilon_high)
    if delta is not None:
        beyond = (advantages_B1 < 0) & (ratio > delta)
        clipped, bound = clipped | beyond, torch.where(beyond, delta, bound)
    # The clipped branch must not touch exp: an infinite ratio times a gradient of 0 is NaN.
    stopped = clipped | (advantages_B1 == 0)
    loss = -advantages_B1 * torch.where(stopped, bound, torch.where(stopped, 0.0, log_ratio).exp())
    return Surrogate(loss, ratio, clipped)


def capped_weight(log_ratio: Tensor, logprobs_BT: Tensor, advantages_B1: Tensor, cap: float) -> Surrogate:
    """CISPO: REINFORCE weighted by a ratio that is capped and detached, so every token keeps its gradient.

    `clipped_BT` marks capped tokens of answers with A > 0. Those with A < 0 are capped too, but not counted.
    """
    ratio = log_ratio.exp()
    loss = -ratio.clamp(max=cap).detach() * advantages_B1 * logprobs_BT
    return Surrogate(loss, ratio, (ratio > cap) & (advantages_B1 > 0))


def sequence_log_ratio(log_ratio_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """GSPO: one ratio per answer, [B, 1]: the *mean* of its tokens' log-ratios, since a sum would grow with length."""
    return (log_ratio_BT * mask_BT).sum(-1, keepdim=True) / mask_BT.sum(-1, keepdim=True).clamp(min=1)


def truncated_weights(logprobs_BT: Tensor, sampler_logprobs_BT: Tensor, cap: float) -> Tensor:
    """Truncated importance sampling: `min(p_learner / p_sampler, cap)` per token, detached."""
    return (logprobs_BT - sampler_logprobs_BT).exp().clamp(max=cap).detach()


def masked_weights(logprobs_BT: Tensor, sampler_logprobs_BT: Tensor, cap: float) -> Tensor:
    """Masked importance sampling: the ratio where it lies in [1 / cap, cap], 0 elsewhere, detached."""
    ratio_BT = (logprobs_BT - sampler_logprobs_BT).exp().detach()
    return torch.where((ratio_BT <= cap) & (ratio_BT >= 1.0 / cap), ratio_BT, 0.0)


@dataclass(frozen=True)
class ClipCase:
    """One row of the clip table: the active branch at this advantage and ratio, its value and its gradient."""

    advantage: float
    ratio: float
    branch: str  # "ratio", or "clipped above" / "clipped below"
    objective: float
    gradient: float  # of the objective with respect to the ratio


def clip_table(
    epsilon: float = 0.2,
    epsilon_high: float | None = None,
    advantages: Sequence[float] = (1.0, -1.0),
    ratios: Sequence[float] = (0.5, 0.9, 1.0, 1.1, 1.5),
) -> list[ClipCase]:
    """The clip by cases: of its four corners, only two have no gradient.

    >>> [(c.ratio, c.branch) for c in clip_table(advantages=[1.0], ratios=[0.5, 1.5])]
    [(0.5, 'ratio'), (1.5, 'clipped above')]
    """
    high = epsilon if epsilon_high is None else epsilon_high
    cases = []
    for advantage, r in product(advantages, ratios):
        ratio = torch.tensor([[r]], dtype=torch.float64, requires_grad=True)
        surrogate = clipped_ratio(ratio.log(), torch.tensor([[advantage]], dtype=torch.float64), epsilon, high)
        objective = -surrogate.loss_BT
        (gradient,) = torch.autograd.grad(objective.sum(), ratio)
        branch = "ratio" if not surrogate.clipped_BT.item() else ("clipped above" if r > 1 else "clipped below")
        cases.append(ClipCase(advantage, r, branch, objective.item(), gradient.item()))
    return cases
