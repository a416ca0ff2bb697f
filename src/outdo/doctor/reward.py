"""Rules about the reward: it is gamed, memorized, flat, broken, or spent on length."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from outdo.doctor.changes import larger_groups, scale_key, set_key
from outdo.doctor.finding import Change, Evidence, Expect, Finding, Severity
from outdo.doctor.history import History
from outdo.doctor.levels import levels_of
from outdo.doctor.policy import goal_of, movement, movements
from outdo.doctor.signals import Curve, Shift, departure, early, edge_size, finite, late_mean, onset, shift
from outdo.metrics import limits as at

PART = "reward/"  # prefix of the signal that is the mean of a reward


def reward_hacking(history: History) -> Finding | None:
    """The reward rises and the true signal does not: the audited reward, else success, else held-out success."""
    if not history.has("reward_mean", least=at.TREND_STEPS):
        return None
    for start in [0] if len(history) < 2 * at.TREND_STEPS else [0, len(history) // 2]:
        span = history.since(start)
        if not (truth := _truth(span)):
            continue
        name, true = truth
        paid_N = _paid(span, true)
        paid = shift(paid_N)
        lags = true.gain <= at.TRUTH_FOLLOWS * paid.gain and not (true.z > at.Z_WEAK and true.gain > at.SUCCESS_GAIN)
        if paid.gain >= at.REWARD_RISE and paid.z >= at.Z_STRONG and lags:
            return _hacked(history, start + departure(paid_N), name, true)
    return None


def _paid(history: History, true: Shift) -> Curve:
    """The reward of each step without penalties that were learned to be avoided, unless the true signal fell meanwhile.

    Weights are the recipe's; of another trainer they are unknown and taken as 1. What a gate withholds of a penalty is
    unknown too, and is taken out all the same.
    """
    if true.gain <= -at.SUCCESS_DROP and true.z <= -at.Z_STRONG:
        return history["reward_mean"]
    weights = _weights(history)
    costs = [np.minimum(weight * np.nan_to_num(history[key]), 0.0) for key, weight in weights.items()]
    return history["reward_mean"] - np.sum([cost for cost in costs if shift(cost).gain > 0], axis=0)


def _weights(history: History) -> dict[str, float]:
    parts = [key for key in history.columns if key.startswith(PART)]
    funcs = history.recipe.get("reward_funcs") or []
    audit = history.recipe.get("audit_reward") or ""
    weights = history.recipe.get("reward_weights") or [1.0] * len(funcs)
    given = {_part(audit): 0.0, **dict(zip(map(_part, funcs), weights, strict=False))}
    return {key: given.get(key, 0.0 if funcs else 1.0) for key in parts}  # not in the recipe: not paid


def _part(name: str) -> str:
    """The signal of a reward named as in a recipe: package.module:function, or a file."""
    return PART + re.split("[:/]", name)[-1].removesuffix(".json")


def _truth(history: History) -> tuple[str, Shift] | None:
    for name in ("audit_reward_mean", "success_rate"):
        if history.has(name, least=at.LEVEL_STEPS):
            return name, shift(history[name])
    levels = levels_of(history.held)
    return ("eval_success_rate", levels.first) if levels else None


def _hacked(history: History, index: int, name: str, true: Shift) -> Finding:
    evidence = [movement(history, "reward_mean"), Evidence(name, true.before, true.after, None, "the true signal")]
    logged = [key for key in history.columns if key.startswith(PART) and history.has(key)]
    parts = {key: shift(np.maximum(history[key], 0.0)) for key in logged}
    grown = [key for key, part in parts.items() if part.gain > at.REWARD_RISE and part.z > at.Z_STRONG]
    evidence += [movement(history, key) for key in grown][:3]
    evidence += _copies(history)
    evidence += [Evidence("answers", note=text) for text in history.answers.gained]
    change, expect = stricter_reward(history, grown), Expect(name, "up", 40)
    return Finding("reward_hacking", "critical", history.step_at(index), tuple(evidence), change, expect)


def _copies(history: History) -> list[Evidence]:
    """Answers that came to be a tool's text: no failure by itself, but then what the reward pays for."""
    if not history.has("copied", least=at.LEVEL_STEPS) or shift(history["copied"]).gain < at.REWARD_RISE:
        return []
    return [replace(movement(history, "copied"), note="answers that are mostly text of a tool")]


def stricter_reward(history: History, grown: list[str]) -> Change:
    """Gates the other rewards by the strict one; where there is a gate already, trains on the strict one alone."""
    others = [key for key in history.columns if key.startswith(PART) and key not in grown]
    parts = [key.removeprefix(PART) for key in others if not _is_penalty(history[key])]
    strict = [name for name in (history.recipe.get("audit_reward"), *parts) if name] or ["numeric"]
    if history.recipe.get("reward_gate"):
        return set_key(history.recipe, "reward_funcs", strict[:1])
    return Change("reward_gate", None, strict[0])


def _is_penalty(curve: Curve) -> bool:
    """Whether it is never above 0, so that it cannot tell right from wrong."""
    values = finite(curve)
    return bool(np.min(values, initial=0.0) < 0 and np.max(values, initial=0.0) <= 0)


def thinking_tax(history: History) -> Finding | None:
    """Longer answers without more success, over the whole run or its last two thirds."""
    if not history.has("len_mean", goal_of(history), least=at.TREND_STEPS):
        return None
    for start in [0] if len(history) < 2 * at.TREND_STEPS else [0, len(history) // 3]:
        span = history.since(start)
        length, gain = shift(span["len_mean"]), shift(span[goal_of(history)])
        grown = length.ratio >= at.LENGTH_GROWN and length.z > at.Z_STRONG
        no_gain = gain.gain + gain.error < 2 * at.SUCCESS_GAIN  # and the noise would not hide one
        if grown and (no_gain or (length.ratio > at.LENGTH_GROWN_MUCH and gain.gain < at.SUCCESS_GAIN)):
            return _taxed(history, start + departure(span["len_mean"]))
    return None


def _taxed(history: History, index: int) -> Finding:
    recipe = history.recipe
    signals = ("len_mean", "reasoning_tokens_mean", "success_rate", "reward_mean", "truncated")
    parts = [key.removeprefix(PART) for key in history.columns if key.startswith(PART)]
    moves = {key: shift(history[PART + key]) for key in parts if history.has(PART + key)}
    grown = [key for key, move in moves.items() if move.gain > 0.05 and move.z > at.Z_STRONG]
    steady = [key for key in parts if key not in grown]
    change = None
    if steady and not recipe.get("reward_gate") and (grown or recipe.get("reward_weights")):
        change = Change("reward_gate", None, steady[0])
    elif not recipe.get("reward_weights"):  # else one more reward would need one more weight
        funcs = list(recipe.get("reward_funcs") or [])
        names = funcs or [key for key in steady if key != "length"] or ["numeric"]
        change = Change("reward_funcs", funcs or None, [*names, "length"])
    evidence, expect = tuple(movements(history, *signals)), Expect("len_mean", "down", 40)
    return Finding("thinking_tax", "warning", history.step_at(index), evidence, change, expect)


def is_much_longer(history: History) -> bool:
    """Whether length grew so much that the reward must pay for it."""
    return history.has("len_mean") and shift(history["len_mean"]).ratio >= at.LENGTH_GROWN_MUCH


def inconsistent_grader(history: History) -> Finding | None:
    answers = history.answers
    evidence: list[Evidence] = []
    if answers.differing >= at.DISAGREEMENT_SETS and answers.differing > at.DISAGREEMENT * answers.repeated:
        note = f"{answers.differing} of {answers.repeated} repeated answers have different verdicts"
        evidence = [Evidence("answers", note=note), Evidence("answers", note=answers.example)]
    elif history.has("grader_disagreement", least=at.LEVEL_STEPS):
        shares = finite(history["grader_disagreement"])
        frequency = float(np.mean(shares > 0))
        if float(np.mean(shares[-edge_size(len(shares)) :])) > at.DISAGREEMENT and frequency > 0.1:
            evidence = [Evidence("grader_disagreement", None, float(np.mean(shares)), None, "repeated answers")]
    if not evidence:
        return None
    index = 0
    if history.has("grader_disagreement"):
        index = int(np.argmax(np.nan_to_num(history["grader_disagreement"]) > 0))
    change, expect = larger_groups(history.recipe), Expect("reward_mean", "up", 40)
    return Finding("inconsistent_grader", "critical", history.step_at(index), tuple(evidence), change, expect)


def broken_grader(history: History) -> Finding | None:
    if not history.has("grader_broken", least=3) or late_mean(history["grader_broken"]) <= at.BROKEN:
        return None
    broken = history["grader_broken"]
    share, step = late_mean(broken), history.step_at(onset(broken, at.BROKEN))
    evidence = [Evidence("grader_broken", early(broken), share, history.slope("grader_broken"))]
    if history.answers.broken:
        evidence.append(Evidence("answers", note=f"the most common reason: {history.answers.broken}"))
    change = scale_key(history.recipe, "reward_timeout", 3)
    severity: Severity = "critical" if share > at.BROKEN_CRITICAL else "warning"
    return Finding("broken_grader", severity, step, tuple(evidence), change, Expect("grader_broken", "down", 5))


def truncation(history: History) -> Finding | None:
    if not history.has("truncated", least=at.LEVEL_STEPS):
        return None
    share = history["truncated"]
    recovery = shift(share[len(history) // 2 :]) if len(history) >= 2 * at.LEVEL_STEPS else None
    if late_mean(share) <= at.TRUNCATED or (recovery and recovery.gain < -0.03 and recovery.z < -at.Z_WEAK):
        return None
    change = scale_key(history.recipe, "max_completion_length", 2)
    evidence = tuple(movements(history, "truncated", "len_mean", "env_tokens_mean", goal_of(history)))
    step, expect = history.step_at(onset(share, at.TRUNCATED)), Expect("truncated", "down", 10)
    return Finding("truncation", "warning", step, evidence, change, expect)
