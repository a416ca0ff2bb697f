"""Rules about what is paid: rewards that are gamed, learnt by heart, flat, broken, or spent on length."""

from __future__ import annotations

import math
import re

import numpy as np

from outdo.doctor import limits as at
from outdo.doctor.finding import Change, Expect, Finding, Sign, changed
from outdo.doctor.history import Held, History, is_share
from outdo.doctor.policy import divides, more_answers, moved, worth
from outdo.doctor.signals import Curve, Shift, departure, early, edge, known, late, late_mean, onset, shift

PART = "reward/"  # before the name of a reward, in the signal that is its mean


def reward_hacking(history: History) -> Finding | None:
    """The reward rises and the truth does not: a strict reward kept out of training, else success, else held-out."""
    if len(history) < at.ENOUGH or not history.has("reward_mean", least=at.ENOUGH):
        return None
    half = len(history) // 2
    spans = [0] if len(history) < 2 * at.ENOUGH else [0, half]
    for start in spans:
        span = history.since(start)
        truth = _truth(span)
        if truth is None:
            continue
        name, true = truth
        paid_N = _paid(span, true)
        paid = shift(paid_N)
        if not (paid.gain >= at.REWARD_UP and paid.z >= at.SURE):
            continue
        if true.gain <= at.FOLLOWS * paid.gain and not (true.z > at.LIKELY and true.gain > at.EARNED):
            return _hacked(history, start + departure(paid_N), name, true)
    return None


def _paid(history: History, true: Shift) -> Curve:
    """The reward of each step, less the penalties that came to be avoided, unless the truth was given up for that.

    Weights are the recipe's; those of another trainer are not known, and taken for 1. What a gate keeps back of a
    penalty is not known either, and taken out all the same.
    """
    if true.gain <= -at.FELL and true.z <= -at.SURE:
        return history["reward_mean"]
    weights = _weights(history)
    costs = [np.minimum(weight * np.nan_to_num(history[key]), 0.0) for key, weight in weights.items()]
    return history["reward_mean"] - np.sum([cost for cost in costs if shift(cost).gain > 0], axis=0)


def _weights(history: History) -> dict[str, float]:
    """What each logged part of the reward counts for."""
    parts = [key for key in history.columns if key.startswith(PART)]
    funcs = history.recipe.get("reward_funcs") or []
    audit = history.recipe.get("audit_reward") or ""
    weights = history.recipe.get("reward_weights") or [1.0] * len(funcs)
    given = {_part(audit): 0.0, **dict(zip(map(_part, funcs), weights, strict=False))}
    return {key: given.get(key, 0.0 if funcs else 1.0) for key in parts}  # one that is not asked for only judges


def _part(name: str) -> str:
    """The signal of a reward that is named as in a recipe: package.module:function, or a file."""
    return PART + re.split("[:/]", name)[-1].removesuffix(".json")


def _truth(history: History) -> tuple[str, Shift] | None:
    for name in ("audit_reward_mean", "success_rate"):
        if history.has(name, least=at.FEW):
            return name, shift(history[name])
    if len(history.held) < 2:
        return None
    return "eval_success_rate", _between(history.held[0], history.held[-1])


def _between(first: Held, last: Held) -> Shift:
    return Shift(first.success, last.success, math.hypot(_error(first), _error(last)))


def _error(one: Held) -> float:
    share = (one.success * one.n + 1) / (one.n + 2)
    return math.sqrt(share * (1 - share) / one.n)


def _hacked(history: History, began: int, name: str, true: Shift) -> Finding:
    signs = [moved(history, "reward_mean"), Sign(name, true.before, true.after, None, "the truth")]
    above = {key: np.maximum(history[key], 0.0) for key in history.columns if key.startswith(PART) and history.has(key)}
    parts = {key: shift(curve) for key, curve in above.items()}
    grown = [key for key, part in parts.items() if part.gain > at.REWARD_UP and part.z > at.SURE]
    signs += [moved(history, key) for key in grown][:3]
    signs += [Sign("answers", note=text) for text in history.answers.gained]
    return Finding(
        "reward_hacking",
        "critical",
        history.step_at(began),
        tuple(signs),
        _harder(history, grown),
        Expect(name, "up", 40),
    )


def _harder(history: History, grown: list[str]) -> Change:
    """Pays the rest only where the strict reward is right; where that is so already, trains on the strict one alone."""
    others = [key for key in history.columns if key.startswith(PART) and key not in grown]
    parts = [key.removeprefix(PART) for key in others if not _is_penalty(history[key])]
    strict = [name for name in (history.recipe.get("audit_reward"), *parts) if name] or ["numeric"]
    if history.recipe.get("reward_gate"):
        return changed(history.recipe, "reward_funcs", strict[:1])
    return Change("reward_gate", None, strict[0])


def _is_penalty(curve: Curve) -> bool:
    """Whether it takes and never pays, so that nothing is right by it."""
    values = known(curve)
    return bool(np.min(values, initial=0.0) < 0 and np.max(values, initial=0.0) <= 0)


def overfit(history: History) -> Finding | None:
    """Training success gets ahead of held-out success, or held-out success falls from its best meanwhile."""
    if len(history) < at.ENOUGH or len(history.held) < 2 or not history.has(worth(history), least=at.FEW):
        return None
    trained = history[worth(history)]
    values = known(trained)
    ahead = Shift(float(np.median(values[:5])), late(trained), shift(trained).error)
    held = history.held
    whole = _between(held[0], held[-1])
    best = max(held[:-1], key=lambda one: one.success)
    fall = _between(best, held[-1])
    knows = worth(history) == "success_rate" and ahead.after >= at.LEARNT and ahead.z > at.SURE
    gap = knows and ahead.gain - whole.gain >= at.GAP and whole.gain < 0.4 * ahead.gain
    since = trained[[step >= best.step for step in history.steps]]
    holds = len(known(since)) >= at.FEW and shift(since).gain > -at.FELL / 2
    fell = -fall.gain >= at.FELL and fall.z < -at.LIKELY - 0.5 and holds
    if not gap and not fell:
        return None
    began = best.step if fell else history.step_at(departure(trained))
    signs = (
        moved(history, worth(history)),
        Sign("eval_success_rate", fall.before if fell else whole.before, held[-1].success, None, "on held-out prompts"),
    )
    return Finding("overfit", "warning", began, signs, _shorter(history, began), Expect("eval_success_rate", "up", 40))


def _shorter(history: History, began: int) -> Change:
    recipe = history.recipe
    args = recipe.get("task_args") or {}
    if isinstance(args, dict) and isinstance(args.get("size"), int):
        return Change("task_args.size", args["size"], 10 * args["size"])
    if recipe.get("beta"):
        return changed(recipe, "beta", 4 * recipe["beta"])
    return changed(recipe, "max_steps", max(1, began))


def thinking_tax(history: History) -> Finding | None:
    """Longer answers that bring nothing, over the whole run or since some point of it."""
    if len(history) < at.ENOUGH or not history.has("len_mean", worth(history), least=at.ENOUGH):
        return None
    third = len(history) // 3
    for start in [0] if len(history) < 2 * at.ENOUGH else [0, third]:
        span = history.since(start)
        length, gain = shift(span["len_mean"]), shift(span[worth(history)])
        grown = length.ratio >= at.LONGER and length.z > at.SURE
        nothing = gain.gain + gain.error < 2 * at.EARNED  # and the noise would have let it be seen
        if grown and (nothing or (length.ratio > at.MUCH_LONGER and gain.gain < at.EARNED)):
            return _taxed(history, start + departure(span["len_mean"]))
    return None


def _taxed(history: History, began: int) -> Finding:
    recipe, signs = history.recipe, [moved(history, "len_mean")]
    signs += [
        moved(history, name)
        for name in ("reasoning_tokens_mean", "success_rate", "reward_mean", "truncated")
        if history.has(name)
    ]
    judges = [key.removeprefix(PART) for key in history.columns if key.startswith(PART)]
    paid = [key for key in judges if _grew(history, PART + key)]
    honest = [key for key in judges if key not in paid]
    change = None
    if honest and not recipe.get("reward_gate") and (paid or recipe.get("reward_weights")):
        change = Change("reward_gate", None, honest[0])
    elif not recipe.get("reward_weights"):  # else a reward more would need a weight more
        funcs = list(recipe.get("reward_funcs") or [])
        names = funcs or [key for key in honest if key != "length"] or ["numeric"]
        change = Change("reward_funcs", funcs or None, [*names, "length"])
    return Finding(
        "thinking_tax", "warning", history.step_at(began), tuple(signs), change, Expect("len_mean", "down", 40)
    )


def _grew(history: History, name: str) -> bool:
    part = shift(history[name]) if history.has(name) else None
    return part is not None and part.gain > 0.05 and part.z > at.SURE


def is_much_longer(history: History) -> bool:
    """Whether length grew so much that it is what pays."""
    return history.has("len_mean") and shift(history["len_mean"]).ratio >= at.MUCH_LONGER


def _is_flat(history: History) -> bool:
    """Whether hardly a group at the end has any spread."""
    return history.has("informative", least=at.FEW) and late_mean(history["informative"]) <= 1 - at.DEAD


def _is_wrong(history: History) -> bool:
    """Whether the groups at the end are without spread because all is wrong."""
    if history.has("all_wrong", least=at.FEW):
        return late_mean(history["all_wrong"]) >= at.DEAD
    return _is_flat(history) and history.has(worth(history)) and late(history[worth(history)]) <= 0.05


def _is_paid(history: History) -> bool:
    """Whether the groups at the end are without spread because all is paid in full, right or not."""
    paid = "reward_mean" if history.has("reward_mean") and is_share(history["reward_mean"]) else worth(history)
    return _is_flat(history) and history.has(paid) and late(history[paid]) >= at.FULL and not _is_wrong(history)


def dead_all_wrong(history: History) -> Finding | None:
    if len(history) < at.FEW or not _is_wrong(history):
        return None
    name = "all_wrong" if history.has("all_wrong") else "informative"
    goal, recipe = worth(history), history.recipe
    chance = late_mean(history[goal]) if goal == "success_rate" and history.has(goal) else 0.0
    now = int(recipe.get("num_generations") or 8)
    size = next((g for g in (16, 32, 64) if 1 - (1 - min(chance, 1.0)) ** g >= 0.3 and divides(g, recipe)), 0)
    if size > now:
        change = changed(recipe, "num_generations", size)
    else:
        change = changed(recipe, "sft_steps", int(recipe.get("sft_steps") or 0) + 500)
    signs = [moved(history, key) for key in (name, goal) if history.has(key)]
    began = onset(history[name], 0.8 if name == "all_wrong" else 0.2, above=name == "all_wrong")
    return Finding(
        "dead_all_wrong", "critical", history.step_at(began), tuple(signs), change, Expect("informative", "up", 20)
    )


def dead_all_right(history: History) -> Finding | None:
    """All right, or all paid alike, from the start. A run that learnt its way there is done, not ill."""
    right = history.has("all_right", least=at.FEW) and late_mean(history["all_right"]) >= at.DEAD
    if len(history) < at.FEW or not (right or _is_paid(history)):
        return None
    name = "all_right" if right else "informative"
    first = float(np.mean(known(history[name])[: max(at.FEW, len(history) // 20)]))
    if (first if right else 1 - first) < at.DEAD_FROM_START:
        return None
    shown = dict.fromkeys((name, "reward_mean", worth(history)) if not right else (name, worth(history)))
    signs = [moved(history, key) for key in shown if history.has(key)]
    return Finding(
        "dead_all_right",
        "critical",
        history.step_at(0),
        tuple(signs),
        _livelier(history),
        Expect("informative", "up", 20),
    )


def _livelier(history: History) -> Change:
    """A reward that tells right from wrong where this one does not; else harder prompts."""
    if history.has("success_rate") and late(history["success_rate"]) < at.SOLVED:
        full = [key for key in history.columns if key.startswith(PART) and late(history[key]) >= at.FULL]
        return _harder(history, full)
    args = history.recipe.get("task_args") or {}
    if isinstance(args, dict) and isinstance(args.get("digits"), int):
        return Change("task_args.digits", args["digits"], args["digits"] + 1)
    return changed(history.recipe, "dynamic_sampling", True)


def inconsistent_grader(history: History) -> Finding | None:
    answers = history.answers
    signs: list[Sign] = []
    if answers.differing >= at.DISAGREE_SETS and answers.differing > at.DISAGREE * answers.repeated:
        note = f"{answers.differing} of {answers.repeated} answers that were given more than once were judged both ways"
        signs = [Sign("answers", note=note), Sign("answers", note=answers.example)]
    elif history.has("grader_disagreement", least=at.FEW):
        shares = known(history["grader_disagreement"])
        often = float(np.mean(shares > 0))
        if float(np.mean(shares[-edge(len(shares)) :])) > at.DISAGREE and often > 0.1:
            signs = [Sign("grader_disagreement", None, float(np.mean(shares)), None, "same answer, other verdict")]
    if not signs:
        return None
    began = 0
    if history.has("grader_disagreement"):
        began = int(np.argmax(np.nan_to_num(history["grader_disagreement"]) > 0))
    return Finding(
        "inconsistent_grader",
        "critical",
        history.step_at(began),
        tuple(signs),
        more_answers(history.recipe),
        Expect("reward_mean", "up", 40),
    )


def broken_grader(history: History) -> Finding | None:
    if not history.has("grader_broken", least=3):
        return None
    share = late_mean(history["grader_broken"])
    if share <= at.BROKEN:
        return None
    seconds = float(history.recipe.get("reward_timeout") or 10.0)
    signs = [Sign("grader_broken", early(history["grader_broken"]), share, history.slope("grader_broken"))]
    if history.answers.broken:
        signs.append(Sign("answers", note=f"the commonest reason: {history.answers.broken}"))
    return Finding(
        "broken_grader",
        "critical" if share > at.BROKEN_CRITICAL else "warning",
        history.step_at(onset(history["grader_broken"], at.BROKEN)),
        tuple(signs),
        changed(history.recipe, "reward_timeout", 3 * seconds),
        Expect("grader_broken", "down", 5),
    )


def truncation(history: History) -> Finding | None:
    if len(history) < at.FEW or not history.has("truncated", least=at.FEW):
        return None
    share = history["truncated"]
    heals = shift(share[len(history) // 2 :]) if len(history) >= 2 * at.FEW else None
    if late_mean(share) <= at.TRUNCATED or (heals and heals.gain < -0.03 and heals.z < -at.LIKELY):
        return None
    room = int(history.recipe.get("max_completion_length") or 256)
    signs = [moved(history, name) for name in ("truncated", "len_mean", worth(history)) if history.has(name)]
    return Finding(
        "truncation",
        "warning",
        history.step_at(onset(history["truncated"], at.TRUNCATED)),
        tuple(signs),
        changed(history.recipe, "max_completion_length", 2 * room),
        Expect("truncated", "down", 10),
    )
