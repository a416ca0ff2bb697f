"""The losses against a second implementation: loops over plain floats, gradients worked out on paper.

`test_gates.py` has those that need more than the ratio of a token or of an answer.
"""

import math
from dataclasses import dataclass, field

import pytest
import torch
from torch.testing import assert_close

from outdo.algo.losses import LOSSES, grpo_loss

TOKEN_CLIP = ("grpo", "bnpo", "dapo", "dr_grpo")
RATIO_LOSSES = (*TOKEN_CLIP, "gspo", "cispo", "luspo")
EVERY_RATIO_LOSS = pytest.mark.parametrize("loss_type", RATIO_LOSSES)
EVERY_LOSS = pytest.mark.parametrize("loss_type", LOSSES)
LIMIT = 9  # max_completion_length
LENGTHS = (3, 1, 5, 2, 0, 4)


@dataclass
class Plain:
    """What the loop found: the loss, its gradient by every new log-probability, and the means over tokens."""

    loss: float = 0.0
    gradient: list = field(default_factory=list)
    clipfrac: float = 0.0
    kl: float = 0.0
    ratio_mean: float = 0.0


def penalty(estimator, new, ref):
    """A KL estimate and its derivative by `new`."""
    d = ref - new
    return {"k1": (-d, 1.0), "k2": (d * d / 2, -d), "k3": (math.exp(d) - d - 1, 1 - math.exp(d))}[estimator]


def surrogate(loss_type, row, t, advantage, low, high):
    """A token's loss, its derivatives by all log-probabilities of its row, its ratio, and whether it was clipped."""
    new, old = row
    by = [0.0] * len(new)
    if loss_type == "cispo":
        ratio = math.exp(new[t] - old[t])
        weight = min(ratio, 5.0 if high is None else high)
        by[t] = -weight * advantage
        return -weight * advantage * new[t], by, ratio, weight < ratio and advantage > 0
    if loss_type in ("gspo", "luspo"):
        ratio = math.exp(sum(a - b for a, b in zip(new, old, strict=True)) / len(new))
        share = [1 / len(new)] * len(new)
    else:
        ratio = math.exp(new[t] - old[t])
        share = [float(u == t) for u in range(len(new))]
    high = low if high is None else high
    if advantage > 0 and ratio > 1 + high:
        return -(1 + high) * advantage, by, ratio, True
    if advantage < 0 and ratio < 1 - low:
        return -(1 - low) * advantage, by, ratio, True
    return -ratio * advantage, [-ratio * advantage * s for s in share], ratio, False


def plain_loss(batch, loss_type, low=0.2, high=None, beta=0.0, estimator="k3", entropy_coef=0.0):
    """The definition of each loss: for every real token its share of the mean, times its loss."""
    lengths = [int(m.sum()) for m in batch["mask"]]
    num_tokens, num_rows = sum(lengths), len(lengths)
    out = Plain(gradient=[[0.0] * batch["new"].shape[1] for _ in lengths])
    for i, length in enumerate(lengths):
        new, old, ref, weights, entropy = (
            batch[key][i, :length].tolist() for key in ("new", "old", "ref", "weights", "entropy")
        )
        for t in range(length):
            share = {
                "grpo": 1 / (length * num_rows),
                "gspo": 1 / (length * num_rows),
                "dr_grpo": 1 / (num_rows * LIMIT),
                "luspo": 1 / num_rows,
            }
            part = share.get(loss_type, 1 / num_tokens)
            value, by, ratio, clipped = surrogate(loss_type, (new, old), t, batch["advantages"][i].item(), low, high)
            kl, kl_by = penalty(estimator, new[t], ref[t])
            out.loss += part * (weights[t] * value + beta * kl) - entropy_coef * entropy[t] / num_tokens
            for u in range(length):
                out.gradient[i][u] += part * weights[t] * by[u]
            out.gradient[i][t] += part * beta * kl_by
            out.clipfrac += clipped / num_tokens
            out.kl += kl / num_tokens
            out.ratio_mean += ratio / num_tokens
    return out


def made_batch(seed=0, spread=0.4, lengths=LENGTHS):
    """Ragged rows in double precision; ratios that reach all regimes."""
    generator = torch.Generator().manual_seed(seed)
    shape = (len(lengths), max(lengths))
    normal = [torch.randn(*shape, generator=generator, dtype=torch.float64) for _ in range(3)]
    new = -normal[0].abs() - 0.1
    return {
        "new": new,
        "old": new + spread * normal[1],
        "ref": new + 0.3 * normal[2],
        "advantages": torch.tensor([1.3, -0.7, -1.1, 0.9, 0.4, 0.0], dtype=torch.float64)[: len(lengths)],
        "mask": torch.arange(max(lengths)) < torch.tensor(lengths)[:, None],
        "weights": torch.rand(*shape, generator=generator, dtype=torch.float64) + 0.5,
        "entropy": torch.rand(*shape, generator=generator, dtype=torch.float64),
        "chosen": torch.rand(*shape, generator=generator) > 0.6,
    }


def own_keys(loss_type, batch):
    """What a loss cannot do without."""
    variant = LOSSES[loss_type]
    level = {} if "token" in variant.levels else {"importance_sampling_level": "sequence"}
    return {"chosen_BT": batch["chosen"] if variant.choose else None, **level}


def run(batch, loss_type, weights=False, ref=True, entropy_coef=0.0, **options):
    """Loss, gradient and stats of ours."""
    new = batch["new"].clone().requires_grad_(True)
    loss, stats = grpo_loss(
        new,
        batch["old"],
        batch["advantages"],
        batch["mask"],
        ref_logprobs_BT=batch["ref"] if ref else None,
        loss_type=loss_type,
        max_completion_length=LIMIT,
        weights_BT=batch["weights"] if weights else None,
        entropy_BT=batch["entropy"] if entropy_coef else None,
        entropy_coef=entropy_coef,
        **own_keys(loss_type, batch),
        **options,
    )
    loss.backward()
    return loss.detach(), new.grad, {key: value.item() for key, value in stats.items()}


def part_of(batch, rows):
    return {key: value[rows] for key, value in batch.items()}


@EVERY_RATIO_LOSS
@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
@pytest.mark.parametrize(("low", "high"), [(0.2, None), (0.2, 0.28), (0.05, 1.5), (10.0, 10.0)])
def test_loss_gradient_and_stats_equal_the_definition(loss_type, estimator, low, high):
    batch = made_batch(seed=3)
    ones = {**batch, "weights": torch.ones_like(batch["weights"])}
    expected = plain_loss(ones, loss_type, low, high, beta=0.07, estimator=estimator)
    loss, gradient, stats = run(batch, loss_type, epsilon=low, epsilon_high=high, beta=0.07, kl_estimator=estimator)
    assert loss.item() == pytest.approx(expected.loss, rel=1e-10)
    assert_close(gradient, torch.tensor(expected.gradient, dtype=torch.float64))
    assert stats["clipfrac"] == pytest.approx(expected.clipfrac)
    assert stats["kl"] == pytest.approx(expected.kl)
    assert stats["ratio_mean"] == pytest.approx(expected.ratio_mean)


def test_the_made_batch_reaches_every_regime():
    """Else the comparison above would compare little."""
    batch = made_batch(seed=3)
    for loss_type in TOKEN_CLIP:
        assert 0.1 < run(batch, loss_type)[2]["clipfrac"] < 0.9
    assert run(batch, "gspo", epsilon=0.05)[2]["clipfrac"] > 0
    assert run(batch, "cispo", epsilon_high=1.1)[2]["clipfrac"] > 0


@EVERY_RATIO_LOSS
def test_weights_multiply_the_policy_term_alone(loss_type):
    batch = made_batch(seed=5)
    expected = plain_loss(batch, loss_type, beta=0.5)
    loss, gradient, stats = run(batch, loss_type, weights=True, beta=0.5)
    assert loss.item() == pytest.approx(expected.loss, rel=1e-10)
    assert_close(gradient, torch.tensor(expected.gradient, dtype=torch.float64))
    assert stats["kl"] == pytest.approx(expected.kl)


@EVERY_LOSS
def test_entropy_bonus_is_a_token_mean(loss_type):
    batch = made_batch(seed=6)
    without = run(batch, loss_type)[0]
    mean = batch["entropy"][batch["mask"]].mean().item()
    assert run(batch, loss_type, entropy_coef=0.3)[0].item() == pytest.approx(without.item() - 0.3 * mean)


def test_the_entropy_bonus_raises_entropy():
    batch = made_batch(seed=6)
    entropy = batch["entropy"].clone().requires_grad_(True)
    loss, _ = grpo_loss(
        batch["new"], batch["old"], batch["advantages"], batch["mask"], entropy_BT=entropy, entropy_coef=0.3
    )
    loss.backward()
    assert_close(entropy.grad, -0.3 / 15 * batch["mask"].double())


def test_three_reductions_by_hand():
    """On policy the ratio is 1: two answers of 1 and 4 tokens with advantages 2 and -1 weigh differently in each."""
    zeros, mask = torch.zeros(2, 4), torch.tensor([[1, 0, 0, 0], [1, 1, 1, 1]])
    values = {
        loss_type: grpo_loss(
            zeros, zeros, torch.tensor([2.0, -1.0]), mask, loss_type=loss_type, max_completion_length=10
        )[0].item()
        for loss_type in (*TOKEN_CLIP, "gspo")
    }
    assert values["grpo"] == values["gspo"] == pytest.approx((-2 + 1) / 2)
    assert values["bnpo"] == values["dapo"] == pytest.approx((-2 + 4) / 5)
    assert values["dr_grpo"] == pytest.approx((-2 + 4) / (2 * 10))


def test_sequences_without_tokens_count_as_sequences():
    zeros = torch.zeros(2, 2)
    loss, _ = grpo_loss(zeros, zeros, torch.tensor([1.0, 1.0]), torch.tensor([[1, 1], [0, 0]]))
    assert loss.item() == pytest.approx(-0.5)


@EVERY_LOSS
@pytest.mark.parametrize("split", [((0, 1, 2), (3, 4, 5)), ((5, 2), (0,), (4,), (1, 3))])
def test_parts_add_up_to_the_whole(loss_type, split):
    batch = made_batch(seed=8)
    options = {"beta": 0.05, "epsilon_high": 0.28, "weights": True, "entropy_coef": 0.1}
    whole_loss, whole_gradient, _ = run(batch, loss_type, **options)
    loss, gradient = 0.0, torch.zeros_like(whole_gradient)
    for rows in map(list, split):
        part = run(part_of(batch, rows), loss_type, num_tokens=sum(LENGTHS), num_sequences=len(LENGTHS), **options)
        loss += part[0].item()
        gradient[rows] = part[1]
    assert loss == pytest.approx(whole_loss.item(), rel=1e-10)
    assert_close(gradient, whole_gradient)


def test_without_the_totals_a_part_is_its_own_whole():
    """Shows that the totals matter: halves of different lengths do not average to the whole's token mean."""
    batch = made_batch(seed=8)
    halves = [run(part_of(batch, rows), "bnpo")[0].item() for rows in ([0, 1, 3], [2, 4, 5])]
    assert abs(sum(halves) / 2 - run(batch, "bnpo")[0].item()) > 1e-3


@EVERY_LOSS
@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf, 1e30, -1e30])
def test_masked_tokens_are_ignored(loss_type, garbage):
    clean = made_batch(seed=2)
    hidden = ~clean["mask"]
    dirty = {key: clean[key].masked_fill(hidden, garbage) for key in ("new", "old", "ref")}
    expected = run(clean, loss_type, beta=0.1)
    loss, gradient, stats = run({**clean, **dirty}, loss_type, beta=0.1)
    assert loss.item() == expected[0].item()
    assert_close(gradient, expected[1], rtol=0, atol=0)
    assert gradient[hidden].abs().max().item() == 0.0
    assert stats == expected[2]


@EVERY_LOSS
def test_a_batch_without_a_single_token_is_zero(loss_type):
    batch = made_batch()
    loss, gradient, stats = run({**batch, "mask": torch.zeros_like(batch["mask"])}, loss_type, beta=0.1)
    assert loss.item() == 0.0
    assert gradient.abs().max().item() == 0.0
    assert stats == {"clipfrac": 0.0, "kl": 0.0, "ratio_mean": 0.0}


@EVERY_LOSS
def test_old_log_probabilities_get_no_gradient(loss_type):
    batch = made_batch()
    new, old = (batch[key].clone().requires_grad_(True) for key in ("new", "old"))
    loss, stats = grpo_loss(
        *(new, old, batch["advantages"], batch["mask"]),
        loss_type=loss_type,
        max_completion_length=LIMIT,
        **own_keys(loss_type, batch),
    )
    loss.backward()
    assert old.grad is None
    assert not any(value.requires_grad for value in stats.values())


@EVERY_LOSS
def test_on_policy_every_loss_is_reinforce(loss_type):
    """Passing the new log-probabilities as the old ones: the gradient of a token is -A times its share of the mean."""
    batch = made_batch(lengths=(3, 3))
    new = batch["new"].clone().requires_grad_(True)
    keys = own_keys(loss_type, {**batch, "chosen": torch.zeros_like(batch["mask"])})
    loss, stats = grpo_loss(
        new, new, batch["advantages"], batch["mask"], loss_type=loss_type, max_completion_length=LIMIT, **keys
    )
    loss.backward()
    share = {"dr_grpo": 1 / (2 * LIMIT), "luspo": 1 / 2}.get(loss_type, 1 / 6)
    assert_close(new.grad, -batch["advantages"][:, None].expand(2, 3) * share)
    assert (stats["clipfrac"].item(), stats["ratio_mean"].item()) == (0.0, 1.0)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32])
def test_masks_of_any_type_mean_the_same(dtype):
    batch = made_batch()
    assert run({**batch, "mask": batch["mask"].to(dtype)}, "dapo", beta=0.1)[0] == run(batch, "dapo", beta=0.1)[0]


def test_kl_without_beta_is_only_measured():
    batch = made_batch()
    loss, gradient, stats = run(batch, "grpo", beta=0.0)
    bare_loss, bare_gradient, bare_stats = run(batch, "grpo", ref=False)
    assert loss == bare_loss
    assert_close(gradient, bare_gradient, rtol=0, atol=0)
    assert stats["kl"] == pytest.approx(plain_loss(batch, "grpo").kl)
    assert bare_stats["kl"] == 0.0


def test_cispo_caps_at_five_unless_told():
    """A ratio of e^2 = 7.39: capped at 5, at 6, or not at all."""
    new, old = torch.tensor([[-1.0]], dtype=torch.float64), torch.tensor([[-3.0]], dtype=torch.float64)
    one = torch.ones(1, dtype=torch.float64)
    for cap, weight in ((None, 5.0), (6.0, 6.0), (10.0, math.exp(2))):
        loss, _ = grpo_loss(new, old, one, torch.ones(1, 1), loss_type="cispo", epsilon_high=cap)
        assert loss.item() == pytest.approx(weight)


def test_an_epsilon_high_of_zero_is_not_taken_for_none():
    new, old = torch.tensor([[0.0]]), torch.tensor([[-1.0]])
    assert grpo_loss(new, old, torch.ones(1), torch.ones(1, 1), epsilon_high=0.0)[0].item() == pytest.approx(-1.0)


def test_an_unknown_loss_is_refused_with_the_known_ones():
    zeros = torch.zeros(1, 1)
    with pytest.raises(ValueError, match=r"'gropo'.*grpo.*dr_grpo"):
        grpo_loss(zeros, zeros, torch.ones(1), torch.ones(1, 1), loss_type="gropo")


def test_beta_needs_a_reference():
    zeros = torch.zeros(1, 1)
    with pytest.raises(ValueError, match=r"beta=0\.04.*ref_logprobs"):
        grpo_loss(zeros, zeros, torch.ones(1), torch.ones(1, 1), beta=0.04)


def test_dr_grpo_needs_its_constant():
    zeros = torch.zeros(1, 1)
    with pytest.raises(ValueError, match="max_completion_length"):
        grpo_loss(zeros, zeros, torch.ones(1), torch.ones(1, 1), loss_type="dr_grpo")


def test_an_entropy_bonus_needs_entropies():
    zeros = torch.zeros(1, 1)
    with pytest.raises(ValueError, match="entropy_BT"):
        grpo_loss(zeros, zeros, torch.ones(1), torch.ones(1, 1), entropy_coef=0.1)
