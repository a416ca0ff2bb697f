"""Whole runs of several processes: the rows, answers and models of one, in one folder."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from support.launches import torchrun, train

Outdo = Callable[..., subprocess.CompletedProcess[str]]
FREE = ("time/", "tokens_per_s", "memory", "grad_norm")  # of the machine, or far from linear in the weights


def rows(folder: Path, name: str = "metrics") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]


def assert_same_rows(one: Path, several: Path, tolerance: float = 1e-3) -> None:
    for mine, theirs in zip(rows(one), rows(several), strict=True):
        assert mine.keys() == theirs.keys()
        for key, value in mine.items():
            if isinstance(value, float) and not key.startswith(FREE):
                assert theirs[key] == pytest.approx(value, abs=tolerance), f"{key} at step {mine['step']}"


def texts(folder: Path) -> list[list[str]]:
    files = sorted((folder / "groups").iterdir())
    groups = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return [[answer["text"] for answer in group["completions"]] for group in groups]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory, forks: Any) -> Path:
    """A model that knows the form of an answer."""
    folder = tmp_path_factory.mktemp("start")
    done = forks.run(["sft", "steps=150", "eval_size=4", "output_dir=sft"], folder)
    assert done.returncode == 0, done.stderr
    return folder / "sft" / "model"


def keys(start: Path, **more: Any) -> list[str]:
    given = {"model_name_or_path": start, "per_device_train_batch_size": 32, "max_completion_length": 32}
    given |= {"learning_rate": 1e-4, "lr_scheduler_type": "constant", "warmup_steps": 0, "max_steps": 3}
    given |= {"eval_size": 8, "eval_samples": 2, "save_steps": 1, "task_args.ops": "+", "reward_audit": "false"}
    return [f"{key}={value}" for key, value in {**given, **more}.items()]


def test_two_processes_make_the_run_of_one(tmp_path: Path, start: Path, outdo: Outdo) -> None:
    assert outdo("train", *keys(start, output_dir="one")).returncode == 0
    status, printed = train(2, *keys(start, output_dir="two", rollout_rows=16), cwd=tmp_path)
    assert status == 0, printed
    assert printed.count("step 3/3") == 1 and printed.count("load      AutoModel") == 1  # one of them talks
    one, two = tmp_path / "one", tmp_path / "two"
    assert_same_rows(one, two)
    assert texts(one) == texts(two)
    assert max(row["informative"] for row in rows(one)) > 0
    for mine, theirs in zip(rows(one, "evals"), rows(two, "evals"), strict=True):
        assert mine["verdicts"] == theirs["verdicts"] and mine["pass@1"] == theirs["pass@1"]
    assert sorted(path.name for path in one.iterdir()) == sorted(path.name for path in two.iterdir())
    mine, theirs = (load_file(run / "model" / "model.safetensors") for run in (one, two))
    assert all(float((mine[name] - theirs[name]).abs().max()) < 1e-4 for name in mine)


@pytest.mark.slow
def test_resumed_by_four_two_and_one(tmp_path: Path, start: Path, outdo: Outdo) -> None:
    """The curve does not show who computed it."""
    assert outdo("train", *keys(start, max_steps=9, output_dir="one")).returncode == 0
    sharded = {"output_dir": "several", "parallel.sharding": "full"}
    assert train(4, *keys(start, **sharded), cwd=tmp_path)[0] == 0
    newest = tmp_path / "several" / "checkpoints" / "step-000003" / "optimizer"
    assert len(list(newest.glob("*.safetensors"))) == 4
    status, printed = train(2, "--resume", "several", "max_steps=6", "parallel.sharding=grads", cwd=tmp_path)
    assert status == 0 and "resumed after step 3" in printed
    assert outdo("train", "--resume", "several", "max_steps=9").returncode == 0
    assert_same_rows(tmp_path / "one", tmp_path / "several", 5e-3)
    assert texts(tmp_path / "one") == texts(tmp_path / "several")
    # … and from one to three, whose state was in one file.
    status, printed = train(3, "--resume", "several", "max_steps=10", "parallel.sharding=grads", cwd=tmp_path)
    assert status == 0 and "step 10/10" in printed, printed


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        {"dynamic_sampling": "true", "max_resample": 2, "parallel.sharding": "grads"},
        {"beta": 0.05, "kl_in_reward": "true", "num_iterations": 2, "parallel.sharding": "full"},
        {"use_peft": "true", "lora_r": 4, "learning_rate": 1e-3},
        {"use_peft": "true", "load_in_4bit": "true", "lora_r": 4, "learning_rate": 1e-3},
        {"kl_target": 0.01, "beta": 0.02, "loss_type": "gspo", "steps_per_generation": 2},
        {"reward_batch": "step", "sampler": "hf", "per_device_train_batch_size": 16, "max_steps": 2},
    ],
    ids=[
        "dynamic sampling",
        "KL in the reward",
        "adapter",
        "adapter of 4 bits",
        "adaptive beta",
        "transformers' sampler",
    ],
)
def test_recipes(tmp_path: Path, start: Path, outdo: Outdo, more: dict[str, Any]) -> None:
    if "load_in_4bit" in more:
        pytest.importorskip("bitsandbytes")
    assert outdo("train", *keys(start, output_dir="one", **more)).returncode == 0
    status, printed = train(2, *keys(start, output_dir="two", **more), cwd=tmp_path)
    assert status == 0, printed
    if more.get("sampler") != "hf":  # it draws all answers of a request from one generator
        assert_same_rows(tmp_path / "one", tmp_path / "two")
    assert texts(tmp_path / "one") == texts(tmp_path / "two")


@pytest.mark.slow
def test_stages_harvest_and_eval(tmp_path: Path, start: Path, outdo: Outdo) -> None:
    recipe = f"""
model_name_or_path: {start}
task_args: {{ops: "+"}}
max_completion_length: 32
eval_size: 8
eval_samples: 2
stages:
  - {{stage: harvest, size: 16, samples: 4}}
  - {{stage: sft, steps: 3}}
  - {{stage: grpo, max_steps: 2, per_device_train_batch_size: 32, learning_rate: 1.0e-4}}
"""
    (tmp_path / "stages.yaml").write_text(recipe)
    assert outdo("train", "stages.yaml", "output_dir=one").returncode == 0
    status, printed = train(2, "stages.yaml", "output_dir=two", cwd=tmp_path)
    assert status == 0, printed
    kept = [(tmp_path / run / "01-harvest" / "demonstrations.jsonl").read_text() for run in ("one", "two")]
    assert kept[0] == kept[1] and kept[0].count("\n") > 3
    assert_same_rows(tmp_path / "one" / "03-grpo", tmp_path / "two" / "03-grpo")
    status, printed = torchrun(2, "-m", "outdo", "eval", "one", "--json", "eval_size=8", cwd=tmp_path)
    assert status == 0, printed
    alone = outdo("eval", "one", "--json", "eval_size=8")
    assert json.loads(alone.stdout) == json.loads(printed[printed.index("{") : printed.rindex("}") + 1])


@pytest.mark.slow
def test_sft_without_a_verifier(tmp_path: Path, outdo: Outdo) -> None:
    words = ["sft", "steps=4", "eval_size=8", "sft_batch_size=7"]
    assert outdo(*words, "output_dir=one").returncode == 0
    status, printed = torchrun(2, "-m", "outdo", *words, "output_dir=two", "parallel.sharding=full", cwd=tmp_path)
    assert status == 0, printed
    for mine, theirs in zip(rows(tmp_path / "one", "sft"), rows(tmp_path / "two", "sft"), strict=True):
        assert theirs["loss"] == pytest.approx(mine["loss"], abs=1e-4)


@pytest.mark.slow
def test_a_script_trains_twice(tmp_path: Path, start: Path) -> None:
    (tmp_path / "script.py").write_text(f"""
from outdo import train

keys = dict(model_name_or_path={str(start)!r}, max_steps=1, per_device_train_batch_size=16, max_completion_length=16)
for number in range(2):
    train(**keys, eval_size=4, eval_samples=0, reward_audit=False, output_dir=f"run{{number}}")
""")
    status, printed = torchrun(2, "script.py", cwd=tmp_path, seconds=90)
    assert status == 0, printed
    assert [len(rows(tmp_path / f"run{number}")) for number in range(2)] == [1, 1]


@pytest.mark.slow
def test_bad_recipes_are_refused_once(tmp_path: Path) -> None:
    for words, expected in (
        (["max_stepz=3"], "max_steps"),
        (["parallel.replicas=3", "sft_steps=1", "max_steps=1"], "does not divide"),
        (["dataset_name=nowhere.jsonl"], "nowhere.jsonl"),
        (["model_name_or_path=./nothing"], "nothing"),
    ):
        status, printed = train(2, *words, "parallel.sharding=grads", "output_dir=run", cwd=tmp_path)
        said = [line for line in printed.splitlines() if line.startswith("outdo: ")]
        assert status == 1 and len(said) == 1 and expected in said[0], printed
