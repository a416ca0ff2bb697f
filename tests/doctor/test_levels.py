"""Falls of held-out success: small sets and few evaluations, and noise that is no fall."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from outdo.doctor.held_out import ood_loss, overfit
from outdo.doctor.history import Held, History, from_rows
from outdo.doctor.levels import levels_of
from outdo.doctor.rules import diagnose

STEPS = 100
HOLDS = (0.45, 0.55, 0.5, 0.6, 0.6)
USUAL = {"kl_mean": 0.02, "entropy_mean": 0.5, "len_mean": 120.0, "informative": 0.6}


def learns(ood: Sequence[float], n: int | None, first: Sequence[float] = HOLDS) -> History:
    """A run whose success rises, with evaluations of two sets at equal distances."""
    rises = np.linspace(0.3, 0.6, STEPS) + np.random.default_rng(0).normal(0, 0.02, STEPS)
    columns = {name: np.full(STEPS, value) for name, value in USUAL.items()}
    test, other = points(first, 100), points(ood, n)
    splits = {"test": test, "ood": other}
    rows = {**columns, "success_rate": rises, "reward_mean": rises}
    return History(tuple(range(1, STEPS + 1)), rows, test, splits=splits)


def points(levels: Sequence[float], n: int | None) -> tuple[Held, ...]:
    return tuple(Held(int(i * STEPS / (len(levels) - 1)), float(level), n) for i, level in enumerate(levels))


def drawn(levels: Any, n: int, seed: Any) -> tuple[float, ...]:
    """The success that evaluations of n problems show."""
    return tuple(np.random.default_rng(seed).binomial(n, levels) / n)


FALLS = {
    "to nothing": (22, (7, 2, 0)),
    "after a rise": (29, (8, 12, 14, 18, 7, 3, 2, 2)),
    "at the end": (20, (7, 6, 4, 9, 8, 11, 5, 8, 10, 8, 3, 2, 1, 1)),
    "slowly": (
        20,
        (10, 9, 10, 8, 9, 12, 10, 9, 8, 9, 8, 11, 12, 10, 12, 9, 7, 8, 6, 7, 4, 4, 3, 2, 5, 5, 4, 5),
    ),
    "of five": (25, (12, 13, 14, 6, 3)),
}


@pytest.mark.parametrize(("n", "right"), FALLS.values(), ids=FALLS)
def test_falls_on_small_set(n: int, right: tuple[int, ...]) -> None:
    run = learns([count / n for count in right], n)
    finding = diagnose(run)[0]
    lost = finding.evidence[0]
    assert finding.code == "ood_loss"
    assert lost.before is not None and lost.after is not None
    assert lost.before > 0.25 and lost.after < 0.3 and lost.before > 2 * lost.after
    other = diagnose(replace(run, held=run.splits["ood"], splits={"test": run.splits["ood"]}))[0]
    assert other.code == "overfit"  # the same fall, on the only set


HOLD = {
    "one low evaluation": (20, (0.4, 0.45, 0.35, 0.4, 0.25)),
    "two sets alike": (20, (0.4, 0.25)),
    "low at first": (20, (0.15, 0.05, 0.15, 0.1, 0.05, 0.1, 0.05, 0.05)),
    "scattered": (400, (0.5, 0.35, 0.52, 0.38, 0.54, 0.4, 0.36, 0.51, 0.37, 0.49, 0.34, 0.38)),
    "rises and swings": (400, (0.48, 0.89, 0.69)),
    "recovers": (100, (0.6, 0.58, 0.35, 0.4, 0.57, 0.6)),
}


@pytest.mark.parametrize(("n", "levels"), HOLD.values(), ids=HOLD)
def test_no_fall(n: int, levels: tuple[float, ...]) -> None:
    assert diagnose(learns(levels, n))[0].code == "healthy"


def jump(r: Any, count: int) -> Any:
    """Falls at once, to a quarter or less."""
    level = r.uniform(0.5, 0.8)
    return np.where(np.arange(count) < count // 2, level, level * r.uniform(0.05, 0.25))


def ramp(r: Any, count: int) -> Any:
    """Rises, and falls over a third of the evaluations."""
    x, top = np.linspace(0, 1, count), r.uniform(0.5, 0.8)
    rise = top * (0.7 + 0.3 * np.minimum(1, 3 * x))
    return rise + (top * r.uniform(0.05, 0.2) - top) * np.clip((x - 0.35) / 0.33, 0, 1)


@pytest.mark.parametrize("shape", [jump, ramp])
def test_power_on_small_sets(shape: Callable[[Any, int], Any]) -> None:
    named = []
    for seed in range(60):
        r = np.random.default_rng([seed, 11])
        count, n = int(r.integers(6, 21)), int(r.integers(20, 30))
        named.append(ood_loss(learns(drawn(shape(r, count), n, [seed, 12]), n)) is not None)
    assert np.mean(named) >= 0.95, named


@pytest.mark.parametrize("rise", [0.0, 0.3])
def test_false_alarms_on_small_sets(rise: float) -> None:
    alarms = []
    for seed in range(300):
        r = np.random.default_rng([seed, 21])
        count, n = int(r.integers(2, 25)), int(r.choice([20, 30, 60, 200]))
        levels = r.uniform(0.05, 0.65) + rise * np.linspace(0, 1, count)
        run = learns(drawn(levels, n, [seed, 22]), n)
        alarms.append(ood_loss(run) or overfit(replace(run, held=run.splits["ood"])))
    assert sum(alarm is not None for alarm in alarms) <= 4


def test_noise_of_unknown_sets() -> None:
    """Without the number of problems the neighbours show the noise: that of 20 problems is not taken for 200."""
    alarms = [
        ood_loss(learns(drawn(np.full(count, 0.5), 20, [seed, count]), None)) is not None
        for seed in range(40)
        for count in (8, 12, 20)
    ]
    assert sum(alarms) <= 3
    large = (0.5, 0.52, 0.49, 0.51, 0.3, 0.31, 0.29)
    assert ood_loss(learns(large, None)) and not ood_loss(learns(large, 20))
    assert ood_loss(learns((0.5, 0.3), None)) and not ood_loss(learns((0.5, 0.36), None))
    assert ood_loss(learns((0.5, 0.36), 200)) is not None


def test_number_of_problems_is_optional() -> None:
    printed = from_rows([{"step": i, "reward_mean": 0.3, "eval_success_rate": 0.5} for i in range(3)])
    assert [(point.n, point.size) for point in printed.held] == [(None, 200)] * 3
    logged = from_rows([], [{"step": 0, "split": "test", "n": 20, "success_rate": 0.5}])
    assert (logged.held[0].n, logged.held[0].size) == (20, 20)


def test_clearest_fall() -> None:
    levels = levels_of(points((0.2, 0.5, 0.5, 0.3, 0.1, 0.1), 50))
    assert levels and levels.falls
    assert (levels.fall.before, levels.fall.after) == pytest.approx((0.5, 0.1))  # neither the rise nor the way down
    assert levels.fall.error == pytest.approx((0.3 * 0.7 / 50) ** 0.5, rel=0.02)  # of two samples of 100, success 0.3
    small = levels_of(points([*np.linspace(0.3, 0.8, 9)], 50))
    assert small and small.fall.gain > 0 and not small.falls
