"""Which failure explains which others: the cause comes first, and the others are listed with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from outdo.doctor import reward, stability
from outdo.doctor.finding import Finding
from outdo.doctor.history import History
from outdo.doctor.signals import late_mean, shift
from outdo.metrics import limits as at

COLLAPSED = ("entropy_collapse", "mode_collapse")
STALLED = ("noisy_advantage", "steps_too_small")  # reported where nothing else explains why nothing is learned
DEAD = ("dead_all_wrong", "no_signal")
WORSE = ("overfit", "ood_loss")  # held-out success falls with anything that breaks the policy
LONGER = ("truncation", "thinking_tax")
MOVED = ("kl_blowup", "steps_too_big", "not_finite")
NO_CALLS = ("unused_tools", "abandoned_tools")
CALLS = ("failing_calls", "abandoned_tools", "call_loops", "out_of_turns")  # that a policy that came apart makes
AT_ONCE = 2  # updates
SLACK = 3  # steps by which onsets may be off

# A cause -> its effects.
EFFECTS: dict[str, tuple[str, ...]] = {
    "grader_drift": ("reward_hacking", "steps_too_big", "kl_blowup", "unstable", *WORSE, *DEAD, *COLLAPSED, *STALLED),
    "broken_environment": ("broken_grader", *DEAD, "unstable", *COLLAPSED, *STALLED),
    "broken_grader": (*DEAD, "unstable", *COLLAPSED, *STALLED),
    "inconsistent_grader": ("reward_hacking", "no_signal", *STALLED),
    "sampler_mismatch": (
        *("steps_too_big", "kl_blowup", "not_finite", "no_signal", "unstable", *COLLAPSED, *STALLED, *CALLS),
    ),
    "steps_too_big": ("kl_blowup", "not_finite", "unstable", *DEAD, *LONGER, *WORSE, *COLLAPSED, *STALLED, *CALLS),
    "reward_hacking": ("kl_blowup", "unstable", "abandoned_tools", *LONGER, *DEAD, *WORSE, *COLLAPSED, *STALLED),
    "failing_calls": ("abandoned_tools", "call_loops", "out_of_turns", "truncation", *DEAD, *COLLAPSED, *STALLED),
    "unused_tools": (*DEAD, *COLLAPSED, *STALLED),
    "abandoned_tools": (*DEAD, *WORSE, *COLLAPSED, *STALLED),
    "call_loops": ("out_of_turns", *LONGER, *DEAD, *STALLED),
    "out_of_turns": (*DEAD, *STALLED),
    "kl_blowup": ("not_finite", "unstable", *DEAD, *LONGER, *WORSE, *COLLAPSED, *STALLED, *CALLS),
    "not_finite": ("unstable", *DEAD, *LONGER, *WORSE, *COLLAPSED, *STALLED, *CALLS),
    "thinking_tax": ("truncation", "unstable", *STALLED),
    "truncation": ("overfit", *NO_CALLS, *DEAD, *STALLED),
    "overfit": ("ood_loss", "no_signal", *COLLAPSED, *STALLED),
    "ood_loss": STALLED,
    "unstable": (*WORSE, *STALLED),
    "entropy_collapse": ("mode_collapse", *DEAD, *STALLED),
    "mode_collapse": ("no_signal", *STALLED),
    "dead_all_wrong": ("no_signal", *STALLED),
    "dead_all_right": ("no_signal", *WORSE, *COLLAPSED, *STALLED),
    "no_signal": STALLED,
    "noisy_advantage": ("steps_too_small",),
}


def with_causes_only(findings: Mapping[str, Finding], history: History) -> list[Finding]:
    """The findings that no other explains, each with the codes of those that it explains."""
    pairs = {cause: _effects(cause, findings, history) for cause in findings}
    explained = {effect for effects in pairs.values() for effect in effects}
    causes = [code for code in findings if code not in explained] or list(findings)[:1]
    return [_with_effects(findings[code], _reached(code, pairs, findings), findings) for code in causes]


def _with_effects(cause: Finding, also: tuple[str, ...], findings: Mapping[str, Finding]) -> Finding:
    is_final = cause.unrecoverable or any(findings[code].unrecoverable for code in also)
    return replace(cause, also=also, unrecoverable=is_final)


def _reached(cause: str, pairs: Mapping[str, set[str]], findings: Mapping[str, Finding]) -> tuple[str, ...]:
    """The effects of a cause and those of its effects, in the order of the rules."""
    reached, new = set[str](), {cause}
    while new:
        reached |= new
        new = {effect for code in new for effect in pairs[code]} - reached
    return tuple(code for code in findings if code in reached - {cause})


def _effects(cause: str, findings: Mapping[str, Finding], history: History) -> set[str]:
    """The effects of a cause in this run. Where two rules see one failure, the curves decide which is the cause."""
    effects = set(EFFECTS.get(cause, ())) & findings.keys()
    if cause in MOVED and "no_signal" in effects and findings["no_signal"].step < findings[cause].step - SLACK:
        effects.discard("no_signal")  # it was there before: sampling that is too cold, say
    both = cause == "broken_environment" and "broken_grader" in effects
    if both and late_mean(history["grader_broken"]) > 2 * late_mean(history["env_broken"]):
        effects.discard("broken_grader")  # most were broken by something else
    for first, second in _decided(findings, history):
        if cause == first:
            effects.add(second)
        elif cause == second:
            effects.discard(first)
    return effects


def _decided(findings: Mapping[str, Finding], history: History) -> list[tuple[str, str]]:
    """Pairs of cause and effect that this run's curves decide."""
    codes, decided = findings.keys(), []
    if {"reward_hacking", "thinking_tax"} <= codes and reward.is_much_longer(history):
        decided.append(("thinking_tax", "reward_hacking"))  # length is rewarded
        decided += [("thinking_tax", "kl_blowup")] * ("kl_blowup" in codes)
    if {"ood_loss", "kl_blowup"} <= codes and "steps_too_big" not in codes:
        decided.append(("ood_loss", "kl_blowup"))  # the first set holds, so the harm is this one
    if "steps_too_big" in codes and not stability.large_updates(history)[0]:
        # Only the loss of success is seen, and each of these explains it, unless it was lost at once.
        lost = stability.first_updates(history)
        if "kl_blowup" in codes and (lost is None or lost[0] > AT_ONCE):
            decided.append(("kl_blowup", "steps_too_big"))
        if "abandoned_tools" in codes and not lost:
            decided.append(("abandoned_tools", "steps_too_big"))
        if "unstable" in codes and not lost:
            decided.append(("unstable", "steps_too_big"))
        if "not_finite" in codes and not lost and findings["not_finite"].step <= findings["steps_too_big"].step + SLACK:
            decided.append(("not_finite", "steps_too_big"))  # weights that are NaN answer nothing
        if "truncation" in codes and not stability.has_diverged(history):
            decided.append(("truncation", "steps_too_big"))
    if set(LONGER) <= codes and not _is_paid_more(history):
        decided.append(("truncation", "thinking_tax"))
    return decided


def _is_paid_more(history: History) -> bool:
    """Whether the reward rises: then the longer answers are what it pays for."""
    if not history.has("reward_mean", least=at.TREND_STEPS):
        return False
    move = shift(history["reward_mean"])
    return move.gain > 0.02 and move.z > at.Z_WEAK
