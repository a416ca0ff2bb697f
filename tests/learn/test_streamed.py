"""Weights updated a few at a time: the same numbers as all at once, or bfloat16 weights that are rounded at random."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from outdo import api
from outdo.errors import RecipeError
from outdo.learn import sharded, streamed
from outdo.learn.bf16 import store_rounded
from outdo.learn.learner import LocalLearner
from outdo.learn.memory import training_bytes
from outdo.learn.optim import FoldedMasters
from outdo.learn.sft import SFTLearner
from outdo.learn.streamed import StreamedMasters
from outdo.models.load import Policy, load_policy
from outdo.models.shape import shape_of_policy
from outdo.runs.reader import read_rows
from support.batches import batch, recipe

CPU = torch.device("cpu")
ROUNDED = {"dtype": "bfloat16", "stochastic_rounding": True}


def half() -> Policy:
    return load_policy("tiny", device="cpu", dtype="bfloat16", seed=3)


def learner_of(policy: Policy, **keys: Any) -> LocalLearner:
    return LocalLearner(policy, recipe(learning_rate=1e-3, weight_decay=0.1, **keys))


def rounded(x: torch.Tensor, key: int) -> torch.Tensor:
    out = torch.empty_like(x, dtype=torch.bfloat16)
    store_rounded(out, x, key)
    return out


def assert_right_on_average(x: torch.Tensor, found: torch.Tensor) -> None:
    """Of rows of the values below."""
    assert torch.equal(found[:, 3:].float(), x[:, 3:]), "what bfloat16 has is kept"
    assert set(found[:, 0].tolist()) == {1.0, 1.0078125} and set(found[:, 1].tolist()) == {-3.0, -3.015625}
    means, steps = found.double().mean(0), torch.tensor([2**-7, 2**-6, 1e-32, 1.0, 1.0], device=x.device)
    assert ((means - x[0].double()).abs() < 5 * steps / len(x) ** 0.5).all()


VALUES = torch.tensor([1.0 + 2**-10, -3.0 - 2**-9, 1e-30, 0.0, 2.5])


def test_rounding_is_right_on_average() -> None:
    x = VALUES.repeat(20_000, 1)
    found = rounded(x, 1)
    assert_right_on_average(x, found)
    assert torch.equal(found, rounded(x, 1)) and not torch.equal(found, rounded(x, 2))


@pytest.mark.parametrize("tokens", [8192, 12])
@pytest.mark.parametrize("offloads", [False, True])
def test_same_numbers_as_all_at_once(monkeypatch: pytest.MonkeyPatch, tokens: int, offloads: bool) -> None:
    """With float32 masters, by one micro-batch or several. On a CPU, offloading changes nothing."""
    monkeypatch.setattr(streamed, "CHUNK_OF_WEIGHTS", 20_000)
    plain, other = half(), half()
    learner = learner_of(plain, tokens_per_micro_batch=tokens)
    assert type(learner.masters) is FoldedMasters
    monkeypatch.setattr(sharded, "masters_of", lambda *_: StreamedMasters(other.model, CPU, None, offloads))
    chunked = learner_of(other, tokens_per_micro_batch=tokens)
    assert len(chunked.masters.chunks) > 10  # type: ignore[attr-defined]
    for step in range(3):
        assert learner.update(batch(), step) == chunked.update(batch(), step)
    for a, b in zip(plain.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(a, b)
    (one, _), (two, _) = learner.state(), chunked.state()
    assert one.keys() == two.keys() and all(torch.equal(one[key], two[key]) for key in one)


@pytest.mark.parametrize("optim", ["adamw_torch", "adamw_bf16", "sgd", "adafactor"])
def test_rounded_run_resumes_exactly(optim: str, tmp_path: Path) -> None:
    policy, keys = half(), {**ROUNDED, "optim": optim}
    learner = learner_of(policy, **keys)
    for step in range(2):
        learner.update(batch(), step)
    tensors, plain = learner.state()
    assert not any(key.endswith(".master") for key in tensors)
    save_file(tensors, tmp_path / "state")
    weights = {key: value.clone() for key, value in learner.weights().items()}
    expected = [learner.update(replace(batch(), version=2), step) for step in (2, 3)]
    again = half()
    again.model.load_state_dict(weights)
    resumed = learner_of(again, **keys)
    resumed.load_state(load_file(tmp_path / "state"), plain)
    assert [resumed.update(replace(batch(), version=2), step) for step in (2, 3)] == expected
    for a, b in zip(policy.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_small_steps_add_up_on_average() -> None:
    """Steps far below the distance of bfloat16's values, which rounding to the nearest would lose."""
    exact, rounded = half(), half()
    moved = []
    for policy, keys in ((exact, {}), (rounded, ROUNDED)):
        learner = LocalLearner(policy, recipe(learning_rate=1e-5, optim="adamw_torch", **keys))
        before = [w.detach().float().clone() for w in learner.masters.weights]
        for step in range(10):
            learner.update(batch(), step)
        after = [w.detach().float() for w in learner.masters.weights]
        moved.append(torch.cat([(a - b).flatten() for a, b in zip(after, before, strict=True)]))
    truth, noisy = moved
    share = float((noisy @ truth) / (truth @ truth))
    assert 0.8 < share < 1.2, "what the weights moved, along what they should have"
    assert float((noisy != 0).float().mean()) < 0.5, "and most did not, so it is the few that did"


def test_close_to_adamw() -> None:
    """Moments in bfloat16 move weights nearly as those in float32 do."""
    moved = {}
    for optim in ("adamw_torch", "adamw_bf16"):
        policy = load_policy("tiny", device="cpu", seed=3)
        before = [p.detach().clone() for p in policy.model.parameters()]
        learner = learner_of(policy, optim=optim)
        for step in range(5):
            learner.update(batch(), step)
        pairs = zip(policy.model.parameters(), before, strict=True)
        moved[optim] = torch.cat([(p.detach() - old).flatten() for p, old in pairs])
        size = sum(v.numel() * v.element_size() for v in learner.state()[0].values())
        assert training_bytes(recipe(optim=optim), shape_of_policy(policy))["optimizer"] == pytest.approx(size, rel=0.1)
    assert torch.nn.functional.cosine_similarity(moved["adamw_bf16"], moved["adamw_torch"], dim=0) > 0.99


def test_second_moment_decays() -> None:
    """By 0.1% a step, which is less than bfloat16's values are apart."""
    from outdo.learn.bf16 import AdamWBf16

    p = torch.nn.Parameter(torch.zeros(4096))
    optimizer = AdamWBf16([{"params": [p]}], lr=1e-3, betas=(0.9, 0.999))
    p.grad = torch.ones_like(p)
    optimizer.step()
    p.grad = torch.zeros_like(p)
    for _ in range(1000):
        optimizer.step()
    assert float(optimizer.state[p]["exp_avg_sq"].float().mean()) == pytest.approx(1e-3 * 0.999**1000, rel=0.05)


def test_non_finite_update_is_skipped() -> None:
    for optim in ("adamw_torch", "adamw_bf16"):
        learner = SFTLearner(half(), recipe(optim=optim, sft_learning_rate=0.1, **ROUNDED), 10)
        before = [p.detach().clone() for p in learner.masters.own]
        for is_finite in (False, True):
            learner.masters.begin()
            learner.masters.sums = [torch.ones_like(p) for p in learner.masters.own]
            learner.masters.finish(1.0)
            learner.masters.apply(learner.optimizer, torch.tensor(is_finite))
            same = [torch.equal(a, b) for a, b in zip(before, learner.masters.own, strict=True)]
            assert all(same) is not is_finite
        assert all(p.dtype == torch.bfloat16 for p in learner.masters.own)


def test_gradients_are_freed_in_the_backward() -> None:
    """None of the model's own remains, and those of one micro-batch keep their type."""
    policy = half()
    learner = learner_of(policy, tokens_per_micro_batch=12)
    seen: list[set[Any]] = []
    collect = learner.masters.collect

    def watch() -> None:
        assert all(p.grad is None for p in policy.model.parameters())
        seen.append({one.dtype for one in learner.masters.sums if one is not None})
        collect()

    learner.masters.collect = watch  # type: ignore[method-assign]
    learner.update(batch(), 0)
    assert seen[0] == {torch.bfloat16} and seen[-1] == {torch.float32} and len(seen) > 2


def test_plan() -> None:
    policy = half()
    shape = shape_of_policy(policy)
    full = training_bytes(recipe(dtype="bfloat16"), shape)
    rounded = training_bytes(recipe(**ROUNDED), shape)
    small = training_bytes(recipe(**ROUNDED, optim="adamw_bf16"), shape)
    assert (full["masters"], rounded["masters"]) == (4 * shape.parameters, 0)
    assert small["optimizer"] == 4 * shape.parameters == rounded["optimizer"] / 2
    assert 4 * shape.parameters < full["gradients"] < 5 * shape.parameters


def test_refused_without_bfloat16() -> None:
    with pytest.raises(RecipeError, match="bfloat16"):
        recipe(stochastic_rounding=True)
    with pytest.raises(RecipeError, match="use_peft"):
        recipe(**ROUNDED, use_peft=True)


def test_run_resumes_bit_equal(tmp_path: Path) -> None:
    """A whole run with its warm-up, and one that ends halfway and resumes."""
    keys = {**ROUNDED, "optim": "adamw_bf16", "sft_steps": 2, "max_steps": 4, "eval_size": 2, "eval_samples": 0}
    keys |= {"num_generations": 4, "per_device_train_batch_size": 8, "max_completion_length": 8, "device": "cpu"}
    keys |= {"learning_rate": 1e-3, "reward_audit": False, "save_steps": 2, "lr_scheduler_type": "constant"}
    whole = api.train(None, output_dir=str(tmp_path / "whole"), **keys)
    half = tmp_path / "half"
    api.train(None, output_dir=str(half), **{**keys, "max_steps": 2})
    api.train(resume=half, max_steps=4)
    one, other = (load_file(folder / "model" / "model.safetensors") for folder in (whole.folder, half))
    assert one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)
    losses = [[row["loss"] for row in read_rows(folder / "metrics.jsonl")] for folder in (whole.folder, half)]
    assert losses[0] == losses[1] and len(losses[0]) == 4


@pytest.mark.parametrize("keys", [{"stochastic_rounding": True}, {"optim": "adafactor"}])
def test_refused_where_masters_are_sharded(keys: dict[str, Any]) -> None:
    with pytest.raises(RecipeError, match=next(iter(keys))):
        learner_of(half(), dtype="bfloat16", parallel_sharding="full", **keys)
