"""Which rules could not be judged, because the signals that they read were not logged."""

from __future__ import annotations

from outdo.doctor.history import History
from outdo.metrics import limits as at

GOAL = ("reward_mean", "success_rate")
HELD = "held-out success"
OOD = "held-out success on a second set"
MOVES = ("kl_mean", "entropy_mean", "clipfrac", "step_kl", "grad_norm", "ratio_mean", "informative", "adv_std")

# A rule -> what it needs: one signal of each tuple.
NEEDS: dict[str, tuple[tuple[str, ...], ...]] = {
    "broken_grader": (("grader_broken",),),
    "inconsistent_grader": (("grader_disagreement",),),
    "sampler_mismatch": (("mismatch_kl", "mismatch_ratio_std", "mismatch_logp"),),
    "reward_hacking": (("reward_mean",), ("success_rate", "audit_reward_mean", HELD)),
    "steps_too_big": ((*GOAL, "clipfrac", "step_kl", "ratio_mean"),),
    "kl_blowup": (("kl_mean",),),
    "not_finite": (("loss", "grad_norm", "kl_mean", "entropy_mean"),),
    "dead_all_wrong": (("all_wrong", "informative"),),
    "dead_all_right": (("all_right", "informative"),),
    "no_signal": (("informative", "adv_std", "all_wrong"),),
    "entropy_collapse": (("entropy_mean",),),
    "mode_collapse": (("group_diversity",),),
    "thinking_tax": (("len_mean",), GOAL),
    "truncation": (("truncated",),),
    "overfit": (GOAL, (HELD,)),
    "ood_loss": ((OOD,),),
    "unstable": (GOAL,),
    "noisy_advantage": (("reward_mean",), ("reward_std", "adv_std")),
    "steps_too_small": (GOAL, ("entropy_mean", "len_mean"), ("kl_mean", "len_mean", "entropy_mean")),
}


def unjudged(history: History) -> tuple[str, ...]:
    """ "code (signal)" of each rule that lacks a signal; of several that would do, the first."""
    logged = {name for name in history.columns if history.has(name, least=at.LEVEL_STEPS)}
    logged |= {HELD} if len(history.held) > 1 else set()
    logged |= {OOD} if sum(len(points) > 1 for points in history.splits.values()) > 1 else set()
    lacking = {code: [names[0] for names in groups if not logged & {*names}] for code, groups in NEEDS.items()}
    return tuple(f"{code} ({', '.join(missing)})" for code, missing in lacking.items() if missing)


def is_enough(history: History) -> bool:
    """Whether a run without a failure may be called healthy: its goal was logged, and a signal of the policy."""
    has_goal = any(history.has(name, least=at.TREND_STEPS) for name in GOAL)
    return has_goal and any(history.has(name, least=at.LEVEL_STEPS) for name in MOVES)
