"""Every form that people write settings in, in one table: what it becomes here, or what the refusal names."""

from __future__ import annotations

import itertools
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

from outdo.cli.app import app
from outdo.cli.words import as_words, split_words
from outdo.errors import RecipeError, did_you_mean
from outdo.recipe.load import load_recipe
from outdo.recipe.parse import parse_overrides
from outdo.recipe.schema import Recipe

ACCEPTED: list[tuple[dict[str, Any], dict[str, Any]]] = [  # a file's keys -> ours
    ({"num_generations": 16}, {"per_device_train_batch_size": 16}),
    ({"num_generations": 6}, {"per_device_train_batch_size": 6}),
    ({"num_generations": 12, "gradient_accumulation_steps": 4}, {"per_device_train_batch_size": 9}),
    ({"num_generations": 4}, {"per_device_train_batch_size": 8}),
    ({"optim": "adamw_torch_fused"}, {}),
    ({"optim": "OptimizerNames.ADAMW_TORCH"}, {}),
    ({"max_grad_norm": 0}, {"max_grad_norm": 1e9}),
    ({"eval_strategy": "epoch", "eval_steps": 50}, {"eval_strategy": "epoch", "eval_steps": 0}),
    ({"eval_strategy": "no", "eval_steps": 50}, {"eval_strategy": "no", "eval_steps": 0}),
    ({"eval_strategy": "steps", "eval_steps": 0.1, "max_steps": 200}, {"eval_steps": 20}),
    ({"save_steps": 0.25, "max_steps": 10}, {"save_steps": 3}),
    ({"use_gradient_checkpointing": "unsloth"}, {"gradient_checkpointing": True}),
    ({"max_seq_length": 2048, "max_completion_length": 64}, {"max_completion_length": 64}),
    ({"lora_rank": 8, "target_modules": ["q_proj"], "random_state": 3}, {"lora_r": 8, "seed": 3}),
    ({"reward_funcs": ["trl.rewards.accuracy_reward", "format_reward"]}, {"reward_funcs": ["math", "format"]}),
    ({"adv_std": "sample", "adv_eps": 0}, {"adv_std": "sample", "adv_eps": 0.0}),
    ({"stop_strings": "###"}, {"stop": ["###"]}),
]
REFUSED: list[tuple[dict[str, Any], str]] = [  # a file's keys -> what the message names
    ({"num_generations": 8, "per_device_train_batch_size": 1}, "set per_device_train_batch_size=8"),
    ({"num_generations": 8, "generation_batch_size": 12}, "set generation_batch_size=16"),
    ({"generation_batch_size": 48, "per_device_train_batch_size": 32}, "set generation_batch_size=64"),
    (
        {"per_device_train_batch_size": 8, "steps_per_generation": 3, "gradient_accumulation_steps": 2},
        "steps_per_generation=4",
    ),
    ({"optim": "lion"}, "adamw_torch"),
    ({"eval_strategy": "steps"}, "eval_steps"),
    ({"eval_strategy": "often"}, "'epoch'"),
    ({"eval_steps": 0.5}, "max_steps"),
    ({"max_seq_length": 2048}, "max_completion_length"),
    ({"lr_scheduler_type": "polynomial"}, "cosine"),
    ({"fp16": True}, "bf16=true"),
    ({"torch_dtype": "float16"}, "bfloat16"),
    ({"world_size": 8}, "torchrun --nproc-per-node 8"),
    ({"training_args": {"beta": 0.1}}, "a recipe is flat"),
    ({"disable_dropout": True}, "config.json"),
    ({"lora_dropout": 0.05}, "lora_dropout"),
    ({"adv_std": "biased"}, "population"),
    ({"curriculum_dataset_name": "easy.jsonl"}, "curriculum_steps"),
    ({"curriculum_steps": 5}, "curriculum_dataset_name=easy.jsonl"),
    ({"sync_ref_model": True}, "starting model"),
]
WORDS = [  # of `outdo train` -> the recipe and its keys
    ("--config a.yaml --learning_rate 1e-5", "a.yaml", {"learning_rate": "1e-5"}),
    ("a.yaml --learning-rate=1e-5 seed=2", "a.yaml", {"learning_rate": "1e-5", "seed": 2}),
    ("--reward_funcs numeric format a.yaml", "a.yaml", {"reward_funcs": ["numeric", "format"]}),
    ("--reward_weights 1.0 0.5 --seed 2", None, {"reward_weights": [1.0, 0.5], "seed": 2}),
    ("--bf16 a.yaml", "a.yaml", {"bf16": True}),
    ("--use_peft --load_in_4bit false", None, {"use_peft": True, "load_in_4bit": False}),
    ("--no_use_peft a.yaml", "a.yaml", {"use_peft": False}),
    ("--max_steps -1 --task_args.digits 3", None, {"max_steps": -1, "task_args": {"digits": 3}}),
    ("--report_to none", None, {"report_to": "none"}),
    (
        "--attn_implementation sdpa --use_vllm --seed 1",
        None,
        {"attn_implementation": "sdpa", "use_vllm": True, "seed": 1},
    ),
]
# Files as people have them, in their trainers' layouts -> what the recipe has, or the refusal names.
FILES = {
    "a TRL tutorial's": (
        """
        model_name_or_path: Qwen/Qwen2-0.5B-Instruct
        dataset_name: trl-lib/tldr
        output_dir: Qwen2-0.5B-GRPO
        logging_steps: 10
        num_generations: 16
        bf16: true
        """,
        {"num_generations": 16, "prompts_per_step": 1, "dtype": "bfloat16"},
    ),
    "open-r1's demo": (
        """
        model_name_or_path: Qwen/Qwen2.5-1.5B-Instruct
        model_revision: main
        torch_dtype: bfloat16
        attn_implementation: flash_attention_2
        dataset_name: open-r1/OpenR1-Math-220k
        dataset_prompt_column: problem
        system_prompt: "Think first."
        use_vllm: true
        do_eval: false
        gradient_accumulation_steps: 4
        gradient_checkpointing: true
        gradient_checkpointing_kwargs: {use_reentrant: false}
        learning_rate: 2.0e-05
        log_completions: true
        lr_scheduler_type: cosine
        max_completion_length: 1024
        max_steps: -1
        num_generations: 16
        num_train_epochs: 1
        per_device_train_batch_size: 16
        reward_funcs: [accuracy, format, tag_count]
        reward_weights: [1.0, 1.0, 1.0]
        save_strategy: "epoch"
        save_total_limit: 1
        warmup_ratio: 0.1
        """,
        {"prompts_per_step": 4, "reward_funcs": ["math", "format", "tag_count"], "columns": {"prompt": "problem"}},
    ),
    "Unsloth's": (
        """
        model: unsloth/Qwen3-4B-Base
        max_seq_length: 2048
        load_in_4bit: true
        use_lora: true
        fast_inference: true
        lora_rank: 32
        lora_alpha: 64
        target_modules: [q_proj, k_proj, v_proj, o_proj]
        use_gradient_checkpointing: unsloth
        random_state: 3407
        gpu_memory_utilization: 0.7
        temperature: 1.0
        min_p: 0.1
        learning_rate: 5e-6
        weight_decay: 0.001
        warmup_ratio: 0.1
        lr_scheduler_type: linear
        optim: adamw_torch
        logging_steps: 1
        per_device_train_batch_size: 4
        gradient_accumulation_steps: 1
        num_generations: 4
        max_prompt_length: 256
        max_completion_length: 1792
        max_steps: 100
        save_steps: 100
        report_to: none
        """,
        {"use_peft": True, "lora_r": 32, "seed": 3407, "gradient_checkpointing": True, "prompts_per_step": 1},
    ),
    "Unsloth's small batch": ("num_generations: 6\nper_device_train_batch_size: 1\n", "per_device_train_batch_size=6"),
    "nested parts": ("model_args: {model_name_or_path: gpt2}\n", "a recipe is flat"),
    "verl's": ("actor_rollout_ref: {rollout: {n: 8}}\n", "num_generations"),
    "several GPUs": ("num_processes: 8\nnum_generations: 8\n", "torchrun"),
    "an optimizer of bitsandbytes": ("optim: lion_32bit\n", "adamw_torch"),
    "a plateau": ("lr_scheduler_type: reduce_lr_on_plateau\n", "lr_scheduler_type"),
}


@pytest.mark.parametrize(("keys", "ours"), ACCEPTED, ids=str)
def test_accepted(tmp_path: Path, keys: dict[str, Any], ours: dict[str, Any]) -> None:
    (tmp_path / "empty.yaml").write_text("")
    recipe = load_recipe(tmp_path / "empty.yaml", keys)
    assert {key: getattr(recipe, key) for key in ours} == ours


@pytest.mark.parametrize(("keys", "named"), REFUSED, ids=str)
def test_refused(tmp_path: Path, keys: dict[str, Any], named: str) -> None:
    (tmp_path / "empty.yaml").write_text("")
    with pytest.raises(RecipeError) as caught:
        load_recipe(tmp_path / "empty.yaml", keys)
    assert named in str(caught.value)


@pytest.mark.parametrize("name", FILES)
def test_files_of_others(tmp_path: Path, name: str) -> None:
    text, expected = FILES[name]
    (tmp_path / "r.yaml").write_text(textwrap.dedent(text))
    notices: list[str] = []
    if isinstance(expected, str):
        with pytest.raises(RecipeError) as caught:
            load_recipe(tmp_path / "r.yaml")
        assert expected in str(caught.value)
        return
    recipe = load_recipe(tmp_path / "r.yaml", notify=notices.append)
    assert {key: getattr(recipe, key) for key in expected} == expected
    assert all(" ignored, because " in line for line in notices if "ignored" in line)
    assert "adv_std=population (TRL: sample)" in notices[-1]


def test_suggested_batches_work() -> None:
    for group, size, times in itertools.product((3, 6, 8), (1, 4, 6), (1, 2, 3)):
        keys = {"num_generations": group, "per_device_train_batch_size": size, "gradient_accumulation_steps": times}
        try:
            load_recipe(None, keys)
        except RecipeError as error:
            match = re.search(r"set (\w+)=(\d+)", str(error))
            assert match and load_recipe(None, {**keys, match[1]: int(match[2])}).prompts_per_step


def _words(line: str) -> tuple[str | None, dict[str, Any]]:
    import typer.main

    command = typer.main.get_command(app).commands["train"]  # type: ignore[attr-defined]
    context = command.make_context("train", line.split())
    path, pairs = split_words(as_words(context, context.params["words"], context.params["config"]))
    return path, parse_overrides(pairs)


@pytest.mark.parametrize(("line", "path", "keys"), WORDS, ids=str)
def test_keys_as_options(line: str, path: str | None, keys: dict[str, Any]) -> None:
    assert _words(line) == (path, keys)


@pytest.mark.parametrize(
    ("line", "named"), [("--dry_run", "--dry-run"), ("--rezume a", "--resume"), ("a.yaml b", "'b'")]
)
def test_refused_words(line: str, named: str) -> None:
    with pytest.raises(RecipeError) as caught:
        _words(line)
    assert named in str(caught.value)


def test_far_fetched_names_are_not_suggested() -> None:
    for word in ("world_size", "wherewithal", "dry_run", "test_size"):
        assert did_you_mean(word, Recipe.model_fields) == "", word
    assert did_you_mean("eval_sise", Recipe.model_fields, "{}") == "eval_size"
    assert did_you_mean("seeds", Recipe.model_fields, "{}") == "seed"
