"""Evaluation with a scripted sampler, and which splits a run evaluates when."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import outdo
from outdo.api import train
from outdo.errors import RecipeError, TaskError
from outdo.evals.held_out import Evaluation, default_ks, evaluate_prompts, sample_and_grade, summarize
from outdo.rewards.compose import find_rewards
from outdo.tasks.task import find_task, held_out
from outdo.training.console import PlainLines, summary
from outdo.types import Grade, Group, Prompt, SampleParams, Trajectory, WeightSource
from support.basics import prompt_of


class ScriptedSampler:
    """The first `right[id]` answers to a problem are 1, the others 0; the greedy one is 1 where any is right."""

    def __init__(self, right: Mapping[str, int]) -> None:
        self.right, self.calls = right, list[int]()

    def sample(self, prompts: list[Prompt], n: int, params: SampleParams, seed: int) -> Iterator[Group]:
        self.calls.append(len(prompts))
        for prompt in reversed(prompts):
            texts = [
                "1" if i < self.right[prompt.id] or (not params.temperature and self.right[prompt.id]) else "0"
                for i in range(n)
            ]
            yield Group(prompt, (1,), tuple(_trajectory(text) for text in texts))

    def update(self, source: WeightSource, version: int) -> None: ...


def _trajectory(text: str) -> Trajectory:
    return Trajectory.single((1,), (0.0,), f"<answer>{text}</answer>", "stop", 0)


PROBLEMS = [prompt_of(name, "1") for name in "abcd"]
REWARDS = find_rewards(["exact"], [], "exact")


def test_success_and_pass_at_k() -> None:
    sampler = ScriptedSampler({"a": 0, "b": 1, "c": 2, "d": 4})
    evaluation = evaluate_prompts(PROBLEMS, "test", sampler, REWARDS, SampleParams(4), 4, 0, [1, 2, 4])
    assert (evaluation.n, evaluation.success_rate) == (4, 0.75)
    assert evaluation.pass_at == pytest.approx({1: 7 / 16, 2: (0 + 1 / 2 + 5 / 6 + 1) / 4, 4: 0.75})
    assert all(low < evaluation.pass_at[k] < high for k, (low, high) in evaluation.pass_interval.items())
    row = json.loads(json.dumps(evaluation.row(3)))
    assert row["step"] == 3 and row["pass@2_low"] < row["pass@2"] < row["pass@2_high"]
    again = Evaluation.of(row)
    assert set(again.pass_at) == {1, 2, 4} and again.pass_interval[2][0] == row["pass@2_low"]
    assert again.verdicts == "0111" and again.problems == evaluation.problems  # by problem, in the order of their ids
    others = evaluate_prompts(PROBLEMS[1:], "test", sampler, REWARDS, SampleParams(4), 0, 0)
    assert others.verdicts == "111" and others.problems != evaluation.problems
    assert Evaluation.of({k: v for k, v in row.items() if "_" not in k or "@" not in k}).pass_interval == {}


def test_sampled_answers_that_no_grader_could_judge_are_counted_and_left_out_of_pass_at_k() -> None:
    def judge(completions: list[str], **columns: Any) -> list[float | None]:  # 0 cannot be judged, 1 is right
        return [1.0 if text == "<answer>1</answer>" else None for text in completions]

    rewards = find_rewards(["judge"], [], "judge", own={"judge": judge})
    evaluation = evaluate_prompts(
        PROBLEMS, "test", ScriptedSampler({"a": 0, "b": 1, "c": 2, "d": 4}), rewards, SampleParams(4), 4, 0
    )
    assert (evaluation.n, evaluation.broken, evaluation.broken_sampled) == (3, 1, 4 + 3 + 2)
    assert evaluation.pass_at == {1: 1.0, 4: 1.0}  # of b, c and d; of d alone
    assert evaluation.unjudged == "1 greedy and 9 sampled answers could not be judged and are left out"
    row = evaluation.row(0)
    assert (row["broken"], row["broken_sampled"]) == (1, 9) and Evaluation.of(row).broken_sampled == 9
    old = Evaluation.of({key: value for key, value in row.items() if key != "broken_sampled"})
    assert (old.broken, old.broken_sampled) == (1, 0)  # as rows were once
    assert Evaluation("test", 1, 1.0, 0.2, 1.0).unjudged == ""


def test_progress_and_truncated_batches() -> None:
    sampler, counts = ScriptedSampler(dict.fromkeys("abcd", 1)), list[int]()
    answers = sample_and_grade(PROBLEMS, sampler, REWARDS, SampleParams(4, top_p=0.9), 1024, 0, counts.append)
    assert sum(counts) == 4 * 1025 and sampler.calls == [4, 2, 2]
    assert summarize(answers, "test").pass_at[1] == pytest.approx(1 / 1024)


@pytest.mark.parametrize(
    ("samples", "ks"), [(0, ()), (1, (1,)), (4, (1, 4)), (8, (1, 8)), (10, (1, 10)), (16, (1, 8)), (40, (1, 10))]
)
def test_default_ks(samples: int, ks: tuple[int, ...]) -> None:
    assert default_ks(samples) == ks


def test_whole_split(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(
        "".join(json.dumps({"prompt": f"{i}", "split": "test" if i else "train"}) + "\n" for i in range(300))
    )
    assert len(held_out(find_task(str(path)), "test", 0)) == 299

    @outdo.task(rewards=["exact"])
    def endless(split: str, seed: int) -> Iterator[Prompt]:
        while True:
            yield PROBLEMS[0]

    with pytest.raises(TaskError, match="endlessly: set how many"):
        held_out(endless, "test", 0)


@outdo.task(rewards=["exact"], splits=("train", "dev", "test"))
def three(split: str, seed: int) -> Iterator[Prompt]:
    for i in range(8):
        yield prompt_of(f"{split} {i}", "1")


def quick(folder: Path, **keys: Any) -> dict[str, Any]:
    sizes = {"max_steps": 2, "eval_steps": 1, "eval_samples": 4, "num_generations": 2, "max_completion_length": 3}
    reporter = PlainLines(Console(file=io.StringIO()))
    fixed = {"task": three, "sft_steps": 0, "device": "cpu", "reporter": reporter, "output_dir": str(folder / "r")}
    return {**sizes, **fixed, "per_device_train_batch_size": 4, **keys}


def test_eval_split_and_final_eval_split(tmp_path: Path) -> None:
    result = train(**quick(tmp_path, eval_split="dev", final_eval_split="test", eval_size=0, eval_ks=[2, 4]))
    rows = [json.loads(line) for line in (result.folder / "evals.jsonl").read_text().splitlines()]
    assert [(row["step"], row["split"]) for row in rows] == [(0, "dev"), (1, "dev"), (2, "dev"), (2, "test")]
    assert all(row["n"] == 8 and "pass@2" in row and "pass@1" not in row for row in rows)
    shown = io.StringIO()
    Console(file=shown, width=120).print(summary(result.before, result.after))
    lines = shown.getvalue().splitlines()
    assert "pass@4" in lines[0] and "→" in lines[1] and lines[2].split()[:3] == ["test", "(8)", "–"]


@pytest.mark.parametrize(("keys", "limits"), [({}, {}), ({"eval_sampling": "rollout"}, {"top_p": 0.9, "top_k": 5})])
def test_eval_sampling(keys: dict[str, str], limits: dict[str, float], tmp_path: Path) -> None:
    out = io.StringIO()
    reporter = PlainLines(Console(file=out, width=200))
    folder = train(**quick(tmp_path, max_steps=1, top_p=0.9, top_k=5, reporter=reporter, **keys)).folder
    rows = [json.loads(line) for line in (folder / "evals.jsonl").read_text().splitlines()]
    assert all({key: row[key] for key in ("top_p", "top_k", "min_p") if key in row} == limits for row in rows)
    assert Evaluation.of(rows[0]).row(0) == rows[0] and ("top_p 0.9, top_k 5" in out.getvalue()) == bool(limits)


def test_run_reports_unjudged_samples(tmp_path: Path) -> None:
    def half(completions: list[str], **columns: Any) -> list[Grade]:  # of siblings every other one
        return [Grade(None, "broken") if i % 2 else Grade(1.0, "right") for i, _ in enumerate(completions)]

    text = io.StringIO()
    keys = {"reporter": PlainLines(Console(file=text)), "reward_funcs": [half], "reward_audit": False}
    task = replace(three, rewards=())
    result = train(**quick(tmp_path, **keys, task=task, max_steps=1, eval_split="test", broken_limit=1))
    (row, *_) = [json.loads(line) for line in (result.folder / "evals.jsonl").read_text().splitlines()]
    assert (row["n"], row["broken"], row["broken_sampled"]) == (8, 0, 16)
    assert "16 sampled answers could not be judged and are left out" in text.getvalue()


def test_bad_splits_and_ks_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="has no split 'tset'; it has train, dev, test"):
        train(**quick(tmp_path, final_eval_split="tset"))
    with pytest.raises(RecipeError, match="k from 1 to eval_samples=4"):
        train(**quick(tmp_path, eval_ks=[8]))
    assert not (tmp_path / "r").exists()
