"""Keys of the objective that contradict each other, or that the chosen loss does not read."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Any

from outdo.errors import RecipeError
from outdo.recipe.schema import REGISTRIES, Recipe

# Keys that some losses read and others do not; `reads` of a loss names its own.
LOSS_KEYS = (
    *("epsilon", "epsilon_high", "delta", "importance_sampling_level"),
    *("sapo_temperature_pos", "sapo_temperature_neg", "divergence_type", "clip_ratio_c"),
    *("vespo_k_pos", "vespo_lambda_pos", "vespo_k_neg", "vespo_lambda_neg"),
    *("clip_cov_ratio", "clip_cov_lb", "clip_cov_ub", "kl_cov_ratio", "ppo_kl_coef"),
)
GENERAL_KEYS = ("top_entropy_quantile", "off_policy_mask_threshold", "importance_sampling", "importance_sampling_cap")
EACH_REWARD = "normalize_then_sum"


def refuse_objective(r: Recipe) -> None:
    """Raises RecipeError for what has no effect, or contradicts something else."""
    if any(_is_set(r, key) for key in ("loss_type", *LOSS_KEYS, *GENERAL_KEYS)):  # else no loss is loaded for it
        _refuse_loss_keys(r, _registered("loss_type"))
    if r.delta is not None and r.delta <= 1.0 + (r.epsilon if r.epsilon_high is None else r.epsilon_high):
        raise RecipeError(f"delta={r.delta:g} must be above 1 + epsilon_high, where the ratio is clipped anyway: use 4")
    if r.clip_cov_lb >= r.clip_cov_ub:
        raise RecipeError(f"clip_cov_lb={r.clip_cov_lb:g} must be below clip_cov_ub={r.clip_cov_ub:g}")
    if r.use_bias_correction_kl and r.kl_in_reward:
        raise RecipeError(
            "use_bias_correction_kl corrects the KL term of the loss, and kl_in_reward=true has none there"
        )
    if r.multi_objective_aggregation == EACH_REWARD:
        _refuse_beside_each_reward(r)
    elif r.advantage_estimator == "maxrl" and _is_set(r, "scale_rewards"):
        raise RecipeError(
            f"scale_rewards={r.scale_rewards} has no effect: advantage_estimator=maxrl divides by a group's mean "
            "reward; leave it out"
        )


def describe_objective(r: Recipe) -> Iterator[str]:
    """What may not be meant."""
    if r.importance_sampling_level == "sequence" and _registered("loss_type")[r.loss_type].sums_tokens:
        yield (
            f"importance_sampling_level=sequence with loss_type={r.loss_type} counts each answer as often as it has "
            "tokens; loss_type=grpo counts each once, as GSPO does"
        )


def _refuse_loss_keys(r: Recipe, losses: Mapping[str, Any]) -> None:
    loss = losses[r.loss_type]
    for key in LOSS_KEYS if loss.reads is not None else ():
        if _is_set(r, key) and key not in loss.reads:
            readers = ", ".join(name for name, one in losses.items() if one.reads and key in one.reads)
            raise RecipeError(
                f"{key}={getattr(r, key)} has no effect with loss_type={r.loss_type}: leave it out, or use a loss_type "
                f"that reads it: {readers}"
            )
    if r.importance_sampling_level not in loss.levels:
        raise RecipeError(
            f"loss_type={r.loss_type} is defined with importance_sampling_level={loss.levels[0]}: set that"
        )
    for key, why in loss.excludes.items():
        if _is_set(r, key):
            raise RecipeError(
                f"{key}={getattr(r, key)} cannot be used with loss_type={r.loss_type}: {why}. Leave it out"
            )


def _refuse_beside_each_reward(r: Recipe) -> None:
    reasons = {
        "advantage_estimator": "it has an estimate of its own",
        "scale_rewards": "it divides by the std of each reward in its group, and then by that of the batch",
        "reward_gate": "a gate decides by the rewards of one answer together",
        "kl_in_reward": "the KL would be no reward of its own; add it to the loss",
    }
    for key, why in reasons.items():
        if _is_set(r, key):
            raise RecipeError(
                f"{key}={getattr(r, key)} cannot be used with multi_objective_aggregation={EACH_REWARD}: {why}. "
                "Leave one of them out"
            )


def _is_set(r: Recipe, key: str) -> bool:
    return getattr(r, key) != Recipe.model_fields[key].get_default()


def _registered(key: str) -> Mapping[str, Any]:
    module, _, mapping = REGISTRIES[key].partition(":")
    return getattr(importlib.import_module(module), mapping)
