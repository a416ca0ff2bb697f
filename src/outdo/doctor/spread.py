"""Rules about groups without spread: all answers wrong, all right, or all with the same reward."""

from __future__ import annotations

import numpy as np

from outdo.doctor.changes import fits_batch, higher_temperature, larger_groups, scale_key, set_key
from outdo.doctor.finding import Change, Expect, Finding, Severity
from outdo.doctor.history import History, is_share
from outdo.doctor.policy import goal_of, is_solved, movements
from outdo.doctor.reward import PART, stricter_reward
from outdo.doctor.signals import early, finite, late, late_mean, onset, shift, windows
from outdo.metrics import limits as at


def _is_flat(history: History) -> bool:
    """Whether hardly any group at the end has spread."""
    if history.has("informative", least=at.LEVEL_STEPS):
        return late_mean(history["informative"]) <= 1 - at.NO_SPREAD
    if history.has("all_right", "all_wrong", least=at.LEVEL_STEPS):
        return late_mean(history["all_right"]) + late_mean(history["all_wrong"]) >= at.NO_SPREAD
    return False


def _is_all_wrong(history: History) -> bool:
    """Whether the groups at the end have no spread because all answers are wrong."""
    if history.has("all_wrong", least=at.LEVEL_STEPS):
        return late_mean(history["all_wrong"]) >= at.NO_SPREAD
    return _is_flat(history) and history.has(goal_of(history)) and late(history[goal_of(history)]) <= 0.05


def _is_all_paid(history: History) -> bool:
    """Whether the groups at the end have no spread because all answers get the full reward, right or not."""
    is_known = history.has("reward_mean") and (is_share(history["reward_mean"]) or bool(history.full_reward))
    paid = "reward_mean" if is_known else goal_of(history)
    is_full = history.has(paid) and late(history[paid]) >= at.FULL_REWARD * (history.full_reward or 1.0)
    return _is_flat(history) and is_full and not _is_all_wrong(history)


def dead_all_wrong(history: History) -> Finding | None:
    if not _is_all_wrong(history):
        return None
    name = "all_wrong" if history.has("all_wrong") else "informative"
    index = onset(history[name], 0.8 if name == "all_wrong" else 0.2, above=name == "all_wrong")
    evidence = tuple(movements(history, name, goal_of(history)))
    expect = Expect("informative", "up", 20)
    return Finding("dead_all_wrong", "critical", history.step_at(index), evidence, _reachable(history), expect)


def _reachable(history: History) -> Change:
    """Larger groups where the model is sometimes right, else an SFT warm-up."""
    goal, recipe = goal_of(history), history.recipe
    chance = late_mean(history[goal]) if goal == "success_rate" and history.has(goal) else 0.0
    size = next((g for g in (16, 32, 64) if 1 - (1 - min(chance, 1.0)) ** g >= 0.3 and fits_batch(g, recipe)), 0)
    if "num_generations" not in recipe:
        return scale_key(recipe, "num_generations", 4) if size else set_key(recipe, "sft_steps", 500)
    if size > int(recipe["num_generations"]):
        return set_key(recipe, "num_generations", size)
    return set_key(recipe, "sft_steps", int(recipe.get("sft_steps") or 0) + 500)


def dead_all_right(history: History) -> Finding | None:
    """All right, or all with the same reward, from the start. A run that learned to get there is done, not failing."""
    right = history.has("all_right", least=at.LEVEL_STEPS) and late_mean(history["all_right"]) >= at.NO_SPREAD
    if not (right or _is_all_paid(history)):
        return None
    name = "all_right" if right else "informative"
    if not history.has(name):
        return None
    first = float(np.mean(finite(history[name])[: max(at.LEVEL_STEPS, len(history) // 20)]))
    if (first if right else 1 - first) < at.NO_SPREAD_AT_START:
        return None
    names = dict.fromkeys((name, goal_of(history)) if right else (name, "reward_mean", goal_of(history)))
    evidence, expect = tuple(movements(history, *names)), Expect("informative", "up", 20)
    return Finding("dead_all_right", "critical", history.step_at(0), evidence, _restore_spread(history), expect)


def _restore_spread(history: History) -> Change:
    """A reward that tells right from wrong where this one does not, else harder prompts."""
    if history.has("success_rate") and late(history["success_rate"]) < at.SOLVED:
        full = [key for key in history.columns if key.startswith(PART) and late(history[key]) >= at.FULL_REWARD]
        return stricter_reward(history, full)
    args = history.recipe.get("task_args") or {}
    if isinstance(args, dict) and isinstance(args.get("digits"), int):
        return Change("task_args.digits", args["digits"], args["digits"] + 1)
    return set_key(history.recipe, "dynamic_sampling", True)


def no_signal(history: History) -> Finding | None:
    """Hardly any advantage differs from 0, and the task is not solved."""
    flat, faint = _is_flat(history), _is_faint(history)
    if not (flat or faint) or is_solved(history) or _has_converged(history):
        return None
    names = ("informative", "all_wrong") if flat else ("adv_std", "reward_std")
    name = next(key for key in names if history.has(key, least=at.LEVEL_STEPS))
    level = 1 - at.NO_SPREAD if flat else max(at.ADV_STD_LOW, 0.1 * early(history[name]))
    index = onset(history[name], level, above=name == "all_wrong")
    extra = ("informative", "adv_std", "group_diversity", goal_of(history))
    evidence = tuple(movements(history, *dict.fromkeys((name, *extra))))
    severity: Severity = "critical" if late_mean(history[name]) <= 0.5 * level else "warning"
    expect = Expect(name, "up" if name != "all_wrong" else "down", 20)
    return Finding("no_signal", severity, history.step_at(index), evidence, _more_spread(history), expect)


def _is_faint(history: History) -> bool:
    """Whether the advantages at the end are near 0: small, and small beside the rewards or what they were. Rewards
    that hardly differ give none."""
    if history.has("reward_std", least=at.LEVEL_STEPS):
        level = late_mean(history["reward_std"])
        if level < 1e-3 or level <= 0.05 * early(history["reward_std"]):
            return True
    if not history.has("adv_std", least=at.LEVEL_STEPS):
        return False
    level = late_mean(history["adv_std"])
    if level <= 0.1 * early(history["adv_std"]):
        return True
    spread = late_mean(history["reward_std"]) if history.has("reward_std", least=at.LEVEL_STEPS) else np.inf
    has_spread = history.has("informative", least=at.LEVEL_STEPS) and not _is_flat(history)
    return level <= at.ADV_STD_LOW and level <= 0.25 * spread and not has_spread


def _has_converged(history: History) -> bool:
    """Whether a reward without a known maximum rose and stayed at its best: it may well be solved."""
    goal = goal_of(history)
    if goal == "success_rate" or not history.has(goal, least=at.TREND_STEPS) or is_share(history[goal]):
        return False
    move, best = shift(history[goal]), float(np.max(windows(finite(history[goal]), 8)))
    return move.gain > 0 and move.z > at.Z_STRONG and move.after >= best - 0.03 * abs(best)


def _more_spread(history: History) -> Change:
    """Sampling at temperature 1 where it is colder, more different answers where they are alike, else larger groups."""
    temperature = history.recipe.get("temperature")
    if temperature is not None and temperature < 0.8:
        return set_key(history.recipe, "temperature", 1.0)
    alike = history.has("group_diversity") and late(history["group_diversity"]) < 0.3
    return higher_temperature(history.recipe) if alike else larger_groups(history.recipe)
