"""Weights in bfloat16: trained through masters in float32, and gone on from bit for bit."""

from __future__ import annotations

from dataclasses import replace

import torch

from outdo.learn.learner import LocalLearner
from outdo.models.load import Policy, load_policy
from outdo.types import SampleParams
from support.basics import prompt_of
from support.batches import batch, recipe
from support.samplers import local_sampler


def half() -> Policy:
    return load_policy("tiny", device="cpu", dtype="bfloat16", seed=3)


def copies(weights: list[torch.nn.Parameter]) -> list[torch.Tensor]:
    return [w.detach().clone() for w in weights]


def distance(a: list[torch.Tensor], b: list[torch.Tensor]) -> float:
    return sum(float((x.float() - y.float()).abs().sum()) for x, y in zip(a, b, strict=True))


def test_steps_too_small_for_bfloat16_add_up() -> None:
    policy = half()
    learner = LocalLearner(policy, recipe(learning_rate=1e-6))
    masters, own = copies(learner.masters.weights), copies(learner.masters.own)
    assert all(w.dtype == torch.float32 for w in masters) and all(p.dtype == torch.bfloat16 for p in own)
    for step in range(3):
        assert learner.update(batch(), step)["skipped_updates"] == 0
    moved = [(w - m).detach().abs() for w, m in zip(learner.masters.weights, masters, strict=True)]
    assert max(float(m.max()) for m in moved) > 2e-6  # three steps of Adam, each of about the rate
    still = sum(int((p == o).sum()) for p, o in zip(learner.masters.own, own, strict=True))
    assert still > 0.9 * policy.num_parameters  # which bfloat16 alone would have lost
    for p, w in zip(learner.masters.own, learner.masters.weights, strict=True):
        assert torch.equal(p, w.to(torch.bfloat16))


def test_it_learns_and_samples() -> None:
    policy = half()
    learner = LocalLearner(policy, recipe(learning_rate=1e-3))
    before = copies(learner.masters.own)
    stats = [learner.update(batch(), step) for step in range(3)]
    assert distance(copies(learner.masters.own), before) > 1.0
    assert all(s["grad_norm"] > 0 for s in stats)
    (group,) = local_sampler(policy).sample([prompt_of("1+1")], 2, SampleParams(6), 0)
    assert all(-20 < logprob <= 0 for c in group.trajectories for logprob in c.logprobs)


def test_a_run_goes_on_bit_for_bit() -> None:
    policy = half()
    learner = LocalLearner(policy, recipe(learning_rate=1e-4))
    for step in range(2):
        learner.update(batch(), step)
    tensors, plain = learner.state()
    weights = {key: value.clone() for key, value in learner.weights().items()}
    expected = [learner.update(replace(batch(), version=2), step) for step in (2, 3)]

    again = half()
    again.model.load_state_dict(weights)
    resumed = LocalLearner(again, recipe(learning_rate=1e-4))
    resumed.load_state(tensors, plain)
    assert [resumed.update(replace(batch(), version=2), step) for step in (2, 3)] == expected
    for a, b in zip(learner.masters.weights, resumed.masters.weights, strict=True):
        assert torch.equal(a, b)
    for a, b in zip(policy.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(a, b)
