"""Rules about answers of several turns: tools that nobody calls or that fail, loops, limits, and environments.

Not covered: one of several tools that is never called; calls in a turn's text (`tool_format: marks`) that repeat; an
answer that is copied from what a tool was asked for, as a calculator's; and a tool that gives the answer away in longer
text, or only to some arguments, such as the problem's number. Nobody can tell those from a search that works.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from outdo.doctor.changes import higher_temperature, scale_key, set_key
from outdo.doctor.finding import Change, Evidence, Expect, Finding, Severity
from outdo.doctor.history import History
from outdo.doctor.policy import goal_of, is_solved, movement, movements, progress
from outdo.doctor.signals import (
    Curve,
    Shift,
    edge_size,
    finite,
    late,
    late_mean,
    noise,
    onset,
    shift,
    smooth,
    trend,
    trimmed_mean,
)
from outdo.metrics import limits as at

FAILED = "tool_calls_failed"
BUILT_IN = {"calculator", "python", "search"}
DEMONSTRATIONS = 500  # steps of SFT beside those that the recipe has
USES = ("tool_users", "tool_calls_mean")  # the second is what other trainers log


def _use(history: History) -> str | None:
    """The signal that says how many answers call a tool."""
    return next((name for name in USES if history.has(name, least=at.TREND_STEPS)), None)


def _show_calls(history: History) -> Change:
    return set_key(history.recipe, "sft_steps", int(history.recipe.get("sft_steps") or 0) + DEMONSTRATIONS)


def _is_never_used(history: History, use: str) -> bool:
    return float(np.mean(finite(history[use]))) <= at.UNUSED and late_mean(history[use]) <= at.UNUSED


def unused_tools(history: History) -> Finding | None:
    """No answer has called a tool, and nothing is learned without."""
    use = _use(history)
    if not use or not _is_never_used(history, use) or _does_without(history):
        return None
    evidence = [movement(history, use), *movements(history, goal_of(history), "truncated")]
    step, expect = history.step_at(0), Expect(use, "up", 20)
    return Finding("unused_tools", "warning", step, tuple(evidence), _show_calls(history), expect)


def _does_without(history: History) -> bool:
    return is_solved(history) or progress(history) > at.Z_WEAK


def abandoned_tools(history: History) -> Finding | None:
    """Calls fell to nothing, and success with them; or most calls had failed, and nothing is gained without them."""
    drop = _dropped(history)
    if not drop or is_solved(history):
        return None
    use, index, goal = drop
    lost = goal.gain <= -at.SUCCESS_DROP and goal.z <= -at.Z_STRONG
    had_failed = history.has(FAILED) and _mean(history[FAILED][: index + 1]) > at.CALLS_FAILED
    rest = trend(history[goal_of(history)][index:])
    if not lost and not (had_failed and (rest.gain < at.SUCCESS_GAIN or rest.z < at.Z_WEAK)):
        return None
    note = "before and after the calls ceased"
    evidence = [movement(history, use), Evidence(goal_of(history), goal.before, goal.after, None, note)]
    if history.has("tool_advantage"):
        paid = _mean(history["tool_advantage"][: index + 1])
        evidence.append(Evidence("tool_advantage", None, paid, None, "while they were made"))
    evidence += movements(history, FAILED)
    change, expect = _worth_calling(history, index), Expect(use, "up", 20)
    return Finding("abandoned_tools", "warning", history.step_at(index), tuple(evidence), change, expect)


def _worth_calling(history: History, index: int) -> Change:
    """Room for calls where answers were cut off, else demonstrations of them."""
    if history.has("truncated") and _mean(history["truncated"][: index + 1]) > at.TRUNCATED:
        return scale_key(history.recipe, "max_completion_length", 2)
    return _show_calls(history)


def _dropped(history: History) -> tuple[str, int, Shift] | None:
    """The signal of use, the index from which calls were made half as often, and how success moved from the rows
    before it to the last ones. None where no use was given up."""
    use = _use(history)
    if not use or not history.has(goal_of(history), least=at.TREND_STEPS):
        return None
    curve = history[use]
    peak = float(np.max(smooth(curve)))
    if peak < at.IN_USE or late_mean(curve) > at.GIVEN_UP * peak:
        return None
    index = onset(curve, peak / 2, above=False)
    goal, after = history[goal_of(history)], onset(curve, at.GIVEN_UP * peak, above=False)
    before, rest = finite(goal[: max(index, 5)]), finite(goal[after:])
    if min(len(before), len(rest)) < 2:
        return None
    third = max(5, len(history) // 3)
    before, rest = before[-third:], rest[-third:]
    error = 1.1 * noise(goal) * float(np.sqrt(1 / len(before) + 1 / len(rest)))
    return use, index, Shift(trimmed_mean(before), trimmed_mean(rest), error)


def unneeded_tools(history: History) -> Finding | None:
    """A note: no answer calls a tool, or none does any more, and success did not suffer."""
    use = _use(history)
    if not use or not (_is_never_used(history, use) or _dropped(history)):
        return None
    evidence = tuple(movements(history, use, "tool_advantage", goal_of(history)))
    return Finding("unneeded_tools", "info", history.step_at(0), evidence)


def failing_calls(history: History) -> Finding | None:
    """Most calls are answered with an error message."""
    if not history.has(FAILED, least=at.LEVEL_STEPS) or is_solved(history):
        return None
    few = history.has("tool_calls_mean") and late_mean(history["tool_calls_mean"]) < at.FEW_CALLS
    share = history[FAILED]
    if few or not _stays(share, at.CALLS_FAILED, obvious=at.CALLS_FAILED_CRITICAL):
        return None
    kinds = {name: late_mean(np.nan_to_num(history[name])) for name in history.columns if name.startswith(f"{FAILED}/")}
    most = sorted((name for name in kinds if kinds[name] > 0), key=lambda name: -kinds[name])
    evidence = [movement(history, FAILED), *(Evidence(name, None, kinds[name]) for name in most[:2])]
    if history.answers.error:
        evidence.append(Evidence("calls", note=f"the most common error: {history.answers.error}"))
    severity: Severity = "critical" if late_mean(share) > at.CALLS_FAILED_CRITICAL else "warning"
    change = FIXES.get(most[0].partition("/")[2] if most else "", _show_calls)(history)
    step, expect = history.step_at(onset(share, at.CALLS_FAILED)), Expect(FAILED, "down", 20)
    return Finding("failing_calls", severity, step, tuple(evidence), change, expect)


def _readable_calls(history: History) -> Change:
    """The format that the chat template writes, where the recipe names another one. Marks are for models without."""
    if history.recipe.get("tool_format") not in (None, "auto", "marks"):
        return set_key(history.recipe, "tool_format", "auto")
    return _show_calls(history)


def _better_asked(history: History) -> Change | None:
    """Nothing where a tool of the user's raises. Those built in do so only for what they cannot do."""
    names = [next(iter(one), "") if isinstance(one, dict) else str(one) for one in history.recipe.get("tools") or ()]
    return _show_calls(history) if names and {name.partition(":")[0] for name in names} <= BUILT_IN else None


FIXES: dict[str, Callable[[History], Change | None]] = {  # by the kind that most failed calls are of; else examples
    "malformed": _readable_calls,
    "timeout": lambda history: scale_key(history.recipe, "tool_timeout", 3),
    "raised": _better_asked,
}


def call_loops(history: History) -> Finding | None:
    """Answers do the same again and again until they are cut off."""
    if not history.has("looping", least=at.LEVEL_STEPS) or is_solved(history):
        return None
    share = history["looping"]
    if not _stays(share, at.LOOPING):
        return None
    evidence = tuple(movements(history, "looping", "repeats", "out_of_turns", goal_of(history)))
    step, expect = history.step_at(onset(share, at.LOOPING)), Expect("looping", "down", 20)
    return Finding("call_loops", "warning", step, evidence, _unlearned_loops(history), expect)


def _unlearned_loops(history: History) -> Change:
    """Loops that count in the loss; sampling that is not cold; else examples of answers that end."""
    recipe = history.recipe
    if recipe.get("mask_truncated_completions"):
        return set_key(recipe, "mask_truncated_completions", False)
    coldest = min(float(recipe.get(key) or 1.0) for key in ("temperature", "temperature_end"))
    return higher_temperature(recipe) if coldest < 1.0 else _show_calls(history)


def out_of_turns(history: History) -> Finding | None:
    if not history.has("out_of_turns", least=at.LEVEL_STEPS) or is_solved(history):
        return None
    share = history["out_of_turns"]
    if not _stays(share, at.OUT_OF_TURNS):
        return None
    evidence = tuple(movements(history, "out_of_turns", "turns_mean", "looping", goal_of(history)))
    turns, calls = history.recipe.get("max_turns"), history.recipe.get("max_tool_calling_iterations")
    key = "max_tool_calling_iterations" if calls and calls < (turns or np.inf) else "max_turns"
    step, expect = history.step_at(onset(share, at.OUT_OF_TURNS)), Expect("out_of_turns", "down", 10)
    return Finding("out_of_turns", "warning", step, evidence, scale_key(history.recipe, key, 2), expect)


def given_away(history: History) -> Finding | None:
    """A tool returns the gold whatever it is asked."""
    if not history.has("given_away", least=at.LEVEL_STEPS) or late_mean(history["given_away"]) <= at.GIVEN_AWAY:
        return None
    share = history["given_away"]
    evidence = tuple(movements(history, "given_away", "copied", "tool_users", goal_of(history)))
    step, expect = history.step_at(onset(share, at.GIVEN_AWAY)), Expect("given_away", "down", 10)
    return Finding("given_away", "warning", step, evidence, None, expect)


def broken_environment(history: History) -> Finding | None:
    if not history.has("env_broken", least=3) or (share := late_mean(history["env_broken"])) <= at.BROKEN:
        return None
    if np.count_nonzero(finite(history["env_broken"])[-max(5, edge_size(len(history))) :] > at.BROKEN) < 2:
        return None  # one step in which a server was down
    evidence = [movement(history, "env_broken")]
    if history.answers.broken:
        evidence.append(Evidence("answers", note=f"the most common reason: {history.answers.broken}"))
    severity: Severity = "critical" if share > at.BROKEN_CRITICAL else "warning"
    first = int(np.argmax(np.nan_to_num(history["env_broken"]) > at.BROKEN))
    step, expect = history.step_at(first), Expect("env_broken", "down", 5)
    return Finding("broken_environment", severity, step, tuple(evidence), None, expect)


def slow_environment(history: History) -> Finding | None:
    """For most of a step nothing is sampled, because every answer waits."""
    if not history.has("time/wait", "time/step", least=at.LEVEL_STEPS):
        return None
    wait, step = history["time/wait"], history["time/step"]
    share = wait / np.maximum(step, 1e-9)
    if late(share) <= at.WAITED or late(wait) < at.WAIT_SECONDS:
        return None
    evidence = [Evidence("time/wait", None, late(wait), None, f"seconds of {late(step):.3g} in a step")]
    evidence += movements(history, "env_wait_mean", "turns_mean", f"{FAILED}/timeout")
    change, expect = _shorter_waits(history), Expect("time/wait", "down", 5)
    onset_step = history.step_at(onset(share, at.WAITED))
    return Finding("slow_environment", "warning", onset_step, tuple(evidence), change, expect)


def _shorter_waits(history: History) -> Change:
    """A deadline for the few calls that take much longer than most, else more answers, whose waits overlap."""
    timeout = history.recipe.get("tool_timeout")
    if timeout and history.has("env_wait_mean", "turns_mean", "tool_calls_mean"):
        usual = late(history["env_wait_mean"]) / max(late(history["turns_mean"]), 1.0)
        shorter = float(f"{4 * usual:.1g}")
        if 0 < shorter <= timeout / 2:
            return set_key(history.recipe, "tool_timeout", shorter)
    return scale_key(history.recipe, "per_device_train_batch_size", 2)


def _stays(share: Curve, level: float, obvious: float = 1.0) -> bool:
    """Whether it is above the level and does not fall, as it does where the policy learns to avoid it. A few steps show
    only what is obvious."""
    seen = finite(share)
    if late_mean(seen) <= level:
        return False
    if len(seen) < at.TREND_STEPS:
        return late_mean(seen) > obvious
    later, line = shift(seen[len(seen) // 2 :]), trend(seen)
    still_falls = later.gain < -max(0.03, later.before / 10) and later.z < -at.Z_WEAK
    fell = line.z < -at.Z_WEAK and (line.after < line.before / 2 or len(seen) < 2 * at.TREND_STEPS)
    return not (still_falls or fell)


def _mean(curve: Curve) -> float:
    values = finite(curve)
    return float(np.mean(values)) if len(values) else float("nan")
