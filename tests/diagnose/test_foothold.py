"""What is said before training."""

from __future__ import annotations

import numpy as np
import pytest

from outdo.diagnose.foothold import SIZES, TOO_EASY, TOO_HARD, spread, words


@pytest.mark.parametrize(("a", "b"), [(0.3, 0.7), (2.0, 2.0), (50.0, 450.0), (0.05, 0.9)])
def test_the_share_of_groups_with_spread_is_that_of_prompts_that_differ_so(a: float, b: float) -> None:
    p = np.random.default_rng(0).beta(a, b, 200_000)
    found = spread(float(p.mean()), 10, float(np.mean(1 - (1 - p) ** 10)))
    for g in SIZES:
        assert found[g] == pytest.approx(float(np.mean(1 - p**g - (1 - p) ** g)), abs=0.02)


def test_what_cannot_be_learnt_is_said() -> None:
    assert words(0.0, 10, 0.0, 8) == [TOO_HARD] and words(1.0, 10, 1.0, 8) == [TOO_EASY]
    (line,) = words(0.4, 10, 0.9, 8)
    assert "(now 8)" in line and "with 32" in line
    assert "num_generations=32" in words(0.02, 10, 0.18, 4)[1]
