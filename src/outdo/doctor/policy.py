"""Rules about the policy: it moves too far or too little, it collapses, or it differs from the sampler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from outdo.doctor.finding import Change, Evidence, Expect, Finding, Severity, set_key
from outdo.doctor.history import History, is_share
from outdo.doctor.names import NON_FINITE
from outdo.doctor.signals import early, edge_size, finite, late, late_mean, noise, onset, shift, trend, trimmed_mean
from outdo.doctor.signals import slope as row_slope
from outdo.metrics import limits as at


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
    is_known = history.has(goal) and (goal == "success_rate" or is_share(history[goal]))
    return is_known and late(history[goal]) >= at.SOLVED


def progress(history: History) -> float:
    """The z-score of the improvement: from end to end, along a line, or over the later half, whichever is largest."""
    goal = goal_of(history)
    if not history.has(goal):
        return 0.0
    shifts = [shift(history[goal]), trend(history[goal])]
    if len(history) >= 2 * at.TREND_STEPS:
        shifts.append(shift(history[goal][len(history) // 2 :]))
    return max(move.z if move.gain > 0.01 else 0.0 for move in shifts)


def still_learns(history: History) -> bool:
    goal = goal_of(history)
    if not history.has(goal):
        return False
    half = shift(history[goal][len(history) // 2 :])
    return half.gain > 0.02 and half.z > at.Z_WEAK


def lower_rate(recipe: Mapping[str, Any], by: float) -> Change:
    rate = recipe.get("learning_rate")
    return set_key(recipe, "learning_rate", float(f"{rate / by:.3g}") if rate else 1e-6)


def fits_batch(size: int, recipe: Mapping[str, Any]) -> bool:
    """Whether the batch divides into groups of that size; assumed where another trainer's batch is unknown."""
    rows = recipe.get("per_device_train_batch_size")
    multiple = recipe.get("steps_per_generation") or recipe.get("gradient_accumulation_steps") or 1
    batch = recipe.get("generation_batch_size") or (rows * multiple if rows else size)
    return int(batch) % size == 0


def higher_temperature(recipe: Mapping[str, Any]) -> Change:
    """A higher temperature; where it decays during the run, no decay."""
    start, end = float(recipe.get("temperature") or 1.0), recipe.get("temperature_end")
    if end is not None and end < start:
        return set_key(recipe, "temperature_end", start)
    return set_key(recipe, "temperature", round(1.25 * start, 2))


def larger_groups(recipe: Mapping[str, Any]) -> Change:
    """Larger groups where the batch divides into them, else a larger batch."""
    size = 2 * int(recipe.get("num_generations") or 8)
    if fits_batch(size, recipe):
        return set_key(recipe, "num_generations", size)
    key = "generation_batch_size" if recipe.get("generation_batch_size") else "per_device_train_batch_size"
    return set_key(recipe, key, 2 * int(recipe[key]))


def kl_blowup(history: History) -> Finding | None:
    if not history.has("kl_mean", least=at.KL_STEPS):
        return None
    kl = finite(history["kl_mean"])
    last = kl[-max(at.KL_STEPS, len(kl) // 20) :]
    if np.mean(last > at.KL_LIMIT) <= 0.5 or np.median(kl[-3:]) <= at.KL_LIMIT:
        return None
    index = onset(history["kl_mean"], at.KL_LIMIT)
    recipe, beta = history.recipe, history.recipe.get("beta") or 0.0
    fast = history.step_at(index) - history.step_at(0) < at.KL_FAST_STEPS
    rate = lower_rate(recipe, 4 if np.median(last) < 1 else 10)
    change = rate if fast or beta >= 0.04 else set_key(recipe, "beta", max(0.04, 4 * beta))
    severity: Severity = "critical" if np.median(last) > at.KL_CRITICAL else "warning"
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
    return Finding("not_finite", "critical", step, evidence, change, expect)


def entropy_collapse(history: History) -> Finding | None:
    if not history.has("entropy_mean", least=at.TREND_STEPS) or is_solved(history):
        return None
    entropy = history["entropy_mean"]
    start = float(np.median(finite(entropy)[:5]))
    floor = max(at.ENTROPY_FRACTION * start, at.ENTROPY_ZERO)
    if late(entropy) > floor or start <= 2 * at.ENTROPY_ZERO or still_learns(history):
        return None
    change = higher_temperature(history.recipe)
    bonus = history.recipe.get("entropy_coef") or 0.0
    if change.key == "temperature" and (bonus or change.new > 1.3):
        change = set_key(history.recipe, "entropy_coef", max(0.01, 4 * bonus))
    evidence = [Evidence("entropy_mean", start, late(entropy), history.slope("entropy_mean"))]
    evidence += movements(history, "informative", goal_of(history))
    step, expect = history.step_at(onset(entropy, 0.5 * start, above=False)), Expect("entropy_mean", "up", 20)
    return Finding("entropy_collapse", "critical", step, tuple(evidence), change, expect)


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
    rate = history.recipe.get("learning_rate")
    change = set_key(history.recipe, "learning_rate", float(f"{rate * 10:.3g}") if rate else 1e-5)
    evidence = tuple(movements(history, goal, *unmoved))
    expect = Expect("kl_mean" if history.has("kl_mean") else goal, "up", 40)
    return Finding("steps_too_small", "warning", history.step_at(0), evidence, change, expect)


def _unmoved(history: History) -> dict[str, bool]:
    """For each signal that moves with the policy: whether it stayed the same."""
    unmoved = {}
    for name in ("entropy_mean", "len_mean"):
        if history.has(name, least=at.STALL_STEPS):
            move = shift(history[name])
            unmoved[name] = abs(move.gain) < at.UNMOVED * abs(move.before)
    if history.has("kl_mean", least=at.STALL_STEPS):
        unmoved["kl_mean"] = late(history["kl_mean"]) < at.KL_UNMOVED
    if history.has("clipfrac", least=at.STALL_STEPS):
        unmoved["clipfrac"] = late_mean(history["clipfrac"]) < at.CLIP_UNMOVED
    return unmoved


def steps_too_big(history: History) -> Finding | None:
    if len(history) < at.LEVEL_STEPS:
        return None
    evidence, index = large_updates(history)
    are_large = bool(evidence)
    if fall := _collapse(history):
        index = min(index, fall[0]) if are_large else fall[0]
        evidence += [fall[1], *movements(history, "entropy_mean", "grad_norm")]
    if not evidence:
        return None
    epsilon = history.recipe.get("epsilon", 0.2)
    change = set_key(history.recipe, "epsilon", 0.2) if epsilon and epsilon > 0.5 else lower_rate(history.recipe, 5)
    signal = evidence[0].signal if are_large else goal_of(history)
    expect = Expect(signal, "down" if are_large else "up", 20)
    return Finding("steps_too_big", "critical", history.step_at(index), tuple(evidence), change, expect)


def large_updates(history: History) -> tuple[list[Evidence], int]:
    """Signals of single updates that are too large, rather than many in a row, and their onset."""
    large: list[tuple[int, Evidence]] = []
    if history.has("clipfrac", least=at.LEVEL_STEPS) and late(history["clipfrac"]) > at.CLIP_HIGH:
        large.append((onset(history["clipfrac"], at.CLIP_HIGH), movement(history, "clipfrac")))
    if step_kl := _large_step_kl(history):
        large.append(step_kl)
    if history.has("ratio_mean", least=at.LEVEL_STEPS):
        ratio = history["ratio_mean"]
        distance = np.abs(np.where(ratio > 0, ratio, np.nan) - 1)  # 0: there was no update
        if late(distance) > at.RATIO_OFF:
            evidence = Evidence("ratio_mean", None, late(ratio), None, "1 is no change")
            large.append((onset(distance, at.RATIO_OFF), evidence))
    if history.has("skipped_updates", least=at.LEVEL_STEPS) and late_mean(history["skipped_updates"]) > 0.2:
        large.append((onset(history["skipped_updates"], 0), movement(history, "skipped_updates")))
    return [evidence for _, evidence in large], min((index for index, _ in large), default=len(history) - 1)


def _large_step_kl(history: History) -> tuple[int, Evidence] | None:
    """The onset and level of `step_kl`, where the updates of a step move far from the policy that sampled."""
    if not history.has("step_kl", least=at.LEVEL_STEPS):
        return None
    at_N = np.flatnonzero(np.isfinite(history["step_kl"]))
    kl_N = history["step_kl"][at_N]
    size = min(len(kl_N), max(at.STEP_KL_STEPS, edge_size(len(kl_N))))
    levels = np.median(np.lib.stride_tricks.sliding_window_view(kl_N, size), axis=1)
    if levels[-1] <= at.STEP_KL_HIGH:
        return None
    below = np.flatnonzero(levels <= at.STEP_KL_HIGH)
    index = int(at_N[below[-1] + 1 + size // 2]) if len(below) else 0  # the middle of the first window past the limit
    return index, Evidence("step_kl", float(levels[0]), float(levels[-1]), history.slope("step_kl"))


def _collapse(history: History) -> tuple[int, Evidence] | None:
    """Success that was reached and lost again, in a run that may log neither KL nor clipping."""
    goal = goal_of(history)
    if not history.has(goal, least=at.TREND_STEPS):
        return None
    has_floor = goal != "reward_mean" or is_share(history["reward_mean"])
    if goal != "reward_mean" and history.has("reward_mean", least=at.TREND_STEPS):
        paid = shift(history["reward_mean"])
        if paid.gain > 0 and paid.z > at.Z_WEAK:  # the policy follows the reward: that is the reward's fault
            return None
    values = finite(history[goal])
    size = edge_size(len(values))
    levels = [trimmed_mean(values[i : i + size]) for i in range(0, len(values) - size + 1, max(1, size // 2))]
    peak = int(np.argmax(levels))
    best, last = levels[peak], trimmed_mean(values[-size:])
    error = noise(values) * float(np.sqrt(2.0 / size))
    limit = at.COLLAPSE * best if has_floor else best - (1 - at.COLLAPSE) * abs(best)  # a reward may be below 0
    if last > limit or best - last < max(0.15, (at.Z_STRONG + 1) * error):
        return None
    index = onset(history[goal], best - (best - last) / 3, above=False)
    falls = row_slope(values[peak * max(1, size // 2) :]) / history.stride
    return index, Evidence(goal, best, last, falls, "from its best to its end")


def sampler_mismatch(history: History) -> Finding | None:
    limits = {"mismatch_kl": at.MISMATCH_KL, "mismatch_ratio_std": at.MISMATCH_RATIO, "mismatch_logp": at.MISMATCH_LOGP}
    past = [k for k, limit in limits.items() if history.has(k, least=at.LEVEL_STEPS) and late(history[k]) > limit]
    if not past:
        return None
    name = past[0]
    change = set_key(history.recipe, "sampler", "local" if history.recipe.get("sampler") == "hf" else "hf")
    if history.recipe.get("dtype") == "bfloat16" or "sampler" not in history.recipe:
        change = set_key(history.recipe, "dtype", "float32")
    step, evidence = history.step_at(onset(history[name], limits[name])), tuple(movement(history, k) for k in past)
    return Finding("sampler_mismatch", "critical", step, evidence, change, Expect(name, "down", 5))
