"""What `accelerate launch` hands to its processes, as keys of a recipe: by environment variables, or its YAML file.

accelerate passes on the ZeRO stage or FSDP's options, the precision and little else; `torchrun` passes on nothing. Keys
that a recipe sets itself win.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

from outdo.errors import RecipeError
from outdo.recipe.deepspeed import STAGES, deepspeed_keys, take_offload
from outdo.recipe.forms import UNCLIPPED, format_value, number
from outdo.recipe.fsdp import fsdp_keys, is_on
from outdo.recipe.schema import Recipe
from outdo.recipe.translated import Translated

ACCELERATE = "accelerate launch"
# Of accelerate's YAML; none is a key of a recipe.
MARKS = ("compute_environment", "distributed_type")
_PARALLELISM = {"TP_SIZE": "tensor", "CP_SIZE": "context", "SP_SIZE": "sequence"}
# Of its deepspeed_config, beside those that are read: they tune or name other launchers.
_UNREAD = ("zero3_init_flag", "zero3_save_16bit_model", "deepspeed_multinode_launcher", "deepspeed_hostfile")


@dataclass(frozen=True)
class LauncherKeys:
    """Keys of ours that a launcher asks for, and lines about what was translated and ignored."""

    keys: Mapping[str, Any]
    notes: tuple[str, ...] = ()


def keys_of_launcher(environment: Mapping[str, str]) -> LauncherKeys:
    """What `accelerate launch` asks for; nothing where it did not start this process. Reads a DeepSpeed file where the
    variables name one. Raises RecipeError for what would train differently from what they say."""
    if "ACCELERATE_MIXED_PRECISION" not in environment:
        return LauncherKeys({})
    _refuse_unsupported(environment)
    parts = [_precision(environment["ACCELERATE_MIXED_PRECISION"])]
    if is_on(environment.get("ACCELERATE_USE_CPU")):
        parts[0].take("use_cpu", True, "device", "cpu")
    if is_on(environment.get("ACCELERATE_USE_DEEPSPEED")):
        parts.append(_deepspeed(environment))
    if is_on(environment.get("ACCELERATE_USE_FSDP")):
        given = {name[5:].lower(): value for name, value in environment.items() if name.startswith("FSDP_")}
        part = fsdp_keys(True, given, ACCELERATE, "fsdp_config", _nodes(environment), version="1")
        part.ignored.clear()  # accelerate sets all of them, whatever its user wrote
        parts.append(part)
    if is_on(environment.get("ACCELERATE_USE_PARALLELISM_CONFIG")):
        parts.append(_parallelism(environment))
    return _joined(parts)


def with_launcher(recipe: Recipe, environment: Mapping[str, str]) -> tuple[Recipe, tuple[str, ...]]:
    """The recipe with the keys of `accelerate launch` that it does not set itself, and lines that describe them."""
    launcher = keys_of_launcher(environment)
    own = recipe.model_fields_set
    notes = list(launcher.notes)
    for name, value in launcher.keys.items():
        if name in own and getattr(recipe, name) != value:
            ours = format_value(getattr(recipe, name))
            notes.append(f"{ACCELERATE}: {name}={format_value(value)} ignored, because the recipe sets {name}={ours}")
    added = {name: value for name, value in launcher.keys.items() if name not in own}
    return (recipe.model_copy(update=added) if added else recipe), tuple(notes)


def load_on_every_rank(environment: MutableMapping[str, str]) -> None:
    """Makes transformers read the weights in every process. With this variable of accelerate's FSDP it gives all but
    the first of a node zeros, for accelerate to fill. Call it before a model is loaded."""
    if is_on(environment.get("FSDP_CPU_RAM_EFFICIENT_LOADING")):
        environment["FSDP_CPU_RAM_EFFICIENT_LOADING"] = "false"


def refuse_launcher_file(data: Mapping[str, Any], where: str) -> None:
    """Raises RecipeError where a recipe's file is accelerate's configuration, with the command that means the same."""
    if not any(key in data for key in MARKS):
        return
    keys = keys_of_file(data, where).keys
    pairs = [f"{name.replace('parallel_', 'parallel.')}={format_value(value)}" for name, value in keys.items()]
    train = ["-m", "outdo", "train", "RECIPE.yaml"]
    launch = ["accelerate", "launch", "--config_file", where]
    if str(data.get("distributed_type")).upper() == "DEEPSPEED":  # else accelerate wants deepspeed, which is not used
        launch, train = [*launch, "--multi_gpu"], [*train, *(pair for pair in pairs if not pair.startswith("dtype"))]
    torchrun = ["torchrun", "--nproc-per-node", str(data.get("num_processes") or "GPUS")]
    alone = [*torchrun, "-m", "outdo", "train", "RECIPE.yaml", *pairs]
    raise RecipeError(
        f"{where}: this configures accelerate, and is not a recipe. Start one with: {shlex.join([*launch, *train])}; "
        f"or without accelerate: {shlex.join(alone)}"
    )


def keys_of_file(data: Mapping[str, Any], where: str) -> LauncherKeys:
    """What accelerate's YAML file asks for. Raises RecipeError as keys_of_launcher does."""
    parts = [_precision(str(data.get("mixed_precision", "no")), where)]
    if data.get("use_cpu"):
        parts[0].take("use_cpu", True, "device", "cpu")
    kind, nodes = str(data.get("distributed_type", "NO")).upper(), int(data.get("num_machines") or 1)
    if kind == "DEEPSPEED":
        parts.append(_deepspeed_block(dict(data.get("deepspeed_config") or {}), where))
    elif kind == "FSDP":
        parts.append(fsdp_keys(True, dict(data.get("fsdp_config") or {}), where, "fsdp_config", nodes, version="1"))
    elif kind in ("MEGATRON_LM", "XLA", "TPU"):
        raise RecipeError(f"{where}: distributed_type={kind} is not supported: use FSDP, MULTI_GPU, or torchrun")
    return _joined(parts)


def _joined(parts: list[Translated]) -> LauncherKeys:
    keys: dict[str, Any] = {}
    for part in parts:
        for name, value in part.keys.items():
            if keys.setdefault(name, value) != value:
                raise RecipeError(
                    f"{part.where}: {part.what} asks for {name}={format_value(value)}, and another part for "
                    f"{format_value(keys[name])}"
                )
    return LauncherKeys(keys, tuple(note for part in parts for note in part.notes()))


def _refuse_unsupported(environment: Mapping[str, str]) -> None:
    if is_on(environment.get("ACCELERATE_USE_MEGATRON_LM")):
        raise RecipeError(f"{ACCELERATE}: Megatron-LM is not supported: use distributed_type FSDP or MULTI_GPU")


def _precision(value: str, where: str = ACCELERATE) -> Translated:
    out = Translated(where, "mixed_precision")
    if value == "bf16":
        out.take("bf16", {}, "dtype", "bfloat16")
    elif value not in ("no", "None", ""):
        raise RecipeError(f"{where}: mixed_precision={value} is not supported: use bf16, or no for float32")
    return out


def _nodes(environment: Mapping[str, str]) -> int:
    size, per_node = environment.get("WORLD_SIZE", "1"), environment.get("LOCAL_WORLD_SIZE", "1")
    return max(1, int(size) // int(per_node)) if size.isdecimal() and per_node.isdecimal() and int(per_node) else 1


def _deepspeed(environment: Mapping[str, str]) -> Translated:
    """accelerate passes its deepspeed_config on in variables of its own, with the same names."""
    start = "ACCELERATE_DEEPSPEED_"
    block: dict[str, Any] = {
        name.removeprefix(start).lower(): value for name, value in environment.items() if name.startswith(start)
    }
    for name in ("GRADIENT_ACCUMULATION_STEPS", "GRADIENT_CLIPPING"):
        if (value := environment.get(f"ACCELERATE_{name}")) is not None:
            block[name.lower()] = value
    block["deepspeed_config_file"] = block.pop("config_file", None)
    return _deepspeed_block(block, ACCELERATE)


def _deepspeed_block(block: dict[str, Any], where: str) -> Translated:
    """accelerate's deepspeed_config: a few values, or the path of a DeepSpeed file."""
    what = "deepspeed_config"
    if (path := block.pop("deepspeed_config_file", None)) and str(path).lower() != "none":
        return deepspeed_keys(path, where, "deepspeed_config_file")
    out = Translated(where, what)
    stage = number(block.pop("zero_stage", 2))
    if stage not in STAGES:
        raise RecipeError(f"{where}: {what}: zero_stage={stage!r}: expected 0, 1, 2 or 3")
    out.take("zero_stage", int(stage), "parallel_sharding", STAGES[stage])
    for part, ours in (("offload_optimizer_device", "optimizer"), ("offload_param_device", "parameters")):
        take_offload(part, block.pop(part, None), ours, out)
    clipping = number(block.pop("gradient_clipping", "none"))
    if isinstance(clipping, int | float) and not isinstance(clipping, bool):
        out.take("gradient_clipping", clipping, "max_grad_norm", clipping or UNCLIPPED)
    steps = number(block.pop("gradient_accumulation_steps", 1))
    if steps not in (1, "auto", "none", None):
        out.ignore(f"gradient_accumulation_steps={steps:g}", "the recipe has a key of that name")
    for key, value in block.items():
        if key not in (*_UNREAD, "zero3_init") and value not in (None, "none", "None", "", False, "false"):
            out.ignore(key, "it names files and hosts of DeepSpeed's own, or tunes it")
    return out


def _parallelism(environment: Mapping[str, str]) -> Translated:
    out = Translated(ACCELERATE, "parallelism_config")
    sizes = {
        name.removeprefix("PARALLELISM_CONFIG_"): value
        for name, value in environment.items()
        if name.startswith("PARALLELISM_CONFIG_") and value.isdecimal()
    }
    for name, kind in _PARALLELISM.items():
        if int(sizes.get(name, "1")) > 1:
            raise RecipeError(f"{ACCELERATE}: {kind} parallelism ({name.lower()}={sizes[name]}) is not supported")
    if int(replicas := sizes.get("DP_REPLICATE_SIZE", "1")) > 1:
        out.take("dp_replicate_size", int(replicas), "parallel_replicas", int(replicas))
    return out
