"""Settings under which our numbers are compared with those of TRL's own code, on the same tensors.

The keys of a case are given to TRL's `GRPOConfig` and to our recipe as they are: a recipe means the same in both. No
copy of TRL is needed to read this module; `trl_numbers.py` runs the cases, and writes their table:

    python -m support.trl_numbers docs/results/trl_numbers.md     # in tests/, in an environment that has TRL
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

TRL_VERSION = "1.16.0"


@dataclass(frozen=True)
class LossCase:
    """One update. Without `moved` the weights are those that sampled the answers; `sampler` puts log-probabilities of
    another program beside theirs."""

    name: str
    keys: Mapping[str, Any]  # of both
    ours: Mapping[str, Any] = field(default_factory=dict)
    theirs: Mapping[str, Any] = field(default_factory=dict)
    moved: bool = True
    sampler: bool = False
    turns: bool = False  # some tokens are an environment's


@dataclass(frozen=True)
class AdvantageCase:
    """One step: the rewards of 12 answers in groups of 4."""

    name: str
    keys: Mapping[str, Any]
    rewards: str = "binary"


KL = {"beta": 0.04}
STALE = {"off_policy_mask_threshold": 0.05}
LEVELS = {
    **dict.fromkeys(("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo"), ("token", "sequence")),
    "vespo": ("token",),
    "luspo": ("sequence",),
}
# With one ratio per answer, which is nearer to 1, a clip needs small bounds to act.
BOUNDS = {"token": {"epsilon": 0.2, "epsilon_high": 0.28}, "sequence": {"epsilon": 0.02, "epsilon_high": 0.03}}
OWN_BOUNDS: dict[str, dict[str, Any]] = {"cispo": {"epsilon_high": 1.2}, "sapo": {}, "vespo": {}}
CLIPPED = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo")


def _keys(loss_type: str, level: str, **more: Any) -> dict[str, Any]:
    bounds = OWN_BOUNDS.get(loss_type, BOUNDS[level])
    return {"loss_type": loss_type, "importance_sampling_level": level, **bounds, **more}


def _losses() -> list[LossCase]:
    """Every loss at every level, on the policy and away from it, without and with KL, biased and unbiased."""
    cases = []
    for loss, levels in LEVELS.items():
        for level in levels:
            at = f"{loss}, {level}"
            plain, corrected = {"use_bias_correction_kl": False}, {"use_bias_correction_kl": True}
            wide = {"epsilon": 0.9} if loss in CLIPPED else {}  # else the stale are clipped too
            cases += [
                LossCase(f"{at}: first update", _keys(loss, level, **plain), moved=False),
                LossCase(f"{at}: later update", _keys(loss, level, **plain)),
                LossCase(f"{at}: environment's tokens", _keys(loss, level, **plain), turns=True),
                LossCase(f"{at}: KL", _keys(loss, level, **KL, **plain)),
                LossCase(f"{at}: unbiased KL", _keys(loss, level, **KL, **corrected)),
                LossCase(f"{at}: entropy bonus", _keys(loss, level, **plain, entropy_coef=0.02)),
                LossCase(f"{at}: top entropy", _keys(loss, level, **plain, top_entropy_quantile=0.4)),
                LossCase(f"{at}: stale answers", {**_keys(loss, level, **plain, **STALE), **wide}),
            ]
            if loss in CLIPPED:
                delta = {"token": 1.29, "sequence": 1.04}[level]
                cases.append(LossCase(f"{at}: delta", _keys(loss, level, **plain, delta=delta)))
    return cases


def _sampler_weights() -> list[LossCase]:
    """Truncated and masked importance sampling between learner and sampler, at the first update."""
    cap, cases = 1.3, []
    modes = {
        "truncate": {"vllm_importance_sampling_mode": "token_truncate"},
        "mask": {"vllm_importance_sampling_mode": "token_mask", "vllm_importance_sampling_clip_min": 1 / cap},
    }
    for loss, levels in LEVELS.items():
        for ours, theirs in modes.items():
            cases.append(
                LossCase(
                    f"{loss}, {levels[0]}: sampler's weights, {ours}",
                    _keys(loss, levels[0], use_bias_correction_kl=False),
                    ours={"importance_sampling": ours, "importance_sampling_cap": cap},
                    theirs={"use_vllm": True, "vllm_importance_sampling_clip_max": cap, **theirs},
                    moved=False,
                    sampler=True,
                )
            )
    everything = {**KL, "use_bias_correction_kl": True, "entropy_coef": 0.02, "top_entropy_quantile": 0.5}
    all_at_once = _keys("dapo", "token", **everything, **STALE)
    cases.append(LossCase("dapo, token: all at once", all_at_once))
    sapo = _keys("sapo", "token", sapo_temperature_pos=2.0, sapo_temperature_neg=3.0, use_bias_correction_kl=False)
    cases.append(LossCase("sapo, token: other temperatures", sapo))
    shape = {"vespo_k_pos": 1.0, "vespo_lambda_pos": 0.5, "vespo_k_neg": 2.5, "vespo_lambda_neg": 4.0}
    cases.append(LossCase("vespo, token: other shapes", _keys("vespo", "token", **shape)))
    gmpo = {"loss_type": "gmpo", "epsilon": 0.3, "epsilon_high": 0.2, "use_bias_correction_kl": False}
    for name, more in {"later update": {}, "KL": KL, "top entropy": {"top_entropy_quantile": 0.4}}.items():
        cases.append(LossCase(f"gmpo: {name}", {**gmpo, **more}))
    return cases


LOSS_CASES = (*_losses(), *_sampler_weights())
SAMPLE = {"adv_std": "sample"}
GDPO = {"multi_objective_aggregation": "normalize_then_sum", "reward_weights": [1.0, 0.25]}
ADVANTAGE_CASES = (
    *(AdvantageCase(f"scale_rewards={s}", {"scale_rewards": s}) for s in ("group", "batch", "none")),
    *(AdvantageCase(f"scale_rewards={s}, graded", {"scale_rewards": s}, "graded") for s in ("group", "batch", "none")),
    *(AdvantageCase(f"scale_rewards={s}, some unjudged", {"scale_rewards": s}, "unjudged") for s in ("group", "batch")),
    AdvantageCase("two rewards with weights", {"reward_weights": [1.0, 0.25]}, "two"),
    AdvantageCase("GDPO", GDPO, "two"),
    AdvantageCase("GDPO, a reward that abstains", GDPO, "two, one abstains"),
    AdvantageCase("GDPO, some unjudged", GDPO, "two, some unjudged"),
)
