"""A grader that changes while a run goes on. Real runs of the tiny model with a grader of its user."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outdo import Callback, train
from outdo.doctor.history import from_rows
from outdo.doctor.rules import diagnose
from outdo.rewards.compose import find_rewards
from outdo.runs.reader import read_metrics
from outdo.training.drift import GraderDrift, may_change
from outdo.types import Grade, Group, Prompt, Trajectory
from support.fakes import QuietReporter

SMALL: dict[str, Any] = {
    **{"sft_steps": 2, "sft_batch_size": 4, "max_steps": 6, "num_generations": 4, "per_device_train_batch_size": 8},
    **{"max_completion_length": 6, "eval_size": 2, "eval_samples": 0, "eval_split": ["test"], "device": "cpu"},
    **{"regrade_steps": 2, "reward_audit": False},
}


class Judge(Callback):
    """Pays by length; from the fourth step on the other way round."""

    __name__ = "judge"

    def __init__(self, is_random: bool = False) -> None:
        self.rng, self.has_changed, self.calls = random.Random(0) if is_random else None, False, 0

    def on_step_end(self, run: Any, done: int) -> None:
        self.has_changed = done >= 3

    def __call__(self, completions: Sequence[str], **columns: object) -> list[float]:
        self.calls += 1
        if self.rng:
            return [self.rng.random() for _ in completions]
        return [float(len(text) % 2 == self.has_changed) for text in completions]


def drift(tmp_path: Path, judge: Judge, **keys: Any) -> list[float | None]:
    keys = {**SMALL, "reward_funcs": [judge], "callbacks": [judge], **keys}
    folder = train(reporter=QuietReporter(), output_dir=str(tmp_path / "run"), **keys).folder
    return [row.get("grader_drift") for row in read_metrics(folder)]


def test_change_is_measured(tmp_path: Path) -> None:
    assert drift(tmp_path, Judge()) == [None, 0.0, None, 1.0, None, 1.0]


def test_other_rewards_after_a_resume(tmp_path: Path) -> None:
    judge, folder = Judge(), tmp_path / "run"
    keys: dict[str, Any] = {"reporter": QuietReporter(), "callbacks": [judge], "reward_funcs": [judge]}
    train(output_dir=str(folder), **{**SMALL, **keys, "max_steps": 2, "save_steps": 1})
    judge.has_changed, judge.on_step_end = True, lambda run, done: None  # type: ignore[method-assign]
    train(resume=folder, force=True, max_steps=4, reward_gate="numeric", **keys)
    assert [row.get("grader_drift") for row in read_metrics(folder)] == [None, 0.0, None, 0.0]


def test_off(tmp_path: Path) -> None:
    judge = Judge()
    assert drift(tmp_path, judge, regrade_steps=0) == [None] * 6
    assert judge.calls == 2 * 6 + 2 * 2  # two groups a step, and two problems of two evaluations


def test_inconsistent_is_no_drift(tmp_path: Path) -> None:
    assert drift(tmp_path, Judge(is_random=True), max_steps=4) == [None] * 4


def test_who_is_graded_again() -> None:
    own = find_rewards(["judge", "numeric"], [], "numeric", own={"judge": Judge()})
    assert may_change(own) and not may_change(find_rewards(["numeric"], [], "numeric"))


def test_state_is_json() -> None:
    answers = tuple(Trajectory.single((1, 2), (0.0, 0.0), text, "stop", 0) for text in ("a", "bb"))
    prompt = Prompt("1+1", ({"role": "user", "content": "1+1"},), "2", {"a": 1})
    before, after = GraderDrift(), GraderDrift()
    before.groups = [Group(prompt, (), answers, (Grade(1.0, "right"), Grade(0.0, "wrong")))]
    after.load_state(json.loads(json.dumps(before.state())))
    assert after.groups == before.groups and after.graded_by == before.graded_by
    before.groups = [Group(Prompt("x", (), {1, 2}), (), answers, before.groups[0].grades)]
    assert before.state() == {}  # a set is no JSON


def test_rule() -> None:
    shares = {3: 0.0, 7: 0.0, 11: 0.4, 15: 0.5}
    rows = [{"step": i, "reward_mean": 0.5, "success_rate": 0.5 - 0.02 * i, "reward/numeric": 0.4} for i in range(16)]
    drifted = [row | ({"grader_drift": shares[i]} if i in shares else {}) for i, row in enumerate(rows)]
    (finding,) = diagnose(from_rows(drifted, recipe={"reward_funcs": ["mine.py:judge"]}))
    assert (finding.code, finding.severity, finding.step) == ("grader_drift", "critical", 7)
    assert finding.change is not None and finding.change.pair() == "reward_funcs=[numeric]"
    steady = [row | {"grader_drift": 0.0} for row in rows]
    assert "grader_drift" not in [one.code for one in diagnose(from_rows(steady))]
