"""Means over seeds, differences, and the pick: by numbers that are known."""

from __future__ import annotations

import random
from typing import Any

import pytest

from outdo.doctor.compare import by_problem
from outdo.doctor.run_row import advantage_noise, troubles
from outdo.metrics.estimate import t_interval, t_quantile
from outdo.sweeps.analysis import difference, settings_of
from outdo.sweeps.choice import choose
from support.cells import row


def test_t_interval() -> None:
    assert t_interval([1.0, 2.0, 3.0]) == pytest.approx((2 - 2.4841, 2 + 2.4841), abs=1e-3)
    for freedom, value in ((1, 12.706), (15, 2.131), (16, 2.120), (30, 2.042), (120, 1.980)):
        assert t_quantile(freedom) == pytest.approx(value, abs=2e-3)


def test_success_interval() -> None:
    (alike,) = settings_of([row("a", seed, 100) for seed in range(3)])
    assert alike.success == 0.5
    assert alike.low == pytest.approx(0.431, abs=0.01) and alike.high == pytest.approx(0.569, abs=0.01)
    (apart,) = settings_of([row("a", seed, right) for seed, right in enumerate((60, 100, 140))])
    assert apart.low == pytest.approx(0.5 - 4.303 * 0.2 / 3**0.5, abs=1e-3)
    (one,) = settings_of([row("a", 0, 100)])
    assert (one.low, one.high) == pytest.approx((row("a", 0, 100)["low"], row("a", 0, 100)["high"]))


def test_pairing() -> None:
    lucky = [60, 100, 140]  # a seed's luck is in both
    a, b = settings_of([row(name, i, r + more) for name, more in (("a", 20), ("b", 0)) for i, r in enumerate(lucky)])
    gap = difference(a, b)
    assert gap.value == pytest.approx(0.1) and not gap.is_noise
    a, b = settings_of([row("a", 0, 110), row("a", 1, 90), row("b", 0, 90), row("b", 1, 108)])
    assert difference(a, b).is_noise
    assert by_problem([row("a", 0, 1), row("a", 1, 1) | {"problems": "others"}]) is None
    unpaired = settings_of([row("a", 0, 195) | {"verdicts": None}, row("b", 0, 100)])
    assert not difference(*unpaired).is_noise


def test_clear_winner() -> None:
    rows = [row(name, seed, right) for name, right in (("a", 100), ("b", 160)) for seed in range(3)]
    choice = choose(settings_of(rows), default="a")
    assert (choice.name, choice.is_noise) == ("b", False)
    assert "more than noise" in choice.why and "over 3 seeds" in choice.why


def test_ties() -> None:
    rows = [row("a", 0, 180, seconds=30.0), row("b", 0, 181, seconds=20.0), row("c", 0, 178, seconds=10.0)]
    choice = choose(settings_of(rows), default="a")
    assert choice.is_noise and choice.best == "b" and choice.name == "a"
    assert "the default is kept" in choice.why
    choice = choose(settings_of(rows))
    assert choice.name == "c" and "the fastest is picked" in choice.why
    assert choice.why.count(".\n") == 0 and choice.why.endswith(".")


def test_unstable_is_never_picked() -> None:
    rows = [row("a", 0, 120), row("b", 0, 190, wrong=("KL 0.4 past 0.1",))]
    choice = choose(settings_of(rows))
    assert choice.name == "a" and "b has 0.950 and is rejected: KL 0.4 past 0.1" in choice.why
    halted = row("c", 1, 190, wrong=("halted",), status="halted")
    assert choose(settings_of([row("a", 0, 120), row("c", 0, 190), halted])).name == "a"
    assert choose(settings_of([halted])).name == "" and "c: halted" in choose(settings_of([halted])).why


def test_no_evaluation() -> None:
    bare = row("a", 0, 1) | {"success_rate": None}
    assert "no cell has a held-out evaluation" in choose(settings_of([bare])).why.lower()


def test_false_and_true_alarms() -> None:
    """Of 100 pairs that do not differ, few are called different; of 100 that do, most are."""
    rng = random.Random(0)

    def rows(name: str, rate: float) -> list[dict[str, Any]]:
        out = []
        for seed in range(3):
            verdicts = "".join("1" if rng.random() < rate else "0" for _ in range(200))
            out.append(row(name, seed, verdicts.count("1")) | {"verdicts": verdicts})
        return out

    alarms = sum(not difference(*settings_of(rows("a", 0.8) + rows("b", 0.8))).is_noise for _ in range(100))
    seen = sum(not difference(*settings_of(rows("a", 0.95) + rows("b", 0.7))).is_noise for _ in range(100))
    assert alarms <= 5 and seen >= 90


BASE = {"status": "done", "kl_mean": 0.02, "entropy_mean": 0.02, "group_diversity": 0.3, "truncated": 0.0, "passes": {}}


@pytest.mark.parametrize(
    ("ends", "recipe", "part"),
    [
        ({}, {}, None),
        ({"kl_mean": None}, {}, None),
        ({"kl_mean": 0.15}, {}, "KL 0.15 above 0.1"),
        ({"kl_mean": 0.15}, {"kl_limit": 0.3}, None),
        ({"entropy_mean": 0.001}, {}, "entropy fell from 0.08 to 0.001"),
        ({"group_diversity": 0.126}, {}, "all answers of a group are the same"),
        ({"truncated": 0.5}, {}, "50% of answers cut"),
        ({"status": "halted"}, {}, "halted"),
        (
            {"passes": {"pass@10": {"value": 0.5, "high": 0.6, "before": 0.9, "before_low": 0.85}}},
            {},
            "pass@10 fell from 0.90 to 0.50",
        ),
    ],
)
def test_troubles(ends: dict[str, Any], recipe: dict[str, Any], part: str | None) -> None:
    steps = [{"entropy_mean": 0.08, "success_rate": 0.5}] * 5 + [{"entropy_mean": 0.01, "success_rate": 0.5}] * 5
    found = troubles(BASE | ends, steps, {"kl_limit": 0.1, "num_generations": 8} | recipe)
    assert len(found) == (part is not None) and all(part in words for words in found if part)
    if "entropy_mean" in ends or "group_diversity" in ends:  # a task that is mastered has one answer
        mastered = [step | {"success_rate": 0.97} for step in steps]
        assert not troubles(BASE | ends, mastered, {"kl_limit": 0.1, "num_generations": 8})


def test_advantage_noise() -> None:
    groups = [[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.0], [1.0]]
    assert advantage_noise(groups) == pytest.approx(((0.25 / 4 + (1 / 3) / 3) / 2) ** 0.5)
    assert advantage_noise([]) is None
