"""The class for those who own their loop: its values, its updates, and what it refuses."""

import copy
import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from outdo.training.trainer import GRPOTrainer

VOCABULARY = 11


class Bigram(nn.Module):
    """The smallest policy: the next token's logits depend on the token before."""

    def __init__(self, wrapped=False):
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, VOCABULARY)
        self.wrapped = wrapped
        self.seen_masks = []

    def forward(self, input_ids, attention_mask):
        self.seen_masks.append(attention_mask)
        logits = self.table(input_ids)
        return SimpleNamespace(logits=logits) if self.wrapped else logits


def bigram(seed=0, **options):
    torch.manual_seed(seed)
    return Bigram(**options)


def trainer_of(model, reward_fn=None, lr=0.5, max_grad_norm=1e9, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    return GRPOTrainer(model, reward_fn, optimizer, **{"group_size": 2, "max_grad_norm": max_grad_norm, **options})


def made_batch(rewards=(1.0, 0.0, 2.0, 5.0), seed=1):
    """Four rows of six tokens: two of prompt, then answers of 4, 2, 1 and 3."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.tensor([4, 2, 1, 3])
    places = torch.arange(6)
    return {
        "input_ids": torch.randint(VOCABULARY, (4, 6), generator=generator),
        "completion_mask": ((places >= 2) & (places < 2 + lengths[:, None])).long(),
        "rewards": list(rewards),
    }


def rows_of(batch, rows):
    return {key: value[rows] for key, value in batch.items()}


def log_probs_by_hand(weight, batch):
    """[B][tokens of the answer] of log p(token | the one before)."""
    table = weight.log_softmax(-1)
    ids, mask = batch["input_ids"].tolist(), batch["completion_mask"].tolist()
    return [torch.stack([table[ids[i][t - 1], ids[i][t]] for t in range(1, 6) if mask[i][t]]) for i in range(len(ids))]


def reinforce(weight, batch, advantages):
    """-mean over answers of A x mean log-probability: the gradient of the clipped loss while the ratio is 1."""
    rows = log_probs_by_hand(weight, batch)
    return -sum(a * row.mean() for a, row in zip(advantages, rows, strict=True)) / len(rows)


ADVANTAGES = (0.5 / 0.5001, -0.5 / 0.5001, -1.5 / 1.5001, 1.5 / 1.5001)  # of the rewards in made_batch


def test_advantages_and_their_stats():
    trainer = trainer_of(bigram(), group_size=4)
    advantages, stats = trainer.compute_advantages([0.0, 1.0, 1.0, 0.0, 2.0, 2.0, 2.0, 2.0])
    x = 0.5 / 0.5001
    assert advantages.tolist() == pytest.approx([-x, x, x, -x, 0, 0, 0, 0])
    assert stats["reward_mean"] == pytest.approx(1.25)
    assert stats["reward_std"] == pytest.approx(math.sqrt((2 * 1.5625 + 2 * 0.0625 + 4 * 0.5625) / 8))
    assert stats["informative"] == 0.5


def test_unjudged_answers_are_left_out_of_the_stats():
    advantages, stats = trainer_of(bigram()).compute_advantages([None, 3.0, 1.0, 0.0, None, None])
    x = 0.5 / 0.5001
    assert advantages.tolist() == pytest.approx([0, 0, x, -x, 0, 0])
    assert stats["reward_mean"] == pytest.approx(4 / 3)
    assert stats["informative"] == pytest.approx(1 / 3)
    nothing, stats = trainer_of(bigram()).compute_advantages([None, None])
    assert nothing.tolist() == [0.0, 0.0]
    assert stats == {"reward_mean": 0.0, "reward_std": 0.0, "informative": 0.0}


def test_advantages_of_a_tensor():
    advantages, stats = trainer_of(bigram()).compute_advantages(torch.tensor([0, 1, 3, 3]))
    assert advantages.tolist() == pytest.approx([-0.9998, 0.9998, 0, 0], abs=1e-6)
    assert (stats["reward_mean"], stats["informative"]) == (pytest.approx(1.75), 0.5)


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [(1.5, 1.0, -1.2), (0.5, 1.0, -0.5), (0.5, -1.0, 0.8), (1.5, -1.0, 1.5), (1.1, 2.0, -2.2), (1.0, 0.0, 0.0)],
)
def test_policy_loss_of_one_number_an_answer(ratio, advantage, expected):
    new = torch.tensor([math.log(ratio) - 2.0])
    loss = trainer_of(bigram()).compute_policy_loss(new, torch.tensor([-2.0]), torch.tensor([advantage]))
    assert loss.item() == pytest.approx(expected, abs=1e-6)


def test_policy_loss_obeys_the_clip_range_mask_and_kl():
    new = torch.tensor([[1.5, 3.0, 0.5], [1.0, 0.25, 9.0]]).log()
    mask = torch.tensor([[1, 1, 0], [1, 1, 0]])
    advantages = torch.tensor([1.0, -2.0])
    trainer = trainer_of(bigram(), clip_range=0.6)
    loss = trainer.compute_policy_loss(new, torch.zeros(2, 3), advantages, mask)
    first, second = -(1.5 + 1.6) / 2, (2 * 1.0 + 2 * 0.4) / 2
    assert loss.item() == pytest.approx((first + second) / 2)
    with_kl = trainer_of(bigram(), clip_range=0.6, kl_coef=0.1)
    loss = with_kl.compute_policy_loss(new, torch.zeros(2, 3), advantages, mask, ref_log_probs=torch.zeros(2, 3))
    kl = [1 / r + math.log(r) - 1 for r in (1.5, 3.0, 1.0, 0.25)]
    assert loss.item() == pytest.approx((first + second) / 2 + 0.1 * sum(kl) / 4, abs=1e-6)


def test_policy_loss_of_vectors_takes_mask_and_reference_of_vectors():
    trainer = trainer_of(bigram(), kl_coef=0.5)
    new, zeros = torch.tensor([0.5, 2.0]).log(), torch.zeros(2)
    loss = trainer.compute_policy_loss(new, zeros, torch.ones(2), torch.tensor([1, 0]), ref_log_probs=zeros)
    assert loss.item() == pytest.approx((-0.5 + 0.5 * (2 + math.log(0.5) - 1)) / 2)


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_step_is_one_of_gradient_ascent_on_the_advantages(wrapped):
    model = bigram(wrapped=wrapped)
    before = model.table.weight.detach().clone().requires_grad_(True)
    stats = trainer_of(model).train_step(made_batch(), step=0)
    expected = reinforce(before, made_batch(), ADVANTAGES)
    expected.backward()
    assert_close(model.table.weight.detach(), before.detach() - 0.5 * before.grad)
    assert stats["loss"] == pytest.approx(0.0, abs=1e-6)  # advantages of a group sum to 0, and the ratio is 1
    assert stats["grad_norm"] == pytest.approx(before.grad.norm().item(), rel=1e-5)
    assert (stats["updated"], stats["clipfrac"], stats["ratio_mean"], stats["kl"]) == (1.0, 0.0, 1.0, 0.0)
    assert stats["reward_mean"] == pytest.approx(2.0)
    assert model.table.weight.grad is None


def test_a_step_raises_the_better_answer():
    model, batch = bigram(), made_batch()
    before = [row.mean().item() for row in log_probs_by_hand(model.table.weight, batch)]
    trainer_of(model, lr=0.05).train_step(batch, step=0)
    after = [row.mean().item() for row in log_probs_by_hand(model.table.weight, batch)]
    assert after[0] - before[0] > after[1] - before[1]
    assert after[3] - before[3] > after[2] - before[2]


@pytest.mark.parametrize("kl_coef", [0.0, 0.3])
def test_accumulated_micro_steps_equal_one_step_on_the_joined_batch(kl_coef):
    whole, parts = bigram(), bigram()
    joined = trainer_of(whole, kl_coef=kl_coef)
    dealt = trainer_of(parts, kl_coef=kl_coef, gradient_accumulation_steps=2)
    for update in range(3):
        batch = made_batch(seed=update)
        joined.train_step(batch, step=update)
        before = parts.table.weight.detach().clone()
        first = dealt.train_step(rows_of(batch, slice(0, 2)), step=2 * update)
        assert first["updated"] == 0.0
        assert "grad_norm" not in first
        assert_close(parts.table.weight.detach(), before, rtol=0, atol=0)
        assert dealt.train_step(rows_of(batch, slice(2, 4)), step=2 * update + 1)["updated"] == 1.0
        assert_close(parts.table.weight, whole.table.weight)
    assert (whole.table.weight - bigram().table.weight).abs().max().item() > 0.01


def test_the_gradient_is_cut_at_its_norm():
    model = bigram()
    before = model.table.weight.detach().clone()
    stats = trainer_of(model, lr=1.0, max_grad_norm=0.01).train_step(made_batch(), step=0)
    assert stats["grad_norm"] > 0.1  # as it was before the cut
    assert (model.table.weight.detach() - before).norm().item() == pytest.approx(0.01, rel=1e-3)


def test_the_reference_is_the_model_as_it_was():
    model = bigram()
    first = model.table.weight.detach().clone()
    trainer = trainer_of(model, lr=5.0, kl_coef=0.2)
    assert trainer.train_step(made_batch(), step=0)["kl"] == pytest.approx(0.0, abs=1e-9)
    moved = model.table.weight.detach().clone().requires_grad_(True)
    stats = trainer.train_step(made_batch(), step=1)
    assert_close(trainer.reference.table.weight, first, rtol=0, atol=0)
    new, ref = log_probs_by_hand(moved, made_batch()), log_probs_by_hand(first, made_batch())
    kl = [(b - a).exp() - (b - a) - 1 for a, b in zip(new, ref, strict=True)]
    assert stats["kl"] == pytest.approx(torch.cat(kl).mean().item(), rel=1e-4)
    assert stats["kl"] > 0.01
    (reinforce(moved, made_batch(), ADVANTAGES) + 0.2 * sum(k.mean() for k in kl) / 4).backward()
    assert_close(model.table.weight.detach(), moved.detach() - 5.0 * moved.grad)


def test_no_reference_is_kept_without_a_kl_coefficient():
    assert trainer_of(bigram()).reference is None


def test_old_log_probabilities_make_the_ratio():
    model, batch = bigram(), made_batch()
    with torch.no_grad():
        new = (
            model.table(batch["input_ids"]).log_softmax(-1)[:, :-1].gather(-1, batch["input_ids"][:, 1:, None])[..., 0]
        )
    old = new - math.log(2.0)  # every ratio is 2: clipped where A > 0, whole where A < 0
    stats = trainer_of(model).train_step({**batch, "old_log_probs": old}, step=0)
    assert stats["ratio_mean"] == pytest.approx(2.0, rel=1e-5)
    assert stats["clipfrac"] == pytest.approx(7 / 10)  # answers 0 and 3 have A > 0, and 4 + 3 of the 10 tokens
    up, down = 1.2 * (ADVANTAGES[0] + ADVANTAGES[3]), 2.0 * (ADVANTAGES[1] + ADVANTAGES[2])
    assert stats["loss"] == pytest.approx(-(up + down) / 4, rel=1e-5)


def test_the_reward_function_gets_the_columns_and_not_the_tensors():
    asked = {}

    def reward_fn(completions, answer):
        asked.update(completions=completions, answer=answer)
        return [float(text == gold) for text, gold in zip(completions, answer, strict=True)]

    batch = made_batch()
    batch.pop("rewards")
    texts, golds = ["1", "2", "3", "4"], ["1", "1", "0", "4"]
    model = bigram()
    columns = {"completions": texts, "answer": golds, "attention_mask": torch.ones(4, 6)}
    stats = trainer_of(model, reward_fn).train_step({**batch, **columns}, step=0)
    assert asked == {"completions": texts, "answer": golds}
    assert (stats["reward_mean"], stats["informative"]) == (0.5, 1.0)
    same = bigram()
    trainer_of(same).train_step({**batch, "rewards": [1.0, 0.0, 0.0, 1.0]}, step=0)
    assert_close(model.table.weight, same.table.weight, rtol=0, atol=0)


def test_rewards_in_the_batch_come_before_the_reward_function():
    def reward_fn(**columns):
        raise AssertionError("not to be asked")

    assert trainer_of(bigram(), reward_fn).train_step(made_batch(), step=0)["reward_mean"] == pytest.approx(2.0)


def test_the_attention_mask_reaches_the_model():
    model, given = bigram(), torch.tensor([[0, 1, 1, 1, 1, 1]] * 4)
    trainer_of(model).train_step({**made_batch(), "attention_mask": given}, step=0)
    trainer_of(model).train_step(made_batch(), step=0)
    assert model.seen_masks[0] is given
    assert_close(model.seen_masks[1], torch.ones(4, 6, dtype=torch.long))


def test_a_flat_group_moves_nothing():
    model = bigram()
    before = copy.deepcopy(model.state_dict())
    stats = trainer_of(model).train_step(made_batch(rewards=[1.0, 1.0, 0.3, 0.3]), step=0)
    assert_close(model.state_dict(), before, rtol=0, atol=0)
    assert (stats["informative"], stats["grad_norm"]) == (0.0, 0.0)


def test_what_it_refuses():
    batch = made_batch()
    batch.pop("rewards")
    with pytest.raises(ValueError, match="group_size=1"):
        trainer_of(bigram(), group_size=1)
    with pytest.raises(ValueError, match="gradient_accumulation_steps=0"):
        trainer_of(bigram(), gradient_accumulation_steps=0)
    with pytest.raises(ValueError, match="reward_fn"):
        trainer_of(bigram()).train_step(batch, step=0)
    with pytest.raises(ValueError, match=r"\b3\b.*\b4\b"):
        trainer_of(bigram(), lambda completions: [1.0] * 3).train_step({**batch, "completions": ["x"] * 4}, step=0)
    with pytest.raises(ValueError, match=r"\b4\b.*\b3\b"):
        trainer_of(bigram(), group_size=3).train_step(made_batch(), step=0)
