"""What is reported before training."""

from __future__ import annotations

import numpy as np
import pytest

from outdo.doctor.difficulty import SIZES, TOO_EASY, TOO_HARD, describe_difficulty, spread
from outdo.rewards.choose import dense_rewards
from outdo.rewards.compose import find_rewards


@pytest.mark.parametrize(("a", "b"), [(0.3, 0.7), (2.0, 2.0), (50.0, 450.0), (0.05, 0.9)])
def test_spread_of_beta_distributed_prompts(a: float, b: float) -> None:
    p = np.random.default_rng(0).beta(a, b, 200_000)
    shares = spread(float(p.mean()), 10, float(np.mean(1 - (1 - p) ** 10)))
    for g in SIZES:
        assert shares[g] == pytest.approx(float(np.mean(1 - p**g - (1 - p) ** g)), abs=0.02)


def test_too_hard_or_too_easy() -> None:
    assert describe_difficulty(0.0, 10, 0.0, 8) == [TOO_HARD] and describe_difficulty(1.0, 10, 1.0, 8) == [TOO_EASY]
    for success, verdict in ((0.0, "wrong"), (1.0, "right")):
        (line,) = describe_difficulty(success, 10, success, 8, ["brief", "format"])
        assert f"brief or format ranks {verdict} answers" in line and "nothing" not in line
    (line,) = describe_difficulty(0.4, 10, 0.9, 8)
    assert "(now 8)" in line and "with 32" in line
    assert "num_generations=32" in describe_difficulty(0.02, 10, 0.18, 4)[1]


def test_rewards_that_rank_wrong_answers() -> None:
    def names(*given: str, weights: tuple[float, ...] = (), gate: str = "", right: bool = False) -> list[str]:
        own = {"brief": lambda completions, **columns: [0.5 for _ in completions]}
        return dense_rewards(find_rewards(given, weights, given[0], own=own, gate=gate), right)

    assert names("numeric") == [] and names("numeric", "brief") == ["brief"]
    assert names("numeric", "brief", weights=(1.0, 0.0)) == []
    assert names("numeric", "brief", gate="numeric") == [], "a closed gate pays no wrong answer"
    assert names("numeric", "brief", gate="numeric", right=True) == ["brief"]
    assert names("brief") == ["brief"] and names("code_fraction") == ["code_fraction"]
