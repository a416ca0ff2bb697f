"""Optimizer state and masters in the host's memory: the numbers are those of state that stays on the GPU."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest
import torch

from outdo.learn import offload, streamed
from outdo.learn.learner import LocalLearner
from outdo.learn.memory import host_bytes, training_bytes
from outdo.learn.optimizers import OPTIMIZERS
from outdo.models.load import load_policy
from outdo.models.shape import shape_of_policy
from support.batches import recipe

NAMES = ("adamw_torch", "adamw_bf16", "adamw_8bit", "adamw_torch_8bit", "paged_adamw_8bit", "adafactor", "sgd")


def learner_of(optim: str, **keys: Any) -> LocalLearner:
    keys = {"dtype": "bfloat16", "optim": optim, "device": "cuda", "learning_rate": 1e-3, "weight_decay": 0.1, **keys}
    return LocalLearner(load_policy("tiny", device="cuda", dtype="bfloat16", seed=3), recipe(**keys))


def update(learner: LocalLearner, seed: int) -> float:
    """With random gradients, the same for any learner: a real backward's differ in the last bits from run to run."""
    generator = torch.Generator("cuda").manual_seed(seed)
    learner.masters.begin()
    learner.masters.sums = [
        torch.randn(p.shape, device="cuda", generator=generator) * 1e-2 for p in learner.masters.own
    ]
    norm = learner.masters.finish(1.0)
    learner.masters.apply(learner.optimizer)
    learner.optimizer.zero_grad(set_to_none=True)
    learner.masters.cancel()
    return float(norm)


def assert_equal(one: LocalLearner, other: LocalLearner) -> None:
    for a, b in zip(one.masters.own, other.masters.own, strict=True):
        assert torch.equal(a, b)
    (mine, _), (theirs, _) = one.state(), other.state()
    assert mine.keys() == theirs.keys()
    for key, value in mine.items():
        assert torch.equal(value, theirs[key]), key


@pytest.mark.gpu
@pytest.mark.parametrize("rounding", [False, True])
@pytest.mark.parametrize("optim", NAMES)
def test_same_numbers(optim: str, rounding: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a run that resumes from its checkpoint has them too."""
    if OPTIMIZERS[optim].packages and not any(map(find_spec, OPTIMIZERS[optim].packages)):
        pytest.skip("needs a package")
    monkeypatch.setattr(streamed, "CHUNK_OF_WEIGHTS", 20_000)
    keys = {"stochastic_rounding": rounding}
    here = learner_of(optim, **keys)
    there = learner_of(optim, **keys, parallel_offload="optimizer")
    for seed in range(3):
        assert update(here, seed) == update(there, seed)
    assert_equal(here, there)
    on_gpu = [w.device.type for w in there.masters.weights if w.numel() >= offload.MIN_MOVED]
    assert set(on_gpu) == ({"cuda"} if rounding else {"cpu"})
    tensors, plain = there.state()
    weights = {key: value.clone() for key, value in there.weights().items()}
    for seed in (3, 4):
        update(there, seed)
    resumed = learner_of(optim, **keys, parallel_offload="optimizer")
    resumed.policy.model.load_state_dict(weights)
    resumed.load_state(tensors, plain)
    for seed in (3, 4):
        update(resumed, seed)
    assert_equal(there, resumed)


def test_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU nothing moves; on a GPU the host holds masters and state."""
    shape = shape_of_policy(load_policy("tiny", device="cpu", dtype="bfloat16", seed=3))
    keys = {"dtype": "bfloat16", "parallel_offload": "optimizer"}
    on_cpu = training_bytes(recipe(**keys, device="cpu"), shape)
    assert on_cpu == training_bytes(recipe(dtype="bfloat16"), shape)
    assert not host_bytes(recipe(**keys, device="cpu"), shape)
    on_gpu = recipe(**keys, device="cuda")
    parts = training_bytes(on_gpu, shape)
    assert parts["masters"] == parts["optimizer"] == 0 and parts["gradients"] == on_cpu["gradients"]
    assert host_bytes(on_gpu, shape) == {"masters": on_cpu["masters"], "optimizer": on_cpu["optimizer"]}
    rounded = recipe(**keys, device="cuda", stochastic_rounding=True)
    assert host_bytes(rounded, shape) == {"optimizer": on_cpu["optimizer"]}
