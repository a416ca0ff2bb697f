"""Every optimizer by name: its steps are its own, its checkpoints are exact, its memory is counted."""

from __future__ import annotations

import copy
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from outdo.errors import ModelError, RecipeError
from outdo.learn import optimizers
from outdo.learn.learner import LocalLearner
from outdo.learn.memory import training_bytes
from outdo.learn.optimizers import OPTIMIZERS, require_optimizer
from outdo.learn.sft import SFTLearner
from outdo.models.load import Policy
from outdo.models.shape import shape_of_policy
from support.batches import batch, recipe


def skip_unless_installed(name: str) -> None:
    packages = OPTIMIZERS[name].packages
    if packages and not any(map(find_spec, packages)):
        pytest.skip(f"{name} needs {' or '.join(packages)}")


def weights_of(policy: Policy) -> list[torch.Tensor]:
    return [p.detach().clone() for p in policy.model.parameters()]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_resumed_updates_are_the_same(name: str, policy: Policy, tmp_path: Path) -> None:
    skip_unless_installed(name)
    twin = copy.deepcopy(policy.model.state_dict())
    keys = recipe(optim=name, learning_rate=1e-2 if name == "sgd" else 1e-3, weight_decay=0.1)
    learner = LocalLearner(policy, keys)
    first = weights_of(policy)
    for step in range(2):
        learner.update(batch(), step)
    tensors, plain = learner.state()
    save_file(tensors, tmp_path / "state")
    saved = copy.deepcopy(policy.model.state_dict())
    learner.update(batch(), 2)
    expected = weights_of(policy)
    assert any(not torch.equal(a, b) for a, b in zip(first, expected, strict=True))

    policy.model.load_state_dict(twin)  # other weights and a fresh optimizer, before the checkpoint is loaded
    resumed = LocalLearner(policy, keys)
    policy.model.load_state_dict(saved)
    resumed.load_state(load_file(tmp_path / "state"), plain)
    resumed.update(batch(), 2)
    for a, b in zip(expected, weights_of(policy), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", ["adamw_8bit", "adamw_torch_8bit"])
def test_eight_bit_state_is_small_and_close(name: str, policy: Policy) -> None:
    skip_unless_installed(name)
    first = copy.deepcopy(policy.model.state_dict())
    sizes, moved = {}, {}
    for optim in ("adamw_torch", name):
        policy.model.load_state_dict(first)
        before = weights_of(policy)
        learner = LocalLearner(policy, recipe(optim=optim))
        for step in range(3):
            learner.update(batch(), step)
        sizes[optim] = sum(value.numel() * value.element_size() for value in learner.state()[0].values())
        moved[optim] = torch.cat([(new - old).flatten() for new, old in zip(weights_of(policy), before, strict=True)])
    planned = {optim: training_bytes(recipe(optim=optim), shape_of_policy(policy))["optimizer"] for optim in sizes}
    for optim, size in sizes.items():
        assert planned[optim] == pytest.approx(size, rel=0.1)
    cosine = torch.nn.functional.cosine_similarity(moved[name], moved["adamw_torch"], dim=0)
    assert cosine > 0.9


@pytest.mark.parametrize("name", ["adamw_torch", "sgd", "adafactor"])
def test_a_non_finite_sft_update_is_skipped(name: str, policy: Policy) -> None:
    learner = SFTLearner(policy, recipe(optim=name, sft_learning_rate=0.1), 10)
    before = weights_of(policy)
    for weight in learner.masters.weights:
        weight.grad = torch.ones_like(weight)
    learner.masters.apply(learner.optimizer, torch.tensor(False))
    assert all(torch.equal(a, b) for a, b in zip(before, weights_of(policy), strict=True))
    learner.masters.apply(learner.optimizer, torch.tensor(True))
    assert not all(torch.equal(a, b) for a, b in zip(before, weights_of(policy), strict=True))


def test_refused_names_and_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RecipeError, match="adamw_8bit"):
        recipe(optim="adamw_8bits")
    monkeypatch.setattr(optimizers, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"outdo\[8bit\]"):
        require_optimizer("adamw_8bit")
    require_optimizer("adafactor")


def test_state_of_another_package(policy: Policy) -> None:
    learner = LocalLearner(policy, recipe())
    tensors, plain = learner.state()
    with pytest.raises(RecipeError, match="install bitsandbytes"):
        learner.load_state(tensors, {**plain, "optimizer": "bitsandbytes"})
