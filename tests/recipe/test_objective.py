"""Keys of the objective: those that the loss does not read, and those that contradict each other."""

from __future__ import annotations

import pytest

from outdo.algo.losses import LOSSES, Settings
from outdo.errors import RecipeError
from outdo.recipe.load import load_recipe
from outdo.recipe.objective import LOSS_KEYS
from outdo.recipe.schema import Recipe

# A value of each that is not its default, and goes with the others.
OTHER = {"epsilon": 0.1, "epsilon_high": 0.5, "delta": 4.0, "importance_sampling_level": "sequence"}
OTHER |= {"sapo_temperature_pos": 2.0, "sapo_temperature_neg": 2.0, "divergence_type": "binary_kl", "clip_ratio_c": 3.0}
OTHER |= {"vespo_k_pos": 1.0, "vespo_lambda_pos": 1.0, "vespo_k_neg": 1.0, "vespo_lambda_neg": 1.0}
OTHER |= {"clip_cov_ratio": 0.1, "clip_cov_lb": 0.5, "clip_cov_ub": 4.0, "kl_cov_ratio": 0.1, "ppo_kl_coef": 1.0}


def refused(**keys: object) -> str:
    with pytest.raises(RecipeError) as caught:
        load_recipe(None, keys)
    return str(caught.value)


def required(loss: str) -> dict[str, object]:
    return {} if "token" in LOSSES[loss].levels else {"importance_sampling_level": LOSSES[loss].levels[0]}


def test_every_key_of_a_loss_is_known() -> None:
    assert set(OTHER) == set(LOSS_KEYS)
    read = {key for loss in LOSSES.values() for key in loss.reads or ()}
    assert read == set(LOSS_KEYS)
    assert set(Settings.__dataclass_fields__) < set(Recipe.model_fields)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("key", OTHER)
def test_keys_that_a_loss_does_not_read(loss: str, key: str) -> None:
    keys = {"loss_type": loss, **required(loss), key: OTHER[key]}
    if key in (LOSSES[loss].reads or ()):
        assert getattr(load_recipe(None, keys), key) == OTHER[key]
    else:
        message = refused(**keys)
        assert message.startswith(f"{key}={OTHER[key]} has no effect with loss_type={loss}")
        assert any(name in message.partition("reads it:")[2] for name in LOSSES)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"loss_type": "luspo"}, "importance_sampling_level=sequence"),
        ({"delta": 1.2}, "above 1 + epsilon_high"),
        ({"delta": 1.25, "epsilon_high": 0.28}, "above 1 + epsilon_high"),
        ({"loss_type": "clip_cov", "clip_cov_lb": 5.0}, "below clip_cov_ub"),
        ({"loss_type": "clip_cov", "top_entropy_quantile": 0.2}, "covariance"),
        ({"loss_type": "kl_cov", "top_entropy_quantile": 0.2}, "covariance"),
        ({"loss_type": "dppo", "top_entropy_quantile": 0.2}, "divergence"),
        ({"loss_type": "dppo", "off_policy_mask_threshold": 0.2}, "divergence"),
        ({"loss_type": "dppo", "importance_sampling": "truncate"}, "clip_ratio_c"),
        ({"loss_type": "dppo", "importance_sampling_cap": 3.0}, "clip_ratio_c"),
        ({"use_bias_correction_kl": True, "kl_in_reward": True, "beta": 0.1}, "kl_in_reward"),
        ({"multi_objective_aggregation": "normalize_then_sum", "scale_rewards": "none"}, "scale_rewards=none"),
        ({"multi_objective_aggregation": "normalize_then_sum", "advantage_estimator": "rloo"}, "estimate of its own"),
        ({"multi_objective_aggregation": "normalize_then_sum", "reward_gate": "numeric"}, "gate"),
        (
            {"multi_objective_aggregation": "normalize_then_sum", "kl_in_reward": True, "beta": 0.1},
            "kl_in_reward=True cannot",
        ),
        ({"advantage_estimator": "maxrl", "scale_rewards": "batch"}, "mean reward"),
        ({"top_entropy_quantile": 1.5}, "top_entropy_quantile=1.5"),
        ({"off_policy_mask_threshold": 0}, "off_policy_mask_threshold=0"),
        ({"sapo_temperature_pos": 0, "loss_type": "sapo"}, "sapo_temperature_pos=0"),
    ],
)
def test_contradictions(keys: dict[str, object], words: str) -> None:
    assert words in refused(**keys)


def test_answers_that_are_counted_by_their_length_are_named() -> None:
    said: list[str] = []
    for loss in ("grpo", "sapo", "dapo", "dr_grpo", "bnpo", "cispo"):
        load_recipe(None, {"loss_type": loss, "importance_sampling_level": "sequence"}, said.append)
    assert [line.partition(" counts")[0].rpartition("=")[2] for line in said] == ["dapo", "dr_grpo", "bnpo", "cispo"]
