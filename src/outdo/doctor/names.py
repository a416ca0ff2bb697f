"""Other trainers' names of outdo's signals. Held-out success is `eval_success_rate` in any of them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

# outdo's name -> TRL's names, then verl's. Earlier ones win where a row has several.
NAMES: dict[str, tuple[str, ...]] = {
    "reward_mean": ("reward", "critic/score/mean", "critic/rewards/mean"),  # the last minus KL, where that is paid
    "kl_mean": ("kl", "actor/kl_loss", "actor/reward_kl_penalty"),
    "entropy_mean": ("entropy", "actor/entropy", "actor/entropy_loss"),
    "len_mean": ("completions/mean_length", "completion_length", "response_length/mean"),
    "truncated": ("completions/clipped_ratio", "response_length/clip_ratio"),
    "clipfrac": ("clip_ratio/region_mean", "clip_ratio", "actor/pg_clipfrac"),
    "informative": ("frac_reward_zero_std",),
    "lr": ("learning_rate", "actor/lr"),
    "step_kl": ("actor/ppo_kl",),
    "grad_norm": ("actor/grad_norm",),
    "beta": ("actor/kl_coef",),
    "loss": ("actor/pg_loss",),
    "adv_mean": ("critic/advantages/mean",),
    "mismatch_kl": ("rollout_corr/k3_kl", "rollout_corr/kl", "mismatch/mismatch_k3_kl"),
    "mismatch_logp": ("sampling/sampling_logp_difference/mean", "training/rollout_probs_diff_mean"),
    "step": ("global_step", "training/global_step", "_step", "Step"),  # in any log
}
THEIR_NAMES = {theirs: (ours, rank) for ours, names in NAMES.items() for rank, theirs in enumerate(names, 1)}
COMPLEMENTS = {"frac_reward_zero_std"}  # 1 minus outdo's value
SUCCESS = r"[^/]*(?:accuracy|correct|exact_match)[^/]*"  # names of reward parts that measure success
PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(rf"eval_rewards/{SUCCESS}(?:/mean)?", re.IGNORECASE), "eval_success_rate"),  # TRL's held-out
    (re.compile(r"rewards/([^/]+)(?:/mean)?"), r"reward/\1"),  # TRL's parts
    (re.compile(r"val-core/.+/acc/mean@\d+"), "eval_success_rate"),  # verl's held-out
    (re.compile(r"val-core/.+/reward/mean@\d+"), "eval_success_rate"),
    (re.compile(r"val/test_score/.+"), "eval_success_rate"),
)
SUCCESS_PART = re.compile(f"reward/{SUCCESS}", re.IGNORECASE)  # a part of the reward that measures success
NON_FINITE = "not_finite/"  # prefix of a signal: 1 where its value was NaN or infinite
ALWAYS_FINITE = {"loss", "grad_norm", "kl_mean", "entropy_mean"}  # at every step of a healthy run
CORE_SIGNALS = {  # a file with any of these can be diagnosed
    *("reward_mean", "success_rate", "entropy_mean", "kl_mean", "len_mean", "informative", "grad_norm", "truncated")
}


@cache
def canonical_name(name: str) -> tuple[str, bool, int]:
    """outdo's name, whether the value is its complement, and the rank: the lowest wins where names mean the same."""
    name = name.strip().removeprefix("train/")  # transformers' names for W&B and TensorBoard
    name = f"eval_{name[5:]}" if name.startswith("eval/") else name
    if name in THEIR_NAMES:
        ours, rank = THEIR_NAMES[name]
        return ours, name in COMPLEMENTS, rank
    for rank, (pattern, replacement) in enumerate(PATTERNS, 1000):
        if match := pattern.fullmatch(name):
            return match.expand(replacement), False, rank
    return name, False, 0


def canonical_values(row: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers of a row under outdo's names, and flags for core signals that are NaN or infinite."""
    out: dict[str, float] = {}
    ranks: dict[str, int] = {}
    non_finite: list[str] = []
    for theirs, text in row.items():
        value = parsed_number(text)
        if not theirs or value is None:
            continue
        name, is_complement, rank = canonical_name(theirs)
        if not math.isfinite(value):
            non_finite.append(name)
        elif name not in out or rank < ranks[name]:
            out[name], ranks[name] = 1.0 - value if is_complement else value, rank
    # Tables have NaN where nothing was logged. Only a row that has other core signals is a step.
    is_step = out.keys() & {*ALWAYS_FINITE, *CORE_SIGNALS}
    flagged = {*ALWAYS_FINITE, "reward_mean"} - out.keys() if is_step else set()
    return out | {NON_FINITE + name: 1.0 for name in non_finite if name in flagged}


def parsed_number(value: Any) -> float | None:
    """A number, also one as text, NaN or infinite; None where it is something else."""
    try:
        return None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def finite_number(value: Any) -> float | None:
    number = parsed_number(value)
    return number if number is not None and math.isfinite(number) else None
