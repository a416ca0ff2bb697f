"""What takes the place of the hard clip: gates of the ratio, and masks by the divergence or the covariance of a token.

Each is a loss to minimise, token by token, like those of `clip.py`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from outdo.algo.clip import Surrogate

MAX_LOG_RATIO = 20.0  # beyond it, its exponential is no use
LEAST_WEIGHT = 1e-8  # of an answer, in VESPO
LEAST_DECAY = 1e-4  # of its lambda
ALMOST_ONE = 1.0 - 1e-7  # a probability whose complement has a logarithm


def soft_gate(log_ratio: Tensor, advantages_B1: Tensor, temperature_pos: float, temperature_neg: float) -> Surrogate:
    """SAPO: `-A sigmoid(t (ratio - 1)) 4 / t`. At 1 the gradient is the ratio's, and it fades on both sides."""
    temperature_B1 = torch.where(advantages_B1 > 0, temperature_pos, temperature_neg).to(log_ratio.dtype)
    ratio = log_ratio.clamp(max=MAX_LOG_RATIO).exp()
    gate = torch.sigmoid(temperature_B1 * (ratio - 1.0)) * 4.0 / temperature_B1
    return Surrogate(-gate * advantages_B1, ratio, torch.zeros_like(ratio, dtype=torch.bool))


def gamma_weight(
    log_weight_B1: Tensor, advantages_B1: Tensor, pos: tuple[float, float], neg: tuple[float, float]
) -> Tensor:
    """VESPO's weight of an answer, `w^k exp(lambda (1 - w))` for its importance weight w, detached; 1 at w = 1.

    `pos` and `neg` are (k, lambda) for A >= 0 and A < 0. The largest weight is at w = k / lambda.
    """
    log_w = log_weight_B1.detach().clamp(math.log(LEAST_WEIGHT), MAX_LOG_RATIO)
    k, decay = (torch.where(advantages_B1 >= 0, *both).to(log_w.dtype) for both in zip(pos, neg, strict=True))
    decay = decay.clamp(min=LEAST_DECAY)
    return (decay + k * log_w - decay * log_w.exp()).exp().nan_to_num(nan=0.0, posinf=0.0)


def answer_log_weight(log_ratio_BT: Tensor, weights_BT: Tensor | None, mask_BT: Tensor) -> Tensor:
    """The log of an answer's importance weight, [B, 1]: the sum of its tokens', each within bounds. `weights_BT` are
    those between learner and sampler; one of 0 counts as the least weight."""
    total = (log_ratio_BT.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO) * mask_BT).sum(-1, keepdim=True)
    if weights_BT is not None:
        log_BT = weights_BT.clamp(min=LEAST_WEIGHT).log().clamp(max=MAX_LOG_RATIO)
        total = total + torch.where(mask_BT.bool(), log_BT, 0.0).sum(-1, keepdim=True)
    return total


def geometric_mean(
    log_ratio_BT: Tensor, advantages_B1: Tensor, kept_BT: Tensor, epsilon: float, epsilon_high: float
) -> Surrogate:
    """GMPO: `-A exp(mean of the tokens' clipped log-ratios)`, over the kept tokens of each answer.

    The clip is of the *logarithm*: at `epsilon_high` where A > 0, at `-epsilon` elsewhere.
    """
    upper, lower = log_ratio_BT.clamp(max=epsilon_high), log_ratio_BT.clamp(min=-epsilon)
    bounded_BT = torch.where(advantages_B1 > 0, upper, lower)
    clipped_BT = (bounded_BT != log_ratio_BT) & (advantages_B1 != 0)
    mean_B1 = (bounded_BT * kept_BT).sum(-1, keepdim=True) / kept_BT.sum(-1, keepdim=True).clamp(min=1)
    return Surrogate(-advantages_B1 * mean_B1.exp(), log_ratio_BT.exp(), clipped_BT)


def divergence_masked(
    logprobs_BT: Tensor, log_ratio_BT: Tensor, advantages_B1: Tensor, bounds: tuple[float, float], kind: str, cap: float
) -> Surrogate:
    """DPPO: REINFORCE weighted by the ratio to the sampler, capped and detached, without the tokens whose probability
    has moved too far in the direction of their advantage.

    How far is the divergence of two coins, the token or another: |p - q| (binary_tv), or KL(q | p) (binary_kl). Its
    `bounds` are for a probability that has fallen and one that has risen.
    """
    logp, gap = logprobs_BT.detach(), log_ratio_BT.detach()
    p, q = logp.exp(), (logp - gap).exp()
    if kind == "binary_tv":
        divergence = (p - q).abs()
    else:
        rest_q, rest_p = (torch.log1p(-x.clamp(max=ALMOST_ONE)) for x in (q, p))
        divergence = (1.0 - q) * (rest_q - rest_p) - q * gap
    fallen, risen = (divergence > bounds[0]) & (p < q), (divergence > bounds[1]) & (p > q)
    moved = torch.where(advantages_B1 > 0, risen, fallen)
    ratio = log_ratio_BT.exp()
    loss = -ratio.clamp(max=cap).detach() * advantages_B1 * logprobs_BT
    return Surrogate(torch.where(moved, 0.0, loss), ratio, moved & (advantages_B1 != 0))


def without(surrogate: Surrogate, chosen_BT: Tensor) -> Surrogate:
    """Clip-Cov: the same loss, without the chosen tokens."""
    loss_BT = torch.where(chosen_BT, 0.0, surrogate.loss_BT)
    return Surrogate(loss_BT, surrogate.ratio_BT, surrogate.clipped_BT | chosen_BT)


def penalised(log_ratio_BT: Tensor, advantages_B1: Tensor, chosen_BT: Tensor, coef: float) -> Surrogate:
    """KL-Cov: `-ratio A` without a clip, and `coef |log ratio|` added for the chosen tokens."""
    gain_BT = torch.where(advantages_B1 == 0, 0.0, log_ratio_BT).exp() * advantages_B1
    loss_BT = torch.where(chosen_BT, coef * log_ratio_BT.abs(), 0.0) - gain_BT
    return Surrogate(loss_BT, log_ratio_BT.exp(), torch.zeros_like(chosen_BT))


def on_policy_answers(log_ratio_BT: Tensor, advantages_B1: Tensor, mask_BT: Tensor, threshold: float) -> Tensor:
    """Which answers are trained on, [B, 1]: not those with A < 0 whose mean log(sampler / policy) is above the
    threshold (DeepSeek-V3.2's mask)."""
    drift_B1 = -(log_ratio_BT.detach() * mask_BT).sum(-1, keepdim=True) / mask_BT.sum(-1, keepdim=True).clamp(min=1)
    return (advantages_B1 >= 0) | (drift_B1 <= threshold)
