"""Rules about how the policy moves: too far, too little, into a corner, or not as the sampler thinks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from outdo.doctor import limits as at
from outdo.doctor.finding import Change, Direction, Expect, Finding, Severity, Sign, changed
from outdo.doctor.history import History, is_share
from outdo.doctor.names import LOST
from outdo.doctor.signals import early, edge, known, late, late_mean, middle, noise, onset, shift, slope, trend


def moved(history: History, name: str) -> Sign:
    """A signal at both ends, with its slope."""
    return Sign(name, early(history[name]), late(history[name]), history.slope(name))


def worth(history: History) -> str:
    """What the run is after: true success where it is known, else the reward."""
    return "success_rate" if history.has("success_rate") else "reward_mean"


def is_solved(history: History) -> bool:
    """Whether nearly all is right, so that alike and sure answers are what was asked for."""
    goal = worth(history)
    return (
        history.has(goal)
        and late(history[goal]) >= at.SOLVED
        and (goal != "reward_mean" or is_share(history["reward_mean"]))
    )


def progress(history: History) -> float:
    """How sure it is that the run gets better, in errors: from end to end, along a line, or over its later half."""
    goal = worth(history)
    if not history.has(goal):
        return 0.0
    found = [shift(history[goal]), trend(history[goal])]
    if len(history) >= 2 * at.ENOUGH:
        found.append(shift(history[goal][len(history) // 2 :]))
    return max(move.z if move.gain > 0.01 else 0.0 for move in found)


def still_learns(history: History) -> bool:
    """Whether success is rising in the later half."""
    goal = worth(history)
    if not history.has(goal):
        return False
    half = shift(history[goal][len(history) // 2 :])
    return half.gain > 0.02 and half.z > at.LIKELY


def gentler(recipe: Mapping[str, Any], by: float) -> Change:
    rate = recipe.get("learning_rate")
    return changed(recipe, "learning_rate", float(f"{rate / by:.3g}") if rate else 1e-6)


def divides(size: int, recipe: Mapping[str, Any]) -> bool:
    """Whether the answers of a step can be had in groups of that size; of another trainer that is not known."""
    rows = recipe.get("per_device_train_batch_size")
    several = recipe.get("steps_per_generation") or recipe.get("gradient_accumulation_steps") or 1
    batch = recipe.get("generation_batch_size") or (rows * several if rows else size)
    return int(batch) % size == 0


def warmer(recipe: Mapping[str, Any]) -> Change:
    """A higher temperature; one that is let down in the course of the run is kept up instead."""
    start, end = float(recipe.get("temperature") or 1.0), recipe.get("temperature_end")
    if end is not None and end < start:
        return changed(recipe, "temperature_end", start)
    return changed(recipe, "temperature", round(1.25 * start, 2))


def more_answers(recipe: Mapping[str, Any]) -> Change:
    """Larger groups, where the batch can be divided into them; else a larger batch."""
    size = 2 * int(recipe.get("num_generations") or 8)
    if divides(size, recipe):
        return changed(recipe, "num_generations", size)
    key = "generation_batch_size" if recipe.get("generation_batch_size") else "per_device_train_batch_size"
    return changed(recipe, key, 2 * int(recipe[key]))


def kl_blowup(history: History) -> Finding | None:
    if not history.has("kl_mean", least=at.KL_STEPS):
        return None
    kl = known(history["kl_mean"])
    last = kl[-max(at.KL_STEPS, len(kl) // 20) :]
    if np.mean(last > at.KL_LIMIT) <= 0.5 or np.median(kl[-3:]) <= at.KL_LIMIT:
        return None
    began = onset(history["kl_mean"], at.KL_LIMIT)
    recipe, beta = history.recipe, history.recipe.get("beta") or 0.0
    fast = history.step_at(began) - history.step_at(0) < at.KL_FAST
    rate = gentler(recipe, 4 if np.median(last) < 1 else 10)
    change = rate if fast or beta >= 0.04 else changed(recipe, "beta", max(0.04, 4 * beta))
    severity: Severity = "critical" if np.median(last) > at.KL_CRITICAL else "warning"
    signs = (Sign("kl_mean", float(np.median(kl[:5])), float(np.median(last)), history.slope("kl_mean")),)
    return Finding("kl_blowup", severity, history.step_at(began), signs, change, Expect("kl_mean", "down", 20))


def not_finite(history: History) -> Finding | None:
    lost = {n.removeprefix(LOST): np.isfinite(curve) for n, curve in history.columns.items() if n.startswith(LOST)}
    if not lost:
        return None
    any_N = np.any(list(lost.values()), axis=0)
    if not any_N[-1] and np.mean(any_N) <= at.LOST:
        return None
    signs = tuple(Sign(name, note=f"is no number in {at_N.sum()} of {len(any_N)} steps") for name, at_N in lost.items())
    step, expect = history.step_at(int(np.argmax(any_N))), Expect(next(iter(lost)), "steady", 20)
    graded = lost.keys() == {"reward_mean"}  # the grader's doing, which no rate mends
    return Finding("not_finite", "critical", step, signs, None if graded else gentler(history.recipe, 4), expect)


def entropy_collapse(history: History) -> Finding | None:
    if len(history) < at.ENOUGH or not history.has("entropy_mean", least=at.ENOUGH) or is_solved(history):
        return None
    entropy = history["entropy_mean"]
    start = float(np.median(known(entropy)[:5]))
    floor = max(at.ENTROPY_LEFT * start, at.ENTROPY_NONE)
    if late(entropy) > floor or start <= 2 * at.ENTROPY_NONE or still_learns(history):
        return None
    change = warmer(history.recipe)
    bonus = history.recipe.get("entropy_coef") or 0.0
    if change.key == "temperature" and (bonus or change.new > 1.3):
        change = changed(history.recipe, "entropy_coef", max(0.01, 4 * bonus))
    signs = [Sign("entropy_mean", start, late(entropy), history.slope("entropy_mean"))]
    signs += [moved(history, name) for name in ("informative", worth(history)) if history.has(name)]
    return Finding(
        "entropy_collapse",
        "critical",
        history.step_at(onset(entropy, 0.5 * start, above=False)),
        tuple(signs),
        change,
        Expect("entropy_mean", "up", 20),
    )


def mode_collapse(history: History) -> Finding | None:
    if len(history) < at.ENOUGH or not history.has("group_diversity", least=at.ENOUGH) or is_solved(history):
        return None
    kinds = history["group_diversity"]
    start = float(np.median(known(kinds)[:5]))
    if late(kinds) > min(at.DIVERSITY_LEFT * start, at.DIVERSITY_LOW) or still_learns(history):
        return None
    if history.has("success_rate") and shift(history["success_rate"]).gain >= start - late(kinds):
        return None  # those that came to be right are alike, as they should be
    signs = [Sign("group_diversity", start, late(kinds), history.slope("group_diversity"))]
    signs += [moved(history, name) for name in ("entropy_mean", worth(history)) if history.has(name)]
    return Finding(
        "mode_collapse",
        "warning",
        history.step_at(onset(kinds, at.DIVERSITY_LEFT * start, above=False)),
        tuple(signs),
        warmer(history.recipe),
        Expect("group_diversity", "up", 20),
    )


def noisy_advantage(history: History) -> Finding | None:
    if len(history) < at.LONG or not history.has("reward_mean", least=at.LONG) or progress(history) > at.LIKELY:
        return None
    if history.has("informative") and late_mean(history["informative"]) < 1 - at.DEAD:
        return None
    signs = []
    if history.has("reward_std"):
        jumps = noise(history["reward_mean"])
        share = jumps / float(np.hypot(late_mean(history["reward_std"]), jumps) or 1.0)
        if share > at.NOISY:
            worth_of = max(1, round(1 / share**2))
            note = f"the mean of a step is as sure as that of {worth_of} answers"
            signs.append(Sign("noise of reward_mean", None, jumps, None, note))
    if history.has("adv_std") and late(history["adv_std"]) > at.ADV_HUGE:
        signs.append(moved(history, "adv_std"))
    if not signs:
        return None
    signs.append(moved(history, "reward_mean"))
    return Finding(
        "noisy_advantage",
        "warning",
        history.step_at(0),
        tuple(signs),
        more_answers(history.recipe),
        Expect("reward_mean", "up", 50),
    )


def steps_too_small(history: History) -> Finding | None:
    if len(history) < at.LONG or not history.has(worth(history), least=at.LONG) or is_solved(history):
        return None
    if history.has("informative") and late_mean(history["informative"]) < 1 - at.DEAD:
        return None
    line = trend(history[worth(history)])
    fell = line.gain < -at.EARNED and line.z < -at.LIKELY
    if line.gain > at.EARNED or fell or progress(history) > at.LIKELY:
        return None
    rests = _at_rest(history)
    if len(rests.keys() - {"clipfrac"}) < 2 or not all(rests.values()):  # clipfrac is 0 with one update a step
        return None
    rate = history.recipe.get("learning_rate")
    signs = [moved(history, worth(history)), *(moved(history, name) for name in rests)]
    return Finding(
        "steps_too_small",
        "warning",
        history.step_at(0),
        tuple(signs),
        changed(history.recipe, "learning_rate", float(f"{rate * 10:.3g}") if rate else 1e-5),
        Expect("kl_mean" if history.has("kl_mean") else worth(history), "up", 40),
    )


def _at_rest(history: History) -> dict[str, bool]:
    """For each signal that moves when the policy does: whether it did not."""
    found = {}
    for name in ("entropy_mean", "len_mean"):
        if history.has(name, least=at.LONG):
            move = shift(history[name])
            found[name] = abs(move.gain) < at.STILL * abs(move.before)
    if history.has("kl_mean", least=at.LONG):
        found["kl_mean"] = late(history["kl_mean"]) < at.KL_STILL
    if history.has("clipfrac", least=at.LONG):
        found["clipfrac"] = late_mean(history["clipfrac"]) < at.CLIP_STILL
    return found


def steps_too_big(history: History) -> Finding | None:
    if len(history) < at.FEW:
        return None
    signs, began = _strides(history)
    stride = bool(signs)
    fall = _collapse(history)
    if fall is not None:
        signs.append(fall[1])
        began = min(began, fall[0]) if stride else fall[0]
        signs += [moved(history, name) for name in ("entropy_mean", "grad_norm") if history.has(name)]
    if not signs:
        return None
    tight = history.recipe.get("epsilon", 0.2)
    change = changed(history.recipe, "epsilon", 0.2) if tight and tight > 0.5 else gentler(history.recipe, 5)
    signal = signs[0].signal if stride else worth(history)
    way: Direction = "down" if stride else "up"
    return Finding(
        "steps_too_big",
        "critical",
        history.step_at(began),
        tuple(signs),
        change,
        Expect(signal, way, 20),
    )


def _strides(history: History) -> tuple[list[Sign], int]:
    """Signals of single updates that went too far, and when it began."""
    signs: list[Sign] = []
    began = len(history) - 1
    if history.has("clipfrac", least=at.FEW) and late(history["clipfrac"]) > at.CLIP_BIG:
        signs.append(moved(history, "clipfrac"))
        began = min(began, onset(history["clipfrac"], at.CLIP_BIG))
    far = _far(history)
    if far is not None:
        signs.append(far[1])
        began = min(began, far[0])
    if history.has("ratio_mean", least=at.FEW):
        ratio = history["ratio_mean"]
        away = np.abs(np.where(ratio > 0, ratio, np.nan) - 1)  # 0: there was nothing to update on
        if late(away) > at.RATIO_BIG:
            signs.append(Sign("ratio_mean", None, late(history["ratio_mean"]), None, "how far one step goes"))
            began = min(began, onset(away, at.RATIO_BIG))
    if history.has("skipped_updates", least=at.FEW) and late_mean(history["skipped_updates"]) > 0.2:
        signs.append(moved(history, "skipped_updates"))
        began = min(began, onset(history["skipped_updates"], 0))
    return signs, began


def _far(history: History) -> tuple[int, Sign] | None:
    """Steps whose updates went far from the policy that had sampled, and the first of them."""
    if not history.has("step_kl", least=at.FEW):
        return None
    at_N = np.flatnonzero(np.isfinite(history["step_kl"]))
    kl_N = history["step_kl"][at_N]
    size = min(len(kl_N), max(at.STEP_KL_STEPS, edge(len(kl_N))))
    levels = np.median(np.lib.stride_tricks.sliding_window_view(kl_N, size), axis=1)
    if levels[-1] <= at.STEP_KL_BIG:
        return None
    calm = np.flatnonzero(levels <= at.STEP_KL_BIG)
    began = int(at_N[calm[-1] + 1 + size // 2]) if len(calm) else 0  # half of a window was far when its median was
    return began, Sign("step_kl", float(levels[0]), float(levels[-1]), history.slope("step_kl"))


def has_big_strides(history: History) -> bool:
    """Whether single updates went too far, rather than many in a row."""
    return bool(_strides(history)[0])


def _collapse(history: History) -> tuple[int, Sign] | None:
    """Success that was there and went, in a run that may not look at KL or clip."""
    goal = worth(history)
    if len(history) < at.ENOUGH or not history.has(goal, least=at.ENOUGH):
        return None
    share = goal != "reward_mean" or is_share(history["reward_mean"])
    if goal != "reward_mean" and history.has("reward_mean", least=at.ENOUGH):
        paid = shift(history["reward_mean"])
        if paid.gain > 0 and paid.z > at.LIKELY:  # it got what it was paid for: that is the reward's fault
            return None
    values = known(history[goal])
    size = edge(len(values))
    levels = [middle(values[i : i + size]) for i in range(0, len(values) - size + 1, max(1, size // 2))]
    peak = int(np.argmax(levels))
    best, last = levels[peak], middle(values[-size:])
    error = noise(values) * float(np.sqrt(2.0 / size))
    left = at.COLLAPSED * best if share else best - (1 - at.COLLAPSED) * abs(best)  # a reward may have any floor
    if last > left or best - last < max(0.15, (at.SURE + 1) * error):
        return None
    began = onset(history[goal], best - (best - last) / 3, above=False)
    falls = slope(values[peak * max(1, size // 2) :]) / history.stride
    return began, Sign(goal, best, last, falls, "its best, and what is left of it")


def sampler_mismatch(history: History) -> Finding | None:
    lines = (
        ("mismatch_kl", at.MISMATCH_KL),
        ("mismatch_ratio_std", at.MISMATCH_RATIO),
        ("mismatch_logp", at.MISMATCH_LOGP),
    )
    past = [(name, limit) for name, limit in lines if history.has(name, least=at.FEW) and late(history[name]) > limit]
    if not past:
        return None
    name, limit = past[0]
    if history.recipe.get("dtype") == "bfloat16" or "sampler" not in history.recipe:
        change = changed(history.recipe, "dtype", "float32")
    else:
        change = changed(history.recipe, "sampler", "local" if history.recipe["sampler"] == "hf" else "hf")
    return Finding(
        "sampler_mismatch",
        "critical",
        history.step_at(onset(history[name], limit)),
        tuple(moved(history, name) for name, _ in past),
        change,
        Expect(name, "down", 5),
    )
