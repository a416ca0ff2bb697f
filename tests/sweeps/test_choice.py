"""Means over seeds, differences, and the pick: by numbers that are known."""

from __future__ import annotations

import random
from typing import Any

import pytest

from outdo.doctor.compare import by_problem
from outdo.doctor.run_row import advantage_noise, held_out, troubles
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


def test_unmeasured_kl_is_no_sanity() -> None:
    """Without KL a setting is not preferred for its sanity: not in a tie, nor to one that is rejected for its KL."""
    rows = [row("beta=0", 0, 180, seconds=5.0, kl_mean=None), row("beta=0.1", 0, 179, seconds=9.0)]
    choice = choose(settings_of(rows))
    assert choice.name == "beta=0.1" and "the fastest with measured KL is picked" in choice.why
    assert choose(settings_of(rows), default="beta=0").name == "beta=0.1"  # nor because it is the default
    unmeasured = [row("beta=0", 0, 180, kl_mean=None), row("lr=1", 0, 179, seconds=1.0, kl_mean=None)]
    assert choose(settings_of(unmeasured), default="beta=0").name == "beta=0"
    clear = [row("beta=0", 0, 190, kl_mean=None), row("beta=0.1", 0, 100)]
    choice = choose(settings_of(clear))
    assert choice.name == "beta=0" and "KL not measured" in choice.why
    past = row("beta=0.01", 0, 195, wrong=("KL 0.3 above 0.1",), kl_mean=0.3)
    choice = choose(settings_of([*clear, past]))
    assert choice.name == "beta=0.1" and "beta=0 has 0.950 and is rejected: KL not measured" in choice.why
    choice = choose(settings_of([clear[0], past]))
    assert choice.name == "" and "KL not measured in beta=0" in choice.why


def split(name: str, right: int, before: int, n: int = 200) -> dict[str, Any]:
    """A split's part of a row, as `doctor/run_row.py` reads it from evaluations."""
    rows = [
        {"step": step, "split": name, "n": n, "success_rate": count / n, "low": 0.0, "high": 1.0, "problems": name}
        | {"verdicts": "1" * count + "0" * (n - count), "judge": "numeric", "pass@1": 0.3}
        for step, count in ((0, before), (9, right))
    ]
    return held_out(rows)["splits"]


def test_other_splits() -> None:
    """The pick says what became of them, and flags a fall."""
    rows = [
        row("a", 0, 190, splits=split("test", 190, 40) | split("ood", 20, 80)),
        row("b", 0, 100, splits=split("test", 100, 40) | split("ood", 80, 80)),
    ]
    choice = choose(settings_of(rows))
    assert choice.name == "a" and "ood 0.100 [" in choice.why and "but ood fell from 0.40 to 0.10" in choice.why
    assert settings_of(rows)[1].falls == ()


def test_pick_by_reward() -> None:
    """Where nobody succeeds the mean reward decides, paired by problem."""

    def paid(name: str, reward: float) -> dict[str, Any]:
        held = {"reward": reward, "reward_low": reward - 0.05, "reward_high": reward + 0.05, "partial": True}
        return row(name, 0, 0, **held, rewards=[reward + 0.1 * (i % 2) - 0.05 for i in range(200)])

    choice = choose(settings_of([paid("a", 0.2), paid("b", 0.4)]))
    assert (choice.name, choice.metric, choice.is_noise) == ("b", "reward", False) and "mean reward" in choice.why
    rows = [paid("a", 0.2), row("b", 0, 10) | {"reward": 0.1, "reward_low": 0.0, "reward_high": 0.2}]
    assert choose(settings_of(rows)).metric == "success"
    assert choose(settings_of(rows, "reward")).name == "a"


def test_other_judges_are_not_ranked() -> None:
    rows = [row("a", 0, 100, judge="numeric"), row("b", 0, 190, judge="exact")]
    choice = choose(settings_of(rows))
    assert choice.name == "" and "different rewards (numeric, exact)" in choice.why
    rows = [row("a", 0, 100, judge="score"), row("b", 0, 190, judge="score", pass_threshold=0.5)]
    assert "different thresholds (pass_threshold 1, 0.5)" in choose(settings_of(rows)).why


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
