"""The clip: which regimes stop learning, and which never do."""

import itertools
import math

import pytest
import torch
from torch.testing import assert_close

from outdo.algo.clip import (
    capped_weight,
    clip_table,
    clipped_ratio,
    masked_weights,
    sequence_log_ratio,
    truncated_weights,
)

RATIOS = (0.01, 0.5, 0.79, 0.81, 0.95, 1.0, 1.05, 1.19, 1.21, 1.29, 1.5, 3.0, 10.9, 11.1, 50.0)
EPSILONS = ((0.2, 0.2), (0.2, 0.28), (0.1, 0.5), (3e-4, 4e-4), (10.0, 10.0), (0.2, 10.0), (0.99, 0.01))


def expected_case(advantage, ratio, low, high):
    """PPO's four corners, said as cases and not as a minimum: (objective, gradient by the ratio)."""
    if advantage > 0 and ratio > 1 + high:
        return (1 + high) * advantage, 0.0
    if advantage < 0 and ratio < 1 - low:
        return (1 - low) * advantage, 0.0
    return ratio * advantage, advantage


@pytest.mark.parametrize(("low", "high"), EPSILONS)
@pytest.mark.parametrize("advantage", [2.0, 0.3, 0.0, -0.3, -2.0])
def test_gradient_is_zero_only_where_clipped(low, high, advantage):
    for ratio in RATIOS:
        log_ratio = torch.tensor([[math.log(ratio)]], dtype=torch.float64, requires_grad=True)
        surrogate = clipped_ratio(log_ratio, torch.tensor([[advantage]], dtype=torch.float64), low, high)
        surrogate.loss_BT.sum().backward()
        objective, by_ratio = expected_case(advantage, ratio, low, high)
        assert surrogate.loss_BT.item() == pytest.approx(-objective, rel=1e-12)
        assert log_ratio.grad.item() == pytest.approx(-by_ratio * ratio, rel=1e-12)
        stopped = advantage != 0 and by_ratio == 0.0
        assert (log_ratio.grad.item() == 0.0) == (stopped or advantage == 0)
        assert surrogate.clipped_BT.item() is stopped
        assert surrogate.ratio_BT.item() == pytest.approx(ratio, rel=1e-12)


def test_the_pessimistic_side_has_no_bound():
    """A ratio of 50 with A < 0, and one of 0.01 with A > 0, keep their full gradient."""
    log_ratio = torch.tensor([[math.log(50.0)], [math.log(0.01)]], dtype=torch.float64, requires_grad=True)
    clipped_ratio(log_ratio, torch.tensor([[-1.0], [1.0]], dtype=torch.float64), 0.2, 0.2).loss_BT.sum().backward()
    assert_close(log_ratio.grad, torch.tensor([[50.0], [-0.01]], dtype=torch.float64))


def test_the_table_shows_the_four_corners():
    rows = {(case.advantage, case.ratio): case for case in clip_table()}
    assert len(rows) == 10
    branches = {key: case.branch for key, case in rows.items() if case.branch != "ratio"}
    assert branches == {(1.0, 1.5): "clipped above", (-1.0, 0.5): "clipped below"}
    assert rows[1.0, 1.5].objective == pytest.approx(1.2)
    assert rows[1.0, 1.5].gradient == 0.0
    assert rows[-1.0, 0.5].objective == pytest.approx(-0.8)
    assert rows[-1.0, 0.5].gradient == 0.0
    assert rows[1.0, 0.5].objective == pytest.approx(0.5)
    assert rows[1.0, 0.5].gradient == pytest.approx(1.0)
    assert rows[-1.0, 1.5].objective == pytest.approx(-1.5)
    assert rows[-1.0, 1.5].gradient == pytest.approx(-1.0)


@pytest.mark.parametrize(("low", "high"), EPSILONS)
def test_clip_table_for_any_epsilon(low, high):
    advantages = (2.0, -2.0, 0.0)
    cases = clip_table(low, high, advantages=advantages, ratios=RATIOS)
    assert [(case.advantage, case.ratio) for case in cases] == list(itertools.product(advantages, RATIOS))
    for case in cases:
        objective, gradient = expected_case(case.advantage, case.ratio, low, high)
        assert (case.objective, case.gradient) == (pytest.approx(objective), pytest.approx(gradient))
        stopped = case.advantage != 0 and gradient == 0
        assert case.branch == ("ratio" if not stopped else "clipped above" if case.advantage > 0 else "clipped below")


def test_one_epsilon_serves_both_sides_unless_told():
    assert clip_table(0.3, ratios=[1.5, 0.5]) == clip_table(0.3, 0.3, ratios=[1.5, 0.5])
    assert clip_table(0.3, ratios=[1.5])[0].objective == pytest.approx(1.3)


def test_wide_epsilon():
    above, below = clip_table(10.0, advantages=[1.0, -1.0], ratios=[10.9])
    assert (above.branch, above.objective, above.gradient) == ("ratio", pytest.approx(10.9), pytest.approx(1.0))
    assert below.branch == "ratio"
    assert all(case.branch == "ratio" for case in clip_table(10.0, advantages=[-1.0], ratios=[1e-6, 0.1]))
    assert clip_table(10.0, advantages=[1.0], ratios=[11.1])[0].branch == "clipped above"


def test_cispo_caps_the_weight_and_keeps_the_gradient():
    logprobs = torch.tensor([[-0.5, -1.0, -2.0]], dtype=torch.float64, requires_grad=True)
    log_ratio = torch.tensor([[2.0, 0.5, 7.0]], dtype=torch.float64).log()
    for advantage in (1.5, -1.5):
        logprobs.grad = None
        surrogate = capped_weight(log_ratio, logprobs, torch.tensor([[advantage]], dtype=torch.float64), cap=5.0)
        surrogate.loss_BT.sum().backward()
        weights = torch.tensor([[2.0, 0.5, 5.0]], dtype=torch.float64)
        assert_close(logprobs.grad, -weights * advantage)
        assert_close(surrogate.loss_BT.detach(), -weights * advantage * logprobs.detach())
        assert_close(surrogate.ratio_BT, log_ratio.exp())
    assert capped_weight(log_ratio, logprobs, torch.ones(1, 1), 5.0).clipped_BT.tolist() == [[False, False, True]]


def test_the_cap_sends_no_gradient_through_the_ratio():
    logprobs = torch.tensor([[-0.5]], dtype=torch.float64, requires_grad=True)
    old = torch.tensor([[-0.9]], dtype=torch.float64)
    capped_weight(logprobs - old, logprobs, torch.ones(1, 1, dtype=torch.float64), 5.0).loss_BT.sum().backward()
    assert logprobs.grad.item() == pytest.approx(-math.exp(0.4))


def test_the_sequence_ratio_is_the_mean_over_real_tokens():
    log_ratio = torch.tensor([[0.3, -0.1, 0.4], [0.5, 9.0, 9.0], [7.0, 7.0, 7.0]])
    mask = torch.tensor([[1.0, 1, 1], [1, 0, 0], [0, 0, 0]])
    assert_close(sequence_log_ratio(log_ratio, mask), torch.tensor([[0.2], [0.5], [0.0]]))


def test_the_sequence_ratio_does_not_drift_with_length():
    log_ratio = torch.full((2, 100), 0.01)
    mask = torch.ones(2, 100)
    mask[1, 10:] = 0
    assert_close(sequence_log_ratio(log_ratio, mask), torch.full((2, 1), 0.01))


def test_importance_weights_are_truncated_above_and_detached():
    new = torch.tensor([[0.0, -1.0, -3.0]], requires_grad=True)
    sampler = torch.tensor([[-2.0, -1.1, -1.0]])
    weights = truncated_weights(new, sampler, cap=2.0)
    assert_close(weights, torch.tensor([[2.0, math.exp(0.1), math.exp(-2.0)]]))
    assert not weights.requires_grad


def test_masked_weights():
    ratios = torch.tensor([[0.1, 0.49, 0.5, 1.0], [1.5, 2.0, 2.01, 9.0]])
    logprobs = ratios.log().requires_grad_(True)
    weights = masked_weights(logprobs, torch.zeros_like(ratios), cap=2.0)
    assert not weights.requires_grad
    assert_close(weights, torch.tensor([[0.0, 0.0, 0.5, 1.0], [1.5, 2.0, 0.0, 0.0]]))
