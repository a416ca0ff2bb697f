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
    "critic/rewards/mean": ("reward_mean", same),
    "critic/score/mean": ("reward_mean", same),
    "actor/entropy": ("entropy_mean", same),
    "actor/entropy_loss": ("entropy_mean", same),
    "actor/kl_loss": ("kl_mean", same),
    "actor/reward_kl_penalty": ("kl_mean", same),
    "actor/ppo_kl": ("step_kl", same),
    "actor/pg_clipfrac": ("clipfrac", same),
    "actor/grad_norm": ("grad_norm", same),
    "actor/lr": ("lr", same),
    "actor/pg_loss": ("loss", same),
    "critic/advantages/mean": ("adv_mean", same),
    "response_length/mean": ("len_mean", same),
    "response_length/clip_ratio": ("truncated", same),
    "rollout_corr/k3_kl": ("mismatch_kl", same),
    "rollout_corr/kl": ("mismatch_kl", same),
    "training/rollout_probs_diff_mean": ("mismatch_logp", same),
    # steps, anywhere
    "global_step": ("step", same),
    "training/global_step": ("step", same),
    "_step": ("step", same),
}
PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"rewards/(.+)/mean"), r"reward/\1"),  # TRL's parts
    (re.compile(r"val-core/.+/(?:acc|reward)/mean@\d+"), "eval_success_rate"),  # verl's held-out
    (re.compile(r"val/test_score/.+"), "eval_success_rate"),
)
JUDGES = re.compile(r"reward/.*(accuracy|correct|exact_match).*", re.IGNORECASE)  # a part that is success, by its name


@cache
def ours(name: str) -> tuple[str, Turn, int]:
    """What a name is here, what becomes of its value, and how far back it stands where several mean the same."""
    if name in NAMES:
        return *NAMES[name], 1 + list(NAMES).index(name)
    for pattern, replaced in PATTERNS:
        if found := pattern.fullmatch(name):
            return found.expand(replaced), same, 1000
    return name, same, 0


def our_values(row: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a row under our names; what is no number, or not finite, is left out."""
    out: dict[str, float] = {}
    rank: dict[str, int] = {}
    for theirs, text in row.items():
        value = number(text)
        if value is None or not theirs:
            continue
        name, turn, place = ours(theirs)
        if name not in out or place < rank[name]:
            out[name], rank[name] = turn(value), place
    if "success_rate" not in out:
        judged = [value for name, value in out.items() if _judges(name)]
        if judged and 0 <= judged[0] <= 1:
            out["success_rate"] = judged[0]
    return out


@cache
def _judges(name: str) -> bool:
    return JUDGES.fullmatch(name) is not None


def number(value: Any) -> float | None:
    """A finite number, or None."""
    if type(value) is float:
        return value if math.isfinite(value) else None
    if isinstance(value, bool) or value is None:
        return None
    try:
        found = float(value)
    except (TypeError, ValueError):
        return None
    return found if math.isfinite(found) else None
