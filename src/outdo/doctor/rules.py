"""All rules, and their order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from outdo.doctor import conditions, held_out, policy, reward, spread, stability, turns
from outdo.doctor.causes import with_causes_only
from outdo.doctor.coverage import is_enough, unjudged
from outdo.doctor.finding import Evidence, Finding
from outdo.doctor.history import History
from outdo.doctor.phase import current_phase
from outdo.doctor.signals import departure
from outdo.metrics import limits as at

Rule = Callable[[History], Finding | None]

_ORDER = (
    *(conditions.out_of_memory, conditions.grader_drift),
    *(turns.broken_environment, reward.broken_grader, reward.inconsistent_grader, policy.sampler_mismatch),
    reward.reward_hacking,
    *(turns.failing_calls, turns.unused_tools, turns.abandoned_tools, turns.call_loops, turns.out_of_turns),
    *(stability.steps_too_big, policy.kl_blowup, policy.not_finite, spread.dead_all_wrong, spread.dead_all_right),
    *(policy.entropy_collapse, policy.mode_collapse, reward.thinking_tax, reward.truncation, spread.no_signal),
    *(stability.unstable, held_out.overfit, held_out.ood_loss, policy.noisy_advantage, policy.steps_too_small),
    *(turns.given_away, turns.slow_environment),
)
RULES: dict[str, Rule] = {rule.__name__: rule for rule in _ORDER}
_NOTES = (policy.entropy_falling, turns.unneeded_tools)
NOTES: dict[str, Rule] = {rule.__name__: rule for rule in _NOTES}  # beside any verdict

# Their levels mean the same on any prompts: these rules see all rows, the others those of the current phase.
ANY_PHASE = {
    *("out_of_memory", "grader_drift", "broken_grader", "inconsistent_grader", "sampler_mismatch", "kl_blowup"),
    *("not_finite", "broken_environment", "slow_environment"),
}

SEVERITIES = {"critical": 0, "warning": 1, "info": 2}


def diagnose(history: History) -> list[Finding]:
    """The failures, most severe first; where there are none, one verdict: `healthy`, `too_early`, `too_little_data`.

    A failure that another one explains is listed with that one (`also`). Notes come last.
    """
    phase = current_phase(history)
    inputs = {code: history if code in ANY_PHASE else phase for code in RULES}
    findings = {code: finding for code, rule in RULES.items() if (finding := rule(inputs[code]))}
    if findings:
        causes = with_causes_only(findings, phase)
        return sorted(causes, key=lambda finding: SEVERITIES[finding.severity])  # stable: else by the order of RULES
    notes = [note for rule in NOTES.values() if (note := rule(phase))]
    verdict = _verdict(phase, after_curriculum=len(phase) < len(history))
    return [replace(verdict, unjudged=unjudged(phase)), *notes]


def _verdict(history: History, after_curriculum: bool) -> Finding:
    goal = policy.goal_of(history)
    evidence = tuple(policy.movements(history, goal, "kl_mean", "entropy_mean"))
    if len(history) < at.TREND_STEPS or (history.has(goal) and not history.has(goal, least=at.TREND_STEPS)):
        logged = int(np.isfinite(history[goal]).sum()) if goal in history.columns else 0
        since = f" since the easier task ended at step {history.step_at(0)}" if after_curriculum else ""
        note = f"{len(history)}{since}, {logged} of them with {goal}: {at.TREND_STEPS} are needed"
        return Finding("too_early", "info", history.step_at(len(history)), (Evidence("steps", note=note), *evidence))
    if not is_enough(history):
        signals = ", ".join(name for name in history.columns if history.has(name)) or "nothing that a rule reads"
        note = f"{signals}; needed are reward_mean or success_rate, and kl_mean, entropy_mean or informative"
        logged_too = Evidence("logged:", note=note)
        return Finding("too_little_data", "info", history.step_at(len(history)), (logged_too, *evidence))
    return Finding("healthy", "info", history.step_at(departure(history[goal])), evidence)
