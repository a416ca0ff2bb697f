"""What makes a drill pass, on fixed numbers; one whose fix has no effect fails."""

from __future__ import annotations

import numpy as np
import pytest

from outdo.doctor.finding import Evidence, Finding, Severity
from outdo.doctor.history import Held, History
from outdo.drills.drill import Check, Outcome, Signal
from outdo.drills.judge import cured, improved, named, no_longer


def history(held: tuple[Held, ...] = (), **curves: list[float]) -> History:
    columns = {name: np.array(values, dtype=np.float64) for name, values in curves.items()}
    return History(tuple(range(len(next(iter(columns.values()), [])))), columns, held)


def wavy(level: float, n: int = 20, wave: float = 0.02) -> list[float]:
    """A level with noise that is the same every time."""
    return [level + wave * ((i * 7) % 5 - 2) / 2 for i in range(n)]


def finding(code: str, severity: Severity = "critical") -> Finding:
    return Finding(code, severity, 3, (Evidence("kl_mean", 0.01, 2.0),))


def test_no_effect_fails() -> None:
    failing, same = history(kl_mean=wavy(2.0)), history(kl_mean=wavy(2.0))
    assert not improved(failing, same, Signal("kl_mean", "down")).held
    assert "should be lower" in improved(failing, same, Signal("kl_mean", "down")).line


@pytest.mark.parametrize(
    ("before", "after", "way", "held"),
    [(2.0, 0.1, "down", True), (2.0, 0.1, "up", False), (0.1, 0.6, "up", True), (0.5, 0.505, "up", False)],
)
def test_direction_and_noise(before: float, after: float, way: str, held: bool) -> None:
    check = improved(history(x=wavy(before)), history(x=wavy(after)), Signal("x", way))  # type: ignore[arg-type]
    assert check.held is held
    assert f"{before:.3g}" in check.line and f"{after:.3g}" in check.line


def test_min_change() -> None:
    failing, fixed = history(x=wavy(0.2)), history(x=wavy(0.4))
    assert improved(failing, fixed, Signal("x", "up", 0.15)).held
    assert not improved(failing, fixed, Signal("x", "up", 0.3)).held


def test_missing_signal() -> None:
    assert not improved(history(x=wavy(1)), history(y=wavy(0)), Signal("x", "down")).held
    assert not improved(history(x=wavy(1)), history(x=wavy(0)), Signal("eval_success_rate", "up")).held


def test_held_out_error() -> None:
    failing = history((Held(0, 0.3, 100), Held(20, 0.3, 100)), x=wavy(0))
    assert improved(failing, history((Held(20, 0.6, 100),), x=wavy(0)), Signal("eval_success_rate", "up")).held
    assert not improved(failing, history((Held(20, 0.38, 100),), x=wavy(0)), Signal("eval_success_rate", "up")).held


def test_named() -> None:
    assert named([finding("kl_blowup")], "kl_blowup").held
    assert named([finding("kl_blowup"), finding("entropy_falling", "info")], "kl_blowup").held  # a note
    assert named([finding("kl_blowup"), finding("entropy_collapse")], "kl_blowup").held  # its effect
    assert not named([finding("kl_blowup"), finding("inconsistent_grader")], "kl_blowup").held
    assert not named([finding("entropy_collapse"), finding("kl_blowup")], "kl_blowup").held


def test_nothing_critical_remains() -> None:
    assert no_longer([finding("healthy", "info")], "sparse").held
    assert no_longer([finding("noisy_advantage", "warning")], "kl_blowup").held
    assert not no_longer([finding("kl_blowup", "warning")], "kl_blowup").held  # what was to be fixed
    hacked = no_longer([finding("healthy", "info"), finding("reward_hacking")], "dead_all_wrong")
    assert not hacked.held and "reward_hacking should be gone" in hacked.line


@pytest.mark.parametrize(
    ("start", "failing", "fixed", "held"),
    [
        (0.3, 0.0, 0.8, [True, True]),
        (0.0, 0.0, 0.0, [False, False]),  # more reward and no success
        (0.3, 0.1, 0.35, [True, False]),  # better than the failing run, not than the start
        (0.3, 0.6, 0.65, [False, True]),  # learned, but no more than the failing run
        (0.0, 0.0, 0.2, [True, True]),
        (0.3, 0.3, 0.41, [False, False]),  # within the noise of 200 problems
    ],
)
def test_cure(start: float, failing: float, fixed: float, held: list[bool]) -> None:
    checks = cured({"test": [Held(0, start), Held(20, failing)]}, {"test": [Held(0, start), Held(20, fixed)]})
    assert [check.held for check in checks] == held


def test_cure_needs_evaluations() -> None:
    start, end = [Held(0, 0.1)], [Held(0, 0.1), Held(9, 0.9)]
    assert [check.held for check in cured({"test": start}, {"test": start})] == [False]  # none after training
    assert [check.held for check in cured({}, {"test": end})] == [False]
    assert all(check.held for check in cured({"test": start}, {"test": end}))  # the failing run halted


def test_cure_of_a_lost_split() -> None:
    failing = {"test": [Held(0, 0.1), Held(20, 0.9)], "ood": [Held(0, 0.6), Held(20, 0.2)]}
    fixed = {"test": [Held(0, 0.1), Held(20, 0.8)], "ood": [Held(0, 0.6), Held(20, 0.6)]}
    assert all(check.held for check in cured(failing, fixed, "ood"))
    assert [check.held for check in cured(failing, {**fixed, "ood": failing["ood"]}, "ood")] == [False, True]
    stuck = {**fixed, "test": [Held(0, 0.1), Held(20, 0.1)]}
    assert [check.held for check in cured(failing, stuck, "ood")] == [True, False]


def test_outcome() -> None:
    assert Outcome((Check("", True), Check("", True))).passed
    assert not Outcome((Check("", True), Check("", False))).passed
    assert not Outcome(()).passed
