"""What a backend is given of a recipe, and what is refused before anything loads; without the backends' packages."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

from outdo.bridges import backend
from outdo.bridges.keys import (
    ONLY,
    OURS,
    SAME,
    TRANSLATED,
    config_of,
    differences,
    refuse_args,
    refuse_keys,
    updates_per_step,
)
from outdo.errors import RecipeError
from outdo.recipe.load import load_recipe
from outdo.recipe.schema import Recipe
from outdo.recipe.trust import code_refs
from outdo.training.context import make_context
from outdo.training.stages import read_stages

Outdo = Callable[..., subprocess.CompletedProcess[str]]


def test_every_key_is_carried_in_one_way() -> None:
    ways = [*SAME, *TRANSLATED, *OURS, *ONLY]
    assert len(ways) == len(set(ways)), sorted(key for key in ways if ways.count(key) > 1)
    assert set(ways) == set(Recipe.model_fields)


def test_only_values_are_the_defaults() -> None:
    """A recipe that sets none of them runs."""
    recipe = Recipe()
    assert all(getattr(recipe, key) in values for key, (values, _) in ONLY.items())


@pytest.mark.parametrize(
    ("keys", "per_generation", "accumulation", "steps"),
    [
        ({"per_device_train_batch_size": 128}, 1, 1, 10),
        ({"per_device_train_batch_size": 32, "gradient_accumulation_steps": 4}, 4, 4, 10),
        ({"per_device_train_batch_size": 32, "steps_per_generation": 4}, 4, 1, 40),
        ({"per_device_train_batch_size": 32, "generation_batch_size": 64, "num_iterations": 3}, 2, 1, 60),
        ({"per_device_train_batch_size": 32, "generation_batch_size": 32, "gradient_accumulation_steps": 2}, 1, 1, 10),
    ],
)
def test_batches(keys: dict[str, int], per_generation: int, accumulation: int, steps: int) -> None:
    """TRL counts batches of a generation, and updates as steps; ours are batches of answers."""
    recipe = Recipe(max_steps=10, **keys)
    fields = config_of(recipe)
    assert fields["steps_per_generation"] == per_generation
    assert fields["gradient_accumulation_steps"] == accumulation
    assert fields["max_steps"] == steps == 10 * updates_per_step(recipe)


def test_losses_that_it_lacks_are_refused() -> None:
    for loss in ("dppo", "clip_cov", "kl_cov", "gmpo"):
        with pytest.raises(RecipeError, match=f"loss_type={loss}: it has grpo"):
            refuse_keys(Recipe(loss_type=loss), "TRL")
    refuse_keys(Recipe(loss_type="vespo", vespo_k_pos=1.0, delta=4.0, use_bias_correction_kl=True), "TRL")
    assert config_of(Recipe(loss_type="sapo", sapo_temperature_neg=2.0))["sapo_temperature_neg"] == 2.0


def test_gspo_is_a_level_there() -> None:
    fields = config_of(Recipe(loss_type="gspo"))
    assert (fields["loss_type"], fields["importance_sampling_level"]) == ("grpo", "sequence")


def test_other_meanings_are_named() -> None:
    said = {line.partition(":")[0] for line in differences(Recipe(steps_per_generation=2), "TRL")}
    assert said == {"adv_std", "max_steps", "per_device_train_batch_size", "generation_batch_size", "kl_steps"}
    same = {line.partition(":")[0] for line in differences(Recipe(adv_std="sample", beta=0.1), "TRL")}
    assert same == {"per_device_train_batch_size"}


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"dynamic_sampling": True, "kl_estimator": "k1"}, ["dynamic_sampling", "kl_estimator"]),
        ({"advantage_estimator": "rloo"}, ["advantage_estimator"]),
        ({"device": "cuda:1"}, ["device", "CUDA_VISIBLE_DEVICES"]),
        ({"tokens_per_micro_batch": 512}, ["tokens_per_micro_batch"]),
        ({"stages": [{"stage": "grpo", "kl_estimator": "k1"}]}, ["stage 1", "kl_estimator"]),
        ({"stages": [{"stage": "grpo", "backend_python": "x"}]}, ["stage 1", "backend_python"]),
        ({"model_name_or_path": "x", "use_peft": True, "beta": 0.1, "sft_steps": 5}, ["beta", "adapter"]),
        ({"optim": "adamw_bf16"}, ["adamw_bf16"]),
        ({"per_device_train_batch_size": 48, "generation_batch_size": 64}, ["64", "48"]),
    ],
)
def test_what_it_cannot_do(keys: dict[str, Any], named: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    _with_versions(monkeypatch, {"trl": "1.16.0"})
    with pytest.raises(RecipeError) as refused:
        context = make_context(None, backend="trl", **keys)
        read_stages(context.recipe)
    assert all(word in str(refused.value) for word in named)


@pytest.mark.parametrize(
    ("args", "named"),
    [
        ({"temperature": 0.5}, "temperature"),
        ({"logging_steps": 2}, "logging_steps"),
        ({"shuffle_dataset": True}, "shuffle_dataset"),
        ({"lr_scheduler_type": "linear"}, "lr_scheduler_type"),
        ({"output_dir": "x"}, "output_dir"),
        ({"use_vlm": True}, "use_vllm"),
        ({"trust_remote_code": True}, "trust_remote_code"),
    ],
)
def test_args_of_the_backend(args: dict[str, Any], named: str) -> None:
    fields = dict.fromkeys(("use_vllm", "vllm_mode", "temperature", "output_dir", "trust_remote_code"))
    with pytest.raises(RecipeError, match=named):
        refuse_args(Recipe(backend="trl", backend_args=args), fields, "TRL")


def test_keys_of_a_backend_without_one() -> None:
    with pytest.raises(RecipeError, match="backend=trl"):
        make_context(None, backend_args={"use_vllm": True})


def test_unknown_backend_has_a_near_name() -> None:
    with pytest.raises(RecipeError, match="unsloth"):
        load_recipe(None, ["backend=unslot"])


def _with_versions(monkeypatch: pytest.MonkeyPatch, versions: dict[str, str]) -> None:
    def version(package: str) -> str:
        if package not in versions:
            raise PackageNotFoundError(package)
        return versions[package]

    monkeypatch.setattr(backend, "version", version)


@pytest.mark.parametrize(
    ("name", "versions", "named"),
    [
        ("trl", {}, ["pip install 'outdo[trl]'", "backend_python"]),
        ("trl", {"trl": "0.29.1"}, ["0.29.1", "1.15"]),
        ("trl", {"trl": "1.17.0"}, ["1.17.0"]),
        ("trl", {"trl": "1.16.0"}, []),
        ("unsloth", {"unsloth": "2026.10.9", "trl": "1.16.0"}, ["trl", "1.16.0"]),
        ("unsloth", {"unsloth": "2026.10.9", "trl": "1.15.0"}, []),
    ],
)
def test_packages(monkeypatch: pytest.MonkeyPatch, name: str, versions: dict[str, str], named: list[str]) -> None:
    _with_versions(monkeypatch, versions)
    recipe = Recipe(backend=name)
    if not named:
        assert backend.find_backend(recipe)
        return
    with pytest.raises(RecipeError) as refused:
        backend.refuse_backend(recipe)
    assert all(word in str(refused.value) for word in named)


def test_several_processes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    _with_versions(monkeypatch, {"trl": "1.16.0"})
    with pytest.raises(RecipeError, match="one process"):
        backend.find_backend(Recipe(backend="trl"), world_size=2)


def test_a_folders_python_is_code(tmp_path: Path) -> None:
    """What a run's folder names is not started."""
    named = {"backend": "trl", "backend_python": "/tmp/evil", "backend_args": {"vllm_server_base_url": "http://x"}}
    assert {ref.key for ref in code_refs(named)} == {"backend_python", "backend_args"}
    assert not code_refs(Recipe(backend="trl").model_dump())


def test_python_that_lacks_it(tmp_path: Path, outdo: Outdo) -> None:
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)
    for path in (bare / "bin" / "python", bare / "missing", "/bin/true"):
        done = outdo("train", "backend=trl", f"backend_python={path}", "max_steps=1")
        assert done.returncode == 2 and str(path) in done.stderr, done.stderr
        assert not (tmp_path / "runs").exists()
