"""Advantages against numbers worked out by hand."""

import math

import pytest
import torch
from torch.testing import assert_close

from outdo.algo.advantage import (
    ESTIMATORS,
    gdpo_advantages,
    group_advantages,
    maxrl_advantages,
    reinforce_pp_advantages,
    rloo_advantages,
)

EVERY_ESTIMATOR = pytest.mark.parametrize("estimate", ESTIMATORS.values(), ids=ESTIMATORS.keys())


def near(values, tolerance=1e-6):
    return pytest.approx(values, abs=tolerance, rel=tolerance)


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ([0, 1, 1, 0], [-1, 1, 1, -1]),
        ([1.0, 0.5, 0.5, 0.0], [math.sqrt(2), 0, 0, -math.sqrt(2)]),
        ([1, 0, 0], [math.sqrt(2), -math.sqrt(0.5), -math.sqrt(0.5)]),
        ([3, -1], [1, -1]),
        # mean 2.5, deviations -1.5 -.5 .5 1.5, std sqrt(1.25)
        ([1, 2, 3, 4], [-1.341641, -0.447214, 0.447214, 1.341641]),
    ],
)
def test_group_mean_and_population_std(rewards, expected):
    assert group_advantages(rewards, len(rewards)).tolist() == near(expected, 5e-4)


def test_eps_is_added_to_the_std():
    assert group_advantages([0, 1, 1, 0], 4).tolist() == near(
        [-0.5 / 0.5001, 0.5 / 0.5001, 0.5 / 0.5001, -0.5 / 0.5001]
    )
    assert group_advantages([0, 1, 1, 0], 4, eps=0.5).tolist() == near([-0.5, 0.5, 0.5, -0.5])
    assert group_advantages([0, 1, 1, 0], 4, eps=0.0).tolist() == near([-1, 1, 1, -1])


def test_the_sample_std_divides_by_one_less():
    # rewards 1 .5 .5 0: squares sum to .5, over 3 in place of 4
    std = math.sqrt(0.5 / 3)
    assert group_advantages([1, 0.5, 0.5, 0], 4, correction=1).tolist() == near(
        [0.5 / (std + 1e-4), 0, 0, -0.5 / (std + 1e-4)]
    )


@pytest.mark.parametrize("value", [0.1, 1 / 3, 0.7, -2.2, 0.0, 1e-12, 1e15 + 0.3, -1e30])
@pytest.mark.parametrize("size", [2, 3, 7])
@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_equal_rewards_give_exactly_zero(value, size, scale):
    assert group_advantages([value] * size, size, scale).tolist() == [0.0] * size


@EVERY_ESTIMATOR
@pytest.mark.parametrize("value", [0.1, 1 / 3, 1e15 + 0.3])
def test_flat_batch_is_exactly_zero(estimate, value):
    assert estimate([value] * 6, 3, "group").tolist() == [0.0] * 6


def test_a_flat_group_stays_zero_beside_one_with_spread():
    advantages = group_advantages([0.1, 0.1, 0.1, 0, 0, 3], 3, scale="batch").tolist()
    assert advantages[:3] == [0.0, 0.0, 0.0]
    assert advantages[3:] != [0.0, 0.0, 0.0]


def test_a_small_spread_on_a_large_offset_survives():
    assert group_advantages([1e9, 1e9 + 1, 1e9 + 1, 1e9], 4).tolist() == near([-0.9998, 0.9998, 0.9998, -0.9998])


def test_groups_do_not_mix():
    first, second = [0, 1, 1, 0], [100, 250, 400, 10]
    both = group_advantages(first + second, 4)
    assert_close(both[:4], group_advantages(first, 4), rtol=0, atol=0)
    assert_close(both[4:], group_advantages(second, 4), rtol=0, atol=0)
    assert both[4:].sum().item() == near(0.0, 1e-5)


def test_groups_are_neighbours_not_strides():
    # As [P, G] = [[0, 1], [2, 5]]; a transposed reading would give groups (0, 2) and (1, 5).
    assert group_advantages([0, 1, 2, 5], 2, scale="none").tolist() == near([-0.5, 0.5, -1.5, 1.5])


def test_scale_none():
    assert group_advantages([1, 0.5, 0.5, 0, 8, 8, 8, 0], 4, "none").tolist() == near([0.5, 0, 0, -0.5, 2, 2, 2, -6])


def test_scale_batch():
    # The mean of all six is 2, their squared deviations 4 1 0 4 1 0; the groups' own means are 1 and 3.
    std = math.sqrt(10 / 6)
    expected = [x / (std + 1e-4) for x in (-1, 0, 1, 1, 0, -1)]
    assert group_advantages([0, 1, 2, 4, 3, 2], 3, "batch").tolist() == near(expected)
    sample = [x / (math.sqrt(10 / 5) + 1e-4) for x in (-1, 0, 1, 1, 0, -1)]
    assert group_advantages([0, 1, 2, 4, 3, 2], 3, "batch", correction=1).tolist() == near(sample)


def test_unjudged_answers_are_left_out_of_the_statistics():
    # Of 1, 0, - and 1: mean 2/3, population std sqrt(2)/3.
    std = math.sqrt(2) / 3 + 1e-4
    advantages = group_advantages([1, 0, None, 1], 4).tolist()
    assert advantages == near([(1 / 3) / std, -(2 / 3) / std, 0.0, (1 / 3) / std])
    assert advantages[2] == 0.0
    same = group_advantages([1, 0, 1], 3).tolist()
    assert [advantages[0], advantages[1], advantages[3]] == near(same)


def test_unjudged_answers_are_outside_the_std():
    std = math.sqrt((2 / 3) / 2) + 1e-4  # squares of 1/3, 2/3, 1/3 sum to 2/3, over 3 - 1
    assert group_advantages([1, 0, None, 1], 4, correction=1)[0].item() == near((1 / 3) / std)
    # Judged: 1, 0 | 4 -> mean 5/3, squares 4/9 + 25/9 + 49/9 = 78/9, over 3
    batch = math.sqrt(78 / 27) + 1e-4
    assert group_advantages([1, 0, None, 4], 2, "batch").tolist() == near([0.5 / batch, -0.5 / batch, 0, 0])


@EVERY_ESTIMATOR
def test_groups_that_nobody_could_judge_get_zero(estimate):
    assert estimate([None] * 4, 2, "group").tolist() == [0.0] * 4


@pytest.mark.parametrize("estimate", [group_advantages, rloo_advantages])
def test_single_judged_answer_is_zero(estimate):
    assert estimate([None, 5.0, None, 1.0, 0.0, None], 3).tolist()[:3] == [0.0, 0.0, 0.0]


@EVERY_ESTIMATOR
def test_an_equal_judged_rest_gives_exactly_zero(estimate):
    assert estimate([0.1, None, 0.1, 0.1], 4, "group").tolist() == [0.0] * 4


def test_rloo_compares_with_the_mean_of_the_others():
    rewards = [1.0, 0.0, 0.5, 3.0]
    expected = [r - (sum(rewards) - r) / 3 for r in rewards]
    assert rloo_advantages(rewards, 4).tolist() == near(expected)
    assert rloo_advantages([1, 0], 2).tolist() == near([1, -1])
    assert rloo_advantages([1, None, 0, 2], 4).tolist() == near([0.0, 0.0, -1.5, 1.5])


def test_rloo_does_not_mix_groups():
    assert rloo_advantages([1, 0, 10, 20], 2).tolist() == near([1, -1, -10, 10])


def test_reinforce_pp_normalises_over_the_whole_batch():
    # Mean 2, population variance 10/6: the first group lies wholly below the mean, the second wholly above or on it.
    std = math.sqrt(10 / 6) + 1e-4
    expected = [(r - 2) / std for r in (0, 1, 2, 4, 3, 2)]
    assert reinforce_pp_advantages([0, 1, 2, 4, 3, 2], 3).tolist() == near(expected)
    sample = [(r - 2) / (math.sqrt(2) + 1e-4) for r in (0, 1, 2, 4, 3, 2)]
    assert reinforce_pp_advantages([0, 1, 2, 4, 3, 2], 3, correction=1).tolist() == near(sample)
    assert reinforce_pp_advantages([0, None, 4, 2], 2).tolist() == near(
        [-2 / (math.sqrt(8 / 3) + 1e-4), 0, 2 / (math.sqrt(8 / 3) + 1e-4), 0]
    )


def test_the_registry_hands_scale_to_grpo_only():
    rewards = [0, 1, 4, 1]
    assert ESTIMATORS["grpo"](rewards, 4, "none").tolist() == near([-1.5, -0.5, 2.5, -0.5])
    assert ESTIMATORS["grpo"](rewards, 4, "group").tolist() == near(group_advantages(rewards, 4).tolist())
    assert ESTIMATORS["rloo"](rewards, 4, "group").tolist() == near([-2, -2 / 3, 10 / 3, -2 / 3])
    assert ESTIMATORS["reinforce_plus_plus"](rewards, 2, "none").tolist() == near(
        reinforce_pp_advantages(rewards, 4).tolist()
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_floating_tensor_gets_its_own_type_back(dtype):
    advantages = group_advantages(torch.tensor([0, 1, 1, 0], dtype=dtype), 4)
    assert advantages.dtype == dtype
    assert advantages.tolist() == near([-1, 1, 1, -1], 5e-3)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.bool])
def test_a_whole_number_tensor_gives_float32(dtype):
    advantages = group_advantages(torch.tensor([0, 1, 1, 0], dtype=dtype), 4)
    assert advantages.dtype == torch.float32
    assert advantages.tolist() == near([-0.9998, 0.9998, 0.9998, -0.9998])


def test_half_precision_rewards_are_summed_in_double():
    # In half precision 2048 + 1 is 2048, and a sum of 64 such values overflows.
    rewards = torch.tensor([2048.0, 2050.0] * 32, dtype=torch.float16)
    assert group_advantages(rewards, 64).tolist() == near([-1.0, 1.0] * 32, 2e-3)


def test_lists_and_tensors_agree_and_keep_their_length():
    rewards = [0.25, 0.5, -1.0, 2.0, 0.0, 1.0]
    flat = group_advantages(torch.tensor(rewards), 3)
    assert flat.shape == (6,)
    assert_close(flat, group_advantages(rewards, 3))
    assert_close(flat, group_advantages(tuple(rewards), 3))


def test_a_tensor_with_a_graph_gives_advantages_without_one():
    assert not group_advantages(torch.tensor([0.0, 1.0], requires_grad=True), 2).requires_grad


@EVERY_ESTIMATOR
def test_indivisible_number_of_rewards(estimate):
    with pytest.raises(ValueError, match=r"\b7\b.*\b4\b"):
        estimate([0.0] * 7, 4, "group")


@EVERY_ESTIMATOR
@pytest.mark.parametrize("size", [1, 0, -2])
def test_a_group_under_two_is_refused(estimate, size):
    with pytest.raises(ValueError, match=rf"group_size={size}\b"):
        estimate([0.0, 1.0], size, "group")


@EVERY_ESTIMATOR
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_not_finite_is_named(estimate, bad):
    with pytest.raises(ValueError, match=rf"reward 2 of 4 \(group 1\) is {bad}"):
        estimate([0.0, 1.0, bad, 0.0], 2, "group")
    with pytest.raises(ValueError, match="reward 2 of 4"):
        estimate(torch.tensor([0.0, 1.0, bad, 0.0]), 2, "group")


def test_an_unknown_scale_is_refused():
    with pytest.raises(ValueError, match=r"scale='groups'.*group, batch, none"):
        group_advantages([0, 1], 2, scale="groups")


def test_maxrl_divides_by_the_mean():
    # Pass rates 1/4 and 3/4: a right answer to the harder prompt counts 9 times one to the easier.
    advantages = maxrl_advantages([1, 0, 0, 0, 1, 1, 1, 0], 4, eps=0.0).tolist()
    assert advantages == near([3, -1, -1, -1, 1 / 3, 1 / 3, 1 / 3, -1])
    assert maxrl_advantages([0.5, 1.0], 2).tolist() == near([-0.25 / 0.7501, 0.25 / 0.7501])
    assert maxrl_advantages([1, None, 0, 0], 4, eps=0.0).tolist() == near([2, 0, -1, -1])


def test_maxrl_has_the_gradient_of_the_log_of_the_pass_rate():
    """Of a coin p, over all groups of 6: the mean of A d log p(answer) is the series of d log p up to (1 - p)^4."""
    p, size = 0.3, 6
    expected = 0.0
    for right in range(1, size + 1):
        chance = math.comb(size, right) * p**right * (1 - p) ** (size - right)
        advantages = maxrl_advantages([1.0] * right + [0.0] * (size - right), size, eps=0.0).tolist()
        scores = [1 / p] * right + [-1 / (1 - p)] * (size - right)  # d log chance of the answer / d p
        expected += chance * sum(a * s for a, s in zip(advantages, scores, strict=True)) / size
    assert expected == pytest.approx(sum((1 - p) ** k for k in range(size - 1)))  # 1 / p is the sum without an end


def test_maxrl_penalties_are_divided_by_the_earned_mean():
    assert maxrl_advantages([0.5, 0.25], 2, 0.0, earned=[1.0, 0.0]).tolist() == near([0.25, -0.25])
    assert maxrl_advantages([-0.5, -0.25], 2, 0.0, earned=[0.0, 0.0]).tolist() == near([-0.125, 0.125])


def test_maxrl_refuses_negative_rewards():
    with pytest.raises(ValueError, match=r"a reward of -1\b"):
        maxrl_advantages([1.0, -1.0], 2)


def test_gdpo_normalises_each_reward_by_itself():
    """1 0 and 100 0 both become 1 -1; with weights 1 and 0.5 the sums are 0.5 -0.5 and 1.5 -1.5: variance 1.25."""
    parts = [(1.0, [1, 0, 1, 0]), (0.5, [0, 100, 100, 0])]
    advantages = gdpo_advantages(parts, [True] * 4, 2, eps=0.0).tolist()
    assert advantages == near([x / math.sqrt(1.25) for x in (0.5, -0.5, 1.5, -1.5)])


def test_gdpo_without_the_broken_and_the_silent():
    """The third answer is broken: the others are of a group of two. A reward that is silent adds nothing."""
    parts = [(1.0, [1, 0, 5, 1, 1, 0]), (1.0, [None, 0, 0, 0, 2, None])]
    judged = [True, True, False, True, True, True]
    root = math.sqrt(0.5)
    sums = [1, -1, 0, root - 1, root + 1, -2 * root]
    std = math.sqrt(sum(x**2 for x in (1, -1, root - 1, root + 1, -2 * root)) / 5)
    assert gdpo_advantages(parts, judged, 3, eps=0.0).tolist() == near([x / std for x in sums])
