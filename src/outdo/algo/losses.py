"""The GRPO loss and its variants. A variant is one function and one line in LOSSES; nothing else branches on its name.

Definitions follow TRL's, so that a recipe means the same in both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

import torch
from torch import Tensor

from outdo.algo import choose, divergence, gates, reduce
from outdo.algo.choose import Tokens
from outdo.algo.clip import Surrogate, capped_weight, clipped_ratio, sequence_log_ratio
from outdo.algo.reduce import Totals


@dataclass(frozen=True)
class Settings:
    """Keys of the recipe that losses read, with the same names and defaults. The recipe explains them."""

    epsilon: float = 0.2
    epsilon_high: float | None = None
    delta: float | None = None
    importance_sampling_level: str = "token"
    sapo_temperature_pos: float = 1.0
    sapo_temperature_neg: float = 1.05
    vespo_k_pos: float = 2.0
    vespo_lambda_pos: float = 3.0
    vespo_k_neg: float = 3.0
    vespo_lambda_neg: float = 2.0
    divergence_type: str = "binary_tv"
    clip_ratio_c: float = 10.0
    clip_cov_ratio: float = 0.0002
    clip_cov_lb: float = 1.0
    clip_cov_ub: float = 5.0
    kl_cov_ratio: float = 0.0002
    ppo_kl_coef: float = 0.1
    off_policy_mask_threshold: float | None = None
    use_bias_correction_kl: bool = False
    top_entropy_quantile: float = 1.0

    @property
    def high(self) -> float:
        return self.epsilon if self.epsilon_high is None else self.epsilon_high

    @classmethod
    def of(cls, recipe: Any) -> Settings:
        """Those of a recipe, or of anything with its keys."""
        return cls(**{one.name: getattr(recipe, one.name) for one in fields(cls)})


@dataclass(frozen=True)
class Inputs:
    """What a loss is made of. Under the mask all values are finite."""

    logprobs_BT: Tensor
    log_ratio_BT: Tensor
    advantages_B1: Tensor
    mask_BT: Tensor
    settings: Settings
    sampler_logprobs_BT: Tensor | None = None  # the sampler's own, where those are not the old ones
    weights_BT: Tensor | None = None  # importance weights between learner and sampler
    chosen_BT: Tensor | None = None  # tokens treated apart, or with `top_entropy_quantile` those that are trained on

    @property
    def log_weight(self) -> Tensor:
        """The log-ratio at `importance_sampling_level`: of each token, or the mean over an answer's, [B, 1]."""
        if self.settings.importance_sampling_level == "sequence":
            return sequence_log_ratio(self.log_ratio_BT, self.mask_BT)
        return self.log_ratio_BT

    @property
    def sampler_log_ratio_BT(self) -> Tensor:
        """To the sampler's own log-probabilities."""
        if self.sampler_logprobs_BT is None:
            return self.log_ratio_BT
        return torch.where(self.mask_BT.bool(), self.logprobs_BT - self.sampler_logprobs_BT.detach(), 0.0)


def ratio_clip(x: Inputs) -> Surrogate:
    return clipped_ratio(x.log_weight, x.advantages_B1, x.settings.epsilon, x.settings.high, x.settings.delta)


def sequence_clip(x: Inputs) -> Surrogate:
    """With one ratio per answer, whatever the level."""
    return ratio_clip(replace(x, settings=replace(x.settings, importance_sampling_level="sequence")))


def cispo_weight(x: Inputs) -> Surrogate:
    """Here `epsilon_high` is the cap itself, not a distance from 1; 5 unless set, as in the ScaleRL study."""
    high = x.settings.epsilon_high
    return capped_weight(x.log_weight, x.logprobs_BT, x.advantages_B1, 5.0 if high is None else high)


def sapo_gate(x: Inputs) -> Surrogate:
    temperatures = x.settings.sapo_temperature_pos, x.settings.sapo_temperature_neg
    return gates.soft_gate(x.log_weight, x.advantages_B1, *temperatures)


def vespo_weight(x: Inputs) -> Surrogate:
    s, log_weight_B1 = x.settings, gates.answer_log_weight(x.log_ratio_BT, x.weights_BT, x.mask_BT)
    shapes = (s.vespo_k_pos, s.vespo_lambda_pos), (s.vespo_k_neg, s.vespo_lambda_neg)
    loss_BT = -gates.gamma_weight(log_weight_B1, x.advantages_B1, *shapes) * x.advantages_B1 * x.logprobs_BT
    return Surrogate(loss_BT, x.log_ratio_BT.exp(), torch.zeros_like(loss_BT, dtype=torch.bool))


def geometric_clip(x: Inputs) -> Surrogate:
    kept_BT = x.mask_BT if x.chosen_BT is None else x.mask_BT * x.chosen_BT
    return gates.geometric_mean(x.log_ratio_BT, x.advantages_B1, kept_BT, x.settings.epsilon, x.settings.high)


def divergence_clip(x: Inputs) -> Surrogate:
    """Here the epsilons bound a divergence, not the ratio."""
    s, at = x.settings, (x.logprobs_BT, x.sampler_log_ratio_BT, x.advantages_B1)
    return gates.divergence_masked(*at, (s.epsilon, s.high), s.divergence_type, s.clip_ratio_c)


def covariance_clip(x: Inputs) -> Surrogate:
    return gates.without(ratio_clip(x), _chosen(x))


def covariance_penalty(x: Inputs) -> Surrogate:
    return gates.penalised(x.log_ratio_BT, x.advantages_B1, _chosen(x), x.settings.ppo_kl_coef)


def _chosen(x: Inputs) -> Tensor:
    if x.chosen_BT is None:
        raise ValueError(
            "the loss treats some tokens of an update apart: pass chosen_BT (outdo.algo.choose finds them)"
        )
    return x.chosen_BT & x.mask_BT.bool()


def choose_within(tokens: Tokens, s: Settings, seed: int) -> Tensor:
    bounds = s.clip_cov_ratio, s.clip_cov_lb, s.clip_cov_ub
    return choose.within_covariance(tokens, *bounds, s.epsilon, s.high, seed)


def choose_top(tokens: Tokens, s: Settings, seed: int) -> Tensor:
    return choose.largest_covariance(tokens, s.kl_cov_ratio)


EPSILONS = ("epsilon", "epsilon_high")
LEVEL = "importance_sampling_level"
CLIP = (*EPSILONS, "delta", LEVEL)


@dataclass(frozen=True)
class Variant:
    surrogate: Callable[[Inputs], Surrogate]
    reduce: Callable[[Tensor, Tensor, Totals], Tensor]
    # With several updates per step: num_tokens of this update's answers, or the step's average per update.
    tokens_of: Literal["update", "step"] = "update"
    reads: tuple[str, ...] | None = None  # keys of Settings beside the general ones; None: all
    levels: tuple[str, ...] = ("token", "sequence")  # what `importance_sampling_level` may be
    excludes: Mapping[str, str] = field(default_factory=dict)  # keys that must have their defaults, and why
    applies: tuple[str, ...] = ()  # what the surrogate applies itself: weights, chosen
    choose: Callable[[Tokens, Settings, int], Tensor] | None = None  # the tokens that it treats apart
    moves_all: bool = False  # answers with advantage 0 may get a gradient too

    @property
    def sums_tokens(self) -> bool:
        """Whether a long answer weighs more than a short one without being meant to."""
        return self.reduce in (reduce.per_token, reduce.by_constant)


_CHOICE = {"top_entropy_quantile": "it chooses tokens by their covariance itself"}
_WEIGHT = "it weighs tokens by the ratio to the sampler itself, at most clip_ratio_c"
_REGION = {
    "top_entropy_quantile": "it chooses tokens by their divergence itself",
    "off_policy_mask_threshold": "it masks tokens by their divergence itself",
    "importance_sampling": _WEIGHT,
    "importance_sampling_cap": _WEIGHT,
}
_SAPO = (LEVEL, "sapo_temperature_pos", "sapo_temperature_neg")
_VESPO = ("vespo_k_pos", "vespo_lambda_pos", "vespo_k_neg", "vespo_lambda_neg")
_DPPO = (*EPSILONS, "divergence_type", "clip_ratio_c")
_CLIP_COV = (*EPSILONS, "clip_cov_ratio", "clip_cov_lb", "clip_cov_ub")
_KL_COV = ("kl_cov_ratio", "ppo_kl_coef")
_TOKEN, _ANSWER = ("token",), ("sequence",)
_WEIGHTS, _CHOSEN = ("weights",), ("chosen",)

LOSSES: dict[str, Variant] = {
    "grpo": Variant(ratio_clip, reduce.per_sequence, reads=CLIP),  # Shao et al. 2024, DeepSeekMath
    "bnpo": Variant(ratio_clip, reduce.per_token, reads=CLIP),  # token mean over the update's own answers
    "dapo": Variant(ratio_clip, reduce.per_token, "step", CLIP),  # Yu et al. 2025
    "dr_grpo": Variant(ratio_clip, reduce.by_constant, reads=CLIP),  # Liu et al. 2025
    "gspo": Variant(sequence_clip, reduce.per_sequence, reads=CLIP),  # Zheng et al. 2025
    "luspo": Variant(ratio_clip, reduce.per_answer_sum, reads=CLIP, levels=_ANSWER),  # arXiv 2602.05261
    "cispo": Variant(cispo_weight, reduce.per_token, "step", ("epsilon_high", LEVEL)),  # MiniMax-M1, 2025
    "sapo": Variant(sapo_gate, reduce.per_sequence, reads=_SAPO),  # Gao et al. 2025, arXiv 2511.20347
    # arXiv 2602.10693
    "vespo": Variant(vespo_weight, reduce.per_token, "step", _VESPO, _TOKEN, applies=_WEIGHTS),
    # Zhao et al. 2025, arXiv 2507.20673
    "gmpo": Variant(geometric_clip, reduce.per_sequence, reads=EPSILONS, levels=_TOKEN, applies=_CHOSEN),
    # Qi et al. 2026, arXiv 2602.04879
    "dppo": Variant(divergence_clip, reduce.per_token, "step", _DPPO, _TOKEN, _REGION, _WEIGHTS),
    # Cui et al. 2025, arXiv 2505.22617
    "clip_cov": Variant(
        covariance_clip, reduce.per_token, "update", _CLIP_COV, _TOKEN, _CHOICE, _CHOSEN, choose=choose_within
    ),
    "kl_cov": Variant(
        covariance_penalty, reduce.per_token, "update", _KL_COV, _TOKEN, _CHOICE, _CHOSEN, choose_top, moves_all=True
    ),
}


def grpo_loss(
    logprobs_BT: Tensor,
    old_logprobs_BT: Tensor,
    advantages_B: Tensor,
    mask_BT: Tensor,
    *,
    ref_logprobs_BT: Tensor | None = None,
    beta: float = 0.0,
    loss_type: str = "grpo",
    max_completion_length: int | None = None,
    num_tokens: float | None = None,
    num_sequences: int | None = None,
    num_chosen: int | None = None,
    kl_estimator: str = "k3",
    weights_BT: Tensor | None = None,
    sampler_logprobs_BT: Tensor | None = None,
    chosen_BT: Tensor | None = None,
    entropy_BT: Tensor | None = None,
    entropy_coef: float = 0.0,
    **settings: Any,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of a batch or micro-batch, and its statistics. `settings` are keys of `Settings`: epsilon, delta, ….

    Masked-out tokens are ignored, even NaN or infinite ones. `old_logprobs_BT` is detached here. For a micro-batch,
    `num_tokens`, `num_sequences` and `num_chosen` are the totals of the whole batch, so that its micro-batches' losses
    add up to its loss. `weights_BT` multiplies the policy term (see `truncated_weights`). `sampler_logprobs_BT` are the
    sampler's own, where those are not the old ones. `chosen_BT` marks the tokens that a loss treats apart, or with
    `top_entropy_quantile` those that the policy term keeps; they are chosen over the whole batch (`algo/choose.py`).
    The statistics are means over the tokens given: clipfrac, kl (0 without a reference), ratio_mean.
    """
    _refuse_unknown(loss_type, kl_estimator)
    own = Settings(**settings)
    if beta and ref_logprobs_BT is None:
        raise ValueError(f"beta={beta} adds a KL term, which needs ref_logprobs_BT")
    if own.top_entropy_quantile < 1.0 and chosen_BT is None:
        raise ValueError("top_entropy_quantile below 1 needs chosen_BT (outdo.algo.choose.top_entropy finds it)")
    keep_BT = mask_BT.bool()
    mask_BT = keep_BT.to(logprobs_BT.dtype)
    # Zeroing the difference, not the product, keeps a NaN or infinity under the mask out of the gradient too.
    log_ratio_BT = torch.where(keep_BT, logprobs_BT - old_logprobs_BT.detach(), 0.0)
    logprobs_BT = torch.where(keep_BT, logprobs_BT, 0.0)
    at = logprobs_BT, log_ratio_BT, advantages_B.unsqueeze(-1), mask_BT, own
    x = Inputs(*at, sampler_logprobs_BT, weights_BT, chosen_BT)
    loss_BT, surrogate = _policy_term(x, LOSSES[loss_type])
    kl_BT = torch.zeros_like(mask_BT)
    if ref_logprobs_BT is not None:
        ref_logprobs_BT = torch.where(keep_BT, ref_logprobs_BT, logprobs_BT.detach())
        kl_BT = divergence.ESTIMATORS[kl_estimator](logprobs_BT, ref_logprobs_BT)
    if beta:
        loss_BT = loss_BT + beta * (kl_BT * surrogate.ratio_BT if own.use_bias_correction_kl else kl_BT)
    totals = Totals(
        num_sequences=logprobs_BT.shape[0] if num_sequences is None else num_sequences,
        num_tokens=int(keep_BT.sum()) if num_tokens is None else num_tokens,
        max_completion_length=max_completion_length,
        num_chosen=num_chosen,
    )
    loss = LOSSES[loss_type].reduce(loss_BT, mask_BT, totals)
    if entropy_coef:
        loss = loss - entropy_coef * _mean_entropy(x, entropy_BT, totals)
    stats_BT = {"clipfrac": surrogate.clipped_BT.to(mask_BT.dtype), "kl": kl_BT, "ratio_mean": surrogate.ratio_BT}
    count = mask_BT.sum().clamp(min=1)
    return loss, {key: (one.detach().expand_as(mask_BT) * mask_BT).sum() / count for key, one in stats_BT.items()}


def _refuse_unknown(loss_type: str, kl_estimator: str) -> None:
    if loss_type not in LOSSES:
        raise ValueError(f"loss_type={loss_type!r} is not one of {', '.join(LOSSES)}")
    if kl_estimator not in divergence.ESTIMATORS:
        raise ValueError(f"kl_estimator={kl_estimator!r} is not one of {', '.join(divergence.ESTIMATORS)}")


def _policy_term(x: Inputs, variant: Variant) -> tuple[Tensor, Surrogate]:
    """The tokens' losses without KL and entropy, weighted and masked."""
    surrogate = variant.surrogate(x)
    loss_BT = surrogate.loss_BT.expand_as(x.mask_BT)
    if (threshold := x.settings.off_policy_mask_threshold) is not None:
        kept_B1 = gates.on_policy_answers(x.sampler_log_ratio_BT, x.advantages_B1, x.mask_BT, threshold)
        loss_BT = torch.where(kept_B1, loss_BT, 0.0)
    if x.chosen_BT is not None and "chosen" not in variant.applies:
        loss_BT = torch.where(x.chosen_BT, loss_BT, 0.0)
    if x.weights_BT is not None and "weights" not in variant.applies:
        loss_BT = loss_BT * torch.where(x.mask_BT.bool(), x.weights_BT, 0.0)
    return loss_BT, surrogate


def _mean_entropy(x: Inputs, entropy_BT: Tensor | None, totals: Totals) -> Tensor:
    """Over all tokens, or over those that `top_entropy_quantile` keeps."""
    if entropy_BT is None:
        raise ValueError("entropy_coef above 0 needs entropy_BT")
    entropy_BT = torch.where(x.mask_BT.bool(), entropy_BT, 0.0)
    if x.settings.top_entropy_quantile == 1.0 or x.chosen_BT is None:
        return reduce.per_token(entropy_BT, x.mask_BT, totals)
    chosen_BT = x.mask_BT * x.chosen_BT
    num_chosen = int(chosen_BT.sum()) if totals.num_chosen is None else totals.num_chosen
    return reduce.per_token(entropy_BT, chosen_BT, replace(totals, num_tokens=num_chosen))
