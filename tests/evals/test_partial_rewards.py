"""Rewards with partial credit: the mean reward, the threshold of success, which of the two decides, and warnings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from outdo.evals.held_out import Evaluation, evaluate_prompts, headline
from outdo.evals.remarks import few_problems, unreachable_success
from outdo.evals.report import EvalResult, compare
from outdo.evals.suite import sample_and_grade, summarize
from outdo.metrics.estimate import mean_interval, paired_difference, paired_rewards, reward_interval, wilson
from outdo.metrics.headline import deciding_metric
from outdo.recipe.schema import Recipe
from outdo.rewards.compose import Rewards, find_rewards, grade
from outdo.tasks.splits import belongs
from outdo.training.callbacks import EarlyStopping
from outdo.types import Group, Prompt, SampleParams, Trajectory, WeightSource
from support.basics import prompt_of

PROBLEMS = [prompt_of(name, "full") for name in "abcd"]


class Scripted:
    """The answer is the problem's score as text; sampled ones are half of it."""

    def __init__(self, scores: dict[str, float]) -> None:
        self.scores = scores

    def sample(self, prompts: list[Prompt], n: int, params: SampleParams, seed: int) -> Iterator[Group]:
        for prompt in prompts:
            score = self.scores[prompt.id] * (0.5 if params.temperature else 1.0)
            yield Group(prompt, (1,), (Trajectory.single((1, 2), (-0.5, -1.5), str(score), "stop", 0),) * n)

    def update(self, source: WeightSource, version: int) -> None: ...


def score(completions: list[str], **columns: Any) -> list[float]:
    return [0.5 if text == "full" else float(text) if text.replace(".", "").isdigit() else 0.0 for text in completions]


def rewards(**keys: Any) -> Rewards:
    return find_rewards(["score"], [], "score", own={"score": score}, **keys)


SCORES = {"a": 0.0, "b": 0.25, "c": 0.5, "d": 0.5}


def measured(scores: dict[str, float] = SCORES, **keys: Any) -> Evaluation:
    return evaluate_prompts(PROBLEMS, "test", Scripted(scores), rewards(**keys), SampleParams(4), 2, 0)


def test_mean_reward_and_entropy() -> None:
    found = measured()
    assert (found.success_rate, found.reward_mean, found.sampled_reward_mean) == (0.0, 0.3125, 0.15625)
    assert (found.reward_low, found.reward_high) == mean_interval([0.0, 0.25, 0.5, 0.5]) and found.max_reward == 0.5
    assert found.entropy_mean == 1.0 and found.judge == "score" and found.has_partial_credit
    row = json.loads(json.dumps(found.row(3)))
    assert row["rewards"] == [0.0, 0.25, 0.5, 0.5] and Evaluation.of(row) == Evaluation.of(Evaluation.of(row).row(3))
    assert Evaluation.of(row).row(3) == row


def test_rewards_of_0_and_1_are_success() -> None:
    found = measured({"a": 0.0, "b": 2.0, "c": 2.0, "d": 0.0}, pass_threshold=None)
    assert found.success_rate == 0.5 and found.has_partial_credit, "2 is not 1"

    def same(completions: list[str], answer: list[str]) -> list[bool]:
        return [text == gold for text, gold in zip(completions, answer, strict=True)]

    plain = find_rewards(["same"], [], "same", own={"same": same})
    ones, problems = Scripted({"a": 1.0, "b": 1.0}), [prompt_of("a", "1.0"), prompt_of("b", "2")]
    flat = evaluate_prompts(problems, "test", ones, plain, SampleParams(4), 0, 0)
    assert (flat.success_rate, flat.reward_mean, flat.rewards) == (0.5, 0.5, ()) and not flat.has_partial_credit
    assert (flat.reward_low, flat.reward_high) == wilson(1, 2) == (flat.low, flat.high)


@pytest.mark.parametrize(("bar", "success"), [(None, 0.0), (0.5, 0.5), (0.25, 0.75), (0.0, 1.0), (0.5 + 1e-12, 0.5)])
def test_pass_threshold(bar: float | None, success: float) -> None:
    found = measured(pass_threshold=bar)
    assert found.success_rate == success and found.row(0).get("pass_threshold") == bar
    assert found.reward_mean == 0.3125, "the threshold changes no reward"


def test_threshold_is_of_the_truth_alone() -> None:
    """A built-in grader's verdict yields to it, other rewards and broken answers do not."""
    group = Group(prompt_of("a", "1"), (1,), (Trajectory.single((1,), (0.0,), "no", "stop", 0),))
    found = grade(group, find_rewards(["exact", "format"], [1.0, 0.1], "exact", pass_threshold=0.0)).grades[0]
    assert found.verdict == "right" and found.reward == 0.0
    nothing = find_rewards(["nan"], [], "nan", own={"nan": lambda completions: [float("nan")]}, pass_threshold=0.0)
    assert grade(group, nothing).grades[0].verdict == "broken"


def test_weights_do_not_change_the_mean_reward() -> None:
    mixed = find_rewards(["score", "format"], [3.0, 1.0], "score", own={"score": score})
    assert evaluate_prompts(PROBLEMS, "test", Scripted(SCORES), mixed, SampleParams(4), 0, 0).reward_mean == 0.3125


def test_paired_difference_of_rewards() -> None:
    results = []
    for scores in (SCORES, {**SCORES, "a": 0.5}):
        answers = sample_and_grade(PROBLEMS, Scripted(scores), rewards(), SampleParams(4), 2, 0)
        results.append(EvalResult("m", "t", summarize(answers, "test"), answers))
    found = compare(results[1], results[0])
    assert found["success"].value == 0.0 and found["reward"].value == pytest.approx(0.125)
    assert found["sampled reward"].value == pytest.approx(0.0625)


def test_reward_intervals() -> None:
    assert reward_interval([0.0, 1.0, 1.0]) == wilson(2, 3)
    assert reward_interval([1.0, 1.0]) == pytest.approx(wilson(2, 2))
    low, high = reward_interval([-2.0, 0.0, 3.0, 3.0])
    assert -2.0 <= low < 1.0 < high <= 3.0
    low, high = reward_interval([0.5] * 100)
    assert 0.48 < low < 0.5 < high < 0.52, "equal rewards still leave some doubt"
    a, b = [1.0, 0.0, 1.0, 1.0], [0.0, 0.0, 1.0, 0.0]
    assert paired_rewards(a, b) == paired_difference(a, b)
    wide = paired_rewards([10 * x for x in a], [10 * x for x in b])
    assert wide.value == pytest.approx(5.0) and wide.low < 0 < wide.high


@pytest.mark.parametrize(
    ("metric", "rows", "decides"),
    [
        ("auto", [{"success_rate": 0.0, "reward_mean": 0.3}], "reward"),
        ("auto", [{"success_rate": 0.0, "reward_mean": 0.3}, {"success_rate": 0.1, "reward_mean": 0.3}], "success"),
        ("auto", [{"success_rate": 0.0, "pass@8": 0.1, "reward_mean": 0.3}], "success"),
        ("auto", [{"success_rate": 0.0, "reward_mean": 0.0}], "success"),
        ("reward", [{"success_rate": 0.9, "reward_mean": 0.3}], "reward"),
        ("reward", [{"success_rate": 0.9}], "success"),
        ("success", [{"success_rate": 0.0, "reward_mean": 0.3}], "success"),
    ],
)
def test_what_decides(metric: str, rows: list[dict[str, float]], decides: str) -> None:
    assert deciding_metric(metric, rows) == decides


def test_headline() -> None:
    found, solved = measured(), measured(pass_threshold=0.5)
    assert headline(found, Recipe()) == 0.3125 and headline(found, Recipe(), [solved]) == 0.0
    assert headline(solved, Recipe()) == 0.5 and headline(solved, Recipe(eval_metric="reward")) == 0.3125


class _Run:
    """What early stopping needs of a run."""

    def __init__(self) -> None:
        self.recipe, self.total, self.why = Recipe(), 100, ""

    def finish_early(self, why: str) -> None:
        self.why = why


def test_early_stopping_by_reward() -> None:
    run, stopping = _Run(), EarlyStopping(patience=2)
    for step, value in enumerate((0.1, 0.2, 0.3, 0.3), 1):
        stopping.on_eval(run, step, [replace(measured(), reward_mean=value)])  # type: ignore[arg-type]
    assert (stopping.best, stopping.since, stopping.metric, run.why) == (0.3, 1, "reward", "")
    stopping.on_eval(run, 5, [replace(measured(), success_rate=0.1)])  # type: ignore[arg-type]
    assert (stopping.best, stopping.since, stopping.metric) == (0.1, 0, "success"), "the first success takes over"
    for step in (6, 7):
        stopping.on_eval(run, step, [measured()])  # type: ignore[arg-type]
    assert run.why == "held-out success has not improved for 2 evaluations (best 0.100)"


def test_warnings() -> None:
    line = unreachable_success(measured(), rewards(), PROBLEMS)  # the gold answer `full` is paid 0.5
    assert "full marks of score are 0.5" in line and "pass_threshold=0.5" in line
    unknown = [prompt_of(name, None) for name in "ab"]
    assert "no answer gets more than 0.5" in unreachable_success(measured(), rewards(), unknown)
    generous = find_rewards(["score"], [], "score", own={"score": lambda completions: [1.0] * len(completions)})
    assert unreachable_success(measured(), generous, PROBLEMS) == "", "a gold answer succeeds: the task is hard"
    assert unreachable_success(measured(pass_threshold=0.5), rewards(), PROBLEMS) == ""
    assert "4 in test" in few_problems([measured()]) and "[0.15, 0.85]" in few_problems([measured()])
    assert few_problems([replace(measured(), n=50)]) == ""


def test_held_out_share() -> None:
    keys = range(4000)
    shares = {share: {key for key in keys if belongs(key, "test", share)} for share in (0.05, 0.1, 0.3)}
    assert shares[0.05] < shares[0.1] < shares[0.3] and shares[0.1] == {key for key in keys if belongs(key, "test")}
    assert all(abs(len(held) / 4000 - share) < 0.02 for share, held in shares.items())
    assert all(belongs(key, "train", 0.3) != (key in shares[0.3]) for key in keys)
