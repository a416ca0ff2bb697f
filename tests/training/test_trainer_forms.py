"""The forms in which tutorials call the trainer; each gives the numbers of our own maths."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from outdo import GRPOTrainer, group_advantages, grpo_loss
from outdo.models.tiny import tiny_tokenizer

V, P, T = 13, 2, 3


class Net(nn.Module):
    def __init__(self, size: int = V) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(size, size)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.table(input_ids)


def tokens(rows: int = 8) -> tuple[Tensor, Tensor]:
    """Two prompts, four answers each."""
    rng = torch.Generator().manual_seed(1)
    prompts = torch.randint(V, (rows // 4, P), generator=rng).repeat_interleave(4, 0)
    return prompts, torch.randint(V, (rows, T), generator=rng)


def log_probs_of(net: Net, inputs: Tensor, outputs: Tensor) -> Tensor:
    ids = torch.cat([inputs, outputs], 1)
    all_BTV = net(ids[:, :-1], torch.ones_like(ids)).log_softmax(-1)
    return all_BTV.gather(-1, ids[:, 1:, None])[..., 0][:, P - 1 :]


def stepped(net: Net, loss: Tensor, lr: float) -> Tensor:
    """The weights after one step of plain SGD."""
    (grad,) = torch.autograd.grad(loss, [net.table.weight])
    return (net.table.weight - lr * grad).detach()


def trainer_of(net: Net, **keys: Any) -> GRPOTrainer:
    return GRPOTrainer(net, optimizer=torch.optim.SGD(net.parameters(), 0.5), max_grad_norm=1e9, **keys)


REWARDS = [1.0, 0.0, 0.5, 0.0, 0.0, 1.0, 1.0, 1.0]


def sevens(inputs: Tensor, outputs: Tensor) -> list[float]:
    return [
        float((answer > 6).float().mean() - prompt[0] / 100) for prompt, answer in zip(inputs, outputs, strict=True)
    ]


def test_the_loop_of_a_tutorial() -> None:
    """Token ids as inputs and outputs, the sampler's log_probs, reward_fn(inputs, outputs), a reference, no step."""
    net, reference = Net(), Net()
    reference.table.weight.data += 0.3 * torch.randn(V, V, generator=torch.Generator().manual_seed(2))
    inputs, outputs = tokens()
    old = log_probs_of(net, inputs, outputs).detach() + 0.1
    new, ref = log_probs_of(net, inputs, outputs), log_probs_of(reference, inputs, outputs)
    advantages = group_advantages(sevens(inputs, outputs), 4)
    loss, stats = grpo_loss(new, old, advantages, torch.ones(8, T), ref_logprobs_BT=ref, epsilon=0.2, beta=0.04)
    expected = stepped(net, loss, 0.5)
    trainer = trainer_of(net, ref_model=reference, reward_fn=sevens, group_size=4, clip_eps=0.2, kl_coef=0.04)
    metrics = trainer.train_step({"inputs": inputs, "outputs": outputs, "log_probs": old})
    assert metrics["loss"] == pytest.approx(float(loss), abs=1e-6)
    assert metrics["kl"] == pytest.approx(float(stats["kl"]), rel=1e-4) and metrics["kl"] > 0.01
    assert_close(net.table.weight.detach(), expected)
    assert not any(p.requires_grad for p in reference.parameters())


@pytest.mark.parametrize("per_answer", [False, True])
def test_log_probs_with_their_gradient(per_answer: bool) -> None:
    """Texts as inputs and outputs, and log_probs that the user's model computed."""
    net, (inputs, outputs) = Net(), tokens()
    new = log_probs_of(net, inputs, outputs)
    new = new.sum(1) if per_answer else new
    old = new.detach() - 0.3
    as_BT = (lambda x: x[:, None]) if per_answer else (lambda x: x)
    mask = torch.ones_like(as_BT(new))
    loss, _ = grpo_loss(as_BT(new), as_BT(old), group_advantages(REWARDS, 4), mask, epsilon=0.1)
    expected = stepped(net, loss, 0.5)
    texts = {"inputs": ["a"] * 4 + ["b"] * 4, "outputs": ["x"] * 8}
    new = log_probs_of(net, inputs, outputs)
    batch = {**texts, "log_probs": new.sum(1) if per_answer else new, "old_log_probs": old}
    metrics = trainer_of(net, reward_fn=lambda i, o: REWARDS, epsilon=0.1).train_step(batch)
    assert metrics["loss"] == pytest.approx(float(loss), abs=1e-6) and metrics["clipfrac"] > 0
    assert_close(net.table.weight.detach(), expected)


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("per_answer", [False, True])
def test_log_probs_with_a_reference(per_answer: bool, joined: bool) -> None:
    """The reference reads the batch's tokens: prompts and answers of several lengths, or both in one row."""
    net, reference, (inputs, outputs) = Net(), Net(), tokens()
    reference.table.weight.data += 0.3 * torch.randn(V, V, generator=torch.Generator().manual_seed(2))
    mask = torch.tensor([[1.0] * 3, [1.0, 1.0, 0.0]] * 4)
    short = [row[: int(keep.sum())] for row, keep in zip(outputs, mask, strict=True)]
    prompts = [*inputs[:4].tolist(), *([5, *one] for one in inputs[4:].tolist())]  # a Net reads only the last token
    summed = (lambda x: (x * mask).sum(1, keepdim=True)) if per_answer else (lambda x: x)
    new, ref = (summed(log_probs_of(one, inputs, outputs)) for one in (net, reference))
    advantages, trained = group_advantages(REWARDS, 4), torch.ones(8, 1) if per_answer else mask
    loss, stats = grpo_loss(new, new.detach(), advantages, trained, ref_logprobs_BT=ref, beta=0.04)
    expected = stepped(net, loss, 0.5)
    ids = torch.cat([inputs, outputs], 1)
    where = torch.nn.functional.pad(mask, (P, 0))
    new = log_probs_of(net, inputs, outputs)
    if joined:
        batch = {"input_ids": ids, "completion_mask": where}
        new = new if per_answer else torch.nn.functional.pad(new, (P - 1, 0))
    else:
        batch = {"inputs": prompts, "outputs": outputs if per_answer else short, "mask": mask}
    batch |= {"log_probs": (new * mask).sum(1) if per_answer else new, "rewards": REWARDS}
    metrics = trainer_of(net, ref_model=reference, kl_coef=0.04).train_step(batch)
    assert metrics["kl"] == pytest.approx(float(stats["kl"]), rel=1e-4) and metrics["kl"] > 0.01
    assert_close(net.table.weight.detach(), expected)


def test_one_old_number_for_each_answer() -> None:
    net, (inputs, outputs) = Net(), tokens()
    new = log_probs_of(net, inputs, outputs).sum(1)
    old = new.detach() - 0.1
    loss, _ = grpo_loss(new[:, None], old[:, None], group_advantages(REWARDS, 4), torch.ones(8, 1))
    expected = stepped(net, loss, 0.5)
    trainer_of(net).train_step({"inputs": inputs, "outputs": outputs, "log_probs": old, "rewards": REWARDS})
    assert_close(net.table.weight.detach(), expected)


def test_texts_with_a_tokenizer() -> None:
    tokenizer = tiny_tokenizer()
    net = Net(len(tokenizer))
    twin, texts = copy.deepcopy(net), (["1+1"] * 2 + ["2+2"] * 2, ["2", "33", "4", "<answer>4</answer>"])
    batch = {"prompts": texts[0], "completions": texts[1], "answer": ["2", "2", "4", "4"]}

    def right(completions: list[str], answer: list[str], **rest: Any) -> list[float]:
        assert rest == {"prompts": texts[0]}
        return [float(gold in text) for text, gold in zip(completions, answer, strict=True)]

    metrics = trainer_of(net, reward_fn=right, group_size=2, processing_class=tokenizer).train_step(batch)
    assert metrics["reward_mean"] == 0.75
    rows = [
        (tokenizer.encode(p, add_special_tokens=False), tokenizer.encode(c, add_special_tokens=False))
        for p, c in zip(*texts, strict=True)
    ]
    rows = [(p, [*c, tokenizer.eos_token_id]) for p, c in rows]
    width = max(len(p) + len(c) for p, c in rows)
    ids = torch.tensor([[*p, *c] + [0] * (width - len(p) - len(c)) for p, c in rows])
    mask = torch.tensor([[0] * len(p) + [1] * len(c) + [0] * (width - len(p) - len(c)) for p, c in rows])
    same = {"input_ids": ids, "completion_mask": mask, "rewards": [1.0, 0.0, 1.0, 1.0]}
    assert trainer_of(twin, group_size=2).train_step(same)["grad_norm"] == pytest.approx(metrics["grad_norm"])
    assert_close(net.table.weight, twin.table.weight)


@pytest.mark.parametrize("shape", [list, lambda x: x[:, None], lambda x: x, "pair"])
def test_shapes_of_advantages(shape: Any) -> None:
    net, (inputs, outputs) = Net(), tokens()
    trainer, new = trainer_of(net), log_probs_of(net, inputs, outputs)
    advantages = group_advantages(REWARDS, 4)
    given = trainer.compute_advantages(REWARDS, 4) if shape == "pair" else shape(advantages)
    loss = trainer.compute_policy_loss(new, new.detach() - 0.5, given)
    assert_close(loss, grpo_loss(new, new.detach() - 0.5, advantages, torch.ones(8, T))[0])
    if shape != "pair":
        metrics = trainer.train_step({"log_probs": new, "old_log_probs": new.detach() - 0.5, "advantages": given})
        assert metrics["loss"] == pytest.approx(float(loss), abs=1e-6)


def test_advantages_by_any_group_size() -> None:
    trainer = trainer_of(Net(), group_size=4)
    for rewards in (REWARDS, torch.tensor(REWARDS)[:, None], torch.tensor(REWARDS).view(4, 2).numpy()):
        advantages, stats = trainer.compute_advantages(rewards, 2)
        assert_close(advantages.float(), group_advantages(REWARDS, 2))
        assert stats["informative"] == 0.75
    with pytest.raises(ValueError, match="3"):
        trainer.compute_advantages(REWARDS, group_size=3)


def test_prompts_of_a_group() -> None:
    net, (inputs, outputs) = Net(), tokens()
    for prompts in (["2+2"] * 3 + ["3+3"] * 5, inputs.roll(1, 0)):
        with pytest.raises(ValueError, match="one group of 4") as caught:
            trainer_of(net).train_step(
                {
                    "inputs": prompts,
                    "outputs": outputs,
                    "log_probs": torch.zeros(8, T, requires_grad=True),
                    "rewards": REWARDS,
                }
            )
        if isinstance(prompts, list):
            assert "'2+2' and '3+3'" in str(caught.value)
    once = {"inputs": inputs[::4], "outputs": outputs, "rewards": REWARDS}  # a prompt for each group
    trainer_of(net).train_step(once)
    twin = Net()
    trainer_of(twin).train_step({**once, "inputs": inputs})
    assert_close(net.table.weight, twin.table.weight)


def test_a_rate_and_other_names() -> None:
    net, (inputs, outputs) = Net(), tokens()
    trainer = GRPOTrainer(
        model=net, reward_funcs=sevens, learning_rate=1e-2, num_generations=4, beta=0.1, clip_ratio=0.3
    )
    assert (trainer.kl_coef, trainer.clip_range, trainer.group_size) == (0.1, 0.3, 4)
    before = net.table.weight.detach().clone()
    for _ in range(2):
        assert trainer.train_step({"inputs": inputs, "outputs": outputs})["updated"]
    moved = (net.table.weight.detach() - before).abs().max()
    assert 0.005 < moved < 0.03 and trainer.steps == 2


@pytest.mark.parametrize(
    ("keys", "error", "words"),
    [
        ({}, ValueError, "lr"),
        ({"lr": 1.0, "train_dataset": []}, TypeError, "outdo.train"),
        ({"lr": 1.0, "clip_epz": 0.2}, TypeError, "clip_eps"),
    ],
)
def test_refused_arguments(keys: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        GRPOTrainer(Net(), sevens, **keys)


def test_refused_batches() -> None:
    net, (inputs, outputs) = Net(), tokens()
    texts = {"inputs": ["a"] * 8, "outputs": ["b"] * 8, "log_probs": torch.zeros(8)}
    for batch, words in (
        ({"rewards": REWARDS}, "input_ids"),
        ({"inputs": inputs[:3], "outputs": outputs}, "3 prompts for 8 answers"),
        (texts, "tokenizer"),
        ({"input_ids": inputs, "rewards": REWARDS}, "completion_mask"),
        ({"log_probs": torch.zeros(8, requires_grad=True), "rewards": REWARDS}, "ref_log_probs"),
        ({"inputs": inputs, "outputs": outputs, "advantages": [1.0]}, "8 answers"),
    ):
        with pytest.raises(ValueError, match=words):
            trainer_of(net, kl_coef=0.1, reward_fn=sevens).train_step(batch)
    with pytest.raises(ValueError, match="gold"):
        trainer_of(net, reward_fn=lambda outputs, gold: [0.0] * 8).train_step({"inputs": inputs, "outputs": outputs})
