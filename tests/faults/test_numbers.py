"""Numbers that are none: in rewards, in the sampler's log-probabilities, in what is taken off the reward."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file

from faults.test_stops import fault
from support.harness import Bench, rows

REWARDS = """
import math, zlib

def some(completions, prompts):
    values = [0.25, 0.5, 0.75, math.nan, 0.25, math.inf]
    return [values[zlib.crc32((text + prompts[0]).encode()) % 6] for text in completions]

def all_of_them(completions, **columns):
    return [math.nan] * len(completions)
"""


@pytest.fixture(scope="module")
def rewards(bench: Bench) -> None:
    (bench.folder / "nans.py").write_text(REWARDS)


@pytest.mark.usefixtures("rewards")
def test_an_answer_whose_reward_is_no_number_gets_the_worst_and_the_run_completes(bench: Bench) -> None:
    words = ("reward_funcs=numeric,nans.py:some", "reward_audit=false", "broken_limit=0", "max_steps=3", "eval_size=8")
    assert bench.train("nan-reward", *words) == 0, bench.said()
    run = bench.folder / "nan-reward"
    metrics = rows(run / "metrics.jsonl")
    assert [row["step"] for row in metrics] == [1, 2, 3] and not any(row["skipped_updates"] for row in metrics)
    assert all(row["grader_broken"] == 0 and row["reward_mean"] is not None for row in metrics)
    answers = [a for group in rows(run / "groups" / "steps-000000.jsonl") for a in group["completions"]]
    paid = [answer["parts"]["some"] for answer in answers]
    assert set(paid) == {0.0, 0.25, 0.5, 0.75} and 0 < paid.count(0.0) < len(paid)  # 0: NaN or infinite


@pytest.mark.usefixtures("rewards")
def test_when_no_reward_is_a_number_the_run_is_refused_or_halts(bench: Bench) -> None:
    words = ("reward_funcs=numeric,nans.py:all_of_them", "resume=never")
    bench.said()
    assert bench.train("nan-audited", *words) == 2
    assert not (bench.folder / "nan-audited").exists()
    assert bench.train("nan-rewards", *words, "reward_audit=false") == 3
    said = bench.said()
    assert said.count("of 2 answers could be judged") == 2 and "Traceback" not in said
    manifest = json.loads((bench.folder / "nan-rewards" / "run.json").read_text())
    assert manifest["status"] == "stopped" and "all_of_them returned nan" in manifest["why"]


SAMPLERS = [("nan", ()), pytest.param("inf", (), marks=pytest.mark.slow)]
IN_REWARD = pytest.param("nan", ("kl_in_reward=true",), marks=pytest.mark.slow)
STALE = pytest.param("inf", ("num_iterations=2",), marks=pytest.mark.slow)


@pytest.mark.parametrize(("action", "words"), [*SAMPLERS, IN_REWARD, STALE])
def test_a_log_probability_of_the_samplers_that_is_no_number_is_not_trained_on(
    bench: Bench, action: str, words: tuple[str, ...]
) -> None:
    name = f"sampler-{action}-{len(words)}-{'-'.join(words)}"
    assert bench.train(name, *words, "max_steps=3", faults=[fault("graded", 2, action)]) == 0, bench.said()
    skipped = [row["skipped_updates"] for row in rows(bench.folder / name / "metrics.jsonl")]
    assert skipped == [0, 2 if "num_iterations=2" in words else 1, 0]


@pytest.mark.parametrize("action", ["nan", pytest.param("inf", marks=pytest.mark.slow)])
def test_several_in_a_row_halt_and_keep_the_batch(bench: Bench, action: str) -> None:
    name = f"samplers-{action}"
    bench.said()
    assert bench.train(name, faults=[fault("graded", 2, action, always=True)]) == 3
    assert "non-finite loss, gradient or log-probability" in bench.said()
    run = bench.folder / name
    assert [row["skipped_updates"] for row in rows(run / "metrics.jsonl")] == [0, 1, 1]
    assert [path.name for path in run.glob("halted-*")] == ["halted-step-000004.jsonl"]
    assert len(rows(run / "halted-step-000004.jsonl")) == 4
    saved = ("checkpoints/step-000002", "checkpoints/step-000003", "model")  # the last sane state is a checkpoint too
    kept, at_halt, last = (load_file(run / folder / "model.safetensors") for folder in saved)
    assert all(torch.equal(kept[name], value) for name, value in last.items())
    assert all(torch.equal(at_halt[name], value) for name, value in last.items())
    assert 3 in [row["step"] for row in rows(run / "evals.jsonl")], "evaluated where it was halted"
    assert bench.start("train", "--resume", str(run)).wait() == 0, bench.said()
    assert [row["step"] for row in rows(run / "metrics.jsonl")] == list(range(1, 7))
