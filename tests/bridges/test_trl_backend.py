"""Runs by TRL, in an environment that has it: `make bridges`."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from outdo import Callback
from outdo.algo.prepare import prepare, with_advantages
from outdo.errors import EngineError, NumericsError, RecipeError
from outdo.learn.learner import LocalLearner
from outdo.metrics.measure import Metrics
from outdo.models.load import Policy, load_policy
from outdo.runs.manifest import read_manifest
from outdo.training.context import Result, RunContext, make_context
from outdo.training.launch import launch
from outdo.training.plan import lora_of
from outdo.types import Group

pytest.importorskip("trl")

OUTDO = [sys.executable, "-m", "outdo"]
RUN = ["backend=trl", "max_steps=12", "sft_steps=150", "eval_size=4", "eval_samples=0", "save_steps=2"]
RUN += ["per_device_train_batch_size=32", "doctor=quiet"]


def rows(folder: Path, name: str = "metrics") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole run of the default task."""
    folder = tmp_path_factory.mktemp("trl") / "run"
    done = subprocess.run([*OUTDO, "train", *RUN, f"output_dir={folder}"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "adv_std:" in done.stdout  # what means something else there is named
    return folder


def test_the_folder_is_ours(run: Path) -> None:
    manifest, metrics = read_manifest(run), rows(run)
    assert manifest.status == "done" and manifest.model_dump()["backend"]["versions"]["trl"]
    assert [row["step"] for row in metrics] == [*range(1, 13)]
    for row in metrics:
        assert 0 < row["grad_norm"] < 10 and 0 < row["entropy_mean"] < 1 and row["kl_mean"] is not None
        parts = row["time/rollout"] + row["time/grade"] + row["time/update"]
        assert parts == pytest.approx(row["time/step"] - row["time/save"], rel=1e-3)
        assert row["reward/numeric"] == pytest.approx(row["reward_mean"])
    assert [row["lr"] for row in metrics[:2]] == pytest.approx([2e-4, 2e-4 * 11 / 12], rel=1e-5)  # our schedule
    assert {row["step"] for row in rows(run, "evals")} == {0, 12} and len(rows(run, "sft")) == 150


def test_groups_have_answers_and_advantages(run: Path) -> None:
    groups = [json.loads(line) for line in next((run / "groups").iterdir()).read_text().splitlines()]
    assert len(groups) == 12 * 4
    for group in groups:
        rewards = torch.tensor([answer["reward"] for answer in group["completions"]])
        advantages = torch.tensor([answer["advantage"] for answer in group["completions"]])
        expected = (rewards - rewards.mean()) / (rewards.std() + 1e-4)  # of the sample, as TRL has it
        assert torch.allclose(advantages, expected, atol=1e-4)
        assert all("answer>" in answer["text"] for answer in group["completions"][:1])
    logged = groups[0]["completions"][0]["tokens"]
    assert all(logprob <= 0 and 0.5 < ratio < 2 for _, logprob, ratio in logged)


def test_the_model_is_transformers_own(run: Path) -> None:
    from transformers import AutoModelForCausalLM

    saved = AutoModelForCausalLM.from_pretrained(run / "model").state_dict()
    last = load_file(next((run / "checkpoints").glob("*12")) / "model.safetensors")
    assert all(torch.equal(saved[name], value) for name, value in last.items())


def test_interrupted_and_resumed_is_the_same_run(run: Path, tmp_path: Path) -> None:
    """SIGTERM while it trains: saved, and resumed to the same answers, rows and weights."""
    folder = tmp_path / "stopped"
    words = [*OUTDO, "train", *RUN, f"output_dir={folder}"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        while not (folder / "metrics.jsonl").is_file() or len(rows(folder)) < 2:
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        printed, _ = process.communicate(timeout=60)
    assert process.returncode == 143 and "outdo train --resume" in printed
    assert read_manifest(folder).status == "stopped" and len(rows(folder)) < 12
    done = subprocess.run([*OUTDO, "train", "--resume", str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for one, other in zip(rows(run), rows(folder), strict=True):
        for key in ("reward_mean", "loss", "grad_norm", "entropy_mean", "len_mean", "lr", "kl_mean"):
            assert one[key] == other[key], f"{key} in step {one['step']}"
    weights, same = (load_file(one / "model" / "model.safetensors") for one in (run, folder))
    assert all(torch.equal(weights[name], same[name]) for name in weights)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_in_another_python(tmp_path: Path, number: signal.Signals) -> None:
    """The run there is the run: what it prints, signals, the exit status; and it is resumed there, with the keys that
    are given."""
    folder, other = tmp_path / "run", tmp_path / "python"
    other.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')  # another path of this one
    other.chmod(0o755)
    keys = [*RUN, f"backend_python={other}", "max_steps=200", "sft_steps=5", f"output_dir={folder}", "kl_limit=null"]
    keys += ["lr_scheduler_type=constant"]  # so that the length may change
    with subprocess.Popen([*OUTDO, "train", *keys], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
        while not (folder / "metrics.jsonl").is_file():
            assert run.poll() is None
            time.sleep(0.05)
        run.send_signal(number)
        printed, _ = run.communicate(timeout=60)
    assert run.returncode == 128 + number and printed.count("resume with: outdo train --resume") == 1, printed
    assert read_manifest(folder).status == "stopped"
    done = len(rows(folder))
    more = [*OUTDO, "train", "--resume", str(folder), f"max_steps={done + 1}"]
    resumed = subprocess.run(more, capture_output=True, text=True, check=False)
    assert resumed.returncode == 0, resumed.stderr
    assert len(rows(folder)) == done + 1 and resumed.stdout.count("model     ") == 1


def test_objects_stay_in_their_process(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="callbacks"):
        launch(context_of(Path("tiny"), tmp_path / "run", Record(), backend_python="/usr/bin/python3"))


def test_another_trainer_does_not_resume_it(run: Path) -> None:
    words = [*OUTDO, "train", "--resume", str(run), "--force", "backend=outdo", "max_steps=20"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and str(run / "model") in done.stderr
    assert read_manifest(run).status == "done"


def test_a_crash_in_the_middle(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trl import GRPOTrainer

    step = GRPOTrainer.training_step

    def fails(trainer: Any, *args: Any) -> Any:
        if trainer.state.global_step == 3:
            raise ValueError("the optimizer is out of sorts")
        return step(trainer, *args)

    monkeypatch.setattr(GRPOTrainer, "training_step", fails)
    with pytest.raises(EngineError, match=r"(?s)TRL .* step 4.*out of sorts.*checkpoint of step 2.*--resume"):
        launch(context_of(run / "model", tmp_path / "run", max_steps=5, save_steps=2))
    manifest = read_manifest(tmp_path / "run")
    assert manifest.status == "failed" and "out of sorts" in manifest.why
    assert len(rows(tmp_path / "run")) == 3


class Slower(Callback):
    def on_step(self, run: Any, step: int, metrics: Metrics, groups: Sequence[Group]) -> None:
        if step == 1:
            run.learner.scale_rate(1e-9)
            self.before = _copy(run.policy)
        self.after, self.rate = _copy(run.policy), metrics["lr"]


def test_a_scaled_rate_holds_from_the_next_step_on(run: Path, tmp_path: Path) -> None:
    slower = Slower()
    launch(context_of(run / "model", tmp_path / "run", slower, max_steps=2, learning_rate=1e-3))
    assert slower.rate == pytest.approx(1e-12)
    assert all(torch.allclose(slower.before[name], value, rtol=0, atol=1e-8) for name, value in slower.after.items())


def test_weights_that_diverge_halt_the_run(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trl import GRPOTrainer

    step = GRPOTrainer.training_step

    def diverges(trainer: Any, model: Any, *args: Any) -> Any:
        loss = step(trainer, model, *args)
        next(model.parameters()).data[0, 0] = float("inf")
        return loss

    monkeypatch.setattr(GRPOTrainer, "training_step", diverges)
    with pytest.raises(NumericsError) as halted:
        launch(context_of(run / "model", tmp_path / "run", max_steps=5))
    assert "learning_rate" in halted.value.remedy and read_manifest(tmp_path / "run").status == "stopped"


def test_a_lost_reference_is_not_replaced(run: Path, tmp_path: Path) -> None:
    """KL after a resume is measured from the first weights, or not at all."""
    folder, keys = tmp_path / "run", {"beta": 0.1, "lr_scheduler_type": "constant"}
    launch(context_of(run / "model", folder, **keys))
    (folder / "reference" / "step-000000" / "model.safetensors").unlink()
    more = [*OUTDO, "train", "--resume", str(folder), "max_steps=2"]
    done = subprocess.run(more, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "reference" in done.stderr, done.stderr


def test_settings_of_trl(run: Path, tmp_path: Path) -> None:
    """`backend_args` reach its configuration, and unknown ones are refused before anything is sampled."""
    for args, named in (({"repetition_penalti": 1.5}, "repetition_penalty"), ({"importance": 1}, "importance")):
        with pytest.raises(RecipeError, match=named):
            launch(context_of(run / "model", tmp_path / "no", backend_args=args))
        assert not (tmp_path / "no").exists()
    args = {"generation_kwargs": {"top_k": 1}}  # greedy
    answers = answers_in(launch(context_of(run / "model", tmp_path / "run", backend_args=args)))
    assert len({answer["text"] for answer in answers}) == 4  # one for each prompt


# --- the same numbers


class Record(Callback):
    """What a run starts from, samples, and comes to after a step."""

    def on_start(self, run: Any) -> None:
        self.start = _copy(run.policy)

    def on_step(self, run: Any, step: int, metrics: Metrics, groups: Sequence[Group]) -> None:
        self.groups, self.metrics, self.end = list(groups), dict(metrics), _copy(run.policy)


def _copy(policy: Policy) -> dict[str, torch.Tensor]:
    state = policy.adapter.state_dict() if policy.adapter else policy.model.state_dict()
    return {name: value.clone() for name, value in state.items()}


def context_of(model: Path, folder: Path, *callbacks: Callback, **keys: Any) -> RunContext:
    given = {"per_device_train_batch_size": 32, "max_completion_length": 24, "max_steps": 1, "temperature": 1.3}
    given |= {"learning_rate": 1e-5, "eval_strategy": "no", "eval_size": 1, "eval_samples": 0, "doctor": "quiet"}
    given |= {"reward_audit": False, "task_args": {"ops": "+"}, "kl_limit": None}
    given |= {"model": str(model), "task": "arithmetic", "backend": "trl", "output_dir": str(folder), **keys}
    return make_context(None, callbacks=list(callbacks), **given)


def answers_in(result: Result) -> list[dict[str, Any]]:
    lines = next((result.folder / "groups").iterdir()).read_text().splitlines()
    return [answer for line in lines for answer in json.loads(line)["completions"]]


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"beta": 0.1},
        {"loss_type": "dapo"},
        {"loss_type": "bnpo"},
        {"loss_type": "dr_grpo", "scale_rewards": "none"},
        {"loss_type": "gspo"},
        {"loss_type": "cispo", "epsilon_high": 5.0},
        {"scale_rewards": "batch"},
        {"mask_truncated_completions": True, "max_completion_length": 18, "loss_type": "dapo"},
        {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 4},
        {"use_peft": True, "learning_rate": 0.1},
        {"optim": "adamw_torch"},
    ],
    ids=lambda keys: ",".join(f"{key}={value}" for key, value in keys.items()) or "default",
)
def test_one_step_of_both(run: Path, tmp_path: Path, keys: dict[str, Any]) -> None:
    """TRL's answers given to our learner: the same advantages, gradient norm and weights."""
    record = Record()
    context = context_of(run / "model", tmp_path / "run", record, **{"optim": "sgd", "learning_rate": 0.01, **keys})
    if context.recipe.optim != "sgd":  # Adam turns the rounding of a gradient near 0 into a step of the rate's size
        context = context_of(run / "model", tmp_path / "run", record, **{**keys, "learning_rate": 1e-6})
    launch(context)
    recipe = context.recipe.model_copy(update={"backend": "outdo", "adv_std": "sample"})
    policy = load_policy(str(run / "model"), device="cpu", lora=lora_of(recipe))
    if policy.adapter:
        for factor, value in zip(policy.adapter.pairs, record.start.values(), strict=True):
            factor.data.copy_(value)
        policy.adapter.publish()
    settings = recipe.advantage_estimator, recipe.scale_rewards, None, recipe.adv_eps, recipe.adv_std
    groups = with_advantages(record.groups, *settings)
    for ours, theirs in zip(groups, record.groups, strict=True):
        assert ours.advantages == pytest.approx(theirs.advantages, abs=1e-6)
    learner = LocalLearner(policy, recipe)
    stats = learner.update(prepare(groups, recipe.mask_truncated_completions), 0)
    assert stats["grad_norm"] == pytest.approx(record.metrics["grad_norm"], rel=1e-4)
    assert stats["loss"] == pytest.approx(record.metrics["loss"], abs=1e-6)
    for name, value in learner.weights().items():
        assert torch.allclose(value, record.end[name], rtol=0, atol=1e-6), name
    moved = max(float((value - record.start[name]).abs().max()) for name, value in record.end.items())
    assert moved > 0.5e-6 if recipe.optim != "sgd" else moved > 1e-5


def test_prompts_and_logprobs_are_ours(run: Path, tmp_path: Path) -> None:
    """TRL's prompts have our tokens, and the log-probabilities beside its answers are the sampler's own."""
    record = Record()
    launch(context_of(run / "model", tmp_path / "run", record))
    policy = load_policy(str(run / "model"), device="cpu")
    prompts = [group.prompt for group in record.groups]
    assert [group.prompt_ids for group in record.groups] == policy.renderer.encode_all(prompts)
    group = record.groups[0]
    answer = group.trajectories[0]
    policy.model.set_attn_implementation("eager")
    ids = torch.tensor([group.prompt_ids + answer.token_ids])
    with torch.no_grad():
        logits = policy.model(ids).logits[0, len(group.prompt_ids) - 1 : -1] / 1.3
    own = logits.log_softmax(-1).gather(-1, torch.tensor(answer.token_ids)[:, None])[:, 0]
    assert torch.allclose(own, torch.tensor(answer.logprobs), atol=1e-4)
