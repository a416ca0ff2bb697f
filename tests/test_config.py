"""The recipe: names, synonyms, types, contradictions."""

from __future__ import annotations

from pathlib import Path

import pytest

from conftest import ROOT
from outdo.config import INSTEAD, SYNONYMS, Recipe, load_recipe
from outdo.errors import RecipeError


def refused(*pairs: str, path: Path | None = None) -> str:
    with pytest.raises(RecipeError) as caught:
        load_recipe(path, list(pairs))
    return str(caught.value)


def test_the_written_out_recipe_is_the_default() -> None:
    assert load_recipe(ROOT / "recipes" / "arithmetic.yaml") == load_recipe()


def test_overrides_win_and_are_typed() -> None:
    recipe = load_recipe(None, ["learning_rate=1e-5", "num_generations=16", "task_args.digits=3", "kl_limit=null"])
    assert (recipe.learning_rate, recipe.num_generations, recipe.kl_limit) == (1e-5, 16, None)
    assert recipe.task_args["digits"] == 3


@pytest.mark.parametrize(("other", "canonical"), SYNONYMS.items())
def test_synonyms_set_the_canonical_key(other: str, canonical: str) -> None:
    assert canonical in Recipe.model_fields
    said: list[str] = []
    value = {"num_generations": 4, "dataset_name": "countdown", "model_name_or_path": "tiny", "dtype": "float32"}.get(
        canonical
    )
    value = value or {"advantage_estimator": "rloo"}.get(canonical) or 1
    recipe = load_recipe(None, {other: value}, said.append)
    assert getattr(recipe, canonical) == value
    assert said == [f"command line: {other} is {canonical} here"]


def test_a_misspelt_key_names_the_nearest() -> None:
    assert "'num_generations'" in refused("num_generatoins=8")
    assert "'epsilon'" in refused("epsilom=0.1")


def test_a_key_of_another_trainer_says_what_to_use() -> None:
    for key, hint in INSTEAD.items():
        assert hint in refused(f"{key}=1")


def test_two_names_for_one_knob_must_agree(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text("beta: 0.1\nkl_coef: 0.2\n")
    message = refused(path=path)
    assert "beta" in message and "kl_coef" in message and "0.1" in message and "0.2" in message


@pytest.mark.parametrize(
    ("pair", "parts"),
    [
        ("num_generations=eight", ["num_generations", "eight"]),
        ("num_generations=1", ["num_generations", "2"]),
        ("temperature=0", ["temperature"]),
        ("temperature=.nan", ["temperature"]),
        ("epsilon=11", ["epsilon", "10"]),
        ("learning_rate=-1", ["learning_rate"]),
        ("loss_type=drgrpo", ["loss_type", "dr_grpo"]),
        ("advantage_estimator=gae", ["advantage_estimator", "rloo"]),
        ("scale_rewards=sometimes", ["scale_rewards"]),
        ("just_a_word", ["just_a_word", "key=value"]),
        ("task_args=3", ["task_args"]),
    ],
)
def test_bad_values_are_named(pair: str, parts: list[str]) -> None:
    message = refused(pair)
    assert all(part in message for part in parts), message


def test_a_group_that_does_not_divide_the_batch_names_both_and_what_fits() -> None:
    message = refused("num_generations=12", "per_device_train_batch_size=64")
    assert "num_generations=12" in message and "64 answers" in message and "use 8 or 16" in message


def test_contradictions_are_refused() -> None:
    assert "reward_weights" in refused("reward_funcs=numeric,format", "reward_weights=[1.0]")
    assert "beta" in refused("kl_target=0.05", "beta=0")
    assert "curriculum_args" in refused("curriculum_steps=5")
    assert "32" in refused("generation_batch_size=48", "per_device_train_batch_size=32")
    assert "steps_per_generation" in refused("generation_batch_size=64", "steps_per_generation=2")


def test_batches_count_as_trl_counts_them() -> None:
    recipe = load_recipe(
        None, ["per_device_train_batch_size=8", "gradient_accumulation_steps=4", "steps_per_generation=8"]
    )
    assert (recipe.answers_per_step, recipe.answers_per_update, recipe.updates_per_step) == (64, 32, 2)
    assert recipe.prompts_per_step == 8


def test_trl_booleans_for_scale_rewards() -> None:
    assert load_recipe(None, ["scale_rewards=false"]).scale_rewards == "none"
    assert load_recipe(None, ["scale_rewards=true"]).scale_rewards == "group"


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("a: [1", "not YAML"),
        ("- 1\n- 2\n", "key: value"),
        ("3: 4\n", "key: value"),
        ("nonsense_key: 1\n", "nonsense_key"),
    ],
)
def test_bad_files_name_the_file(tmp_path: Path, text: str, part: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    message = refused(path=path)
    assert part in message and "bad.yaml" in message


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert "no such recipe" in refused(path=tmp_path / "none.yaml")
    assert "cannot be read" in refused(path=tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"seed: \xff\xfe")
    assert "latin.yaml" in refused(path=tmp_path / "latin.yaml")


def test_an_empty_file_is_all_defaults(tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").write_text("")
    assert load_recipe(tmp_path / "empty.yaml") == Recipe()


def test_arguments_belong_to_their_task() -> None:
    assert load_recipe(None, ["task_args.digits=3"]).task_args == {"ops": "+", "digits": 3}
    assert load_recipe(None, ["dataset_name=countdown"]).task_args == {}
    assert load_recipe(None, ["dataset_name=countdown", "task_args.numbers=4"]).task_args == {"numbers": 4}


def test_the_tiny_rates_never_reach_another_model() -> None:
    recipe = load_recipe(None, ["model_name_or_path=some/model"])
    assert recipe.learning_rate == Recipe().learning_rate and recipe.sft_steps == 0


def test_an_empty_stop_text_is_refused() -> None:
    assert "every answer at once" in refused("stop=['']") and "every answer at once" in refused("stop=''")
    assert load_recipe(None, ["stop=</answer>"]).stop == ["</answer>"]
