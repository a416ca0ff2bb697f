"""All rules, and their order: causes come first, and hide their effects."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from outdo.doctor import conditions, policy, reward
from outdo.doctor.finding import Evidence, Finding
from outdo.doctor.history import History
from outdo.doctor.phase import current_phase
from outdo.doctor.signals import departure
from outdo.metrics import limits as at

Rule = Callable[[History], Finding | None]

_ORDER = (
    *(conditions.out_of_memory, conditions.grader_drift),
    *(reward.broken_grader, reward.inconsistent_grader, policy.sampler_mismatch, reward.reward_hacking),
    *(policy.steps_too_big, policy.kl_blowup, policy.not_finite, reward.dead_all_wrong, reward.dead_all_right),
    *(policy.entropy_collapse, policy.mode_collapse, reward.thinking_tax, reward.truncation, reward.overfit),
    *(policy.noisy_advantage, policy.steps_too_small),
)
RULES: dict[str, Rule] = {rule.__name__: rule for rule in _ORDER}

# Their levels mean the same on any prompts: these rules see all rows, the others those of the current phase.
ANY_PHASE = {
    "out_of_memory",
    "grader_drift",
    "broken_grader",
    "inconsistent_grader",
    "sampler_mismatch",
    "kl_blowup",
    "not_finite",
}

COLLAPSED = ("entropy_collapse", "mode_collapse")
STALLED = ("noisy_advantage", "steps_too_small")  # reported where nothing else explains why nothing is learned

# A cause -> its effects, which are not reported beside it.
EFFECTS: dict[str, tuple[str, ...]] = {
    "grader_drift": ("reward_hacking", "steps_too_big", "kl_blowup", "overfit", "dead_all_wrong", *COLLAPSED, *STALLED),
    "broken_grader": ("dead_all_wrong", *COLLAPSED, *STALLED),
    "inconsistent_grader": ("reward_hacking", *STALLED),
    "sampler_mismatch": ("steps_too_big", "kl_blowup", "not_finite", *COLLAPSED, *STALLED),
    "steps_too_big": ("kl_blowup", "not_finite", "dead_all_wrong", "truncation", "thinking_tax", *COLLAPSED, *STALLED),
    "reward_hacking": ("kl_blowup", "overfit", "thinking_tax", "dead_all_wrong", *COLLAPSED, *STALLED),
    "kl_blowup": ("not_finite", "dead_all_wrong", "truncation", "thinking_tax", *COLLAPSED, *STALLED),
    "not_finite": ("dead_all_wrong", "truncation", "thinking_tax", "overfit", *COLLAPSED, *STALLED),
    "thinking_tax": ("truncation", *STALLED),
    "truncation": ("dead_all_wrong", *STALLED),
    "overfit": ("dead_all_right", *COLLAPSED, *STALLED),
    "entropy_collapse": ("mode_collapse", "dead_all_wrong", *STALLED),
    "mode_collapse": STALLED,
    "dead_all_wrong": STALLED,
    "dead_all_right": (*COLLAPSED, *STALLED),
    "noisy_advantage": ("steps_too_small",),
}
SEVERITIES = {"critical": 0, "warning": 1, "info": 2}


def diagnose(history: History) -> list[Finding]:
    """The failures, most severe first; only `healthy` or `too_early` where there are none."""
    phase = current_phase(history)
    inputs = {code: history if code in ANY_PHASE else phase for code in RULES}
    findings = {code: finding for code, rule in RULES.items() if (finding := rule(inputs[code]))}
    effects = {effect for cause in findings for effect in _effects(cause, findings, phase)}
    causes = [finding for code, finding in findings.items() if code not in effects]
    if causes:
        return sorted(causes, key=lambda finding: SEVERITIES[finding.severity])  # stable: else by the order of RULES
    return [_verdict(phase, after_curriculum=len(phase) < len(history))]


def _effects(cause: str, findings: dict[str, Finding], history: History) -> tuple[str, ...]:
    """The effects of a cause in this run. Where two rules see one failure, the curves decide which is the cause."""
    if {"reward_hacking", "thinking_tax"} <= findings.keys() and reward.is_much_longer(history):  # length is rewarded
        return ("reward_hacking", *EFFECTS["thinking_tax"]) if cause == "thinking_tax" else _without(cause)
    if {"steps_too_big", "kl_blowup"} <= findings.keys() and not policy.large_updates(history)[0]:
        if cause == "kl_blowup":
            return ("steps_too_big", *EFFECTS["kl_blowup"])
        return _without(cause, "kl_blowup") if cause == "steps_too_big" else EFFECTS.get(cause, ())
    return EFFECTS.get(cause, ())


def _without(cause: str, code: str = "thinking_tax") -> tuple[str, ...]:
    return tuple(effect for effect in EFFECTS.get(cause, ()) if effect != code)


def _verdict(history: History, after_curriculum: bool) -> Finding:
    goal = policy.goal_of(history)
    evidence = tuple(policy.movements(history, goal, "kl_mean", "entropy_mean"))
    if not history.has(goal, least=at.TREND_STEPS):
        logged = int(np.isfinite(history[goal]).sum()) if goal in history.columns else 0
        since = f" since the easier task ended at step {history.step_at(0)}" if after_curriculum else ""
        note = f"{len(history)}{since}, {logged} of them with {goal}: {at.TREND_STEPS} are needed"
        return Finding("too_early", "info", history.step_at(len(history)), (Evidence("steps", note=note), *evidence))
    return Finding("healthy", "info", history.step_at(departure(history[goal])), evidence)
