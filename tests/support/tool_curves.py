"""Curves of runs with tools, for the doctor: those of a healthy run (curves.py) and, drawn beside them, what its calls,
turns and environments show. A failure is imposed on them. Knows no threshold."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from outdo.doctor.history import History
from support import curves

KINDS = ("malformed", "unknown", "arguments", "raised", "timeout", "too_many")
FLAT = ("abandoned_tools", "unused_tools", "failing_calls", "call_loops", "out_of_turns")  # that learn nothing more


class Tools:
    """What a run of n steps does with its tools; shares unless said otherwise."""

    def __init__(self, n: int, rng: np.random.Generator) -> None:
        self.n, self.rng = n, rng
        self.users = self.way(rng.uniform(0.2, 0.9), rng.uniform(0.4, 1.0))
        self.failed = self.way(rng.uniform(0.05, 0.45), rng.uniform(0.0, 0.2))
        self.kind = str(rng.choice(KINDS[:5]))
        self.out = self.way(rng.uniform(0.0, 0.2), rng.uniform(0.0, 0.1))
        self.looping = self.out * rng.uniform(0.0, 0.3)
        self.copied = rng.uniform(0, 1) * np.ones(n)
        self.given = self.way(rng.uniform(0.0, 0.2), rng.uniform(0.0, 0.1))
        self.broken = np.zeros(n)
        self.wait = rng.uniform(0.0, 0.35) * np.ones(n)  # of a step's time
        self.seconds = rng.uniform(4, 300)  # of a step
        self.success: Any = None  # where it is not the healthy run's
        self.answers = int(rng.choice([64, 128, 512]))

    def way(self, start: float, end: float) -> Any:
        """From one level to another, as fast as it is learned."""
        return end + (start - end) * np.exp(-np.arange(self.n) * self.rng.uniform(3, 12) / self.n)

    def ramp(self, start: float, end: float, first: float = 0.0, last: float = 0.6) -> Any:
        """From one level to another in the middle of the run."""
        return start + (end - start) * curves.ramp(self.n, self.rng.uniform(first, last), self.rng.uniform(0.02, 0.3))


def columns(t: Tools) -> dict[str, Any]:
    """What is logged: counts are drawn."""
    n, rng = t.n, t.rng
    users = rng.binomial(t.answers, np.clip(t.users, 0, 1)) / t.answers
    calls = rng.poisson(t.answers * np.clip(t.users, 0, 1) * 1.5)
    failed = rng.binomial(calls, np.clip(t.failed, 0, 1)) / np.where(calls > 0, calls, np.nan)
    major = rng.uniform(0.6, 1.0)
    kinds = {kind: failed * (major if kind == t.kind else (1 - major) / 5) for kind in KINDS}
    share = lambda level: rng.binomial(t.answers, np.clip(level, 0, 1)) / t.answers  # noqa: E731
    seconds = t.seconds * np.exp(rng.normal(0, 0.15, n))
    return {
        "tool_users": users,
        "tool_calls_mean": calls / t.answers,
        "tool_calls_failed": failed,
        **{f"tool_calls_failed/{kind}": curve for kind, curve in kinds.items()},
        "tool_advantage": np.where((users > 0) & (users < 1), 0.2 - 0.6 * t.failed + rng.normal(0, 0.1, n), np.nan),
        "turns_mean": 1 + calls / t.answers,
        "out_of_turns": share(t.out),
        "looping": share(t.looping),
        "repeats": share(0.1 + t.looping),
        "copied": np.where(users > 0, share(t.copied), np.nan),
        "given_away": share(t.given),
        "env_broken": share(t.broken),
        "env_wait_mean": seconds * t.wait * 0.8,
        "time/step": seconds,
        "time/wait": seconds * np.clip(t.wait * np.exp(rng.normal(0, 0.1, n)), 0, 0.98),
    }


# --- healthy


def _falls_from_much(t: Tools) -> None:
    t.failed = t.way(t.rng.uniform(0.6, 0.95), t.rng.uniform(0.02, 0.2))


def _does_without(t: Tools) -> None:
    t.users = t.way(t.rng.uniform(0.3, 0.9), 0.0)


def _never_calls(t: Tools) -> None:
    t.users = np.zeros(t.n)


def _learns_to_end(t: Tools) -> None:
    t.out = t.way(t.rng.uniform(0.4, 0.8), t.rng.uniform(0.0, 0.15))
    t.looping = t.out * t.rng.uniform(0.2, 0.9)


def _copies(t: Tools) -> None:
    t.copied = t.way(0.2, 1.0)


def _spikes(t: Tools) -> None:
    """Single steps in which a server was down."""
    down = t.rng.random(t.n) < 0.03
    t.broken, t.wait = np.where(down, 0.4, 0.0), np.where(down, 0.9, t.wait)
    t.failed = np.where(down, 0.9, t.failed)


def _waits_a_little(t: Tools) -> None:
    t.wait, t.seconds = 0.8 * np.ones(t.n), t.rng.uniform(0.2, 1.0)


HEALTHY: dict[str, Callable[[Tools], None]] = {
    "plain": lambda t: None,
    "calls fail at first": _falls_from_much,
    "does without": _does_without,
    "never calls": _never_calls,
    "learns to end": _learns_to_end,
    "copies": _copies,
    "spikes": _spikes,
    "waits a little": _waits_a_little,
}

# --- failures


def _unused(t: Tools) -> None:
    t.users = t.rng.choice([0.0, 0.001]) * np.ones(t.n)


def _abandoned(t: Tools) -> None:
    t.users = t.ramp(t.rng.uniform(0.3, 0.95), 0.0)
    level = t.rng.uniform(0.35, 0.7)
    t.success = level - t.rng.uniform(0.15, 0.3) * (1 - t.users / t.users[0])


def _failing(t: Tools) -> None:
    t.failed = (
        t.ramp(t.rng.uniform(0.3, 0.95), t.rng.uniform(0.65, 1.0)) if t.rng.integers(2) else t.rng.uniform(0.6, 1)
    )
    t.failed = t.failed * np.ones(t.n)


def _loops(t: Tools) -> None:
    t.looping = t.ramp(0.02, t.rng.uniform(0.25, 0.8))
    t.out = np.maximum(t.out, t.looping * t.rng.uniform(0.3, 1.0))


def _out(t: Tools) -> None:
    t.out = t.ramp(t.rng.uniform(0.1, 0.6), t.rng.uniform(0.4, 0.9))
    t.looping = 0.05 * t.out


def _given(t: Tools) -> None:
    t.given = t.ramp(0.1, t.rng.uniform(0.7, 1.0))


def _broken(t: Tools) -> None:
    t.broken = t.ramp(0.0, t.rng.uniform(0.1, 0.6))


def _slow(t: Tools) -> None:
    t.wait = t.ramp(0.2, t.rng.uniform(0.65, 0.97))


FAILURES: dict[str, Callable[[Tools], None]] = {
    "unused_tools": _unused,
    "abandoned_tools": _abandoned,
    "failing_calls": _failing,
    "call_loops": _loops,
    "out_of_turns": _out,
    "given_away": _given,
    "broken_environment": _broken,
    "slow_environment": _slow,
}


def history(kind: str, seed: int) -> History:
    """One run. A failure that stops learning has a flat success; columns that no cause needs may be missing."""
    rng = np.random.default_rng([seed, zlib.crc32(kind.encode()), 9])
    shapes = [shape for shape in curves.HEALTHY if shape != "solved" or kind in HEALTHY]
    p = curves.learner(int(rng.integers(1 << 30)), kind)
    curves.HEALTHY[str(rng.choice(shapes))](p)
    t = Tools(p.n, rng)
    {**HEALTHY, **FAILURES}[kind](t)
    if kind in FLAT:
        p.success = t.success if t.success is not None else rng.uniform(0.15, 0.6) * np.ones(p.n)
    if kind == "broken_environment":
        p.broken = t.broken
    base = curves.sampled(p)
    base |= columns(t)
    own = {"tool_advantage", "copied", "repeats", "turns_mean", "env_wait_mean", "clipfrac", "grad_norm", "ratio_mean"}
    gone = set(rng.choice(sorted(own), 3, replace=False)) if rng.integers(2) else set()
    kept = {name: curve for name, curve in base.items() if name not in gone}
    recipe = {"max_turns": 8, "tool_timeout": 10.0, "per_device_train_batch_size": t.answers}
    return replace(History(tuple(range(1, p.n + 1)), kept), recipe=recipe)
