"""The end of a curriculum's easier task is no failure: steps are compared within it, or since."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from outdo.doctor.history import from_rows
from outdo.doctor.phase import current_phase, num_easy
from outdo.doctor.rules import diagnose
from outdo.recipe.load import load_recipe
from outdo.tasks.curriculum import Curriculum
from outdo.tasks.task import find_task

RECIPE = {"curriculum_steps": 30, "curriculum_args": {"digits": 1}, "learning_rate": 1e-6}
EASY = 0.5 + 0.42 * np.minimum(1, np.arange(30) / 25)
HARD = 0.15 + 0.25 * np.arange(40) / 40


def rows(success: Any, **columns: Any) -> list[dict[str, float]]:
    rng = np.random.default_rng(0)
    noisy = np.clip(success + rng.normal(0, 0.04, len(success)), 0, 1)
    flat = {"entropy_mean": 0.6 + rng.normal(0, 0.02, len(success)), "len_mean": 30 + rng.normal(0, 0.5, len(success))}
    curves = {"reward_mean": noisy, "success_rate": noisy, **flat, **columns}
    return [{"step": i, "informative": 0.6, **{k: float(v[i]) for k, v in curves.items()}} for i in range(len(success))]


def codes(found: list[dict[str, float]], evals: Any = (), **recipe: Any) -> list[str]:
    return [finding.code for finding in diagnose(from_rows(found, evals, RECIPE | recipe))]


@pytest.mark.parametrize("num_steps", [32, 40, 50, 70])
def test_curriculum_end_is_no_collapse(num_steps: int) -> None:
    found = rows(np.r_[EASY, HARD], len_mean=np.r_[np.full(30, 30.0), np.full(40, 45.0)])[:num_steps]
    assert codes(found) == (["healthy"] if num_steps >= 50 else ["too_early"])
    if num_steps >= 40:
        assert codes(found, curriculum_steps=0) == ["steps_too_big"]  # as it would be without one


def test_too_early_after_curriculum() -> None:
    (finding,) = diagnose(from_rows(rows(np.r_[EASY, HARD])[:40], recipe=RECIPE))
    assert "10 since the easier task ended at step 30, 10 of them" in finding.evidence[0].describe()


def test_failure_within_phase() -> None:
    fallen = np.r_[np.full(20, 0.6), np.full(20, 0.05)]
    found = from_rows(rows(np.r_[EASY, fallen]), recipe=RECIPE)
    finding = diagnose(found)[0]
    assert finding.code == "steps_too_big" and 47 <= finding.step <= 53
    assert finding.evidence[0].before == pytest.approx(0.6, abs=0.05)  # of this phase, not of the easier task
    assert codes(rows(np.r_[np.full(15, 0.8), np.full(15, 0.05)])) == ["steps_too_big"]


def test_kl_onset_before_phase() -> None:
    """KL means the same on any prompts: when it began is not the start of the phase."""
    kl = np.r_[np.full(12, 0.01), np.full(58, 0.5)]
    finding = diagnose(from_rows(rows(np.r_[EASY, HARD], kl_mean=kl), recipe=RECIPE))[0]
    assert finding.code == "kl_blowup" and 10 <= finding.step <= 14


def test_held_out_during_curriculum() -> None:
    climbs = 0.2 + 0.7 * np.minimum(1, np.arange(40) / 25)
    evals = [{"step": s, "split": "test", "success_rate": p, "n": 200} for s, p in ((0, 0.02), (20, 0.05), (40, 0.08))]
    assert codes(rows(climbs), evals, curriculum_steps=60) == ["healthy"]
    assert codes(rows(climbs), evals, curriculum_steps=0) == ["overfit"]
    later = [{**row, "step": row["step"] + 30} for row in evals]
    assert codes(rows(np.r_[EASY, climbs]), later) == ["overfit"]  # learnt by heart since


def test_phase_matches_curriculum() -> None:
    ends = set()
    for seed in range(30):
        rng = random.Random(seed)
        keys = {"curriculum_steps": 20, "curriculum_args": {"digits": 1}, "curriculum_informative": 0.35}
        curriculum = Curriculum(find_task("arithmetic"), load_recipe(None, keys))
        found, easy = [], 0
        for step in range(40):
            share = rng.choice([0.0, 0.25, 0.5, 0.75])
            easy += curriculum.easy
            curriculum.observe(share)
            found.append({"step": step, "informative": share, "reward_mean": 0.5})
        history = from_rows(found, recipe=keys)
        assert num_easy(history) == easy and current_phase(history).steps[0] == easy
        ends.add(easy)
    assert len(ends) > 3 and max(ends) == 20


def test_no_curriculum() -> None:
    history = from_rows(rows(HARD), [{"step": 0, "success_rate": 0.1}])
    assert current_phase(history) is history
