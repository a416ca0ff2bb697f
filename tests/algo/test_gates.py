"""The losses that take the place of the clipped ratio, against numbers worked out by hand."""

import math

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing import assert_close

from outdo.algo.choose import Tokens, covariances, largest_covariance, top_entropy, within_covariance
from outdo.algo.losses import LOSSES, Settings, grpo_loss
from outdo.recipe.schema import Recipe


def one(log_ratio, advantage, loss_type, logprob=-1.0, **keys):
    """Loss and gradient of an answer of one token."""
    new = torch.tensor([[logprob]], dtype=torch.float64, requires_grad=True)
    old = torch.tensor([[logprob - log_ratio]], dtype=torch.float64)
    at = new, old, torch.tensor([advantage], dtype=torch.float64), torch.ones(1, 1)
    loss, stats = grpo_loss(*at, loss_type=loss_type, **keys)
    loss.backward()
    return loss.item(), new.grad.item(), stats["clipfrac"].item()


def rows(new, old, advantages, loss_type, **keys):
    """Loss and gradient of answers; None is a masked token, which holds NaN."""
    mask = torch.tensor([[value is not None for value in row] for row in new])
    filled = [torch.tensor([[math.nan if v is None else v for v in row] for row in values]) for values in (new, old)]
    leaf = filled[0].double().requires_grad_(True)
    loss, stats = grpo_loss(leaf, filled[1].double(), torch.tensor(advantages), mask, loss_type=loss_type, **keys)
    loss.backward()
    return loss.item(), leaf.grad, stats


def test_settings_have_the_recipes_defaults():
    recipe = Recipe()
    assert Settings.of(recipe) == Settings()
    assert {key for loss in LOSSES.values() for key in loss.reads or ()} <= set(Settings.__dataclass_fields__)


@pytest.mark.parametrize("loss_type", LOSSES)
def test_no_value_is_read(loss_type):
    """On a GPU, reading one would wait for all work under way. A fake tensor has none, and says so."""
    level = {} if "token" in LOSSES[loss_type].levels else {"importance_sampling_level": "sequence"}
    keys = {"use_bias_correction_kl": True, "off_policy_mask_threshold": 0.1, "top_entropy_quantile": 0.5, **level}
    keys |= {"loss_type": loss_type, "beta": 0.1, "entropy_coef": 0.1, "max_completion_length": 8}
    keys |= {"num_tokens": 12, "num_sequences": 3, "num_chosen": 4}
    with FakeTensorMode():
        names = "ref_logprobs_BT", "weights_BT", "sampler_logprobs_BT", "entropy_BT"
        tensors = {name: torch.randn(3, 4) for name in names} | {"chosen_BT": torch.ones(3, 4, dtype=torch.bool)}
        new = torch.randn(3, 4, requires_grad=True)
        loss, _ = grpo_loss(new, torch.randn(3, 4), torch.randn(3), torch.ones(3, 4), **tensors, **keys)
        loss.backward()
        with pytest.raises(RuntimeError):
            loss.item()


# --- SAPO
@pytest.mark.parametrize(("advantage", "t"), [(2.0, 1.0), (-2.0, 1.05)])
@pytest.mark.parametrize("ratio", [0.25, 1.0, 3.0])
def test_sapo_gate(advantage, t, ratio):
    s = 1 / (1 + math.exp(-t * (ratio - 1)))
    loss, gradient, clipped = one(math.log(ratio), advantage, "sapo")
    assert loss == pytest.approx(-advantage * 4 / t * s)
    assert gradient == pytest.approx(-advantage * 4 * s * (1 - s) * ratio)  # d ratio / d log p is the ratio
    assert clipped == 0.0


def test_sapo_at_a_ratio_of_one_has_the_gradient_of_the_policy():
    assert one(0.0, 3.0, "sapo", sapo_temperature_pos=7.0)[1] == pytest.approx(-3.0)
    assert one(0.0, -3.0, "sapo", sapo_temperature_neg=0.5)[1] == pytest.approx(3.0)


@pytest.mark.parametrize("loss_type", ["sapo", "vespo", "gmpo", "dppo"])
def test_a_boundless_ratio_has_a_finite_gradient(loss_type):
    for log_ratio in (800.0, -800.0):
        loss, gradient, _ = one(log_ratio, 1.0, loss_type)
        assert math.isfinite(loss) and math.isfinite(gradient)


def test_sapo_per_answer():
    """Ratios 2 and 1/8: the mean of the logs is log 1/2."""
    new, old = [[-1.0, -1.0]], [[-1.0 - math.log(2), -1.0 + math.log(8)]]
    loss, gradient, _ = rows(new, old, [1.0], "sapo", importance_sampling_level="sequence")
    s = 1 / (1 + math.exp(0.5))
    assert loss == pytest.approx(-4 * s)
    assert gradient.tolist() == [pytest.approx([-4 * s * (1 - s) * 0.5 / 2] * 2)]


# --- VESPO
def test_vespo_weighs_by_the_product_of_ratios():
    """Ratios 2 and 1/4 give w = 1/2: w^2 e^(3 (1 - w)) where A is positive, w^3 e^(2 (1 - w)) where it is negative."""
    new, old = [[-1.0, -2.0], [-1.0, -2.0]], [[-1.0 - math.log(2), -2.0 + math.log(4)]] * 2
    loss, gradient, _ = rows(new, old, [2.0, -1.0], "vespo")
    pos, neg = 0.25 * math.exp(1.5), 0.125 * math.exp(1.0)
    assert loss == pytest.approx((-pos * 2.0 * -3.0 + neg * -3.0) / 4)
    assert_close(gradient, torch.tensor([[-pos * 2.0] * 2, [neg] * 2], dtype=torch.float64) / 4)


def test_vespo_has_the_samplers_weights_inside():
    weights = torch.tensor([[0.5]], dtype=torch.float64)
    assert one(0.0, 1.0, "vespo", weights_BT=weights)[1] == pytest.approx(-0.25 * math.exp(1.5))
    dropped = one(0.0, 1.0, "vespo", weights_BT=torch.zeros(1, 1))[1]
    assert -1e-13 < dropped < 0  # counts as 1e-8


# --- LUSPO
def test_luspo_counts_an_answer_by_its_length():
    zeros = [[0.0, None, None], [0.0, 0.0, 0.0]]
    loss, gradient, _ = rows(zeros, [[0.0] * 3] * 2, [2.0, -1.0], "luspo", importance_sampling_level="sequence")
    assert loss == pytest.approx((-2.0 * 1 + 1.0 * 3) / 2)
    assert gradient.tolist() == [[-1.0, 0.0, 0.0], [0.5, 0.5, 0.5]]


# --- GMPO
def test_gmpo_is_the_geometric_mean_of_clipped_ratios():
    """A > 0 clips log-ratios above 0.4, A < 0 those below -0.3: 1, -1 become 0.4, -1 and 1, -0.3."""
    new, old = [[0.0, 0.0, None]] * 2, [[-1.0, 1.0, 5.0]] * 2
    loss, gradient, stats = rows(new, old, [1.0, -1.0], "gmpo", epsilon=0.3, epsilon_high=0.4)
    up, down = math.exp((0.4 - 1) / 2), math.exp((1 - 0.3) / 2)
    assert loss == pytest.approx((-up + down) / 2)
    assert_close(gradient, torch.tensor([[0, -up / 4, 0], [down / 4, 0, 0]], dtype=torch.float64))
    assert stats["clipfrac"].item() == 0.5


# --- DPPO
def test_dppo_by_total_variation():
    """A probability from 0.5 to 0.8 has moved 0.3: beyond 0.28 upwards. From 0.01 to 0.03 it is tripled, but near."""
    keys = {"epsilon": 0.2, "epsilon_high": 0.28}
    assert one(math.log(0.8 / 0.5), 1.0, "dppo", math.log(0.8), **keys)[1:] == (0.0, 1.0)
    assert one(math.log(0.8 / 0.5), -1.0, "dppo", math.log(0.8), **keys)[1] == pytest.approx(1.6)
    loss, gradient, clipped = one(math.log(3), 1.0, "dppo", math.log(0.03), **keys)
    assert (loss, gradient, clipped) == (pytest.approx(-3 * math.log(0.03)), pytest.approx(-3.0), 0.0)
    fallen = math.log(0.5 / 0.75)  # by 0.25, beyond 0.2
    assert one(fallen, -1.0, "dppo", math.log(0.5), **keys)[1:] == (0.0, 1.0)
    assert one(fallen, 1.0, "dppo", math.log(0.5), **keys)[1] == pytest.approx(-2 / 3)


def test_dppo_by_kl():
    """KL of coins (0.5 | 0.8) is 0.5 ln(0.5 / 0.8) + 0.5 ln(0.5 / 0.2) = 0.2231."""
    at = (math.log(0.8 / 0.5), 1.0, "dppo", math.log(0.8))
    for bound, is_masked in ((0.2230, 1.0), (0.2232, 0.0)):
        assert one(*at, divergence_type="binary_kl", epsilon_high=bound)[2] == is_masked


def test_dppo_caps_the_ratio_and_measures_it_to_the_sampler():
    tripled = {"sampler_logprobs_BT": torch.tensor([[math.log(0.01)]], dtype=torch.float64)}
    assert one(0.0, 1.0, "dppo", math.log(0.03), **tripled)[1] == pytest.approx(-3.0)
    assert one(0.0, 1.0, "dppo", math.log(0.03), clip_ratio_c=2.0, **tripled)[1] == pytest.approx(-2.0)


# --- two-sided clip
@pytest.mark.parametrize(("ratio", "gradient"), [(3.9, 3.9), (4.1, 0.0)])
def test_delta_bounds_the_ratio_of_worse_answers(ratio, gradient):
    loss, g, clipped = one(math.log(ratio), -1.0, "grpo", delta=4.0)
    assert (loss, g, clipped) == (pytest.approx(min(ratio, 4.0)), pytest.approx(gradient), float(not gradient))
    assert one(math.log(ratio), 1.0, "grpo", delta=4.0)[0] == pytest.approx(-1.2)


def test_delta_within_the_clip_is_refused():
    with pytest.raises(ValueError, match=r"delta=1\.2"):
        one(0.0, 1.0, "grpo", delta=1.2)


# --- Clip-Cov and KL-Cov
def test_clip_cov_drops_the_chosen_tokens():
    chosen = torch.tensor([[True, False, True]])
    new = [[-1.0, -1.0, None]]
    loss, gradient, stats = rows(new, [[-1.0, -1.0, 0.0]], [2.0], "clip_cov", chosen_BT=chosen)
    assert loss == pytest.approx(-2.0 / 2)
    assert gradient.tolist() == [[0.0, -1.0, 0.0]]
    assert stats["clipfrac"].item() == 0.5


def test_kl_cov_adds_a_penalty_to_the_chosen_tokens():
    """Ratios of 2 and 1/2: no clip, and 0.1 |ln 2| for the chosen one, whose gradient is -0.1 as the ratio fell."""
    new, old = [[-1.0, -1.0]], [[-1.0 - math.log(2), -1.0 + math.log(2)]]
    chosen = torch.tensor([[False, True]])
    loss, gradient, stats = rows(new, old, [1.0], "kl_cov", chosen_BT=chosen)
    assert loss == pytest.approx((-2.0 - 0.5 + 0.1 * math.log(2)) / 2)
    assert gradient.tolist() == [pytest.approx([-1.0, (-0.5 - 0.1) / 2])]
    assert stats["clipfrac"].item() == 0.0


@pytest.mark.parametrize("loss_type", ["clip_cov", "kl_cov"])
def test_covariance_losses_need_the_choice(loss_type):
    with pytest.raises(ValueError, match="chosen_BT"):
        one(0.0, 1.0, loss_type)


# --- which tokens
TOKENS = Tokens(
    torch.tensor([1.0, 1.0, -1.0, -1.0, 0.0, 0.0]),
    torch.tensor([-1.0, -5.0, -1.0, -5.0, -3.0, -3.0]),
    torch.tensor([-1.0, -5.0, -1.0, -5.0, -3.0, -3.0]),
)


def test_covariances_are_products_of_deviations():
    """Means 0 and -3."""
    assert covariances(TOKENS).tolist() == [2.0, -2.0, -2.0, 2.0, 0.0, 0.0]
    assert largest_covariance(TOKENS, 0.34).tolist() == [True, False, False, True, False, False]
    assert largest_covariance(TOKENS, 1e-9).sum() == 1


def test_clip_cov_chooses_at_random_within_the_bounds():
    bounds = 1.0, 5.0, 0.2, 0.2
    assert within_covariance(TOKENS, 1.0, *bounds, seed=0).tolist() == [True, False, False, True, False, False]
    picked = [within_covariance(TOKENS, 0.2, *bounds, seed=seed).nonzero().tolist() for seed in range(20)]
    assert sorted(map(str, {str(one): one for one in picked}.values())) == ["[[0]]", "[[3]]"]
    assert not within_covariance(TOKENS, 1.0, 2.0, 5.0, 0.2, 0.2, seed=0).any()
    clipped = TOKENS._replace(sampler_logprobs_M=TOKENS.logprobs_M - torch.tensor([1.0, 0, 0, 0, 0, 0]))
    assert within_covariance(clipped, 1.0, *bounds, seed=0).tolist() == [False, False, False, True, False, False]


def test_top_entropy_keeps_a_share():
    entropies = torch.tensor([0.1, 0.9, 0.5, 0.7, 0.3])
    assert top_entropy(entropies, 0.4).tolist() == [False, True, False, True, False]
    assert top_entropy(entropies, 0.0).tolist() == [False, True, False, False, False]
    assert top_entropy(entropies, 1.0).all() and not len(top_entropy(entropies[:0], 0.5))


def test_top_entropy_masks_the_policy_term_and_the_bonus():
    """KL stays for all tokens; the bonus is a mean over those that are kept."""
    new = torch.zeros(1, 4, requires_grad=True)
    entropy = torch.tensor([[1.0, 2.0, 4.0, 8.0]], requires_grad=True)
    chosen = torch.tensor([[False, False, True, True]])
    keys = {"top_entropy_quantile": 0.5, "chosen_BT": chosen, "entropy_BT": entropy, "entropy_coef": 0.1}
    ref = torch.full((1, 4), math.log(2))
    at = new, torch.zeros(1, 4), torch.tensor([1.0]), torch.ones(1, 4)
    loss, _ = grpo_loss(*at, ref_logprobs_BT=ref, beta=0.4, **keys)
    loss.backward()
    assert loss.item() == pytest.approx(-2 / 4 + 0.4 * (2 - math.log(2) - 1) - 0.1 * 6)
    assert new.grad.tolist() == [pytest.approx([-0.1, -0.1, -0.35, -0.35])]  # KL: 0.4 (1 - 2) / 4
    assert entropy.grad.tolist() == [pytest.approx([0, 0, -0.05, -0.05])]
    with pytest.raises(ValueError, match="top_entropy_quantile"):
        grpo_loss(*at, top_entropy_quantile=0.5)


# --- off-policy mask, unbiased KL
def test_worse_answers_far_from_the_sampler_are_dropped():
    """Mean log(sampler / policy) is 0.5 for all: only A < 0 is dropped, and only above the threshold."""
    new, old = [[-1.0, -1.0, None]] * 3, [[-0.2, -0.8, 9.0]] * 3
    advantages = [1.0, -1.0, 0.0]
    dropped = rows(new, old, advantages, "grpo", off_policy_mask_threshold=0.49, epsilon=0.9)[1]
    kept = rows(new, old, advantages, "grpo", off_policy_mask_threshold=0.51, epsilon=0.9)[1]
    assert kept[1, :2].abs().min() > 0 and dropped[1].abs().max() == 0
    assert_close(dropped[0], kept[0])


def test_unbiased_kl_is_weighted_by_the_ratio():
    """Ratio 2, d = ln 3: KL 2 - ln 3 = k. The term is 2k; its derivative 2k + 2 (1 - 3)."""
    keys = {"ref_logprobs_BT": torch.tensor([[-1.0 + math.log(3)]], dtype=torch.float64), "beta": 0.5}
    k = 2 - math.log(3)
    loss, gradient, _ = one(math.log(2), 0.0, "grpo", use_bias_correction_kl=True, **keys)
    assert loss == pytest.approx(0.5 * 2 * k)
    assert gradient == pytest.approx(0.5 * (2 * k + 2 * (1 - 3)))


def test_unbiased_kl_has_the_gradient_of_the_divergence():
    """Over all tokens of a distribution, by their chances: the mean gradient is that of KL(policy | reference)."""
    logits = torch.tensor([0.3, -1.0, 0.8, 0.1], dtype=torch.float64, requires_grad=True)
    ref = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64).log()[:, None]
    logp = logits.log_softmax(0)
    (exact,) = torch.autograd.grad((logp.exp() * (logp - ref[:, 0])).sum(), logits, retain_graph=True)
    chances, means = logp.exp().detach(), {}
    for corrected in (False, True):
        total = torch.zeros_like(logits)
        for token in range(4):
            at = logp[token].view(1, 1), logp[token].detach().view(1, 1), torch.zeros(1), torch.ones(1, 1)
            loss, _ = grpo_loss(*at, ref_logprobs_BT=ref[token].view(1, 1), beta=1.0, use_bias_correction_kl=corrected)
            total += chances[token] * torch.autograd.grad(loss, logits, retain_graph=True)[0]
        means[corrected] = total
    assert_close(means[True], exact)
    assert (means[False] - exact).abs().max() > 0.05
