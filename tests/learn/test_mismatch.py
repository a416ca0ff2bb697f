"""Where the sampler's numbers are not the learner's: tokens weighed by their ratio, or left out, or let be."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from outdo.algo.losses import grpo_loss
from outdo.learn import learner as module
from outdo.learn.learner import ROUNDING, LocalLearner
from outdo.learn.logprobs import token_logprobs
from outdo.learn.packing import forward, pack, unpack
from outdo.models.load import Policy
from support.batches import assert_same, batch, gradients_after, recipe


def ratios(policy: Policy) -> tuple[torch.Tensor, torch.Tensor]:
    """p(learner) / p(sampler) of the made-up batch, and its mask."""
    packed = pack(batch().prompt_ids, batch().samples, policy.device)
    with torch.no_grad():
        chosen, _ = token_logprobs(forward(policy, packed), policy.head, packed.targets_M, 1.0)
    return (unpack(chosen, packed) - packed.sampler_logprobs_BT).exp(), packed.mask_BT


def expected_gradients(policy: Policy, weights_BT: torch.Tensor) -> list[torch.Tensor]:
    packed = pack(batch().prompt_ids, batch().samples, policy.device)
    policy.model.zero_grad()
    chosen, _ = token_logprobs(forward(policy, packed), policy.head, packed.targets_M, 1.0)
    now_BT = unpack(chosen, packed)
    loss, _ = grpo_loss(
        now_BT, now_BT.detach(), packed.advantages_B, packed.mask_BT, max_completion_length=8, weights_BT=weights_BT
    )
    loss.backward()
    found = [p.grad.clone() for p in policy.model.parameters() if p.grad is not None]
    policy.model.zero_grad()
    return found


@pytest.mark.parametrize(("how", "cap"), [("never", None), ("truncate", 0.02), ("truncate", None), ("mask", 50.0)])
def test_importance_sampling_modes(policy: Policy, how: str, cap: float | None) -> None:
    ratio_BT, mask_BT = ratios(policy)
    assert bool((ratio_BT[mask_BT] > 0.02).any()) and bool((ratio_BT[mask_BT] < 0.02).any())
    weights_BT = {
        "never": torch.ones_like(ratio_BT),
        "truncate": ratio_BT.clamp(max=cap or 2.0),
        "mask": torch.where((ratio_BT >= 0.02) & (ratio_BT <= 50.0), ratio_BT, 0.0),
    }[how]
    keys = {"importance_sampling": how, "importance_sampling_cap": cap}
    assert_same(gradients_after(policy, keys), expected_gradients(policy, weights_BT))


def test_auto_corrects_beyond_rounding(policy: Policy) -> None:
    learner = LocalLearner(policy, recipe(learning_rate=1e-6))
    assert learner._correction() is None
    stats = learner.update(batch(), 0)  # made-up log-probabilities: far off
    assert stats["mismatch_kl"] > ROUNDING and learner.mismatch == stats["mismatch_kl"]
    assert learner._correction() is module.truncated_weights
    learner.mismatch = ROUNDING / 2
    assert learner._correction() is None


def test_auto_with_a_cap_corrects_from_the_start(policy: Policy) -> None:
    learner = LocalLearner(policy, recipe(importance_sampling_cap=3.0))
    assert learner._correction() is module.truncated_weights
    ratio_BT, _ = ratios(policy)
    found = gradients_after(policy, {"importance_sampling_cap": 0.02})
    assert_same(found, expected_gradients(policy, ratio_BT.clamp(max=0.02)))


def test_mismatch_is_saved_in_a_checkpoint(policy: Policy) -> None:
    learner = LocalLearner(policy, recipe())
    learner.update(batch(), 0)
    again = LocalLearner(policy, recipe())
    again.load_state(*learner.state())
    assert again.mismatch == learner.mismatch > ROUNDING


def test_later_updates_are_corrected_by_the_ratio_itself(policy: Policy) -> None:
    """The sampler's log-probabilities are the old ones then: weighing them as well would count twice."""
    stale = replace(batch(), version=0)
    found = []
    for how in ("never", "truncate"):
        learner = LocalLearner(policy, recipe(importance_sampling=how, max_grad_norm=1e9))
        learner.version = 1
        caught: list[torch.Tensor] = []
        learner.optimizer.step = lambda *a, c=caught, m=learner.masters: c.extend(w.grad.clone() for w in m.weights)  # type: ignore
        learner.update(stale, 1)
        found.append(caught)
    assert_same(*found)
