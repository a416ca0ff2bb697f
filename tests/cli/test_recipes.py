"""The files that users of open-r1 and TRL have, run unchanged: their keys, a local data set, a tiny model."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import TrainingArguments

from outdo.errors import RecipeError
from outdo.models.load import load_policy, save_policy
from outdo.recipe import foreign
from outdo.recipe.load import load_recipe
from outdo.recipe.schema import Recipe

OPEN_R1 = """
# Model arguments
model_name_or_path: model
model_revision: main
torch_dtype: float32
attn_implementation: flash_attention_2

# Data training arguments
dataset_name: sums
dataset_config: default
dataset_prompt_column: problem
system_prompt: "Think between <think> and </think>, then answer between <answer> and </answer>."

# GRPO trainer config
bf16: true
use_vllm: true
vllm_gpu_memory_utilization: 0.7
do_eval: false
eval_strategy: "no"
gradient_accumulation_steps: 2
gradient_checkpointing: true
gradient_checkpointing_kwargs:
  use_reentrant: false
hub_model_id: tiny-sums-grpo
hub_strategy: every_save
learning_rate: 2.0e-05
log_completions: true
log_level: info
logging_first_step: true
logging_steps: 1
logging_strategy: steps
lr_scheduler_type: cosine_with_min_lr
lr_scheduler_kwargs:
  min_lr_rate: 0.1
max_prompt_length: 160
max_completion_length: 16
max_steps: -1
num_generations: 4
num_train_epochs: 1
clip_range: 0.2
kl_penalty: 0.01
loss_type: dr_grpo
scale_rewards: false
mask_truncated_completions: false
optim: adamw_torch_fused
output_dir: data/tiny-sums-grpo
overwrite_output_dir: true
per_device_eval_batch_size: 16
per_device_train_batch_size: 8
push_to_hub: true
report_to:
- wandb
reward_funcs:
- accuracy
- format
- tag_count
- cosine
- repetition_penalty
- length
reward_weights:
- 1.0
- 0.5
- 0.5
- 0.1
- 0.1
- 0.1
save_strategy: "epoch"
save_total_limit: 1
seed: 42
temperature: 0.7
top_k: null
use_liger_kernel: false
warmup_ratio: 0.1
wandb_project: sums
"""

# What a config of TRL's may say, at its defaults or near them.
TRL = """
model_name_or_path: some/model
dtype: auto
trust_remote_code: false
use_peft: true
lora_r: 32
lora_alpha: 16
lora_task_type: CAUSAL_LM
lora_target_modules: null
dataset_name: some/data
dataset_streaming: false
dataset_train_split: train
output_dir: out
learning_rate: 1.0e-5
adam_epsilon: 1e-8
weight_decay: 0.0
max_grad_norm: 0.2
num_train_epochs: 3.0
max_steps: -1
lr_scheduler_type: cosine
lr_scheduler_kwargs: {}
warmup_ratio: 0.05
per_device_train_batch_size: 16
gradient_accumulation_steps: 4
num_generations: 8
steps_per_generation: null
max_completion_length: 512
generation_kwargs: null
repetition_penalty: 1.0
top_k: null
min_p: null
use_vllm: true
vllm_mode: colocate
vllm_structured_outputs_regex: null
vllm_importance_sampling_correction: true
vllm_importance_sampling_cap: 3.0
beta: 0.0
epsilon: 0.2
epsilon_high: 0.28
delta: null
importance_sampling_level: token
reward_funcs: [accuracy_reward, get_soft_overlong_punishment]
reward_weights: null
scale_rewards: group
loss_type: dapo
mask_truncated_completions: true
sync_ref_model: false
ref_model_mixup_alpha: 0.6
ref_model_sync_steps: 512
top_entropy_quantile: 1.0
bf16: true
save_strategy: steps
save_steps: 100
save_total_limit: null
eval_strategy: steps
eval_steps: 50
logging_steps: 10
report_to: [tensorboard]
seed: 42
data_seed: null
"""


def test_a_trl_file_is_read_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "trl.yaml").write_text(TRL)
    said: list[str] = []
    recipe = load_recipe(tmp_path / "trl.yaml", notify=said.append)
    assert (recipe.dtype, recipe.reward_funcs, recipe.importance_sampling_cap) == (
        "bfloat16",
        ["math", "overlong"],
        3.0,
    )
    assert (recipe.prompts_per_step, recipe.save_steps, recipe.eval_steps, recipe.epsilon_high) == (8, 100, 50, 0.28)
    assert recipe.num_train_epochs == 3 and "max_steps" not in recipe.model_fields_set
    assert all("ignored, because" in line for line in said if "ignored" in line)
    assert "adv_std=population (TRL: sample)" in said[-1]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("sync_ref_model: true", "the reference is"),
        ("importance_sampling_level: answer", "sequence"),
        ("repetition_penalty: 1.2", "repetition"),
        ("optim: lion_8bit", "adamw_8bit"),
        ("hub_token: hf_secret", "HF_TOKEN"),
        ("metric_for_best_model: eval_loss", "success_rate"),
        ("trust_remote_code: true", "never run"),
        ("model_revision: v2", "download that revision"),
        ("delta: 1.1", "epsilon_high"),
        ("soft_punish_cache: 100", "max_completion_length"),
        ("num_generation: 4", "'num_generations'"),
        ("datasets: [{path: some/data}]", "dataset_mixture"),
    ],
)
def test_what_would_change_the_learning_is_refused_with_another_way(tmp_path: Path, line: str, words: str) -> None:
    key = line.partition(":")[0]
    kept = "\n".join(own for own in TRL.splitlines() if not own.startswith(f"{key}:"))
    (tmp_path / "trl.yaml").write_text(f"{kept}\n{line}\n")
    with pytest.raises(RecipeError, match=words) as caught:
        load_recipe(tmp_path / "trl.yaml")
    assert key in str(caught.value) and "secret" not in str(caught.value)


OBJECTIVE = """
loss_type: grpo
importance_sampling_level: sequence
delta: 4.0
top_entropy_quantile: 0.2
off_policy_mask_threshold: 0.5
use_bias_correction_kl: true
multi_objective_aggregation: normalize_then_sum
sapo_temperature_neg: 1.05
vespo_k_pos: 2.0
beta: 0.001
"""


def test_the_objective_of_trl_is_read_as_it_is(tmp_path: Path) -> None:
    """Under the same names, with nothing to say of them."""
    kept = [line for line in TRL.splitlines() if line.partition(":")[0] not in OBJECTIVE]
    (tmp_path / "trl.yaml").write_text("\n".join(kept) + OBJECTIVE)
    said: list[str] = []
    recipe = load_recipe(tmp_path / "trl.yaml", notify=said.append)
    for line in OBJECTIVE.strip().splitlines():
        key, value = line.split(": ")
        assert str(getattr(recipe, key)).lower() == value
        assert not [one for one in said if key in one]


def test_the_kl_of_trl_is_named_where_it_is_not_set(tmp_path: Path) -> None:
    said: list[str] = []
    for beta in ("0.0", "0.04"):
        (tmp_path / "trl.yaml").write_text(TRL.replace("beta: 0.0", f"beta: {beta}"))
        load_recipe(tmp_path / "trl.yaml", notify=said.append)
    assert ["use_bias_correction_kl=False (TRL: true)" in line for line in said if "another default" in line] == [
        False,
        True,
    ]


def test_numbers_without_a_point_and_functions_with_dots_are_understood(tmp_path: Path) -> None:
    text = "learning_rate: 2e-5\nlr_scheduler_kwargs: {min_lr: 1e-6}\nlr_scheduler_type: cosine_with_min_lr\n"
    (tmp_path / "a.yaml").write_text(f"{text}reward_funcs: [my_lib.rewards.custom, mine.py:f, numeric, grader.json]\n")
    recipe = load_recipe(tmp_path / "a.yaml")
    assert recipe.min_lr_rate == pytest.approx(0.05)
    assert recipe.reward_funcs == ["my_lib.rewards:custom", "mine.py:f", "numeric", "grader.json"]


def test_what_is_said_here_as_it_was_said_there_is_not_told() -> None:
    said: list[str] = []
    load_recipe(None, ["reward_funcs=numeric,overlong", "max_steps=3", "warmup_steps=2"], said.append)
    assert said == []


def test_every_key_of_transformers_is_known() -> None:
    known = {*Recipe.model_fields, *foreign.SYNONYMS, *foreign.FORMS, *foreign.IGNORED, *foreign.ONLY, *foreign.INSTEAD}
    known |= set(foreign.CONFIGURATIONS)
    keys = {field.name for field in dataclasses.fields(TrainingArguments)}
    assert [key for key in keys - known if not key.startswith(tuple(foreign.IGNORED_PREFIXES))] == []


def test_an_open_r1_file_runs_unchanged_to_its_end(
    tmp_path: Path, outdo: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    save_policy(load_policy("tiny", device="cpu"), tmp_path / "model")
    (tmp_path / "sums").mkdir()
    for split, first, count in (("train", 0, 10), ("test", 50, 3)):
        rows = [
            {"problem": f"What is {i} + {i}?", "solution": f"It is $\\boxed{{{2 * i}}}$", "source": "made"}
            for i in range(first, first + count)
        ]
        rows += [{"problem": "far " * 200, "solution": "$1$", "source": "made"}] if split == "train" else []
        (tmp_path / "sums" / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "config.yaml").write_text(OPEN_R1)
    done = outdo("train", "config.yaml", "eval_samples=0")
    assert done.returncode == 0, done.stdout + done.stderr
    said = " ".join(done.stdout.split())
    assert "clip_range is epsilon here" in said and "reward_funcs=accuracy,format" in said
    ignored = re.findall(r"((?:\w+, )*\w+) ignored, because", said)
    for key in ("use_vllm", "vllm_gpu_memory_utilization", "logging_steps"):
        assert any(key in keys for keys in ignored), key
    assert "push_to_hub=true, and there is no token" in said and "outdo push data/tiny-sums-grpo tiny-sums-grpo" in said
    assert "1 of 11 train prompts are longer than 160 tokens: skipped" in said
    assert "none of 3 held-out prompts is among 11 training prompts" in said

    run = json.loads((tmp_path / "data" / "tiny-sums-grpo" / "run.json").read_text())
    recipe = run["recipe"]
    assert run["status"] == "done" and run["overlap"]["exact"] == 0
    assert recipe["max_steps"] == 3  # once through 11 prompts, four a step
    assert (recipe["dtype"], recipe["epsilon"], recipe["beta"], recipe["min_lr_rate"]) == ("float32", 0.2, 0.01, 0.1)
    assert recipe["columns"] == {"prompt": "problem"} and recipe["reward_funcs"][0] == "math"
    rows = [json.loads(line) for line in (tmp_path / "data" / "tiny-sums-grpo" / "metrics.jsonl").open()]
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert rows[0]["lr"] == pytest.approx(2e-5) and rows[-1]["lr"] < rows[1]["lr"]
    assert {"reward/math", "reward/format", "reward/cosine", "reward/length"} <= rows[0].keys()
    assert (tmp_path / "data" / "tiny-sums-grpo" / "model" / "config.json").exists()


def test_data_that_cannot_be_trained_on_end_with_2_and_leave_no_folder(
    tmp_path: Path, outdo: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    rows = [{"prompt": f"{i} + {i}", "answer": 2 * i} for i in range(20)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for words, part in (
        (("max_prompt_length=1",), "prompts are longer than 1 tokens (the shortest has"),
        (("columns.prompt=problem",), "has no column 'problem'; it has prompt, answer"),
        (("dataset_train_split=trian", "columns.split=prompt"), "no prompts in split 'train'"),
        (("max_completion_length=2000",), "leaves no room for a prompt"),
    ):
        done = outdo("train", "dataset_name=a.jsonl", "reward_funcs=numeric", "sft_steps=0", *words)
        assert done.returncode == 2 and part in done.stderr, done.stderr
        assert "Traceback" not in done.stderr and not (tmp_path / "runs").exists()
