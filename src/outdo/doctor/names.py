"""What other trainers call our signals: one table. Held-out success is `eval_success_rate` in any of them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

Turn = Callable[[float], float]


def same(value: float) -> float:
    return value


def rest(value: float) -> float:
    return 1.0 - value


# Their name -> ours, and what becomes of the value. Earlier lines win where a row has several.
NAMES: dict[str, tuple[str, Turn]] = {
    # TRL
    "reward": ("reward_mean", same),
    "kl": ("kl_mean", same),
    "entropy": ("entropy_mean", same),
    "completions/mean_length": ("len_mean", same),
    "completion_length": ("len_mean", same),
    "completions/clipped_ratio": ("truncated", same),
    "clip_ratio/region_mean": ("clipfrac", same),
    "clip_ratio": ("clipfrac", same),
    "frac_reward_zero_std": ("informative", rest),
    "learning_rate": ("lr", same),
    "sampling/sampling_logp_difference/mean": ("mismatch_logp", same),
    # verl
    "critic/score/mean": ("reward_mean", same),
    "critic/rewards/mean": ("reward_mean", same),  # less the KL, where that is in the reward
    "actor/entropy": ("entropy_mean", same),
    "actor/entropy_loss": ("entropy_mean", same),
    "actor/kl_loss": ("kl_mean", same),
    "actor/reward_kl_penalty": ("kl_mean", same),
    "actor/ppo_kl": ("step_kl", same),
    "actor/pg_clipfrac": ("clipfrac", same),
    "actor/grad_norm": ("grad_norm", same),
    "actor/lr": ("lr", same),
    "actor/kl_coef": ("beta", same),
    "actor/pg_loss": ("loss", same),
    "critic/advantages/mean": ("adv_mean", same),
    "response_length/mean": ("len_mean", same),
    "response_length/clip_ratio": ("truncated", same),
    "rollout_corr/k3_kl": ("mismatch_kl", same),
    "rollout_corr/kl": ("mismatch_kl", same),
    "mismatch/mismatch_k3_kl": ("mismatch_kl", same),
    "training/rollout_probs_diff_mean": ("mismatch_logp", same),
    # steps, anywhere
    "global_step": ("step", same),
    "training/global_step": ("step", same),
    "_step": ("step", same),
    "Step": ("step", same),
}
RIGHT = r"[^/]*(?:accuracy|correct|exact_match)[^/]*"  # a part that is success, by its name
PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(rf"eval_rewards/{RIGHT}(?:/mean)?", re.IGNORECASE), "eval_success_rate"),  # TRL's held-out
    (re.compile(r"rewards/([^/]+)(?:/mean)?"), r"reward/\1"),  # TRL's parts
    (re.compile(r"val-core/.+/acc/mean@\d+"), "eval_success_rate"),  # verl's held-out
    (re.compile(r"val-core/.+/reward/mean@\d+"), "eval_success_rate"),
    (re.compile(r"val/test_score/.+"), "eval_success_rate"),
)
JUDGES = re.compile(f"reward/{RIGHT}", re.IGNORECASE)
# Any of these makes a file one that can be diagnosed.
LOST = "not_finite/"  # before the name of a signal: there the value was NaN or infinite, and what was paid was not
FINITE = {
    "loss",
    "grad_norm",
    "kl_mean",
    "entropy_mean",
}  # signals that are numbers at every step of a run that is well
KNOWN = {"reward_mean", "success_rate", "entropy_mean", "kl_mean", "len_mean", "informative", "grad_norm", "truncated"}


@cache
def ours(name: str) -> tuple[str, Turn, int]:
    """What a name is here, what becomes of its value, and how far back it stands where several mean the same."""
    name = name.strip().removeprefix("train/")  # transformers' names for W&B and TensorBoard
    name = f"eval_{name[5:]}" if name.startswith("eval/") else name
    if name in NAMES:
        return *NAMES[name], 1 + list(NAMES).index(name)
    for place, (pattern, replaced) in enumerate(PATTERNS, 1000):
        if found := pattern.fullmatch(name):
            return found.expand(replaced), same, place
    return name, same, 0


def our_values(row: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a row under our names. What is no number is left out; of what is not finite it is said."""
    out: dict[str, float] = {}
    rank: dict[str, int] = {}
    lost: list[str] = []
    for theirs, text in row.items():
        value = number(text)
        if not theirs or (value is None and not is_lost(text)):
            continue
        name, turn, place = ours(theirs)
        if value is None:
            lost.append(name)
        elif name not in out or place < rank[name]:
            out[name], rank[name] = turn(value), place
    # Tables are filled up with NaN where nothing was logged: a row of a step has its reward, or else others of these.
    of_step = out.keys() & {*FINITE, *KNOWN}
    return out | {LOST + name: 1.0 for name in lost if of_step and name in {*FINITE, "reward_mean"} - out.keys()}


def judges(name: str) -> bool:
    """Whether a part of the reward is success, by its name."""
    return JUDGES.fullmatch(name) is not None


def is_lost(value: Any) -> bool:
    """Whether it is NaN or infinite, as a number or in words."""
    try:
        return not isinstance(value, bool) and not math.isfinite(float(value))
    except (TypeError, ValueError, OverflowError):
        return False


def number(value: Any) -> float | None:
    """A finite number, or None."""
    if type(value) is float:
        return value if math.isfinite(value) else None
    if isinstance(value, bool) or value is None:
        return None
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None
