"""Simulated runs: a policy whose success, entropy, KL and lengths move as GRPO's do, and failures imposed on it.

Prompts differ in difficulty, groups are sampled answer by answer, so that the noise of a step and the shares of dead
groups come from counting, not from a normal distribution. P prompts per step, G answers each, N steps. A failure
changes what the policy does, never a number that a rule compares with: nothing here knows the rules' thresholds.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from outdo.doctor.history import Held, History
from outdo.runs.foreign.names import NON_FINITE

LENGTHS = (40, 60, 90, 150, 300, 700, 2000)


@dataclass
class Policy:
    """What a run does at each step, before anything is sampled. Arrays of N."""

    rng: np.random.Generator
    n: int
    strength: float
    success: Any
    entropy: Any
    kl: Any
    length: Any
    clip: Any
    grad: Any
    prompts: int
    answers: int
    extra: Any = 0.0  # paid beside success
    ratio: float = 0.0
    mismatch: float = 2e-4
    truncated: Any = 0.004
    broken: Any = 0.0
    disagree: Any = 0.0
    diversity: Any = None
    held: list[tuple[int, float]] | None = None
    lost: int = 0  # steps at the end whose gradient is NaN
    steady: float = 2.0  # how much prompts differ: less, the more
    short: bool = False  # short answers: right ones are alike
    recipe: dict[str, Any] = field(default_factory=dict)
    needs: tuple[str, ...] = ()


def ramp(n: int, start: float, length: float) -> Any:
    """From 0 to 1, beginning at a share of the run."""
    return np.clip((np.arange(n) / n - start) / length, 0, 1)


def saturating(n: int, rate: float) -> Any:
    """From 0 towards 1, fast and then slow."""
    return 1 - np.exp(-rate * np.arange(n) / n)


def drift(rng: np.random.Generator, n: int, scale: float) -> Any:
    """Slow noise, as curves of real runs have beside the fast one."""
    kernel = 0.44 * 0.9 ** np.arange(40)
    return np.convolve(rng.normal(0, scale, n + 39), kernel, mode="valid")


def learner(seed: int, code: str) -> Policy:
    """A run that learns, of a random kind."""
    rng = np.random.default_rng([seed, zlib.crc32(code.encode())])
    n = int(rng.choice(LENGTHS))
    low, high = rng.uniform(0.1, 0.45), rng.uniform(0.6, 0.9)
    e0 = rng.uniform(0.25, 0.9)
    settles = rng.uniform(0.45, 0.8)
    way = saturating(n, rng.uniform(1.5, 5))
    l0 = rng.uniform(60, 400)
    return Policy(
        rng,
        n,
        rng.uniform(0.6, 1.0),
        success=low + (high - low) * way,
        entropy=e0 * (1 - (1 - settles) * way) * np.exp(drift(rng, n, 0.03)),
        kl=rng.uniform(0.01, 0.05) * way * np.exp(drift(rng, n, 0.1)),
        length=l0 * (1 + rng.uniform(-0.2, 0.15) * way) * np.exp(drift(rng, n, 0.01)),
        clip=rng.uniform(0.0005, 0.02) * np.ones(n),
        grad=rng.uniform(0.1, 0.5) * np.ones(n),
        prompts=int(rng.choice([16, 32, 64])),
        answers=int(rng.choice([8, 16])),
    )


# --- healthy shapes


def slow(p: Policy) -> None:
    low = p.rng.uniform(0.15, 0.5)
    p.success = low + p.rng.uniform(0.08, 0.15) * np.linspace(0, 1, p.n)


def plateau(p: Policy) -> None:
    low, high = p.rng.uniform(0.15, 0.4), p.rng.uniform(0.55, 0.8)
    p.success = low + (high - low) * saturating(p.n, 12)
    p.entropy = p.rng.uniform(0.3, 0.7) * (1 - 0.5 * saturating(p.n, 12)) * np.exp(drift(p.rng, p.n, 0.03))


def noisy(p: Policy) -> None:
    p.prompts, p.answers = 8, 8


def solved(p: Policy) -> None:
    low = p.rng.uniform(0.3, 0.6)
    p.success = low + (0.985 - low) * saturating(p.n, p.rng.uniform(4, 10))
    p.entropy = p.entropy * (1 - p.rng.uniform(0.2, 0.8) * saturating(p.n, 4))
    p.short = bool(p.rng.integers(2))


def settles(p: Policy) -> None:
    """Entropy falls fast, to a level that is enough."""
    p.entropy = p.rng.uniform(0.5, 1.2) * (0.32 + 0.68 * (1 - saturating(p.n, 10))) * np.exp(drift(p.rng, p.n, 0.04))


def earned(p: Policy) -> None:
    """Longer answers, and better ones."""
    p.length = p.length * (1 + p.rng.uniform(0.5, 2.0) * np.linspace(0, 1, p.n))
    low = p.rng.uniform(0.15, 0.35)
    p.success = low + p.rng.uniform(0.3, 0.5) * np.linspace(0, 1, p.n)


def formed(p: Policy) -> None:
    """A small reward for form is learnt beside the answer."""
    p.extra = 0.1 * saturating(p.n, 8)


def rambling(p: Policy) -> None:
    """Answers are cut off at first, and then no longer."""
    p.truncated = 0.35 * (1 - saturating(p.n, 12))


def spiky(p: Policy) -> None:
    """Single steps with a large KL or gradient."""
    p.kl = p.kl * np.where(p.rng.random(p.n) < 0.03, p.rng.uniform(3, 15), 1)
    p.grad = p.grad * np.where(p.rng.random(p.n) < 0.03, 8, 1)


HEALTHY: dict[str, Callable[[Policy], None]] = {
    "plain": lambda p: None,
    **{"slow": slow, "plateau": plateau, "noisy": noisy, "solved": solved, "settles": settles},
    **{"earned": earned, "formed": formed, "rambling": rambling, "spiky": spiky},
}

# --- failures


def flat(p: Policy) -> None:
    p.success = p.rng.uniform(0.25, 0.55) * np.ones(p.n)


def reward_hacking(p: Policy) -> None:
    start = p.rng.uniform(0.05, 0.4)
    way = ramp(p.n, start, p.rng.uniform(0.2, 0.5))
    level = p.rng.uniform(0.2, 0.5)
    p.success = level * (1 - p.strength * p.rng.choice([0, 0.3, 0.8]) * way)
    p.extra = p.rng.uniform(0.3, 1.0) * p.strength * way
    p.needs = ("success_rate", "reward_mean")


def kl_blowup(p: Policy) -> None:
    p.kl = 0.01 + p.kl + p.strength * p.rng.uniform(0.4, 3) * ramp(p.n, p.rng.uniform(0.1, 0.6), 0.4) ** 2
    if p.rng.integers(2):
        p.success = p.success * (1 - 0.6 * ramp(p.n, 0.6, 0.4))
    if p.rng.integers(2):
        p.entropy = p.entropy * (1 - 0.9 * ramp(p.n, 0.4, 0.4))
    p.needs = ("kl_mean",)


def entropy_collapse(p: Policy) -> None:
    way = ramp(p.n, p.rng.uniform(0, 0.3), 0.35)
    p.entropy = p.entropy * (1 - (0.86 + 0.13 * p.strength) * way)
    p.success = p.rng.uniform(0.2, 0.4) + p.rng.uniform(0, 0.2) * saturating(p.n, 8)
    p.diversity = 0.97 - 0.7 * way
    p.needs = ("entropy_mean", "success_rate")


def mode_collapse(p: Policy) -> None:
    way = ramp(p.n, p.rng.uniform(0, 0.3), 0.4)
    p.diversity = p.rng.uniform(0.8, 0.98) * (1 - (0.45 + 0.4 * p.strength) * way)
    p.success = p.rng.uniform(0.2, 0.4) + p.rng.uniform(0, 0.2) * saturating(p.n, 10)
    p.needs = ("group_diversity", "success_rate")


def thinking_tax(p: Policy) -> None:
    way = ramp(p.n, p.rng.uniform(0, 0.2), 0.8)
    flat(p)
    if p.rng.integers(2):  # what could be learnt is learnt early
        p.success = p.success + 0.2 * saturating(p.n, 40)
    p.length = p.length * (1 + 2 * p.strength * way)
    if p.rng.integers(2):
        p.extra = 0.4 * p.strength * way  # length is paid
    p.needs = ("len_mean", "success_rate")


def overfit(p: Policy) -> None:
    way = ramp(p.n, 0, p.rng.uniform(0.4, 0.7))
    low = p.rng.uniform(0.2, 0.4)
    p.success = low + (0.97 - low) * way
    p.steady = 8.0
    at = np.linspace(0, p.n - 1, int(p.rng.integers(2, 9))).astype(int)
    loses = p.rng.uniform(-0.05, 0.15) * p.strength
    p.held = [(int(i), float(np.clip(low - loses * way[i], 0.02, 1))) for i in at]
    p.needs = ("success_rate",)


def dead_all_wrong(p: Policy) -> None:
    p.success = p.rng.choice([0.0, 0.001, 0.003]) * np.ones(p.n)
    p.steady = 200.0
    p.kl = p.kl * 0.02
    p.needs = ("all_wrong",) if p.rng.integers(2) else ("informative", "success_rate")


def dead_all_right(p: Policy) -> None:
    p.success = p.rng.uniform(0.995, 1.0) * np.ones(p.n)
    p.steady = 200.0
    p.needs = ("all_right",) if p.rng.integers(2) else ("informative", "success_rate")


def noisy_advantage(p: Policy) -> None:
    """Two or three prompts a step: the reward jumps, and what is learnt is noise."""
    p.n = max(p.n, 60)
    fresh = learner(int(p.rng.integers(1 << 30)), "noise")
    while fresh.n < 60:
        fresh = learner(int(p.rng.integers(1 << 30)), "noise")
    p.__dict__.update({**fresh.__dict__, "rng": p.rng})
    flat(p)
    p.prompts, p.answers, p.steady = int(p.rng.integers(1, 4)), int(p.rng.choice([2, 4])), 1.0
    p.needs = ("reward_mean", "reward_std", "success_rate")


def inconsistent_grader(p: Policy) -> None:
    p.disagree = p.rng.uniform(0.06, 0.4)
    if p.rng.integers(2):
        flat(p)
    p.needs = ("grader_disagreement",)


def broken_grader(p: Policy) -> None:
    p.broken = p.strength * p.rng.uniform(0.15, 0.6) * ramp(p.n, p.rng.uniform(0, 0.7), 0.05)
    p.needs = ("grader_broken",)


def steps_too_small(p: Policy) -> None:
    fresh = learner(int(p.rng.integers(1 << 30)), "small")
    while fresh.n < 60:
        fresh = learner(int(p.rng.integers(1 << 30)), "small")
    p.__dict__.update({**fresh.__dict__, "rng": p.rng})
    flat(p)
    p.entropy = float(p.entropy[0]) * np.ones(p.n)
    p.length = float(p.length[0]) * np.ones(p.n)
    p.kl = p.rng.uniform(1e-6, 2e-4) * np.linspace(0, 1, p.n)
    p.clip = np.zeros(p.n)
    p.needs = ("success_rate", "entropy_mean", "len_mean")


def steps_too_big(p: Policy) -> None:
    kind = p.rng.integers(3)
    way = ramp(p.n, p.rng.uniform(0, 0.4), 0.3)
    if kind == 0:
        p.clip = p.clip + 0.8 * p.strength * way
        p.needs = ("clipfrac",)
    elif kind == 1:
        p.ratio = 0.4 * p.strength
        p.kl = p.kl + p.strength * way
        p.needs = ("ratio_mean",)
    else:  # only the fall is seen
        p.success = p.rng.uniform(0.5, 0.8) * (1 - (0.6 + 0.35 * p.strength) * ramp(p.n, 0.4, 0.2))
        p.entropy = p.entropy * (1 + 2 * way)
        p.grad = p.grad * (1 + 20 * way)
        p.needs = ("success_rate",)


def not_finite(p: Policy) -> None:
    """The weights are lost; what is sampled with them is still graded."""
    p.lost = int(p.rng.integers(1, p.n // 2))
    p.needs = ("grad_norm",)


def truncation(p: Policy) -> None:
    p.truncated = 0.3 + 0.6 * p.strength * p.rng.uniform(0.2, 1) * ramp(p.n, 0, 0.3)
    p.needs = ("truncated",)


def sampler_mismatch(p: Policy) -> None:
    p.mismatch = 10 ** p.rng.uniform(-1.9, 0)
    p.needs = ("mismatch_kl",)


FAILURES: dict[str, Callable[[Policy], None]] = {
    function.__name__: function
    for function in (
        *(reward_hacking, kl_blowup, entropy_collapse, mode_collapse, thinking_tax, overfit, dead_all_wrong),
        *(dead_all_right, noisy_advantage, inconsistent_grader, broken_grader, steps_too_small, steps_too_big),
        *(truncation, sampler_mismatch, not_finite),
    )
}
ALWAYS = {"reward_mean"}


def history(code: str, seed: int, shape: str = "") -> History:
    """The curves of one run: failing by `code`, or healthy of a shape. Some columns are missing."""
    p = learner(seed, code + shape)
    (HEALTHY[shape] if code == "healthy" else FAILURES[code])(p)
    columns = sampled(p)
    optional = [name for name in columns if name not in ALWAYS | set(p.needs)]
    gone = set(p.rng.choice(optional, int(p.rng.integers(0, 7)), replace=False)) if p.rng.integers(2) else set()
    kept = {name: curve for name, curve in columns.items() if name not in gone}
    for name in ("grad_norm", "kl_mean", "entropy_mean") if p.lost else ():
        if name in kept:
            kept[name][-p.lost :] = np.nan
            kept[NON_FINITE + name] = np.where(np.isnan(kept[name]), 1.0, np.nan)
    return History(tuple(range(p.n)), kept, evaluated(p))


def evaluated(p: Policy) -> tuple[Held, ...]:
    """Held-out success as it was measured; half of the runs that need none have none."""
    size = int(p.rng.choice([100, 200, 400]))
    held = p.held if p.held is not None else [(i, float(p.success[i])) for i in (0, p.n // 2, p.n - 1)]
    if p.held is None and p.rng.integers(2):
        return ()
    return tuple(Held(step, float(p.rng.binomial(size, min(share, 1)) / size), size) for step, share in held)


def sampled(p: Policy) -> dict[str, Any]:
    """What is logged of a policy: groups are drawn, everything else has its own noise."""
    rng, n = p.rng, p.n
    mean = np.clip(p.success, 1e-6, 1 - 1e-6)
    level_NP = rng.beta(
        np.repeat((mean * p.steady)[:, None], p.prompts, 1), np.repeat(((1 - mean) * p.steady)[:, None], p.prompts, 1)
    )
    right_NP = rng.binomial(p.answers, level_NP) / p.answers
    success = right_NP.mean(1)
    all_right, all_wrong = (right_NP == 1).mean(1), (right_NP == 0).mean(1)
    informative = 1 - all_right - all_wrong
    extra = p.extra * np.ones(n)
    paid = extra + rng.normal(0, 0.05, n) * np.sqrt(np.abs(extra)) / np.sqrt(p.prompts)
    groups = p.prompts * p.answers
    alike = 1 - 0.75 * success if p.short else 0.97 * np.ones(n)
    kinds = p.diversity if p.diversity is not None else alike
    seen = rng.binomial(groups, np.clip(p.disagree * np.ones(n), 0, 1)) / groups
    return {
        "reward_mean": success + paid,
        "reward_std": np.sqrt(success * (1 - success) + 0.01 * (extra > 0)),
        "success_rate": success,
        "kl_mean": np.abs(p.kl) * np.exp(rng.normal(0, 0.15, n)),
        "entropy_mean": p.entropy * np.exp(rng.normal(0, 0.04, n)),
        "clipfrac": p.clip * np.exp(rng.normal(0, 0.3, n)),
        "adv_mean": rng.normal(0, 1e-6, n),
        "adv_std": np.sqrt(informative),
        "group_diversity": np.clip(kinds + rng.normal(0, 0.02, n), 1 / p.answers, 1),
        "informative": informative,
        "all_right": all_right,
        "all_wrong": all_wrong,
        "len_mean": p.length * np.exp(rng.normal(0, 0.04, n)),
        "truncated": rng.binomial(groups, np.clip(p.truncated * np.ones(n), 0, 1)) / groups,
        "grader_broken": rng.binomial(groups, np.clip(p.broken * np.ones(n), 0, 1)) / groups,
        "grader_disagreement": seen if p.disagree else np.zeros(n),
        "mismatch_kl": p.mismatch * np.exp(rng.normal(0, 0.3, n)),
        "mismatch_ratio_std": np.sqrt(2 * p.mismatch) * np.exp(rng.normal(0, 0.2, n)),
        "grad_norm": p.grad * np.exp(rng.normal(0, 0.25, n)),
        "ratio_mean": 1 + rng.normal(0, 1e-4, n) + p.ratio * np.exp(rng.normal(0, 0.2, n)) * rng.choice([1, 1, -1], n),
        "lr": np.full(n, 1e-6),
    }
