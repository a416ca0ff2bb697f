"""Precision of the rules: every failure mode at many strengths, noise levels and lengths, and healthy runs.

The rules were not fitted to the seeds of the second test.
"""

from __future__ import annotations

import time

import numpy as np
import pytest

from outdo.doctor.history import History
from outdo.doctor.rules import RULES, diagnose
from support import curves, mechanism

FAILING, HEALTHY = 12, 6  # seeds of each failure mode, and of each healthy shape


def judged(first: int, failing: int = FAILING, healthy: int = HEALTHY) -> tuple[float, float, list[str]]:
    """The share of failing runs whose first finding is the cause, of false alarms, and the mistakes by name."""
    wrong, alarms = [], []
    for code in curves.FAILURES:
        for seed in range(first, first + failing):
            said = diagnose(curves.history(code, seed))[0].code
            wrong += [f"{code} {seed}: {said}"] if said != code else []
    for shape in curves.HEALTHY:
        for seed in range(first, first + healthy):
            said = diagnose(curves.history("healthy", seed, shape))[0].code
            alarms += [f"healthy {shape} {seed}: {said}"] if said != "healthy" else []
    cases, num_healthy = len(curves.FAILURES) * failing, len(curves.HEALTHY) * healthy
    return 1 - len(wrong) / cases, len(alarms) / num_healthy, wrong + alarms


def test_precision() -> None:
    assert set(curves.FAILURES) <= set(RULES) and {*mechanism.CLASSES} - {"healthy"} <= set(RULES)
    assert len(curves.FAILURES) * FAILING >= 150 and len(curves.HEALTHY) * HEALTHY >= 50
    right, alarms, said = judged(0)
    assert right >= 0.95 and alarms <= 0.02, said


def test_precision_unseen_seeds() -> None:
    right, alarms, said = judged(90_000, failing=8, healthy=4)
    assert right >= 0.93 and alarms <= 0.04, said


def test_precision_by_mechanism() -> None:
    """Runs that another simulator makes, whose signals agree with each other. Short ones: they take seconds."""
    right, alarms, said = mechanism.judge(range(60_000, 60_090), most=250)
    assert right >= 0.93 and alarms <= 0.04, said


@pytest.mark.slow
def test_precision_many_runs() -> None:
    right, alarms, said = mechanism.judge(range(80_000, 80_300))
    assert right >= 0.95 and alarms <= 0.02, said
    right, alarms, said = judged(50_000, failing=60, healthy=100)
    assert right >= 0.95 and alarms <= 0.02, said


def test_healthy_at_every_step() -> None:
    """Training asks again and again. Answers that are cut off at first are cut off then: that shape is left out."""
    alarms, looks = [], 0
    for shape in curves.HEALTHY.keys() - {"rambling"}:
        for seed in range(2):
            whole = curves.history("healthy", 700 + seed, shape)
            for n in range(10, min(len(whole), 300), 10):
                looks += 1
                part = History(whole.steps[:n], {k: v[:n] for k, v in whole.columns.items()})
                said = diagnose(part)[0].code
                alarms += [f"{shape} {seed} at {n}: {said}"] if said not in ("healthy", "too_early") else []
    assert len(alarms) <= 0.02 * looks, alarms


def test_speed() -> None:
    short = curves.history("healthy", 3, "plain")
    columns = {name: np.resize(curve, 10_000) for name, curve in short.columns.items()}
    start = time.process_time()
    diagnose(History(tuple(range(10_000)), columns, short.held))
    assert time.process_time() - start < 1.0
