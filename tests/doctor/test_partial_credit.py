"""Runs whose reward has full marks below what counts as success: the reward decides, unless another judge does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from outdo.doctor.history import History, from_rows
from outdo.doctor.rules import diagnose

FULL, STEPS = 0.5, 100
LEARNS, SOLVES = np.linspace(0.2, 0.8, STEPS), 1 - 0.8 * np.exp(-np.arange(STEPS) / 12)


def capped(share: Any, judge: str, held: Any = None, **recipe: Any) -> History:
    """A run that is paid a share of full marks by `half`, and in which `judge` finds no answer right."""
    rng = np.random.default_rng(0)
    rows = []
    for index, part in enumerate(np.ones(STEPS) * share):
        spread = {"informative": 4 * part * (1 - part), "all_wrong": 1 - 4 * part * (1 - part), "all_right": 0.0}
        paid = FULL * float(np.clip(part + rng.normal(0, 0.03) * (part < 1), 0, 1))
        moved = {"kl_mean": 3e-4 * index, "entropy_mean": 0.4 - 0.001 * index, "len_mean": 50.0}
        rows.append({"step": index + 1, "reward_mean": paid, "success_rate": 0.0, **spread, **moved})
    levels = np.ones(STEPS) * (share if held is None else held)
    evals = [
        {"step": step, "split": "test", "n": 200, "success_rate": 0.0, "pass@1": 0.0, "judge": judge}
        | {"reward_mean": FULL * levels[step - 1], "max_reward": FULL}
        for step in (1, 50, 100)
    ]
    return from_rows(rows, evals, {"reward_funcs": ["half"], **recipe})


@pytest.mark.parametrize(
    ("code", "history"),
    [
        ("healthy", capped(LEARNS, "half")),
        ("healthy", capped(SOLVES, "half")),
        ("dead_all_right", capped(1.0, "half")),
        ("dead_all_wrong", capped(np.r_[0.01, np.zeros(STEPS - 1)], "half")),
        ("reward_hacking", capped(LEARNS, "numeric")),
        ("reward_hacking", capped(LEARNS, "numeric", held=0.2, eval_metric="reward")),
        ("healthy", capped(LEARNS, "numeric", eval_metric="reward")),
    ],
)
def test_reward_decides(code: str, history: History) -> None:
    assert diagnose(history)[0].code == code, diagnose(history)


def test_held_out_reward_is_a_share() -> None:
    history = capped(LEARNS, "half")
    assert [round(point.success, 2) for point in history.held] == [0.2, 0.5, 0.8]
    assert history.full_reward == FULL and "success_rate" not in history.columns
    assert capped(LEARNS, "half", reward_weights=[2.0]).full_reward is None
