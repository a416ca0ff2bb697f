"""What is said before training."""

from __future__ import annotations

import numpy as np
import pytest

from outdo.doctor.foothold import SIZES, TOO_EASY, TOO_HARD, spread, words
from outdo.rewards.choose import dense_rewards
from outdo.rewards.compose import find_rewards


@pytest.mark.parametrize(("a", "b"), [(0.3, 0.7), (2.0, 2.0), (50.0, 450.0), (0.05, 0.9)])
def test_the_share_of_groups_with_spread_is_that_of_prompts_that_differ_so(a: float, b: float) -> None:
    p = np.random.default_rng(0).beta(a, b, 200_000)
    found = spread(float(p.mean()), 10, float(np.mean(1 - (1 - p) ** 10)))
    for g in SIZES:
        assert found[g] == pytest.approx(float(np.mean(1 - p**g - (1 - p) ** g)), abs=0.02)


def test_what_cannot_be_learnt_is_said() -> None:
    assert words(0.0, 10, 0.0, 8) == [TOO_HARD] and words(1.0, 10, 1.0, 8) == [TOO_EASY]
    for success, what in ((0.0, "wrong"), (1.0, "right")):
        (line,) = words(success, 10, success, 8, ["brief", "format"])
        assert f"only where brief or format tells {what} answers apart" in line and "nothing" not in line
    (line,) = words(0.4, 10, 0.9, 8)
    assert "(now 8)" in line and "with 32" in line
    assert "num_generations=32" in words(0.02, 10, 0.18, 4)[1]


def test_rewards_that_tell_apart_what_is_all_wrong() -> None:
    def names(*given: str, weights: tuple[float, ...] = (), gate: str = "", right: bool = False) -> list[str]:
        own = {"brief": lambda completions, **columns: [0.5 for _ in completions]}
        return dense_rewards(find_rewards(given, weights, given[0], own=own, gate=gate), right)

    assert names("numeric") == [] and names("numeric", "brief") == ["brief"]
    assert names("numeric", "brief", weights=(1.0, 0.0)) == []
    assert names("numeric", "brief", gate="numeric") == [], "what is shut pays no wrong answer"
    assert names("numeric", "brief", gate="numeric", right=True) == ["brief"]
    assert names("brief") == ["brief"] and names("code_fraction") == ["code_fraction"]
