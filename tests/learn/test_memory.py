"""Memory that runs out in the middle of an update: the same gradients in smaller pieces, or a word on what to lower."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from outdo.errors import ModelError
from outdo.learn import memory
from outdo.learn import update as module
from outdo.learn.learner import LocalLearner
from outdo.learn.packing import Packed, pack
from outdo.models.load import Policy
from outdo.models.shape import ModelShape
from support.batches import assert_same, batch, gradients_after, gradients_of, recipe


class Short:
    """A device on which no more than so many rows fit, in the forward or in the backward."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, most: int, where: str) -> None:
        self.most, self.where, self.failed = most, where, 0
        self.sizes: list[int] = []
        monkeypatch.setattr(module, "pack", self.pack)

    def pack(self, prompt_ids: Sequence[Sequence[int]], rows: Sequence[Any], device: torch.device) -> Packed:
        self.sizes.append(len(rows))
        if self.where == "forward":
            self._check()
        return pack(prompt_ids, rows, device)

    def hook(self, grad: Tensor) -> Tensor:
        """Of the embedding: by then, all other weights have their gradients."""
        self._check()
        return grad

    def _check(self) -> None:
        if self.sizes[-1] > self.most:
            self.failed += 1
            raise torch.OutOfMemoryError("CUDA out of memory.")


@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("most", [1, 3])
def test_running_out_of_memory_changes_no_gradient(
    policy: Policy, monkeypatch: pytest.MonkeyPatch, where: str, most: int
) -> None:
    whole = gradients_after(policy, {"entropy_coef": 0.01})
    short = Short(monkeypatch, most, where)
    learner = LocalLearner(policy, recipe(max_grad_norm=1e9, entropy_coef=0.01, importance_sampling="never"))
    said: list[str] = []
    learner.notify = said.append
    embedding = policy.model.get_input_embeddings().weight
    handle = embedding.register_hook(short.hook) if where == "backward" else None
    assert_same(whole, gradients_of(learner))
    assert short.failed > 0 and max(short.sizes) == 8
    assert len(said) == len(set(said)) <= short.failed and "out of memory: micro-batches of" in said[-1]
    assert all(p.grad is None for p in policy.model.parameters())
    failed, told = short.failed, len(said)
    assert_same(whole, gradients_of(learner))  # and it is remembered
    assert short.failed - failed < failed and len(said) - told <= 1
    for _ in range(2):
        gradients_of(learner)
    failed = short.failed
    assert_same(whole, gradients_of(learner))
    assert short.failed == failed
    _, plain = learner.state()
    assert plain["tokens_at_once"] == learner.tokens_at_once < 8192
    if handle:
        handle.remove()


def test_error_if_one_answer_does_not_fit(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    Short(monkeypatch, 0, "forward")
    learner = LocalLearner(policy, recipe())
    with pytest.raises(ModelError, match=r"7 tokens.*max_completion_length \(now 8\).*gradient_checkpointing=true"):
        learner.update(batch(), 0)
    assert all(p.grad is None for p in policy.model.parameters())


def test_cached_memory_counts_as_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the warm-up or the stage before: else the next would plan with what they left over."""
    put_by = [7]
    monkeypatch.setattr("torch.cuda.empty_cache", put_by.clear)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (10 - sum(put_by), 10))
    assert memory.free_bytes(torch.device("cuda")) == 10


@pytest.mark.parametrize(
    ("keys", "parameters", "rest", "every"),
    [
        ({}, 10**6, 10**9, 1),
        ({}, 10**9, 10**11, 10),
        ({}, 10**9, 10**10, 0),  # 4 GB of 10
        ({"kl_steps": 5}, 10**9, 10**10, 5),
        ({"kl_steps": 0}, 10**6, 10**9, 0),
        ({"use_peft": True, "sft_steps": 0}, 10**9, 10**6, 10),  # the model without its adapter is there anyway
        ({"use_peft": True, "sft_steps": 5}, 10**9, 10**6, 0),  # a warm-up has trained the adapter
        ({"beta": 0.1}, 10**9, 10**6, 1),
    ],
)
def test_how_often_kl_is_measured(keys: dict[str, Any], parameters: int, rest: int, every: int) -> None:
    shape = ModelShape(parameters, 2, 8, 8, 8, 8, 100, 512, adapted=parameters // 2, factors=1000)
    assert memory.kl_interval(recipe(**keys), shape, rest) == every
    resolved = recipe(**{**keys, "kl_steps": every})
    counted = memory.training_bytes(resolved, shape)["reference"]
    assert counted == (0 if not every or keys.get("use_peft") else 4 * parameters)
