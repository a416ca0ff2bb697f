"""Rules about held-out success: the training prompts are memorized, or another distribution is lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from outdo.doctor.changes import raise_beta, set_key
from outdo.doctor.finding import Change, Evidence, Expect, Finding
from outdo.doctor.history import Held, History
from outdo.doctor.policy import goal_of, movement
from outdo.doctor.signals import Shift, departure, edge_size, finite, noise, shift, windows
from outdo.metrics import limits as at

WINDOWS = 8  # that evaluations are averaged in
FIRST_STEPS = 5  # whose success counts as that of the start
PRIOR = 4  # evaluations that the error of the sampled problems counts for, beside the scatter of the points


@dataclass(frozen=True)
class Levels:
    """Held-out success as means of windows of evaluations, with one standard error."""

    values: tuple[float, ...]
    steps: tuple[int, ...]  # the middle of each window
    error: float  # of the difference of two windows
    first: Shift  # from the first few evaluations to the last window

    @property
    def best(self) -> int:
        """The best window before the last."""
        return int(np.argmax(self.values[:-1]))

    @property
    def fall(self) -> Shift:
        """From the best window to the last."""
        return Shift(self.values[self.best], self.values[-1], self.error)

    @property
    def strict_z(self) -> float:
        """The standard errors that a fall from the best needs: the best of many is high by chance."""
        return at.Z_WEAK + 0.5 + 0.5 * float(np.log(max(1, len(self.values) - 1)))


def levels_of(points: Sequence[Held]) -> Levels | None:
    """None for fewer than two evaluations."""
    if len(points) < 2:
        return None
    success, count = np.array([point.success for point in points]), min(WINDOWS, len(points))
    size = -(-len(points) // count)
    means = windows(success, count)
    middles = np.array([point.step for point in points])[len(points) % size :].reshape(-1, size)[:, size // 2]
    scatter = _scatter(points)
    error = scatter / np.sqrt(size)
    if len(means) >= 6 and (between := noise(means)) > error:  # success wanders from window to window
        few, many = 6, len(means) - 2  # a few windows show that badly, so both count
        error = np.sqrt((few * error**2 + many * between**2) / (few + many))
    few = min(size, 3, sum(point.step < points[0].step + FIRST_STEPS for point in points))
    first = Shift(float(success[:few].mean()), float(means[-1]), float(np.hypot(scatter / np.sqrt(few), error)))
    return Levels(tuple(means.tolist()), tuple(middles.tolist()), float(np.sqrt(2.0) * error), first)


def _scatter(points: Sequence[Held]) -> float:
    """The standard deviation of one evaluation: that of its problems, and how much neighbours differ."""
    shares = np.array([(point.success * point.n + 1) / (point.n + 2) for point in points])
    sampled = float(np.mean(shares * (1 - shares) / np.array([point.n for point in points])))
    if len(points) < 4:
        return float(np.sqrt(sampled))
    success = np.array([point.success for point in points])
    second = success[2:] - 2 * success[1:-1] + success[:-2]
    seen = noise(success) ** 2 if len(points) >= 10 else float(np.mean(second**2)) / 6
    return float(np.sqrt((PRIOR * sampled + (len(points) - 2) * seen) / (PRIOR + len(points) - 2)))


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
    fell = -fall.gain >= at.SUCCESS_DROP and fall.z < -levels.strict_z and holds
    fell = fell and (goal != "success_rate" or behind.gain > 0.02)  # else the held-out prompts are as well known
    if not gap and not fell:
        return None
    step = levels.steps[levels.best] if fell else history.step_at(departure(history[goal]))
    before, expect = (fall if fell else held).before, Expect("eval_success_rate", "up", 40)
    held_evidence = Evidence("eval_success_rate", before, levels.values[-1], None, "on held-out prompts")
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
        losses = [(levels.first, at.Z_WEAK + 0.5), (levels.fall, levels.strict_z)]
        lost = [move for move, z in losses if -move.gain >= at.SUCCESS_DROP and move.z < -z]
        if lost and main.fall.z > -main.strict_z:
            step = levels.steps[levels.best]
            evidence = (
                Evidence(f"held-out success on {split}", lost[0].before, lost[0].after),
                Evidence(f"held-out success on {first or 'the first set'}", main.first.before, main.first.after),
            )
            expect = Expect("kl_mean" if history.has("kl_mean") else "eval_success_rate", "down", 40)
            if expect.signal == "eval_success_rate":
                expect = Expect(expect.signal, "steady", 40)
            return Finding("ood_loss", "warning", step, evidence, raise_beta(history.recipe), expect)
    return None
