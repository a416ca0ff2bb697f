"""KL estimators: values, signs and, by enumeration of a small distribution, what they estimate."""

import math

import pytest
import torch
from torch.testing import assert_close

from outdo.algo.divergence import ESTIMATORS, adapt_beta, k1_kl, k2_kl, k3_kl

P = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
REF = torch.tensor([0.2, 0.4, 0.1, 0.3], dtype=torch.float64)


def test_values_by_hand():
    new, ref = torch.tensor([math.log(0.5)]), torch.tensor([math.log(0.25)])  # d = -log 2
    assert k1_kl(new, ref).item() == pytest.approx(math.log(2))
    assert k2_kl(new, ref).item() == pytest.approx(math.log(2) ** 2 / 2)
    assert k3_kl(new, ref).item() == pytest.approx(0.5 + math.log(2) - 1)
    assert k1_kl(ref, new).item() == pytest.approx(-math.log(2))
    assert k2_kl(ref, new).item() == pytest.approx(math.log(2) ** 2 / 2)
    assert k3_kl(ref, new).item() == pytest.approx(2 - math.log(2) - 1)


def test_k1_and_k3_are_unbiased_and_k2_is_not():
    kl = sum(p * math.log(p / q) for p, q in zip(P.tolist(), REF.tolist(), strict=True))
    reverse = sum(q * math.log(q / p) for p, q in zip(P.tolist(), REF.tolist(), strict=True))
    assert abs(kl - reverse) > 0.05  # so that the direction shows
    expectation = {name: (P * k(P.log(), REF.log())).sum().item() for name, k in ESTIMATORS.items()}
    assert expectation["k1"] == pytest.approx(kl, abs=1e-12)
    assert expectation["k3"] == pytest.approx(kl, abs=1e-12)
    assert abs(expectation["k2"] - kl) > 0.01


def test_the_gradient_of_expected_k3_is_that_of_the_kl():
    """With samples drawn from a fixed P: d/dlogits of sum p_fixed k3, at the point where p = p_fixed.

    E[k3] under fixed draws has the gradient of KL(ref ‖ p) there: -(ref - p) by the logits.
    """
    logits = P.log().clone().requires_grad_(True)
    (P * k3_kl(logits.log_softmax(-1), REF.log())).sum().backward()
    assert_close(logits.grad, P - REF)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_k3_is_never_negative(dtype):
    exponents = torch.linspace(-30, 1, 2001, dtype=torch.float64)
    d = torch.cat([10**exponents, -(10**exponents), torch.zeros(1, dtype=torch.float64)]).to(dtype)
    new = torch.full_like(d, -1.5)
    for kl in (k3_kl(new, new + d), k3_kl(torch.zeros_like(d), d)):
        assert bool((kl >= 0).all())
        assert bool(kl.isfinite().all())
    assert k3_kl(new, new).abs().max().item() == 0.0


def test_k3_keeps_small_differences():
    """d = 1e-3 is 5.0017e-7; the plain exp(d) - d - 1 in float32 misses that by up to a quarter."""
    zero = torch.zeros(1)
    assert k3_kl(zero, torch.tensor([1e-3])).item() == pytest.approx(5.001667e-7, rel=1e-3)
    assert k3_kl(zero, torch.tensor([-1e-3])).item() == pytest.approx(4.998334e-7, rel=1e-3)
    assert k3_kl(zero, torch.tensor([1e-4])).item() == pytest.approx(5.000167e-9, rel=5e-3)


def test_gradients_by_the_new_log_probability():
    d = torch.tensor([-2.0, -0.3, 0.0, 0.4, 1.5], dtype=torch.float64)
    expected = {"k1": torch.ones_like(d), "k2": -d, "k3": 1 - d.exp()}
    for name, kl in ESTIMATORS.items():
        new = torch.zeros_like(d, requires_grad=True)
        kl(new, d).sum().backward()
        assert_close(new.grad, expected[name])


@pytest.mark.parametrize(
    ("kl", "expected"),
    [
        (0.10, 0.04),  # on target
        (0.11, 0.04 * 1.01),  # 10% above: up by rate x 10%
        (0.09, 0.04 * 0.99),
        (0.12, 0.04 * 1.02),
        (5.0, 0.04 * 1.02),  # cut at 20%
        (0.0, 0.04 * 0.98),
    ],
)
def test_beta_follows_its_target(kl, expected):
    assert adapt_beta(0.04, kl, target=0.1) == pytest.approx(expected, rel=1e-9)


def test_beta_moves_by_its_rate():
    assert adapt_beta(1.0, 3.0, target=1.0, rate=0.5) == pytest.approx(1.1)
    assert adapt_beta(1.0, 0.0, target=1.0, rate=0.5) == pytest.approx(0.9)


@pytest.mark.parametrize("target", [0.0, -0.1])
def test_a_target_must_be_positive(target):
    with pytest.raises(ValueError, match="target="):
        adapt_beta(0.1, 0.1, target)
