"""What makes a drill pass, on fixed numbers; one whose fix has no effect fails."""

from __future__ import annotations

import numpy as np
import pytest

from outdo.doctor.finding import Evidence, Finding
from outdo.doctor.history import Held, History
from outdo.drills.drill import Check, Outcome, Signal
from outdo.drills.judge import improved, named, no_longer


def history(held: tuple[Held, ...] = (), **curves: list[float]) -> History:
    columns = {name: np.array(values, dtype=np.float64) for name, values in curves.items()}
    return History(tuple(range(len(next(iter(columns.values()), [])))), columns, held)


def wavy(level: float, n: int = 20, wave: float = 0.02) -> list[float]:
    """A level with noise that is the same every time."""
    return [level + wave * ((i * 7) % 5 - 2) / 2 for i in range(n)]


def finding(code: str) -> Finding:
    return Finding(code, "critical", 3, (Evidence("kl_mean", 0.01, 2.0),))


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


def test_findings() -> None:
    assert named([finding("kl_blowup")], "kl_blowup").held
    assert not named([finding("kl_blowup"), finding("overfit")], "kl_blowup").held
    assert not named([finding("overfit")], "kl_blowup").held
    assert no_longer([finding("healthy")], "kl_blowup").held
    assert not no_longer([finding("overfit"), finding("kl_blowup")], "kl_blowup").held


def test_outcome() -> None:
    assert Outcome((Check("", True), Check("", True))).passed
    assert not Outcome((Check("", True), Check("", False))).passed
    assert not Outcome(()).passed
