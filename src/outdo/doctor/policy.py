"""Rules about the policy: it moves too far or too little, it collapses, or it differs from the sampler."""

from __future__ import annotations

import numpy as np

from outdo.doctor.changes import higher_temperature, larger_groups, lower_rate, raise_beta, scale_key, set_key
from outdo.doctor.finding import Evidence, Expect, Finding, Severity
from outdo.doctor.history import History, is_share
from outdo.doctor.signals import early, finite, late, late_mean, noise, onset, shift, trend
from outdo.metrics import limits as at
from outdo.runs.foreign.names import NON_FINITE


def movement(history: History, name: str) -> Evidence:
    """A signal at both ends of the run, with its slope."""
    return Evidence(name, early(history[name]), late(history[name]), history.slope(name))


def movements(history: History, *names: str) -> list[Evidence]:
    """Those of the signals that were logged."""
    return [movement(history, name) for name in names if history.has(name)]


def goal_of(history: History) -> str:
    """What the run should raise: success where it was logged, else the reward."""
    return "success_rate" if history.has("success_rate") else "reward_mean"


def is_solved(history: History) -> bool:
    """Whether nearly all answers are right, so that similar and confident answers are expected."""
    goal = goal_of(history)
    is_known = history.has(goal) and (goal == "success_rate" or is_share(history[goal]) or bool(history.full_reward))
    return is_known and late(history[goal]) >= at.SOLVED * (history.full_reward or 1.0)


def progress(history: History) -> float:
    """The z-score of the improvement: from end to end, along a line, or over the later half, whichever is largest."""
    goal = goal_of(history)
    if not history.has(goal):
        return 0.0
    shifts = [shift(history[goal]), trend(history[goal])]
    if len(history) >= 2 * at.TREND_STEPS:
        shifts.append(shift(history[goal][len(history) // 2 :]))
    return max(move.z if move.gain > 0.01 else 0.0 for move in shifts)


def _has_gained(history: History) -> bool:
    """Whether the end of the run is clearly better than its start."""
    goal = goal_of(history)
    return history.has(goal) and shift(history[goal]).z > at.Z_WEAK


def still_learns(history: History) -> bool:
    goal = goal_of(history)
    if not history.has(goal):
        return False
    half = shift(history[goal][len(history) // 2 :])
    return half.gain > 0.02 and half.z > at.Z_WEAK


def kl_blowup(history: History) -> Finding | None:
    if not history.has("kl_mean", least=3 if "kl_limit" in history.ended else at.KL_STEPS):
        return None  # a run that the KL guard halted is short
    kl = finite(history["kl_mean"])
    last = kl[-max(at.KL_STEPS, len(kl) // 20) :]
    if np.mean(last > at.KL_LIMIT) <= 0.5 or np.median(kl[-3:]) <= at.KL_LIMIT:
        return None
    index = onset(history["kl_mean"], at.KL_LIMIT)
    recipe, beta = history.recipe, history.recipe.get("beta") or 0.0
    fast = history.step_at(index) - history.step_at(0) < at.KL_FAST_STEPS
    rate = lower_rate(recipe, 4 if np.median(last) < 1 else 10)
    change = rate if fast or beta >= 0.04 else raise_beta(recipe)
    severity: Severity = "critical" if np.median(last) > at.KL_CRITICAL else "warning"
    if recipe.get("kl_limit", at.KL_LIMIT) is None and _has_gained(history):
        severity = "info"  # the recipe allows it, and it pays
    evidence = (Evidence("kl_mean", float(np.median(kl[:5])), float(np.median(last)), history.slope("kl_mean")),)
    return Finding("kl_blowup", severity, history.step_at(index), evidence, change, Expect("kl_mean", "down", 20))


def not_finite(history: History) -> Finding | None:
    flags = {name: curve for name, curve in history.columns.items() if name.startswith(NON_FINITE)}
    flagged = {name.removeprefix(NON_FINITE): np.isfinite(curve) for name, curve in flags.items()}
    if not flagged:
        return None
    any_N = np.any(list(flagged.values()), axis=0)
    if not any_N[-1] and np.mean(any_N) <= at.NON_FINITE:
        return None
    notes = {name: f"is NaN or infinite in {at_N.sum()} of {len(any_N)} steps" for name, at_N in flagged.items()}
    evidence = tuple(Evidence(name, note=note) for name, note in notes.items())
    step, expect = history.step_at(int(np.argmax(any_N))), Expect(next(iter(flagged)), "steady", 20)
    change = None if flagged.keys() == {"reward_mean"} else lower_rate(history.recipe, 4)  # no rate fixes a grader
    lost = [at_N for name, at_N in flagged.items() if name != "reward_mean"]
    is_final = any(len(at_N) >= at.LOST_STEPS and bool(at_N[-at.LOST_STEPS :].all()) for at_N in lost)
    return Finding("not_finite", "critical", step, evidence, change, expect, unrecoverable=is_final)


def entropy_collapse(history: History) -> Finding | None:
    if not (start := _lost_entropy(history)) or still_learns(history):
        return None
    change, bonus = higher_temperature(history.recipe), history.recipe.get("entropy_coef") or 0.0
    if change.key == "temperature" and (bonus or (change.is_known and change.new > 1.3)):
        change = set_key(history.recipe, "entropy_coef", max(0.01, 4 * bonus))
    step, expect = history.step_at(_entropy_onset(history, start)), Expect("entropy_mean", "up", 20)
    return Finding("entropy_collapse", "critical", step, _entropy_evidence(history, start), change, expect)


def entropy_falling(history: History) -> Finding | None:
    """A note: entropy is nearly gone while success still rises, so that it may stop to."""
    if not (start := _lost_entropy(history)) or not still_learns(history):
        return None
    step = history.step_at(_entropy_onset(history, start))
    return Finding("entropy_falling", "info", step, _entropy_evidence(history, start))


def _lost_entropy(history: History) -> float:
    """The entropy at the start where that at the end is near 0 and the task is not solved; else 0."""
    if not history.has("entropy_mean", least=at.TREND_STEPS) or is_solved(history):
        return 0.0
    start = float(np.median(finite(history["entropy_mean"])[:5]))
    floor = max(at.ENTROPY_FRACTION * start, at.ENTROPY_ZERO)
    return start if start > 2 * at.ENTROPY_ZERO and late(history["entropy_mean"]) <= floor else 0.0


def _entropy_onset(history: History, start: float) -> int:
    return onset(history["entropy_mean"], 0.5 * start, above=False)


def _entropy_evidence(history: History, start: float) -> tuple[Evidence, ...]:
    entropy = history["entropy_mean"]
    moved = Evidence("entropy_mean", start, late(entropy), history.slope("entropy_mean"))
    return (moved, *movements(history, "informative", goal_of(history)))


def mode_collapse(history: History) -> Finding | None:
    if not history.has("group_diversity", least=at.TREND_STEPS) or is_solved(history):
        return None
    kinds = history["group_diversity"]
    start = float(np.median(finite(kinds)[:5]))
    if late(kinds) > min(at.DIVERSITY_FRACTION * start, at.DIVERSITY_LOW) or still_learns(history):
        return None
    if history.has("success_rate") and shift(history["success_rate"]).gain >= start - late(kinds):
        return None  # right answers may be the same
    evidence = [Evidence("group_diversity", start, late(kinds), history.slope("group_diversity"))]
    evidence += movements(history, "entropy_mean", goal_of(history))
    step = history.step_at(onset(kinds, at.DIVERSITY_FRACTION * start, above=False))
    change, expect = higher_temperature(history.recipe), Expect("group_diversity", "up", 20)
    return Finding("mode_collapse", "warning", step, tuple(evidence), change, expect)


def noisy_advantage(history: History) -> Finding | None:
    if not history.has("reward_mean", least=at.STALL_STEPS) or progress(history) > at.Z_WEAK:
        return None
    if history.has("informative") and late_mean(history["informative"]) < 1 - at.NO_SPREAD:
        return None
    evidence = []
    if history.has("reward_std"):
        jumps = noise(history["reward_mean"])
        share = jumps / float(np.hypot(late_mean(history["reward_std"]), jumps) or 1.0)
        if share > at.REWARD_NOISE:
            effective = max(1, round(1 / share**2))
            note = f"the mean of a step is as precise as that of {effective} answers"
            evidence.append(Evidence("noise of reward_mean", None, jumps, None, note))
    if history.has("adv_std") and late(history["adv_std"]) > at.ADV_STD_HIGH:
        evidence.append(movement(history, "adv_std"))
    if not evidence:
        return None
    evidence.append(movement(history, "reward_mean"))
    change, expect = larger_groups(history.recipe), Expect("reward_mean", "up", 50)
    return Finding("noisy_advantage", "warning", history.step_at(0), tuple(evidence), change, expect)


def steps_too_small(history: History) -> Finding | None:
    goal = goal_of(history)
    if not history.has(goal, least=at.STALL_STEPS) or is_solved(history):
        return None
    if history.has("informative") and late_mean(history["informative"]) < 1 - at.NO_SPREAD:
        return None
    line = trend(history[goal])
    fell = line.gain < -at.SUCCESS_GAIN and line.z < -at.Z_WEAK
    if line.gain > at.SUCCESS_GAIN or fell or progress(history) > at.Z_WEAK:
        return None
    unmoved = _unmoved(history)
    if len(unmoved.keys() - {"clipfrac"}) < 2 or not all(unmoved.values()):  # clipfrac is 0 with one update a step
        return None
    change = scale_key(history.recipe, "learning_rate", 10)
    evidence = tuple(movements(history, goal, *unmoved))
    expect = Expect("kl_mean" if history.has("kl_mean") else goal, "up", 40)
    return Finding("steps_too_small", "warning", history.step_at(0), evidence, change, expect)


def _unmoved(history: History) -> dict[str, bool]:
    """For each signal that moves with the policy: whether it stayed the same. Where KL shows that it did, a change
    within the noise counts as none."""
    unmoved = {}
    if history.has("kl_mean", least=at.STALL_STEPS):
        unmoved["kl_mean"] = late(history["kl_mean"]) < at.KL_UNMOVED
    for name in ("entropy_mean", "len_mean"):
        if history.has(name, least=at.STALL_STEPS):
            move = shift(history[name])
            noise_allowed = at.Z_WEAK * move.error if unmoved.get("kl_mean") else 0.0
            unmoved[name] = abs(move.gain) < max(at.UNMOVED * abs(move.before), noise_allowed)
    if history.has("clipfrac", least=at.STALL_STEPS):
        unmoved["clipfrac"] = late_mean(history["clipfrac"]) < at.CLIP_UNMOVED
    return unmoved


def sampler_mismatch(history: History) -> Finding | None:
    limits = {"mismatch_kl": at.MISMATCH_KL, "mismatch_ratio_std": at.MISMATCH_RATIO, "mismatch_logp": at.MISMATCH_LOGP}
    past = [k for k, limit in limits.items() if history.has(k, least=at.LEVEL_STEPS) and late(history[k]) > limit]
    if not past:
        return None
    name = past[0]
    sampler = history.recipe.get("sampler")
    change = set_key(history.recipe, "sampler", "local" if sampler in ("hf", "fp8") else "hf")
    if sampler != "fp8" and (history.recipe.get("dtype") == "bfloat16" or sampler is None):
        change = set_key(history.recipe, "dtype", "float32")
    step, evidence = history.step_at(onset(history[name], limits[name])), tuple(movement(history, k) for k in past)
    return Finding("sampler_mismatch", "critical", step, evidence, change, Expect(name, "down", 5))
