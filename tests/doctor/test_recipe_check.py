"""Warnings about a recipe before it is trained."""

from __future__ import annotations

from pathlib import Path

import pytest

from outdo.doctor.recipe_check import check_recipe, rate_limit
from outdo.recipe.load import load_recipe
from outdo.recipe.parse import parse_overrides

RECIPES = Path(__file__).parents[2] / "recipes"
SIZES = {"tiny": 1_063_168, "smollm2": 134_515_008}


def test_own_recipes_are_sound() -> None:
    paths = [path for path in RECIPES.glob("*.yaml") if not path.name.startswith("ablation")]  # sweeps
    for recipe in (load_recipe(), *map(load_recipe, paths)):
        assert check_recipe(recipe, SIZES[recipe.model_name_or_path]) == []


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("learning_rate=1e-2", "learning_rate"),
        ("num_generations=2", "num_generations"),
        ("temperature=0.03", "temperature"),
        ("temperature_end=0.1", "temperature_end"),
        ("reward_weights=[1.0,5.0]", "reward_weights"),
    ],
)
def test_warnings(override: str, key: str) -> None:
    keys = {"reward_funcs": ["numeric", "format"], "reward_weights": [1.0, 0.1], **parse_overrides([override])}
    (line,) = check_recipe(load_recipe(None, keys), SIZES["tiny"])
    value = line.partition(f"set {key}=")[2].split()[0].rstrip(",.:")
    fixed = load_recipe(None, keys | parse_overrides([f"{key}={value}"]))
    assert check_recipe(fixed, SIZES["tiny"]) == []  # what it proposes is sound


def test_rate_by_size_and_mode() -> None:
    rates = {"learning_rate": 1e-4}
    assert check_recipe(rates, 134_515_008) and not check_recipe({**rates, "use_peft": True}, 134_515_008)
    assert check_recipe({"learning_rate": 2e-5}, 7_000_000_000) and not check_recipe({"learning_rate": 1e-6}, 7 << 30)
    assert check_recipe({"learning_rate": 1e-3, "use_peft": True}, 7_000_000_000)
    assert rate_limit(10**6, False) > rate_limit(10**8, False) > rate_limit(10**10, False)
    assert check_recipe({"learning_rate": 1.0}) == []  # of an unknown size
    gated = {"reward_weights": [1.0, 5.0], "reward_funcs": ["numeric", "format"], "reward_gate": "numeric"}
    assert check_recipe(gated) == []
