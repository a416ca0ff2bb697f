"""DeepSpeed's, FSDP's and accelerate's configurations, in the forms that people have them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml

from outdo.errors import RecipeError
from outdo.recipe.launchers import keys_of_file, keys_of_launcher, load_on_every_rank, with_launcher
from outdo.recipe.load import load_recipe
from outdo.recipe.schema import Recipe

SHARED = {"compute_environment": "LOCAL_MACHINE", "machine_rank": 0, "num_machines": 1, "num_processes": 2}
ACCELERATE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # as TRL's users have them -> our keys
    "zero1": (
        {"distributed_type": "DEEPSPEED", "mixed_precision": "bf16", "deepspeed_config": {"zero_stage": 1}},
        {"parallel_sharding": "grads", "dtype": "bfloat16"},
    ),
    "zero2": (
        {
            "distributed_type": "DEEPSPEED",
            "mixed_precision": "bf16",
            "deepspeed_config": {
                "deepspeed_multinode_launcher": "standard",
                "gradient_accumulation_steps": 1,
                "offload_optimizer_device": "none",
                "offload_param_device": "none",
                "zero3_init_flag": False,
                "zero_stage": 2,
            },
        },
        {"parallel_sharding": "grads", "dtype": "bfloat16"},
    ),
    "zero3": (
        {
            "distributed_type": "DEEPSPEED",
            "mixed_precision": "bf16",
            "deepspeed_config": {
                "gradient_clipping": 0.5,
                "offload_optimizer_device": "cpu",
                "offload_param_device": "cpu",
                "zero3_init_flag": True,
                "zero3_save_16bit_model": True,
                "zero_stage": 3,
            },
        },
        {
            "parallel_sharding": "full",
            "parallel_offload": "parameters",
            "max_grad_norm": 0.5,
            "dtype": "bfloat16",
        },
    ),
    "fsdp1": (
        {
            "distributed_type": "FSDP",
            "mixed_precision": "no",
            "fsdp_config": {
                "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
                "fsdp_sharding_strategy": "SHARD_GRAD_OP",
                "fsdp_offload_params": True,
            },
        },
        {"parallel_sharding": "grads", "parallel_offload": "parameters"},
    ),
    "hybrid": (
        {
            "distributed_type": "FSDP",
            "num_machines": 2,
            "num_processes": 16,
            "fsdp_config": {"fsdp_sharding_strategy": "HYBRID_SHARD"},
        },
        {"parallel_sharding": "full", "parallel_replicas": 2},
    ),
    "fsdp2": (
        {
            "distributed_type": "FSDP",
            "mixed_precision": "bf16",
            "fsdp_config": {
                "fsdp_version": 2,
                "fsdp_reshard_after_forward": True,
                "fsdp_offload_params": False,
                "fsdp_activation_checkpointing": True,
                "fsdp_cpu_ram_efficient_loading": True,
                "fsdp_state_dict_type": "SHARDED_STATE_DICT",
            },
        },
        {"parallel_sharding": "full", "gradient_checkpointing": True, "dtype": "bfloat16"},
    ),
    "fsdp2 without resharding": (
        {"distributed_type": "FSDP", "fsdp_config": {"fsdp_version": 2, "fsdp_reshard_after_forward": False}},
        {"parallel_sharding": "grads"},
    ),
    "multi_gpu": ({"distributed_type": "MULTI_GPU", "mixed_precision": "bf16"}, {"dtype": "bfloat16"}),
    "one process": ({"distributed_type": "NO", "mixed_precision": "no", "use_cpu": True}, {"device": "cpu"}),
}
ENVIRONMENTS: list[tuple[dict[str, str], dict[str, Any]]] = [  # as accelerate 1.15 sets it -> our keys
    ({}, {}),
    ({"ACCELERATE_MIXED_PRECISION": "bf16"}, {"dtype": "bfloat16"}),
    ({"ACCELERATE_MIXED_PRECISION": "no", "ACCELERATE_USE_CPU": "True"}, {"device": "cpu"}),
    (
        {
            "ACCELERATE_MIXED_PRECISION": "bf16",
            "ACCELERATE_USE_DEEPSPEED": "true",
            "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3",
            "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE": "cpu",
            "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE": "none",
            "ACCELERATE_DEEPSPEED_ZERO3_INIT": "true",
            "ACCELERATE_GRADIENT_CLIPPING": "0.3",
            "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "1",
        },
        {
            "dtype": "bfloat16",
            "parallel_sharding": "full",
            "parallel_offload": "optimizer",
            "max_grad_norm": 0.3,
        },
    ),
    (
        {
            "ACCELERATE_MIXED_PRECISION": "no",
            "ACCELERATE_USE_FSDP": "true",
            "FSDP_VERSION": "2",
            "FSDP_SHARDING_STRATEGY": "FULL_SHARD",
            "FSDP_RESHARD_AFTER_FORWARD": "false",
            "FSDP_OFFLOAD_PARAMS": "false",
            "FSDP_MIN_NUM_PARAMS": "100000000",
        },
        {"parallel_sharding": "grads"},
    ),
    (
        {
            "ACCELERATE_MIXED_PRECISION": "no",
            "ACCELERATE_USE_FSDP": "true",
            "FSDP_VERSION": "1",
            "FSDP_SHARDING_STRATEGY": "HYBRID_SHARD",
            "FSDP_RESHARD_AFTER_FORWARD": "true",
            "WORLD_SIZE": "16",
            "LOCAL_WORLD_SIZE": "8",
        },
        {"parallel_sharding": "full", "parallel_replicas": 2},
    ),
    (
        {
            "ACCELERATE_MIXED_PRECISION": "no",
            "ACCELERATE_USE_PARALLELISM_CONFIG": "true",
            "PARALLELISM_CONFIG_DP_REPLICATE_SIZE": "2",
            "PARALLELISM_CONFIG_TP_SIZE": "1",
        },
        {"parallel_replicas": 2},
    ),
]
AUTO = {  # DeepSpeed's file as transformers' documentation has it
    "fp16": {"enabled": "auto", "loss_scale": 0},
    "bf16": {"enabled": "auto"},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto"}},
    "zero_optimization": {
        "stage": 3,
        "offload_optimizer": {"device": "cpu", "pin_memory": True},
        "offload_param": {"device": "none"},
        "overlap_comm": True,
        "contiguous_gradients": True,
        "reduce_bucket_size": "auto",
        "stage3_param_persistence_threshold": "auto",
        "stage3_gather_16bit_weights_on_model_save": True,
    },
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "steps_per_print": 2000,
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "wall_clock_breakdown": False,
}
RECIPES: list[tuple[dict[str, Any], dict[str, Any]]] = [  # a file's keys -> ours
    (
        {"deepspeed": AUTO},
        {"parallel_sharding": "full", "parallel_offload": "optimizer", "optim": "adamw_torch", "max_grad_norm": 1.0},
    ),
    (
        {"deepspeed": {"zero_optimization": {"stage": 2, "cpu_offload": True}, "gradient_clipping": 0}},
        {"parallel_sharding": "grads", "parallel_offload": "optimizer", "max_grad_norm": 1e9},
    ),
    ({"deepspeed": {"zero_optimization": {"stage": 0}, "bf16": {"enabled": True}}}, {"dtype": "bfloat16"}),
    (
        {"deepspeed": {"optimizer": {"type": "Adam", "params": {"lr": 1e-5, "betas": [0.8, 0.9]}}}},
        {"learning_rate": 1e-5, "adam_beta1": 0.8, "adam_beta2": 0.9, "parallel_sharding": "none"},
    ),
    (
        {"deepspeed": {"train_micro_batch_size_per_gpu": 16}, "per_device_train_batch_size": 16},
        {"per_device_train_batch_size": 16},
    ),
    ({"deepspeed": None, "fsdp": ""}, {"parallel_sharding": "auto"}),
    (
        {"fsdp": "full_shard auto_wrap offload"},
        {"parallel_sharding": "full", "parallel_offload": "parameters"},
    ),
    ({"fsdp": ["shard_grad_op"]}, {"parallel_sharding": "grads"}),
    ({"fsdp": True, "fsdp_config": {"reshard_after_forward": False}}, {"parallel_sharding": "grads"}),
    ({"fsdp": "hybrid_shard", "parallel": {"replicas": 2}}, {"parallel_sharding": "full", "parallel_replicas": 2}),
    ({"fsdp_config": {"version": 2}}, {"parallel_sharding": "auto"}),
    ({"ddp_timeout": 600}, {"parallel_timeout": 600}),
]
REFUSED: list[tuple[dict[str, Any], str]] = [  # a file's keys -> what the message names
    ({"deepspeed": {"zero_optimization": {"stage": 4}}}, "0, 1, 2 or 3"),
    ({"deepspeed": {"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}}}, "nvme"),
    ({"deepspeed": {"zero_optimization": {"stage": 3, "zero_quantized_weights": True}}}, "zero_quantized_weights"),
    ({"deepspeed": {"zero_optimization": {"stage": 3, "mics_shard_size": 8}}}, "parallel.replicas"),
    ({"deepspeed": {"fp16": {"enabled": True}}}, "bf16"),
    ({"deepspeed": {"optimizer": {"type": "Lamb"}}}, "optim"),
    ({"deepspeed": {"sparse_attention": {"mode": "fixed"}}}, "sparse_attention"),
    ({"deepspeed": {"gradient_cliping": 1.0}}, "gradient_clipping"),
    ({"deepspeed": "nowhere.json"}, "nowhere.json"),
    ({"deepspeed": {"train_micro_batch_size_per_gpu": 16}, "per_device_train_batch_size": 8}, "leave one of them out"),
    ({"deepspeed": {"zero_optimization": {"stage": 2}}, "parallel": {"sharding": "full"}}, "parallel_sharding"),
    ({"deepspeed": {"zero_optimization": {"stage": 2}}, "parallel.sharding": "full"}, "parallel_sharding"),
    ({"fsdp": "hybrid_shard"}, "parallel.replicas"),
    ({"fsdp": "full_shart"}, "full_shard"),
    ({"fsdp": True, "fsdp_config": {"xla": True}}, "xla"),
    ({"fsdp_version": 2}, "fsdp_version"),
    ({"parallelism_config": {"tp_size": 2}}, "never split"),
    ({"tensor_parallel_size": 2}, "never split"),
]


@pytest.mark.parametrize("name", ACCELERATE)
def test_accelerate_file(name: str) -> None:
    data, ours = ACCELERATE[name]
    assert keys_of_file({**SHARED, **data}, "config.yaml").keys == ours


@pytest.mark.parametrize(("environment", "ours"), ENVIRONMENTS, ids=lambda one: str(len(one)))
def test_accelerate_environment(environment: dict[str, str], ours: dict[str, Any]) -> None:
    launcher = keys_of_launcher(environment)
    assert launcher.keys == ours
    assert not any("ignored" in note for note in launcher.notes)


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({"ACCELERATE_MIXED_PRECISION": "fp16"}, "bf16"),
        ({"ACCELERATE_USE_MEGATRON_LM": "true"}, "Megatron"),
        ({"ACCELERATE_USE_PARALLELISM_CONFIG": "true", "PARALLELISM_CONFIG_TP_SIZE": "2"}, "tensor"),
        ({"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE": "nvme"}, "nvme"),
    ],
)
def test_refused_environment(variables: dict[str, str], named: str) -> None:
    with pytest.raises(RecipeError) as caught:
        keys_of_launcher({"ACCELERATE_MIXED_PRECISION": "no", **variables})
    assert named in str(caught.value)


def test_deepspeed_file_of_the_environment(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(json.dumps(AUTO))
    environment = {"ACCELERATE_MIXED_PRECISION": "no", "ACCELERATE_USE_DEEPSPEED": "true"}
    environment |= {"ACCELERATE_DEEPSPEED_CONFIG_FILE": str(tmp_path / "ds.json")}
    assert keys_of_launcher(environment).keys["parallel_sharding"] == "full"


def test_the_recipe_wins() -> None:
    environment = ENVIRONMENTS[3][0]
    recipe, notes = with_launcher(Recipe(parallel_sharding="none", max_grad_norm=0.3), environment)
    assert (recipe.parallel_sharding, recipe.parallel_offload, recipe.dtype) == ("none", "optimizer", "bfloat16")
    assert [note for note in notes if "ignored, because the recipe sets parallel_sharding=none" in note]
    same, notes = with_launcher(recipe, {})
    assert same is recipe and not notes


def test_every_rank_loads() -> None:
    environment = {"FSDP_CPU_RAM_EFFICIENT_LOADING": "true", "FSDP_VERSION": "2"}
    load_on_every_rank(environment)
    assert environment == {"FSDP_CPU_RAM_EFFICIENT_LOADING": "false", "FSDP_VERSION": "2"}


@pytest.mark.parametrize(("keys", "ours"), RECIPES, ids=lambda one: str(one)[:40])
def test_recipe(tmp_path: Path, keys: dict[str, Any], ours: dict[str, Any]) -> None:
    (tmp_path / "r.yaml").write_text(yaml.safe_dump(keys))
    notices: list[str] = []
    recipe = load_recipe(tmp_path / "r.yaml", notify=notices.append)
    assert {key: getattr(recipe, key) for key in ours} == ours
    assert all(" ignored, because " in line for line in notices if "ignored" in line)


@pytest.mark.parametrize(("keys", "named"), REFUSED, ids=lambda one: str(one)[:40])
def test_refused_recipe(tmp_path: Path, keys: dict[str, Any], named: str) -> None:
    (tmp_path / "r.yaml").write_text(yaml.safe_dump(keys))
    with pytest.raises(RecipeError) as caught:
        load_recipe(tmp_path / "r.yaml")
    assert named in str(caught.value)


def test_file_beside_the_recipe(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(json.dumps({"zero_optimization": {"stage": 2}}))
    (tmp_path / "r.yaml").write_text("deepspeed: ds.json\n")
    assert load_recipe(tmp_path / "r.yaml").parallel_sharding == "grads"
    assert load_recipe(tmp_path / "r.yaml", ["parallel.sharding=full"]).parallel_sharding == "full"


def test_what_is_translated_is_reported(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text(yaml.safe_dump({"deepspeed": AUTO}))
    notices: list[str] = []
    load_recipe(tmp_path / "r.yaml", notify=notices.append)
    taken = next(line for line in notices if "parallel_sharding=full" in line)
    assert "zero_optimization.stage=3" in taken and "parallel_offload=optimizer" in taken
    assert [line for line in notices if "overlap_comm" in line and "ignored, because" in line]


def test_accelerate_file_as_a_recipe(tmp_path: Path) -> None:
    (tmp_path / "zero2.yaml").write_text(yaml.safe_dump({**SHARED, **ACCELERATE["zero2"][0]}))
    with pytest.raises(RecipeError) as caught:
        load_recipe(tmp_path / "zero2.yaml")
    assert "torchrun --nproc-per-node 2 -m outdo train" in str(caught.value)
    assert "--multi_gpu -m outdo train RECIPE.yaml parallel.sharding=grads" in str(caught.value)
    assert str(caught.value).endswith("RECIPE.yaml dtype=bfloat16 parallel.sharding=grads")


@pytest.mark.parametrize(("name", "options"), [("fsdp2", ()), ("zero2", ("--multi_gpu",))])
def test_accelerate_itself(tmp_path: Path, name: str, options: tuple[str, ...]) -> None:
    """Two processes of a real launch read from their variables what the file asks for; of a file for DeepSpeed, which
    is not installed, the precision."""
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({**SHARED, **ACCELERATE[name][0], "use_cpu": True}))
    script = """
        import json, os
        from outdo.recipe.launchers import keys_of_launcher
        open(f"rank-{os.environ['RANK']}", "w").write(json.dumps(keys_of_launcher(os.environ).keys))
    """
    (tmp_path / "keys.py").write_text(textwrap.dedent(script))
    words = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", "config.yaml"]
    words += [*options, "--main_process_port", "0", "keys.py"]
    subprocess.run(words, cwd=tmp_path, env=os.environ, capture_output=True, text=True, timeout=120, check=True)
    expected = ACCELERATE[name][1] if not options else {"dtype": "bfloat16"}
    assert [json.loads((tmp_path / f"rank-{rank}").read_text()) for rank in (0, 1)] == [expected] * 2
