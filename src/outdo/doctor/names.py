"""Other trainers' names of outdo's signals. Held-out success is `eval_success_rate` in any of them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

Convert = Callable[[float], float]


def unchanged(value: float) -> float:
    return value


def complement(value: float) -> float:
    return 1.0 - value


# Their name -> outdo's, and how the value is converted. Earlier lines win where a row has several.
NAMES: dict[str, tuple[str, Convert]] = {
    # TRL
    "reward": ("reward_mean", unchanged),
    "kl": ("kl_mean", unchanged),
    "entropy": ("entropy_mean", unchanged),
    "completions/mean_length": ("len_mean", unchanged),
    "completion_length": ("len_mean", unchanged),
    "completions/clipped_ratio": ("truncated", unchanged),
    "clip_ratio/region_mean": ("clipfrac", unchanged),
    "clip_ratio": ("clipfrac", unchanged),
    "frac_reward_zero_std": ("informative", complement),
    "learning_rate": ("lr", unchanged),
    "sampling/sampling_logp_difference/mean": ("mismatch_logp", unchanged),
    # verl
    "critic/score/mean": ("reward_mean", unchanged),
    "critic/rewards/mean": ("reward_mean", unchanged),  # minus the KL, where that is part of the reward
    "actor/entropy": ("entropy_mean", unchanged),
    "actor/entropy_loss": ("entropy_mean", unchanged),
    "actor/kl_loss": ("kl_mean", unchanged),
    "actor/reward_kl_penalty": ("kl_mean", unchanged),
    "actor/ppo_kl": ("step_kl", unchanged),
    "actor/pg_clipfrac": ("clipfrac", unchanged),
    "actor/grad_norm": ("grad_norm", unchanged),
    "actor/lr": ("lr", unchanged),
    "actor/kl_coef": ("beta", unchanged),
    "actor/pg_loss": ("loss", unchanged),
    "critic/advantages/mean": ("adv_mean", unchanged),
    "response_length/mean": ("len_mean", unchanged),
    "response_length/clip_ratio": ("truncated", unchanged),
    "rollout_corr/k3_kl": ("mismatch_kl", unchanged),
    "rollout_corr/kl": ("mismatch_kl", unchanged),
    "mismatch/mismatch_k3_kl": ("mismatch_kl", unchanged),
    "training/rollout_probs_diff_mean": ("mismatch_logp", unchanged),
    # steps, in any log
    "global_step": ("step", unchanged),
    "training/global_step": ("step", unchanged),
    "_step": ("step", unchanged),
    "Step": ("step", unchanged),
}
SUCCESS = r"[^/]*(?:accuracy|correct|exact_match)[^/]*"  # names of reward parts that measure success
PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(rf"eval_rewards/{SUCCESS}(?:/mean)?", re.IGNORECASE), "eval_success_rate"),  # TRL's held-out
    (re.compile(r"rewards/([^/]+)(?:/mean)?"), r"reward/\1"),  # TRL's parts
    (re.compile(r"val-core/.+/acc/mean@\d+"), "eval_success_rate"),  # verl's held-out
    (re.compile(r"val-core/.+/reward/mean@\d+"), "eval_success_rate"),
    (re.compile(r"val/test_score/.+"), "eval_success_rate"),
)
SUCCESS_PART = re.compile(f"reward/{SUCCESS}", re.IGNORECASE)
NON_FINITE = "not_finite/"  # prefix of a signal: 1 where its value was NaN or infinite
ALWAYS_FINITE = {"loss", "grad_norm", "kl_mean", "entropy_mean"}  # at every step of a healthy run
CORE_SIGNALS = {  # a file with any of these can be diagnosed
    *("reward_mean", "success_rate", "entropy_mean", "kl_mean", "len_mean", "informative", "grad_norm", "truncated")
}


@cache
def canonical_name(name: str) -> tuple[str, Convert, int]:
    """outdo's name, how the value is converted, and the rank: the lowest wins where several names mean the same."""
    name = name.strip().removeprefix("train/")  # transformers' names for W&B and TensorBoard
    name = f"eval_{name[5:]}" if name.startswith("eval/") else name
    if name in NAMES:
        return *NAMES[name], 1 + list(NAMES).index(name)
    for rank, (pattern, replacement) in enumerate(PATTERNS, 1000):
        if match := pattern.fullmatch(name):
            return match.expand(replacement), unchanged, rank
    return name, unchanged, 0


def canonical_values(row: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers of a row under outdo's names, and flags for core signals that are NaN or infinite."""
    out: dict[str, float] = {}
    ranks: dict[str, int] = {}
    non_finite: list[str] = []
    for theirs, text in row.items():
        value = finite_number(text)
        if not theirs or (value is None and not is_non_finite(text)):
            continue
        name, convert, rank = canonical_name(theirs)
        if value is None:
            non_finite.append(name)
        elif name not in out or rank < ranks[name]:
            out[name], ranks[name] = convert(value), rank
    # Tables have NaN where nothing was logged. Only a row that has other core signals is a step.
    is_step = out.keys() & {*ALWAYS_FINITE, *CORE_SIGNALS}
    flagged = {*ALWAYS_FINITE, "reward_mean"} - out.keys() if is_step else set()
    return out | {NON_FINITE + name: 1.0 for name in non_finite if name in flagged}


def is_success_part(name: str) -> bool:
    """Whether a part of the reward measures success, by its name."""
    return SUCCESS_PART.fullmatch(name) is not None


def is_non_finite(value: Any) -> bool:
    """Whether it is NaN or infinite, as a number or as text."""
    try:
        return not isinstance(value, bool) and not math.isfinite(float(value))
    except (TypeError, ValueError, OverflowError):
        return False


def finite_number(value: Any) -> float | None:
    if type(value) is float:
        return value if math.isfinite(value) else None
    if isinstance(value, bool) or value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
