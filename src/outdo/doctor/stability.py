"""Rules about updates that are too large: by their own signals, by success that is lost, or by swings."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from outdo.doctor.changes import lower_rate, set_key
from outdo.doctor.finding import Change, Evidence, Expect, Finding
from outdo.doctor.history import History, is_share
from outdo.doctor.policy import goal_of, movement, movements
from outdo.doctor.signals import (
    Curve,
    edge_size,
    finite,
    late,
    late_mean,
    noise,
    onset,
    reversals,
    shift,
    trimmed_mean,
)
from outdo.doctor.signals import slope as row_slope
from outdo.metrics import limits as at


def steps_too_big(history: History) -> Finding | None:
    evidence, index = large_updates(history)
    are_large = bool(evidence)
    lost = first_updates(history)
    if fall := lost or _collapse(history):
        index = min(index, fall[0]) if are_large else fall[0]
        evidence = [fall[1], *evidence] if lost else [*evidence, fall[1]]
        evidence += movements(history, *(("kl_mean",) if lost else ()), "entropy_mean", "grad_norm")
    if not evidence:
        return None
    signal = evidence[0].signal if are_large and not lost else goal_of(history)
    expect = Expect(signal, "down" if are_large and not lost else "up", 20)
    change = _smaller_updates(history, early=bool(lost))
    is_final = bool(fall) and is_stuck(history)
    step = history.step_at(index)
    return Finding("steps_too_big", "critical", step, tuple(evidence), change, expect, unrecoverable=is_final)


def _smaller_updates(history: History, early: bool) -> Change:
    epsilon = history.recipe.get("epsilon", 0.2)
    if epsilon and epsilon > 0.5:
        return set_key(history.recipe, "epsilon", 0.2)
    return lower_rate(history.recipe, 30 if early else 5)


def is_stuck(history: History) -> bool:
    """Whether the last steps had no group with spread and no gradient: the next ones will be the same."""
    spread = next((name for name in ("informative", "adv_std") if name in history.columns), None)
    if spread is None or "grad_norm" not in history.columns or len(history) < at.STUCK_STEPS:
        return False
    last = [history[name][-at.STUCK_STEPS :] for name in (spread, "grad_norm")]
    return all(bool(np.all(np.abs(values) < 1e-7)) for values in last)  # NaN is not below


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
    return [evidence for _, evidence in large], min((index for index, _ in large), default=max(0, len(history) - 1))


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


def first_updates(history: History) -> tuple[int, Evidence] | None:
    """Success that the model had before training, and lost in the first few updates for good.

    Rows are of answers sampled before their update, so the first one shows the model as it was; so does an
    evaluation before it.
    """
    goal = goal_of(history)
    at_N = np.flatnonzero(np.isfinite(history.columns.get(goal, np.empty(0))))
    values = history[goal][at_N] if len(at_N) else np.empty(0)
    rows = at.HALTED_ROWS if "kl_limit" in history.ended else at.EARLY_ROWS  # the KL guard halts sooner
    if len(values) < rows + 1 or not is_share(values):
        return None
    for count in range(0, min(at.EARLY_ROWS, len(values) - rows) + 1):
        after = values[count:]
        high = max(float(np.quantile(after, 0.9)), float(after[:3].mean()))  # later and at once
        for level, error in _levels_before(history, values[:count]):
            confirmed = _confirmed(history, level)
            least = max(0.1, (1.5 if confirmed else 3.0) * error)
            if high <= at.LOST * level and level - float(after.mean()) >= least and (count or confirmed):
                note = f"lost in the first {f'{count} updates' if count > 1 else 'update'}"
                return int(at_N[count]), Evidence(goal, level, float(after.mean()), None, note)
    return None


def _levels_before(history: History, rows: Curve) -> Iterator[tuple[float, float]]:
    """Success of the model before training, with its error: of an evaluation, and of these first rows."""
    point = history.held[0] if history.held and history.held[0].step <= history.step_at(0) else None
    if point and point.size >= at.LEVEL_STEPS and goal_of(history) == "success_rate":
        yield point.success, float(np.sqrt(max(point.success * (1 - point.success), 0.01) / point.size))
    if len(rows):
        level = float(rows.mean())
        yield level, float(np.sqrt(max(level * (1 - level), 0.01) / (16 * len(rows))))  # of 16 answers a step, or more


def _confirmed(history: History, level: float) -> bool:
    """Whether the policy did move far: else training prompts may be harder, or the first step was lucky."""
    moved = history.has("kl_mean") and late(history["kl_mean"]) > at.KL_LIMIT
    return moved or (len(history.held) > 1 and history.held[-1].success <= at.LOST * level)


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


def has_diverged(history: History) -> bool:
    """Whether the policy itself broke: it moved far, its entropy or its gradients grew, or its first updates did it."""
    if first_updates(history) or large_updates(history)[0]:
        return True
    if history.has("kl_mean") and late(history["kl_mean"]) > at.KL_LIMIT:
        return True
    grown = {"entropy_mean": at.ENTROPY_GROWN, "grad_norm": at.GRAD_GROWN}
    return any(history.has(name) and shift(history[name]).ratio > times for name, times in grown.items())


def unstable(history: History) -> Finding | None:
    """Success or the reward swings up and down, far beyond the noise of a step, up to the end."""
    for name in dict.fromkeys((goal_of(history), "reward_mean")):
        if history.has(name, least=at.SWING_STEPS) and (finding := _swinging(history, name)):
            return finding
    return None


def _swinging(history: History, name: str) -> Finding | None:
    at_N = np.flatnonzero(np.isfinite(history[name]))
    values = history[name][at_N]
    least = at.SWING if name == "success_rate" or is_share(values) else 2 * at.SWING * abs(float(np.median(values)))
    turns = _swings(values, least) or _cycles(values, least)
    if not turns:
        return None
    low, high = np.quantile(values, [0.1, 0.9])
    note = f"it swings between them, {len(turns)} times up or down"
    evidence = [Evidence(name, float(low), float(high), None, note), *movements(history, "kl_mean", "grad_norm")]
    step = history.step_at(int(at_N[turns[0]]))
    change, expect = lower_rate(history.recipe, 3), Expect(name, "steady", 40)
    return Finding("unstable", "warning", step, tuple(evidence), change, expect)


def _swings(values: Curve, least: float) -> list[int]:
    """The turning points of slow swings, by means of blocks: those of the smallest blocks that show them."""
    spread, size = noise(values), 1
    while len(values) // size >= 12:
        count = len(values) // size
        means = values[len(values) - count * size :].reshape(count, size).mean(axis=1)
        chance = 2 * float(np.sqrt(2 * np.log(count)))  # standard errors from the lowest to the highest of so many
        turns = reversals(means, max(least, (chance + at.SWING_Z) * spread / float(np.sqrt(size))))
        if len(turns) > at.SWINGS and turns[-1] >= 0.6 * count:
            return [turn * size for turn in turns]
        size *= 2
    return []


def _cycles(values: Curve, least: float) -> list[int]:
    """The turning points of fast swings, which look like noise from step to step: they repeat after some steps."""
    size = max(9, len(values) // 8)  # a shorter mean would follow the noise, and leave what looks like a cycle
    padded = np.pad(values, (size // 2, size - 1 - size // 2), mode="reflect")
    rest = values - np.convolve(padded, np.full(size, 1 / size), mode="valid")
    total = float(rest @ rest)
    if float(np.std(rest)) < least / 2 or total <= 0:
        return []
    lags = np.array([float(rest[lag:] @ rest[:-lag]) / total for lag in range(1, min(len(values) // 4, 40))])
    low = int(np.argmin(lags))
    if lags[low] > -at.CYCLE or float(np.max(lags[low:], initial=0.0)) < at.CYCLE:
        return []
    return list(range(0, len(values), low + 1))
