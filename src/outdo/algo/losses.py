"""The GRPO loss and its variants. A variant is one function and one line in LOSSES; nothing else branches on its name.

Definitions follow TRL's, so that a recipe means the same in both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from outdo.algo import divergence, reduce
from outdo.algo.clip import Surrogate, capped_weight, clipped_ratio, sequence_log_ratio
from outdo.algo.reduce import Totals


@dataclass(frozen=True)
class Inputs:
    logprobs_BT: Tensor
    log_ratio_BT: Tensor
    advantages_B1: Tensor
    mask_BT: Tensor
    epsilon: float
    epsilon_high: float | None


def token_clip(x: Inputs) -> Surrogate:
    return clipped_ratio(x.log_ratio_BT, x.advantages_B1, x.epsilon, _or(x.epsilon_high, x.epsilon))


def sequence_clip(x: Inputs) -> Surrogate:
    log_ratio_B1 = sequence_log_ratio(x.log_ratio_BT, x.mask_BT)
    return clipped_ratio(log_ratio_B1, x.advantages_B1, x.epsilon, _or(x.epsilon_high, x.epsilon))


def cispo_weight(x: Inputs) -> Surrogate:
    """Here `epsilon_high` is the cap itself, not a distance from 1; 5 unless set, as in the ScaleRL study."""
    return capped_weight(x.log_ratio_BT, x.logprobs_BT, x.advantages_B1, _or(x.epsilon_high, 5.0))


@dataclass(frozen=True)
class Variant:
    surrogate: Callable[[Inputs], Surrogate]
    reduce: Callable[[Tensor, Tensor, Totals], Tensor]
    # With several updates per step: num_tokens of this update's answers, or the step's average per update.
    tokens_of: Literal["update", "step"] = "update"


LOSSES: dict[str, Variant] = {
    "grpo": Variant(token_clip, reduce.per_sequence),  # Shao et al. 2024, DeepSeekMath
    "bnpo": Variant(token_clip, reduce.per_token),  # token mean over the update's own answers
    "dapo": Variant(token_clip, reduce.per_token, tokens_of="step"),  # Yu et al. 2025
    "dr_grpo": Variant(token_clip, reduce.by_constant),  # Liu et al. 2025
    "gspo": Variant(sequence_clip, reduce.per_sequence),  # Zheng et al. 2025
    "cispo": Variant(cispo_weight, reduce.per_token, tokens_of="step"),  # MiniMax-M1, 2025
}


def grpo_loss(
    logprobs_BT: Tensor,
    old_logprobs_BT: Tensor,
    advantages_B: Tensor,
    mask_BT: Tensor,
    *,
    ref_logprobs_BT: Tensor | None = None,
    epsilon: float = 0.2,
    epsilon_high: float | None = None,
    beta: float = 0.0,
    loss_type: str = "grpo",
    max_completion_length: int | None = None,
    num_tokens: int | None = None,
    num_sequences: int | None = None,
    kl_estimator: str = "k3",
    weights_BT: Tensor | None = None,
    entropy_BT: Tensor | None = None,
    entropy_coef: float = 0.0,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of a batch or micro-batch, and its statistics.

    Masked-out tokens are ignored, even NaN or infinite ones. `old_logprobs_BT` is detached here. For a micro-batch,
    `num_tokens` and `num_sequences` are the totals of the whole batch, so that its micro-batches' losses add up to its
    loss. `weights_BT` multiplies the policy term (see `truncated_weights`). The statistics are means over the tokens
    given: clipfrac, kl (0 without a reference), ratio_mean.
    """
    if loss_type not in LOSSES:
        raise ValueError(f"loss_type={loss_type!r} is not one of {', '.join(LOSSES)}")
    if kl_estimator not in divergence.ESTIMATORS:
        raise ValueError(f"kl_estimator={kl_estimator!r} is not one of {', '.join(divergence.ESTIMATORS)}")
    if beta and ref_logprobs_BT is None:
        raise ValueError(f"beta={beta} adds a KL term, which needs ref_logprobs_BT")
    variant, keep_BT = LOSSES[loss_type], mask_BT.bool()
    mask_BT = keep_BT.to(logprobs_BT.dtype)
    totals = Totals(
        num_sequences=logprobs_BT.shape[0] if num_sequences is None else num_sequences,
        num_tokens=int(keep_BT.sum()) if num_tokens is None else num_tokens,
        max_completion_length=max_completion_length,
    )
    # Zeroing the difference, not the product, keeps a NaN or infinity under the mask out of the gradient too.
    log_ratio_BT = torch.where(keep_BT, logprobs_BT - old_logprobs_BT.detach(), 0.0)
    logprobs_BT = torch.where(keep_BT, logprobs_BT, 0.0)
    inputs = Inputs(logprobs_BT, log_ratio_BT, advantages_B.unsqueeze(-1), mask_BT, epsilon, epsilon_high)
    surrogate = variant.surrogate(inputs)
    loss_BT = surrogate.loss_BT.expand_as(mask_BT)
    if weights_BT is not None:
        loss_BT = loss_BT * torch.where(keep_BT, weights_BT, 0.0)
    kl_BT = torch.zeros_like(mask_BT)
    if ref_logprobs_BT is not None:
        ref_logprobs_BT = torch.where(keep_BT, ref_logprobs_BT, logprobs_BT.detach())
        kl_BT = divergence.ESTIMATORS[kl_estimator](logprobs_BT, ref_logprobs_BT)
        loss_BT = loss_BT + beta * kl_BT if beta else loss_BT
    loss = variant.reduce(loss_BT, mask_BT, totals)
    if entropy_coef:
        if entropy_BT is None:
            raise ValueError(f"entropy_coef={entropy_coef} needs entropy_BT")
        loss = loss - entropy_coef * reduce.per_token(torch.where(keep_BT, entropy_BT, 0.0), mask_BT, totals)
    stats_BT = {"clipfrac": surrogate.clipped_BT.to(mask_BT.dtype), "kl": kl_BT, "ratio_mean": surrogate.ratio_BT}
    count = mask_BT.sum().clamp(min=1)
    return loss, {key: (x.detach().expand_as(mask_BT) * mask_BT).sum() / count for key, x in stats_BT.items()}


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
