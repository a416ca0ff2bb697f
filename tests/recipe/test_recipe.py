"""The recipe: names, synonyms, types, contradictions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from outdo import train
from outdo.errors import RecipeError
from outdo.recipe import foreign
from outdo.recipe.foreign import INSTEAD, SYNONYMS
from outdo.recipe.load import load_recipe
from outdo.recipe.parse import parse_overrides
from outdo.recipe.reward_names import ALIASES, canonical_reward
from outdo.recipe.schema import REGISTRIES, Recipe, registered_names
from outdo.rewards.registry import GRADERS
from outdo.training.stages import read_stages
from support.basics import ROOT


def refused(*pairs: str, path: Path | None = None) -> str:
    with pytest.raises(RecipeError) as caught:
        load_recipe(path, list(pairs))
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("Answer in the form #### N, # and no more", "Answer in the form #### N, # and no more"),
        ("#", "#"),
        ("Be brief: don't talk", "Be brief: don't talk"),
        ("- one", "- one"),
        ("two\nlines", "two\nlines"),
        ("'quoted' # and on", "'quoted' # and on"),
        ("2026-01-31", "2026-01-31"),
        ("3 # three", "3 # three"),
        ("'12'", "12"),
        ('"a # b\\n"', "a # b\n"),
        ("[a, 2]", ["a", 2]),
        ("{a: 1}", {"a": 1}),
        ("-3", -3),
        ("1e-4", "1e-4"),
        ("0.5", 0.5),
        ("true", True),
        ("null", None),
        ("", None),
    ],
)
def test_override_values(text: str, value: object) -> None:
    assert parse_overrides([f"x={text}"]) == {"x": value}


def test_hash_in_override() -> None:
    recipe = load_recipe(None, ["system_prompt=End with #### N: # alone", "stop=#"])
    assert recipe.system_prompt == "End with #### N: # alone" and recipe.stop == ["#"]


def test_arithmetic_yaml_is_the_default() -> None:
    assert load_recipe(ROOT / "recipes" / "arithmetic.yaml") == load_recipe()


def test_defaults_by_model_and_file(tmp_path: Path) -> None:
    """As docs/recipes.md has it: the tiny model's own, or the tables'."""
    (tmp_path / "own.yaml").write_text("dataset_name: countdown\n")
    tables = Recipe().per_device_train_batch_size, Recipe().learning_rate
    assert tables == (8, 1e-6)
    for path, overrides, expected in (
        (None, ["dataset_name=countdown"], (128, 2e-4)),
        (None, ["model_name_or_path=tiny"], (128, 2e-4)),
        (None, ["model_name_or_path=./model"], tables),
        (tmp_path / "own.yaml", [], tables),
    ):
        recipe = load_recipe(path, overrides)
        assert (recipe.per_device_train_batch_size, recipe.learning_rate) == expected, overrides


def test_overrides() -> None:
    recipe = load_recipe(None, ["learning_rate=1e-5", "num_generations=16", "task_args.digits=3", "kl_limit=null"])
    assert (recipe.learning_rate, recipe.num_generations, recipe.kl_limit) == (1e-5, 16, None)
    assert recipe.task_args["digits"] == 3


@pytest.mark.parametrize(("other", "canonical"), SYNONYMS.items())
def test_synonyms(other: str, canonical: str) -> None:
    assert canonical in Recipe.model_fields
    notices: list[str] = []
    value = {"num_generations": 4, "dataset_name": "countdown", "model_name_or_path": "tiny", "dtype": "float32"}.get(
        canonical
    )
    value = value or {"advantage_estimator": "rloo", "stop": ["#"], "lora_target_modules": ["q_proj"]}.get(canonical)
    value = value or {"per_device_train_batch_size": 8, "use_peft": True}.get(canonical) or 1
    recipe = load_recipe(None, {other: value}, notices.append)
    assert getattr(recipe, canonical) == value
    assert notices == [f"command line: {other} is {canonical} here"]


def test_too_large_numbers() -> None:
    for pair in ("max_steps=99999999999999999999999", "sft_steps=1000000001", "eval_size=99999999999999999999999"):
        assert refused(pair).startswith(pair), pair
    assert load_recipe(None, ["max_steps=1000000000"]).max_steps == 10**9


def test_booleans_are_not_numbers() -> None:
    for pair in ("max_steps=true", "seed=yes", "beta=no", "kl_limit=on"):
        assert "expected a number" in refused(pair), pair
    assert load_recipe(None, ["scale_rewards=false", "use_peft=no", "kl_limit=null"]).scale_rewards == "none"


def test_nearest_key() -> None:
    meant = {"temp": "temperature", "out": "output_dir", "generations": "num_generations", "beta2": "adam_beta2"}
    meant |= {"num_generatoins": "num_generations", "epsilom": "epsilon"}
    for word, name in meant.items():
        assert refused(f"{word}=1").endswith(f"did you mean {name!r}?"), word
    assert "rollout.n is num_generations" in refused("actor_rollout_ref.rollout.n=8")
    assert "generation_batch_size" in refused("batch_size=8") and "max_steps" in refused("epochs=3")
    assert refused("wherewithal=1").endswith("docs/recipes.md lists all keys")


def test_messages_name_the_source() -> None:
    with pytest.raises(RecipeError, match=r"^keys given: unknown key 'max_stepz': did you mean 'max_steps'"):
        train(max_stepz=2)
    with pytest.raises(RecipeError, match=r"^stage 1, grpo: unknown key 'max_stepz'"):
        read_stages(load_recipe(None, {"stages": [{"stage": "grpo", "max_stepz": 2}]}))


def test_refused_keys_name_the_replacement() -> None:
    for key, hint in INSTEAD.items():
        assert hint in refused(f"{key}=1")


def test_ignored_keys() -> None:
    keys = dict.fromkeys([*foreign.IGNORED, *(f"{prefix}x" for prefix in foreign.IGNORED_PREFIXES)], True)
    notices: list[str] = []
    assert load_recipe(None, keys, notices.append) == load_recipe()
    reasons = {key: line for line in notices for key in line.partition(": ")[2].partition(" ignored, ")[0].split(", ")}
    for key in keys:
        assert reasons[key].partition(", because ")[2], key
    assert not foreign.IGNORED.keys() & Recipe.model_fields.keys()


@pytest.mark.parametrize(("key", "only"), [(key, only) for key, (only, _) in foreign.ONLY.items()])
def test_keys_with_one_supported_value(key: str, only: object) -> None:
    rewards = {"reward_funcs": ["numeric", "cosine", "repetition", "overlong"]}
    assert load_recipe(None, {key: only, **rewards}) == load_recipe(None, {key: None, **rewards})
    with pytest.raises(RecipeError) as caught:
        load_recipe(None, {key: "another", **rewards})
    assert key in str(caught.value) and foreign.ONLY[key][1] in str(caught.value)


def test_parameters_of_unused_rewards() -> None:
    load_recipe(None, {"cosine_max_len": 1000, "repetition_n_grams": 5, "reward_funcs": ["numeric"]})


@pytest.mark.parametrize(
    ("keys", "ours"),
    [
        ({"bf16": True}, {"dtype": "bfloat16"}),
        ({"bf16": True, "torch_dtype": "auto"}, {"dtype": "bfloat16"}),
        ({"bf16": True, "torch_dtype": "float32"}, {"dtype": "float32"}),
        ({"bf16": False, "dtype": "auto"}, {}),
        ({"eval_strategy": False, "eval_steps": 5}, {"eval_strategy": "no", "eval_steps": 5}),
        ({"evaluation_strategy": "epoch"}, {"eval_strategy": "epoch"}),
        ({"eval_strategy": "steps", "eval_steps": 5}, {"eval_steps": 5}),
        ({"save_strategy": False}, {"save_strategy": "no"}),
        ({"push_to_hub_revision": True, "push_to_hub_model_id": "a/b"}, {"push_to_hub": True, "hub_model_id": "a/b"}),
        ({"use_cpu": True}, {"device": "cpu"}),
        ({"resume_from_checkpoint": True}, {"resume": "auto"}),
        ({"lr_scheduler_kwargs": {"min_lr_rate": 0.1}}, {"min_lr_rate": 0.1}),
        ({"lr_scheduler_kwargs": {"min_lr": 1e-6}, "learning_rate": 1e-5}, {"min_lr_rate": 0.1, "learning_rate": 1e-5}),
        ({"warmup_steps": 0.1}, {"warmup_ratio": 0.1}),
        ({"warmup_steps": 10}, {"warmup_steps": 10}),
        ({"dataset_prompt_column": "problem"}, {"columns": {"prompt": "problem"}}),
        (
            {"dataset_prompt_column": "problem", "columns": {"answer": "a"}},
            {"columns": {"prompt": "problem", "answer": "a"}},
        ),
        ({"reward_funcs": "accuracy, format"}, {"reward_funcs": ["math", "format"]}),
        ({"optim": None, "top_k": None, "save_strategy": None}, {}),
        ({"vllm_importance_sampling_correction": False}, {"importance_sampling": "never"}),
    ],
)
def test_other_forms_of_our_keys(keys: dict[str, object], ours: dict[str, object]) -> None:
    assert load_recipe(None, keys) == load_recipe(None, ours)


def test_refused_forms() -> None:
    assert "adamw_8bit" in refused("optim=lion_8bit")
    assert "num_cycles" in refused("lr_scheduler_kwargs.num_cycles=2")
    assert "learning_rate" in refused("lr_scheduler_kwargs.min_lr=1e-6")
    assert "--resume" in refused("resume_from_checkpoint=runs/a")
    assert "warmup_ratio" in refused("warmup_steps=3", "warmup_ratio=0.1")


def test_reward_synonyms() -> None:
    assert ALIASES.keys().isdisjoint(GRADERS) and set(ALIASES.values()) <= GRADERS.keys()
    assert canonical_reward("trl.rewards.accuracy_reward") == "math" and canonical_reward("a.b.c") == "a.b:c"


def test_epochs_override_steps() -> None:
    recipe = load_recipe(None, ["num_train_epochs=2"])
    assert "max_steps" not in recipe.model_fields_set and recipe.num_train_epochs == 2
    assert "max_steps" not in load_recipe(None, {"max_steps": -1, "num_train_epochs": 1}).model_fields_set
    assert load_recipe(None, {"max_steps": 5, "num_train_epochs": 1}).max_steps == 5


def test_temperature_and_warmup() -> None:
    recipe = load_recipe(None, ["temperature=1.2", "temperature_end=0.4", "max_steps=5", "warmup_ratio=0.25"])
    assert [recipe.temperature_at(step) for step in range(5)] == pytest.approx([1.2, 1.0, 0.8, 0.6, 0.4])
    assert recipe.warmup == 2
    assert load_recipe(None, ["temperature=0.7"]).temperature_at(50) == 0.7
    assert load_recipe(None, ["temperature_end=0.5", "max_steps=1"]).temperature_at(0) == 1.0


def test_synonyms_must_agree(tmp_path: Path) -> None:
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
        ("kl_estimator=k4", ["kl_estimator", "k1, k2, k3"]),
        ("lr_scheduler_type=cosin", ["lr_scheduler_type", "'cosine'"]),
        ("sft_lr_scheduler_type=liner", ["sft_lr_scheduler_type", "'linear'"]),
        ("report_to=wandb,tensorbord", ["report_to", "'tensorboard'", "all"]),
        ("scale_rewards=sometimes", ["scale_rewards"]),
        ("just_a_word", ["just_a_word", "key=value"]),
        ("task_args=3", ["task_args"]),
    ],
)
def test_bad_values(pair: str, parts: list[str]) -> None:
    message = refused(pair)
    assert all(part in message for part in parts), message


@pytest.mark.parametrize("key", REGISTRIES)
def test_registered_names(key: str) -> None:
    default, names = Recipe.model_fields[key].default, registered_names(key)
    assert isinstance(default, list) or default in names
    for name in names:
        level = {"importance_sampling_level": "sequence"} if name == "luspo" else {}
        assert getattr(load_recipe(None, {key: name, **level}), key) == ([name] if isinstance(default, list) else name)


def test_default_names_load_no_registry() -> None:
    """Reading a recipe must stay quick: torch takes seconds."""
    code = "import sys; from outdo.recipe.load import load_recipe; load_recipe(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_group_size_must_divide_batch() -> None:
    message = refused("num_generations=12", "per_device_train_batch_size=64")
    assert "num_generations=12" in message and "64 answers" in message and "per_device_train_batch_size=72" in message
    assert "num_generations=8 or 16" in message


def test_contradictions() -> None:
    assert "reward_weights" in refused("reward_funcs=numeric,format", "reward_weights=[1.0]")
    assert "beta" in refused("kl_target=0.05", "beta=0")
    assert "curriculum_args" in refused("curriculum_steps=5")
    assert "32" in refused("generation_batch_size=48", "per_device_train_batch_size=32")
    assert "steps_per_generation" in refused("generation_batch_size=64", "steps_per_generation=2")


def test_batch_sizes() -> None:
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
        ("a: [1", "invalid YAML"),
        ("- 1\n- 2\n", "key: value"),
        ("3: 4\n", "key: value"),
        ("nonsense_key: 1\n", "nonsense_key"),
        ("max_steps: 2\nmax_steps: 3\n", "bad.yaml, line 2: invalid YAML: max_steps is given twice"),
        ("task_args:\n  digits: 1\n  digits: 2\n", "line 3: invalid YAML: digits is given twice"),
    ],
)
def test_bad_files(tmp_path: Path, text: str, part: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    message = refused(path=path)
    assert part in message and "bad.yaml" in message


def test_unreadable_files(tmp_path: Path) -> None:
    assert "no such recipe" in refused(path=tmp_path / "none.yaml")
    assert "a folder, not a recipe" in refused(path=tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"seed: \xff\xfe")
    assert "latin.yaml" in refused(path=tmp_path / "latin.yaml")


def test_empty_file(tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").write_text("")
    assert load_recipe(tmp_path / "empty.yaml") == Recipe()


def test_task_args_follow_the_task() -> None:
    assert load_recipe(None, ["task_args.digits=3"]).task_args == {"ops": "+", "digits": 3}
    assert load_recipe(None, ["dataset_name=countdown"]).task_args == {}
    assert load_recipe(None, ["dataset_name=countdown", "task_args.numbers=4"]).task_args == {"numbers": 4}


def test_default_rates_are_only_for_tiny() -> None:
    recipe = load_recipe(None, ["model_name_or_path=some/model"])
    assert recipe.learning_rate == Recipe().learning_rate and recipe.sft_steps == 0


def test_empty_stop_string() -> None:
    assert "every answer at once" in refused("stop=['']") and "every answer at once" in refused("stop=''")
    assert load_recipe(None, ["stop=</answer>"]).stop == ["</answer>"]
