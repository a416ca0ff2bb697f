"""Corners that once went wrong: input at the edge of what the contracts allow."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from outdo.algo.advantage import group_advantages, reinforce_pp_advantages
from outdo.algo.losses import grpo_loss
from outdo.errors import GraderError
from outdo.metrics.estimate import wilson
from outdo.rewards.answer import exact, final_answers, numeric
from outdo.rewards.compose import Reward, Rewards, find_rewards, grade
from outdo.rewards.form import overlong
from outdo.rewards.games import countdown
from outdo.rollout.sampling import pick, uniforms
from outdo.training.trainer import GRPOTrainer
from outdo.types import Grade, Group, Prompt, SampleParams, Trajectory


def graded(rewards: Rewards, text: str = "<answer>4</answer>", **meta: Any) -> Grade:
    prompt = Prompt("p", ({"role": "user", "content": "q"},), "4", meta)
    return grade(Group(prompt, (1,), (Trajectory.single((7,), (0.0,), text, "stop", 0),)), rewards).grades[0]


def alone(function: Callable[..., Any], weight: float = 1.0) -> Rewards:
    return Rewards((Reward("f", function, weight),), "f")


def abstains(completions: list[str], **columns: object) -> list[None]:
    return [None] * len(completions)


def test_a_reopened_thought_does_not_count() -> None:
    assert final_answers("<think>a</think><think>maybe <answer>5</answer>") == []


def test_a_missing_or_huge_gold_is_broken_not_wrong() -> None:
    assert exact(["<answer>None</answer>"], answer=[None])[0].verdict == "broken"
    assert exact([f"<answer>{'a' * 300}</answer>"], answer=["a" * 300])[0].verdict == "broken"


def test_floods_of_answers() -> None:
    assert numeric(["#### 5\n" * 100_000], ["5"])[0].verdict == "right"
    assert numeric(["".join(f"#### {i}\n" for i in range(100_000))], ["5"])[0].verdict == "wrong"


@pytest.mark.parametrize("bad", [{"target": "7"}, {"target": None}, {"numbers": ["3", "4"]}, {"numbers": "34"}])
def test_a_countdown_problem_that_is_none_is_broken(bad: dict[str, Any]) -> None:
    rewards = find_rewards(["countdown"], [], "countdown")
    assert graded(rewards, "<answer>3+4</answer>", **{"numbers": (3, 4), "target": 7, **bad}).verdict == "broken"


def test_equal_countdown_answers_are_one() -> None:
    assert countdown(["<answer>3+4</answer>\n#### 3+4"], numbers=[(3, 4)], target=[7])[0].verdict == "right"


def test_a_missing_column_is_named_also_where_a_reward_takes_any() -> None:
    with pytest.raises(GraderError, match="numbers, target"):
        graded(find_rewards(["countdown"], [], "countdown"))


def test_rewards_that_are_no_number_are_broken_however_they_come() -> None:
    assert graded(alone(lambda completions: [Grade(math.nan, "right")])).verdict == "broken"
    assert graded(alone(lambda completions: [1e300], weight=1e300)).verdict == "broken"


def test_when_those_that_matter_abstain_the_answer_is_broken() -> None:
    paid = find_rewards(["judge"], [], "numeric", own={"judge": abstains})
    truth = find_rewards(["judge", "numeric"], [1.0, 1.0], "judge", own={"judge": abstains})
    assert graded(paid).reward is None and graded(truth).verdict == "broken"


def test_a_users_words_do_not_decide_who_abstained() -> None:
    def crashed(completions: list[str]) -> list[Grade]:
        return [Grade(None, "broken", reason="the judge crashed after it abstained")]

    assert graded(find_rewards(["c", "numeric"], [1.0, 1.0], "numeric", own={"c": crashed})).verdict == "broken"


def test_positional_rest_arguments_are_no_column() -> None:
    def paid(completions: list[str], *rest: object) -> list[float]:
        return [1.0]

    assert graded(alone(paid)).reward == 1.0


def test_overlong_needs_a_limit() -> None:
    with pytest.raises(ValueError, match="max_completion_length"):
        overlong(["a"], [(1,)], 0)


@pytest.mark.parametrize("more", [{"weights_BT": 1.0}, {"entropy_BT": 1.0, "entropy_coef": 0.1}])
def test_garbage_under_the_mask_counts_nowhere(more: dict[str, float]) -> None:
    garbage = {k: torch.tensor([[v, math.nan]]) if k.endswith("_BT") else v for k, v in more.items()}
    x = torch.zeros(1, 2, requires_grad=True)
    loss, _ = grpo_loss(x, torch.zeros(1, 2), torch.ones(1), torch.tensor([[1, 0]]), **garbage)  # type: ignore[arg-type]
    loss.backward()
    assert loss.isfinite() and x.grad is not None and x.grad.isfinite().all()


@pytest.mark.parametrize("advantage", [1.0, 0.0])
def test_a_ratio_that_overflows_has_gradient_0_where_clipped(advantage: float) -> None:
    x = torch.tensor([[100.0]], requires_grad=True)
    loss, _ = grpo_loss(x, torch.zeros(1, 1), torch.tensor([advantage]), torch.ones(1, 1))
    loss.backward()
    assert loss.isfinite() and x.grad is not None and x.grad.item() == 0.0


def test_advantages_at_the_edges() -> None:
    assert group_advantages([1.0, 1.0], 2, eps=0.0).tolist() == [0.0, 0.0]
    assert reinforce_pp_advantages([1.0, 1.0], 2, eps=0.0).tolist() == [0.0, 0.0]
    assert [group_advantages([], 2, scale).tolist() for scale in ("group", "batch", "none")] == [[], [], []]
    with pytest.raises(ValueError, match="1e\\+308"):
        group_advantages([1e308, 1e308, 0.0], 3)


def test_unknown_estimators_are_named() -> None:
    z = torch.zeros(1, 1)
    with pytest.raises(ValueError, match="k1, k2, k3"):
        grpo_loss(z, z, torch.ones(1), torch.ones(1, 1), ref_logprobs_BT=z, beta=0.1, kl_estimator="k4")


def test_wilson_holds_the_share_itself() -> None:
    assert all(wilson(n, n)[1] == 1.0 and wilson(0, n)[0] == 0.0 for n in range(1, 500))


def test_an_unlikely_first_token_is_not_drawn_by_the_lowest_noise() -> None:
    assert uniforms(torch.arange(1_000_000), 0).min() > 0
    tokens, *_ = pick(torch.tensor([[-60.0, 0.0]]), torch.tensor([2.0**-24]), SampleParams(1))
    assert tokens.tolist() == [1]


@pytest.mark.parametrize("bad", [{"top_p": 0.0}, {"temperature": -1.0}, {"top_k": -1}])
def test_sampling_that_makes_no_sense_is_refused(bad: dict[str, Any]) -> None:
    (name,) = bad
    with pytest.raises(ValueError, match=f"{name}=.*it must be"):
        SampleParams(1, **bad)


def test_the_trainer_takes_rewards_by_group_and_never_steps_by_no_number() -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.zeros(3, 3))

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            return self.w[input_ids] * math.nan

    net = Net()
    trainer = GRPOTrainer(net, None, torch.optim.SGD(net.parameters(), lr=0.1), group_size=2)
    advantages, _ = trainer.compute_advantages(torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
    torch.testing.assert_close(advantages, torch.tensor([-1.0, 1.0, 1.0, -1.0]), atol=1e-3, rtol=0)
    ids, mask = torch.tensor([[0, 1], [0, 2]]), torch.tensor([[0, 1], [0, 1]])
    stats = trainer.train_step({"input_ids": ids, "completion_mask": mask, "rewards": [1.0, 0.0]}, 0)
    assert net.w.isfinite().all() and stats["updated"] == 0.0
