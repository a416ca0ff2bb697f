"""Rules that real failing runs led to, as small histories."""

from __future__ import annotations

import random
from typing import Any

from outdo.doctor.history import from_rows
from outdo.doctor.rules import diagnose


def rows(n: int = 30, seed: int = 0, **ends: tuple[float, float]) -> list[dict[str, Any]]:
    """Curves from one level to another, with a little noise."""
    rng = random.Random(seed)
    return [
        {"step": i} | {name: a + (b - a) * i / (n - 1) + rng.gauss(0, 0.01) for name, (a, b) in ends.items()}
        for i in range(n)
    ]


def codes(rows: list[dict[str, Any]], **recipe: Any) -> list[str]:
    return [finding.code for finding in diagnose(from_rows(rows, recipe=recipe))]


def test_falling_success_is_hacking() -> None:
    gamed = rows(reward_mean=(0.5, 1.0), success_rate=(0.5, 0.05), kl_mean=(0.0, 1.2))
    assert codes(gamed) == ["reward_hacking"]
    fallen = [row | {"success_rate": 0.0 if row["step"] > 12 else 0.5} for row in rows(kl_mean=(0.0, 0.0))]
    assert codes([row | {"reward_mean": row["success_rate"]} for row in fallen]) == ["steps_too_big"]


def test_no_update_is_not_large() -> None:
    dead = rows(reward_mean=(0.0, 0.0), success_rate=(0.0, 0.0), all_wrong=(1.0, 1.0))
    assert codes([row | {"ratio_mean": 0.0} for row in dead]) == ["dead_all_wrong"]


def test_temperature_decay() -> None:
    cold = [row | {"entropy_mean": max(0.0, 0.3 - 0.01 * row["step"])} for row in rows(success_rate=(0.4, 0.4))]
    for recipe, key, new in (
        ({"temperature": 1.0, "temperature_end": 0.1}, "temperature_end", 1.0),
        ({"temperature": 1.0, "temperature_end": None}, "temperature", 1.25),
        ({"temperature": 1.2}, "entropy_coef", 0.01),
    ):
        (finding,) = diagnose(from_rows(cold, recipe=recipe))
        assert finding.code == "entropy_collapse" and finding.change is not None
        assert (finding.change.key, finding.change.new) == (key, new)


def test_right_answers_are_no_collapse() -> None:
    kinds = [max(0.2, 0.47 - 0.02 * step) for step in range(30)]
    for success, code in ((0.7, "healthy"), (0.3, "mode_collapse")):
        rises = [0.23 + (success - 0.23) * min(1.0, step / 12) for step in range(30)]
        alike = [
            row | {"group_diversity": kinds[row["step"]], "success_rate": rises[row["step"]] + 0.02 * (row["step"] % 2)}
            for row in rows(entropy_mean=(0.1, 0.07))
        ]
        assert codes(alike) == [code]


def test_step_kl() -> None:
    clipped = [0.05, 0.02, 0.09, 0.25, 0.04, 0.03, 0.06, 0.16, 0.05, 0.13] * 3
    learns = rows(success_rate=(0.4, 0.6))
    assert codes([row | {"step_kl": clipped[row["step"]]} for row in learns]) == ["healthy"]
    loose = [3 * kl if step >= 8 else kl for step, kl in enumerate(clipped)]
    (finding,) = diagnose(
        from_rows([row | {"step_kl": loose[row["step"]]} for row in learns], recipe={"epsilon": 10.0})
    )
    assert finding.code == "steps_too_big" and 3 <= finding.step <= 10
    assert finding.change is not None and finding.change.pair() == "epsilon=0.2"
