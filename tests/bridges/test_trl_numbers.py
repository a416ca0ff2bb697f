"""Our losses, gradients and advantages are those of TRL's own code. Runs where TRL is installed."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

from support.trl_cases import ADVANTAGE_CASES, BOUNDS, LOSS_CASES, AdvantageCase, LossCase

pytest.importorskip("trl")
from support import trl_numbers as numbers


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("case", LOSS_CASES, ids=lambda case: case.name)
def test_loss_and_gradient(case: LossCase, dtype: torch.dtype) -> None:
    x = numbers.tensors(case, dtype)
    (ours, gradient), (theirs, expected) = numbers.our_loss(case, x), numbers.their_loss(case, x)
    assert expected[0].abs().max() > 1e-3  # else there is nothing to compare
    assert ours == pytest.approx(theirs, rel=1e-6, abs=1e-7)
    assert numbers.apart(gradient[0], expected[0]) < 1e-6
    assert torch.allclose(gradient[1], expected[1], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("case", ADVANTAGE_CASES, ids=lambda case: case.name)
def test_advantages(case: AdvantageCase) -> None:
    expected = numbers.their_advantages(case)
    assert expected.abs().max() > 0.1
    torch.testing.assert_close(numbers.our_advantages(case), expected, rtol=1e-6, atol=1e-7)


SPECIAL = ("delta", "off_policy_mask_threshold", "top_entropy_quantile", "use_bias_correction_kl", "beta")
SPECIAL += ("sapo_temperature_pos", "sapo_temperature_neg", "vespo_k_pos", "vespo_lambda_neg", "entropy_coef")


@pytest.mark.parametrize("case", LOSS_CASES, ids=lambda case: case.name)
def test_a_case_reaches_what_it_names(case: LossCase) -> None:
    """Without its special keys TRL's numbers are others: else the comparison above would show little."""
    if case.sampler:
        plain = replace(case, sampler=False, theirs={})
    elif set(SPECIAL) & set(case.keys):
        off = {"use_bias_correction_kl": False}
        plain = replace(case, keys={**{k: v for k, v in case.keys.items() if k not in SPECIAL}, **off})
    else:
        return
    x = numbers.tensors(case, torch.float64)
    if case.keys == plain.keys and not case.sampler:
        return
    with_it, without = numbers.their_loss(case, x)[1], numbers.their_loss(plain, x)[1]
    assert numbers.apart(with_it, without) > 1e-3


def case_of(loss_type: str, **more) -> LossCase:
    return LossCase("", {"loss_type": loss_type, **BOUNDS["token"], "use_bias_correction_kl": False, **more})


HALVES = (slice(0, 3), slice(3, 6))


def in_halves(case: LossCase, x) -> torch.Tensor:
    """Our gradient of two micro-batches of an update."""
    return torch.cat([numbers.our_loss(case, x, rows)[1] for rows in HALVES], 1)


@pytest.mark.parametrize("loss_type", ["grpo", "dr_grpo", "dapo", "cispo", "sapo", "vespo", "luspo"])
def test_micro_batches(loss_type: str) -> None:
    """TRL with two accumulated micro-batches of as many answers gives the update's gradient, and ours is the same."""
    case = next(one for one in LOSS_CASES if re.fullmatch(rf"{loss_type}, \w+: later update", one.name))
    x = numbers.tensors(case, torch.float64)
    theirs = numbers.their_loss(case, x, HALVES)[1]
    assert numbers.apart(in_halves(case, x), theirs) < 1e-9
    assert numbers.apart(numbers.our_loss(case, x)[1], theirs) < 1e-9


@pytest.mark.parametrize(
    "case", [case_of("bnpo"), case_of("grpo", top_entropy_quantile=0.4), case_of("grpo", entropy_coef=1.0)]
)
def test_denominators_and_quantiles_are_of_the_update(case: LossCase) -> None:
    """Where TRL's depend on the micro-batches, ours do not."""
    x = numbers.tensors(case, torch.float64)
    whole = numbers.our_loss(case, x)[1]
    assert numbers.apart(in_halves(case, x), whole) < 1e-9
    assert numbers.apart(numbers.their_loss(case, x)[1], whole) < 1e-9
    assert numbers.apart(numbers.their_loss(case, x, HALVES)[1], whole) > 1e-2


def test_later_updates_are_weighed_against_the_sampler() -> None:
    """With a sampler of another program TRL clips the ratio to the policy that was, and multiplies by that policy's to
    the sampler; ours clips the ratio to the sampler. Without clips the two are one."""
    case = replace(case_of("grpo"), sampler=True)
    theirs = {"use_vllm": True, "vllm_importance_sampling_mode": "token_truncate"}
    theirs |= {"vllm_importance_sampling_clip_max": 1e9}
    x = numbers.tensors(case, torch.float64)
    assert numbers.apart(numbers.our_loss(case, x)[1], numbers.their_loss(replace(case, theirs=theirs), x)[1]) > 1e-2
    wide = replace(case, keys={**case.keys, "epsilon": 10.0, "epsilon_high": 10.0})
    assert numbers.apart(numbers.our_loss(wide, x)[1], numbers.their_loss(replace(wide, theirs=theirs), x)[1]) < 1e-9


def test_answers_cut_at_the_limit_are_no_answers() -> None:
    """TRL counts them as answers without a token: its mean is over 6, ours over the 4 that are trained on."""
    case = case_of("grpo")
    x = numbers.tensors(case, torch.float64)
    kept = torch.tensor([True, True, False, True, False, True])
    masked = {**x, "mask": x["mask"], "trained": x["trained"] & kept[:, None]}
    theirs = numbers.their_loss(case, masked)[1][0]
    ours = numbers.our_loss(case, {key: value[kept] for key, value in x.items()})[1][0]
    assert numbers.apart(ours, theirs[kept] * 6 / 4) < 1e-9


def test_the_std_is_the_populations_unless_set() -> None:
    case = ADVANTAGE_CASES[0]
    expected = numbers.their_advantages(case)
    ours = numbers.our_advantages(case, adv_std="population")
    # groups of 4: the sample's std is larger by sqrt(4 / 3), and eps is added to both
    assert torch.allclose(ours / expected, torch.tensor((4 / 3) ** 0.5, dtype=torch.float64), atol=1e-3)


def test_equal_rewards_are_exactly_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """In TRL they have the rounding of their mean, divided by 1e-4."""
    monkeypatch.setitem(numbers.REWARDS, "flat", [[0.1] * 12])
    case = AdvantageCase("", {"scale_rewards": "group"}, "flat")
    assert numbers.our_advantages(case).abs().max() == 0.0
    assert numbers.their_advantages(case).abs().max() < 1e-3
