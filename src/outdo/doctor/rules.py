"""Every rule, and what comes first: the cause before what follows from it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from outdo.doctor import limits as at
from outdo.doctor import policy, reward
from outdo.doctor.finding import Finding, Sign
from outdo.doctor.history import History
from outdo.doctor.phase import current_phase
from outdo.doctor.signals import departure

Rule = Callable[[History], Finding | None]

RULES: dict[str, Rule] = {
    "broken_grader": reward.broken_grader,
    "inconsistent_grader": reward.inconsistent_grader,
    "sampler_mismatch": policy.sampler_mismatch,
    "reward_hacking": reward.reward_hacking,
    "steps_too_big": policy.steps_too_big,
    "kl_blowup": policy.kl_blowup,
    "not_finite": policy.not_finite,
    "dead_all_wrong": reward.dead_all_wrong,
    "dead_all_right": reward.dead_all_right,
    "entropy_collapse": policy.entropy_collapse,
    "mode_collapse": policy.mode_collapse,
    "thinking_tax": reward.thinking_tax,
    "truncation": reward.truncation,
    "overfit": reward.overfit,
    "noisy_advantage": policy.noisy_advantage,
    "steps_too_small": policy.steps_too_small,
}

# Levels that mean the same on any prompts: these rules see all rows, the others those of the current phase.
ON_ANY_PROMPTS = {"broken_grader", "inconsistent_grader", "sampler_mismatch", "kl_blowup", "not_finite"}

CORNERED = ("entropy_collapse", "mode_collapse")  # a policy that has nowhere left to go
IDLE = ("noisy_advantage", "steps_too_small")  # nothing is learnt, for want of a better reason

# A cause -> what follows from it, and is left out beside it.
EXPLAINS: dict[str, tuple[str, ...]] = {
    "broken_grader": ("dead_all_wrong", *CORNERED, *IDLE),
    "inconsistent_grader": ("reward_hacking", *IDLE),
    "sampler_mismatch": ("steps_too_big", "kl_blowup", "not_finite", *CORNERED, *IDLE),
    "steps_too_big": ("kl_blowup", "not_finite", "dead_all_wrong", "truncation", "thinking_tax", *CORNERED, *IDLE),
    "reward_hacking": ("kl_blowup", "overfit", "thinking_tax", "dead_all_wrong", *CORNERED, *IDLE),
    "kl_blowup": ("not_finite", "dead_all_wrong", "truncation", "thinking_tax", *CORNERED, *IDLE),
    "not_finite": ("dead_all_wrong", "truncation", "thinking_tax", "overfit", *CORNERED, *IDLE),
    "thinking_tax": ("truncation", *IDLE),
    "truncation": ("dead_all_wrong", *IDLE),
    "overfit": ("dead_all_right", *CORNERED, *IDLE),
    "entropy_collapse": ("mode_collapse", "dead_all_wrong", *IDLE),
    "mode_collapse": IDLE,
    "dead_all_wrong": IDLE,
    "dead_all_right": (*CORNERED, *IDLE),
    "noisy_advantage": ("steps_too_small",),
}
WEIGHT = {"critical": 0, "warning": 1, "info": 2}


def diagnose(history: History) -> list[Finding]:
    """What is wrong, the cause first; `healthy` or `too_early` alone where nothing is."""
    phase = current_phase(history)
    seen = {code: history if code in ON_ANY_PROMPTS else phase for code in RULES}
    found = {code: finding for code, rule in RULES.items() if (finding := rule(seen[code]))}
    effects = {effect for cause in found for effect in _explained(cause, found, phase)}
    causes = [finding for code, finding in found.items() if code not in effects]
    if causes:
        return sorted(causes, key=lambda finding: WEIGHT[finding.severity])  # else as the rules stand
    return [_verdict(phase, begun_anew=len(phase) < len(history))]


def _explained(cause: str, found: dict[str, Finding], history: History) -> tuple[str, ...]:
    """What follows from a cause here. Two rules see the same thing from two sides: which is the cause depends."""
    both_ways = {"reward_hacking", "thinking_tax"} <= found.keys()
    if both_ways and reward.is_much_longer(history):  # length is what pays
        return ("reward_hacking", *EXPLAINS["thinking_tax"]) if cause == "thinking_tax" else _without(cause)
    if {"steps_too_big", "kl_blowup"} <= found.keys() and not policy.has_big_strides(history):
        if cause == "kl_blowup":
            return ("steps_too_big", *EXPLAINS["kl_blowup"])
        return _without(cause, "kl_blowup") if cause == "steps_too_big" else EXPLAINS.get(cause, ())
    return EXPLAINS.get(cause, ())


def _without(cause: str, code: str = "thinking_tax") -> tuple[str, ...]:
    return tuple(effect for effect in EXPLAINS.get(cause, ()) if effect != code)


def _verdict(history: History, begun_anew: bool) -> Finding:
    goal = policy.worth(history)
    signs = tuple(policy.moved(history, name) for name in (goal, "kl_mean", "entropy_mean") if history.has(name))
    if len(history) < at.ENOUGH or not history.has(goal, least=at.ENOUGH):
        there = int(np.isfinite(history[goal]).sum()) if goal in history.columns else 0
        since = f" since the easier task ended at step {history.step_at(0)}" if begun_anew else ""
        note = f"{len(history)}{since}, {there} of them with {goal}: it takes {at.ENOUGH} to say"
        return Finding("too_early", "info", history.step_at(len(history)), (Sign("steps", note=note), *signs))
    return Finding("healthy", "info", history.step_at(departure(history[goal])), signs)
