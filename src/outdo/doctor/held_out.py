"""Rules about held-out success: the training prompts are memorized, or another distribution is lost."""

from __future__ import annotations

import numpy as np

from outdo.doctor.changes import raise_beta, set_key
from outdo.doctor.finding import Change, Evidence, Expect, Finding
from outdo.doctor.history import History
from outdo.doctor.levels import FIRST_STEPS, levels_of
from outdo.doctor.policy import goal_of, movement
from outdo.doctor.signals import Shift, departure, edge_size, finite, noise, shift
from outdo.metrics import limits as at


def overfit(history: History) -> Finding | None:
    """Training success outgrows held-out success, or held-out success falls from its best meanwhile."""
    goal = goal_of(history)
    if len(history) < at.TREND_STEPS or not history.has(goal, least=at.LEVEL_STEPS):
        return None
    if not (levels := levels_of(history.held)):
        return None
    train, held, fall = _trained(history, goal), levels.first, levels.fall
    memorized = goal == "success_rate" and train.after >= at.MEMORIZED and train.z > at.Z_STRONG
    lead = Shift(held.gain, train.gain, float(np.hypot(held.error, train.error)))
    behind = Shift(levels.values[-1], train.after, lead.error)  # held-out success at the end
    gap = memorized and lead.gain >= at.OVERFIT_GAP and lead.z > at.Z_WEAK and held.gain < 0.4 * train.gain
    gap = gap and behind.gain >= at.OVERFIT_GAP / 2
    since = history[goal][np.array(history.steps) >= levels.steps[levels.best]]
    meanwhile = shift(since)
    fails = meanwhile.gain < -at.SUCCESS_DROP / 2 and meanwhile.z < -at.Z_WEAK
    holds = len(finite(since)) >= at.LEVEL_STEPS and not fails
    fell = levels.falls and holds
    fell = fell and (goal != "success_rate" or behind.gain > 0.02)  # else the held-out prompts are as well known
    if not gap and not fell:
        return None
    step = levels.steps[levels.best] if fell else history.step_at(departure(history[goal]))
    lost, expect = fall if fell else held, Expect("eval_success_rate", "up", 40)
    held_evidence = Evidence("eval_success_rate", lost.before, lost.after, None, "on held-out prompts")
    evidence = (movement(history, goal), held_evidence)
    change = _less_overfitting(history, step if fell else None)
    return Finding("overfit", "warning", step, evidence, change, expect)


def _trained(history: History, goal: str) -> Shift:
    """Training success over the steps of the first and of the last evaluations."""
    values = finite(history[goal])
    size = edge_size(len(values))
    before, after = float(np.median(values[:FIRST_STEPS])), float(np.median(values[-size:]))
    spread = 1.25 * noise(values)
    return Shift(before, after, float(np.hypot(spread / np.sqrt(FIRST_STEPS), spread / np.sqrt(size))))


def _less_overfitting(history: History, best_step: int | None) -> Change:
    """More prompts, else a larger `beta`, else an end where held-out success was best, if that is well after the
    start."""
    recipe = history.recipe
    args = recipe.get("task_args") or {}
    if isinstance(args, dict) and isinstance(args.get("size"), int):
        return Change("task_args.size", args["size"], 10 * args["size"])
    if recipe.get("beta"):
        return raise_beta(recipe)
    if best_step is not None and best_step >= max(at.TREND_STEPS, history.step_at(len(history)) // 5):
        return set_key(recipe, "max_steps", int(round(best_step, -1 if best_step < 1000 else -2)))
    return raise_beta(recipe)


def ood_loss(history: History) -> Finding | None:
    """Success on the first held-out set holds or rises, and falls on another."""
    first, *others = history.splits or [""]
    if not others or not (main := levels_of(history.splits[first])):
        return None
    if main.first.gain < -at.SUCCESS_DROP / 2 and main.first.z < -at.Z_WEAK:
        return None
    for split in others:
        levels = levels_of(history.splits[split])
        if not levels:
            continue
        if levels.falls and main.fall.z > -main.least_z:
            step = levels.steps[levels.best]
            evidence = (
                Evidence(f"held-out success on {split}", levels.fall.before, levels.fall.after),
                Evidence(f"held-out success on {first or 'the first set'}", main.first.before, main.first.after),
            )
            expect = Expect("kl_mean" if history.has("kl_mean") else "eval_success_rate", "down", 40)
            if expect.signal == "eval_success_rate":
                expect = Expect(expect.signal, "steady", 40)
            return Finding("ood_loss", "warning", step, evidence, raise_beta(history.recipe), expect)
    return None
