"""From grades to rows: which answers are trained on, and with what advantage."""

import math
from dataclasses import replace

import pytest

from outdo.algo.prepare import prepare, with_advantages
from outdo.types import Grade, Group, Prompt, Sample, Trajectory


def completion(index, finish="stop", version=0):
    return Trajectory.single((index, index + 1), (-0.5, -0.25 * index), f"text {index}", finish, version)


def group(name, rewards, start=0, finishes=None, versions=None):
    """Token ids tell the answers apart; a reward of None is an answer that could not be judged."""
    count = len(rewards)
    answers = tuple(
        completion(start + i, (finishes or ["stop"] * count)[i], (versions or [0] * count)[i]) for i in range(count)
    )
    grades = tuple(Grade(None, "broken") if r is None else Grade(r, "right" if r >= 1 else "wrong") for r in rewards)
    return Group(Prompt(name, ({"role": "user", "content": name},)), (start, 7), answers, grades)


def test_advantages_per_group():
    groups = with_advantages([group("a", [0.0, 1.0]), group("b", [10.0, 30.0])])
    assert groups[0].advantages == pytest.approx((-0.5 / 0.5001, 0.5 / 0.5001))
    assert groups[1].advantages == pytest.approx((-10 / 10.0001, 10 / 10.0001))
    assert groups[1].rewards == [10.0, 30.0]


def test_the_estimator_and_the_scale_are_obeyed():
    groups = [group("a", [0.0, 1.0]), group("b", [4.0, 3.0])]
    assert with_advantages(groups, scale="none")[1].advantages == pytest.approx((0.5, -0.5))
    assert with_advantages(groups, "rloo")[1].advantages == pytest.approx((1.0, -1.0))
    std = math.sqrt(10 / 4) + 1e-4  # mean 2, deviations -2 -1 2 1
    assert with_advantages(groups, "reinforce_plus_plus")[1].advantages == pytest.approx((2 / std, 1 / std))


def test_penalties_are_subtracted():
    groups = [group("a", [1.0, 1.0]), group("b", [0.0, 2.0])]
    judged = with_advantages(groups, scale="none", penalties=[[0.5, 0.1], [0.0, 1.0]])
    assert judged[0].advantages == pytest.approx((-0.2, 0.2))  # .5 and .9
    assert judged[1].advantages == pytest.approx((-0.5, 0.5))  # 0 and 1
    assert judged[0].rewards == [1.0, 1.0]


@pytest.mark.parametrize(
    ("estimator", "scale"), [("grpo", "group"), ("grpo", "batch"), ("reinforce_plus_plus", "group")]
)
def test_penalty_in_a_flat_group_is_not_scaled(estimator: str, scale: str):
    """Of equal rewards the penalty alone is left, as it is; else both are divided by the rewards' own spread."""
    alike = [group("a", [1.0, 1.0, 1.0])]
    for beta in (1e-3, 1e-1):
        (judged,) = with_advantages(alike, estimator, scale, penalties=[[0.5 * beta, 0.7 * beta, 0.0]])
        assert judged.advantages == pytest.approx((-0.1 * beta, -0.3 * beta, 0.4 * beta))
    (plain,) = with_advantages([group("a", [0.0, 1.0, 2.0])], estimator, scale)
    (judged,) = with_advantages([group("a", [0.0, 1.0, 2.0])], estimator, scale, penalties=[[0.0, 0.3, 0.0]])
    std = math.sqrt(2 / 3) + 1e-4
    off = tuple(a - b for a, b in zip(judged.advantages, plain.advantages, strict=True))
    assert off == pytest.approx((0.1 / std, -0.2 / std, 0.1 / std), rel=1e-5)


def test_a_penalty_on_an_unjudged_answer_changes_nothing():
    with_none = [group("a", [1.0, None, 0.0])]
    judged = with_advantages(with_none, scale="none", penalties=[[0.0, 50.0, 0.0]])
    assert judged[0].advantages == pytest.approx((0.5, 0.0, -0.5))


def test_one_penalty_for_each_answer():
    with pytest.raises(ValueError, match="zip"):
        with_advantages([group("a", [1.0, 0.0])], penalties=[[0.5]])


def test_no_groups_are_no_groups():
    assert with_advantages([]) == []


def test_rows_carry_their_own_tokens_prompt_and_advantage():
    groups = with_advantages([group("a", [0.0, 1.0]), group("b", [5.0, 3.0], start=10)], scale="none")
    batch = prepare(groups)
    assert batch.prompt_ids == ((0, 7), (10, 7))
    assert batch.samples == (
        Sample(0, (0, 1), (-0.5, 0.0), -0.5),
        Sample(0, (1, 2), (-0.5, -0.25), 0.5),
        Sample(1, (10, 11), (-0.5, -2.5), 1.0),
        Sample(1, (11, 12), (-0.5, -2.75), -1.0),
    )
    assert batch.num_tokens == 8


def test_unjudged_answers_are_left_out():
    batch = prepare(with_advantages([group("a", [1.0, None, 0.0])], scale="none"))
    assert [(row.token_ids, row.advantage) for row in batch.samples] == [((0, 1), 0.5), ((2, 3), -0.5)]


def test_truncated_answers_are_masked_on_request():
    groups = with_advantages([group("a", [1.0, 0.0, 2.0], finishes=["stop", "length", "stop"])], scale="none")
    assert len(prepare(groups).samples) == 3
    kept = prepare(groups, mask_truncated=True).samples
    assert [(row.token_ids, row.advantage) for row in kept] == [((0, 1), 0.0), ((2, 3), 1.0)]


def test_prompt_without_samples_keeps_its_index():
    groups = with_advantages([group("a", [None, None]), group("b", [0.0, 1.0], start=10)])
    batch = prepare(groups)
    assert batch.prompt_ids == ((0, 7), (10, 7))
    assert [row.prompt for row in batch.samples] == [1, 1]


def test_the_batch_is_as_old_as_its_oldest_answer():
    groups = with_advantages([group("a", [0.0, 1.0], versions=[4, 5]), group("b", [0.0, 1.0], versions=[3, 6])])
    assert prepare(groups).version == 3


def test_non_finite_penalty_gives_a_nan_advantage():
    (made,) = with_advantages([group("a", [1.0, 0.0, 5.0])], scale="none", penalties=[[0.0, 0.0, math.inf]])
    assert made.advantages[:2] == (0.5, -0.5) and math.isnan(made.advantages[2])


def paid(name, *parts):
    """A group whose answers have these parts; None is a broken answer."""
    grades = tuple(
        Grade(None, "broken") if one is None else Grade(sum(v for v in one.values() if v is not None), "right", one)
        for one in parts
    )
    return replace(group(name, [0.0] * len(parts)), grades=grades)


def test_each_reward_by_itself():
    """Both rewards become 1 -1; weights of 2 and 0.5 make 2.5 -2.5, and 1.5 -1.5 where they disagree. One of weight 0
    is not counted."""
    groups = [
        paid("a", {"x": 1.0, "y": 10.0, "seen": 7.0}, {"x": 0.0, "y": 0.0, "seen": 0.0}),
        paid("b", {"x": 1.0, "y": 0.0, "seen": 0.0}, {"x": 0.0, "y": 1.0, "seen": 0.0}),
    ]
    own = {"x": 2.0, "y": 0.5, "seen": 0.0}
    std = math.sqrt((2.5**2 + 1.5**2) / 2)
    made = with_advantages(groups, eps=0.0, weights=[own, own])
    assert [one.advantages for one in made] == [
        pytest.approx((2.5 / std, -2.5 / std)),
        pytest.approx((1.5 / std, -1.5 / std)),
    ]


def test_rewards_of_a_mixture():
    """Each task pays rewards of its own; one name may have two weights, and what is not paid is not counted."""
    groups = [paid("a", {"x": 1.0}, {"x": 0.0}), paid("b", {"x": 5.0, "y": 0.0}, {"x": 0.0, "y": 1.0})]
    made = with_advantages(groups, eps=0.0, weights=[{"x": 1.0}, {"x": 3.0, "y": 1.0}])
    std = math.sqrt((1 + 4) / 2)
    assert made[0].advantages == pytest.approx((1 / std, -1 / std))
    assert made[1].advantages == pytest.approx((2 / std, -2 / std))


def test_broken_answers_stay_out_of_each_reward():
    groups = [paid("a", {"x": 1.0}, {"x": 0.0}, None), paid("b", {"x": 3.0}, {"x": None}, {"x": 1.0})]
    made = with_advantages(groups, eps=0.0, weights=[{"x": 1.0}] * 2)
    std = math.sqrt(4 / 5)
    assert made[0].advantages == pytest.approx((1 / std, -1 / std, 0.0))
    assert made[1].advantages == pytest.approx((1 / std, 0.0, -1 / std))
    assert len(prepare(made).samples) == 5
