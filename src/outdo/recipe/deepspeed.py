"""DeepSpeed's JSON as keys of a recipe: the ZeRO stage, what is offloaded, clipping, precision, batch and optimizer.

What only tunes DeepSpeed's speed is ignored with its reason; what would change training and has no key here is refused.
`auto` leaves a value to the recipe, as in transformers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from outdo.errors import RecipeError, did_you_mean
from outdo.recipe.forms import UNCLIPPED, number
from outdo.recipe.translated import Translated
from outdo.untrusted.parse import parse_json

STAGES = {0: "none", 1: "grads", 2: "grads", 3: "full"}
_UNSET = (None, "auto", "none")

# Parts of the file that only tune or report, by the reason that they are ignored.
_REASONS = {
    "logs and profiles are outdo's own": (
        *("steps_per_print", "wall_clock_breakdown", "dump_state", "flops_profiler", "comms_logger", "csv_monitor"),
        *("tensorboard", "wandb", "comet", "monitor_config", "memory_breakdown", "checkpoint"),
    ),
    "gradients are summed in float32": (
        *("communication_data_type", "prescale_gradients", "gradient_predivide_factor", "data_types"),
        *("seq_parallel_communication_data_type", "sparse_gradients"),
    ),
    "gradient_checkpointing decides what is recomputed": ("activation_checkpointing",),
    "the recipe and the number of processes decide the batch": ("train_batch_size",),
    "optimizers are made here": ("zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer"),
    "files are read and written by the trainer": ("aio", "nebula"),
}
_IGNORED = {key: reason for reason, keys in _REASONS.items() for key in keys}
# Of zero_optimization: how DeepSpeed moves bytes, which changes no result.
_TUNING = (
    *("allgather_partitions", "allgather_bucket_size", "overlap_comm", "reduce_scatter", "reduce_bucket_size"),
    *(
        "contiguous_gradients",
        "round_robin_gradients",
        "sub_group_size",
        "load_from_fp32_weights",
        "elastic_checkpoint",
    ),
    *("cpu_offload_use_pin_memory", "ignore_unused_parameters", "memory_efficient_linear", "zero_hpz_partition_size"),
    *("use_multi_rank_bucket_allreduce", "legacy_stage1", "pipeline_loading_checkpoint", "log_trace_cache_warnings"),
    *("use_all_reduce_for_fetch_params", "gather_16bit_weights_on_model_save", "model_persistence_threshold"),
)
_OFFLOADS = (  # part, its older name, ours
    ("offload_optimizer", "cpu_offload", "optimizer"),
    ("offload_param", "cpu_offload_params", "parameters"),
)
_SCHEDULES = {"WarmupLR": "constant", "WarmupDecayLR": "linear", "WarmupCosineLR": "cosine"}


def read_config(value: Any, what: str, where: str) -> dict[str, Any]:
    """A configuration that is given as a mapping, or as the path of a JSON file: in the working folder, or beside the
    recipe. Raises RecipeError."""
    if isinstance(value, Mapping):
        return dict(value)
    if not isinstance(value, str):
        raise RecipeError(f"{where}: {what}={value!r:.80}: expected a mapping or the path of a JSON file")
    places = [path for path in (Path(value), Path(where).parent / value) if path.is_file()]
    if not places:
        raise RecipeError(f"{where}: {what}={value}: there is no such file")
    try:
        data = parse_json(places[0].read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RecipeError(f"{where}: {what}={value}: cannot be read as JSON: {error}") from None
    if not isinstance(data, dict):
        raise RecipeError(f"{where}: {what}={value}: expected a mapping, this is a {type(data).__name__}")
    return data


def deepspeed_keys(value: Any, where: str, what: str = "deepspeed") -> Translated:
    """What a recipe's `deepspeed`, or accelerate's deepspeed_config_file, asks for. Raises RecipeError."""
    config = read_config(value, what, where)
    out = Translated(where, what)
    zero = config.pop("zero_optimization", None) or {}
    if not isinstance(zero, Mapping):
        raise RecipeError(f"{where}: {what}: zero_optimization={zero!r:.80}: expected a mapping with a stage")
    _zero(dict(zero), out)
    for key, part in config.items():
        if key in _PARTS:
            for name, ours in _PARTS[key](part, where):
                out.take(key, part, name, ours)
        elif key in _IGNORED:
            out.ignore(key, _IGNORED[key])
        elif part and not (isinstance(part, Mapping) and part.get("enabled") is False):
            near = did_you_mean(key, [*_PARTS, *_IGNORED, "zero_optimization"])
            raise RecipeError(
                f"{where}: {what}: {key} is not supported{near}; without it, keys of the recipe decide: "
                "parallel.sharding, parallel.offload, dtype, optim"
            )
    return out


def _zero(zero: dict[str, Any], out: Translated) -> None:
    stage = number(zero.pop("stage", 0))
    if stage not in STAGES:
        raise RecipeError(f"{out.where}: {out.what}: zero_optimization.stage={stage!r}: expected 0, 1, 2 or 3")
    out.take("zero_optimization.stage", int(stage), "parallel_sharding", STAGES[stage])
    for part, older, ours in _OFFLOADS:
        given = zero.pop(part, None) or ({"device": "cpu"} if zero.get(older) else {})
        zero.pop(older, None)
        device = given.get("device") if isinstance(given, Mapping) else given
        take_offload(f"zero_optimization.{part}.device", device, ours, out)
    for key, value in zero.items():
        if key in _TUNING or key.startswith("stage3_"):
            out.ignore(f"zero_optimization.{key}", "bytes are moved in outdo's own way, with the same result")
        elif value:  # zero_quantized_weights, mics_shard_size and the like
            hint = "set parallel.replicas" if "mics" in key else "leave it out"
            raise RecipeError(f"{out.where}: {out.what}: zero_optimization.{key}={value} is not supported: {hint}")


def take_offload(key: str, device: Any, ours: str, out: Translated) -> None:
    """Where the optimizer's state, or the weights with it, are kept. Weights include the optimizer."""
    device = str(device).lower() if device is not None else None
    if device in _UNSET:
        return
    if device != "cpu":
        raise RecipeError(f"{out.where}: {out.what}: {key}={device} is not supported: cpu is the host's memory")
    out.take(key, device, "parallel_offload", ours)


Pairs = Iterator[tuple[str, Any]]


def _clipping(value: Any, where: str) -> Pairs:
    if value not in _UNSET:
        yield "max_grad_norm", UNCLIPPED if number(value) == 0 else number(value)


def _bf16(value: Any, where: str) -> Pairs:
    if isinstance(value, Mapping) and value.get("enabled") is True:
        yield "dtype", "bfloat16"


def _fp16(value: Any, where: str) -> Pairs:
    if isinstance(value, Mapping) and value.get("enabled") is True:
        raise RecipeError(f"{where}: deepspeed: fp16.enabled=true is not supported: use bf16, or float32")
    return iter(())


def _same(key: str) -> Any:
    return lambda value, where: iter([] if value in _UNSET else [(key, number_or_text(value))])


def number_or_text(value: Any) -> Any:
    """A number, as an int where it is one: JSON files have 1.0 for counts too."""
    value = number(value)
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _optimizer(value: Any, where: str) -> Pairs:
    params = dict(value.get("params") or {})
    kind = str(value.get("type", "AdamW"))
    if kind.lower() not in ("adamw", "adam") or params.pop("adam_w_mode", True) is False:
        raise RecipeError(f"{where}: deepspeed: optimizer.type={kind} is not supported: use the recipe's optim")
    yield "optim", "adamw_torch"
    eps = params.pop("eps", "auto")
    if eps not in _UNSET and number(eps) != 1e-8:
        raise RecipeError(f"{where}: deepspeed: optimizer.params.eps={eps}: it is fixed at 1e-8")
    betas = params.pop("betas", "auto")
    if betas not in _UNSET:
        yield from zip(("adam_beta1", "adam_beta2"), map(number, betas), strict=True)
    for theirs, ours in (("lr", "learning_rate"), ("weight_decay", "weight_decay")):
        if (given := params.pop(theirs, "auto")) not in _UNSET:
            yield ours, number(given)
    for unused in ("torch_adam", "fused", "bias_correction"):
        params.pop(unused, None)
    if params:
        raise RecipeError(f"{where}: deepspeed: optimizer.params.{next(iter(params))} is not supported")


def _scheduler(value: Any, where: str) -> Pairs:
    """By its shape and warm-up: the length is max_steps, and the rate learning_rate."""
    kind, params = str(value.get("type")), dict(value.get("params") or {})
    if kind not in _SCHEDULES:
        raise RecipeError(f"{where}: deepspeed: scheduler.type={kind} is not supported: use lr_scheduler_type")
    yield "lr_scheduler_type", _SCHEDULES[kind]
    if (steps := params.get("warmup_num_steps", "auto")) not in _UNSET:
        yield "warmup_steps", number_or_text(steps)
    if (rate := params.get("warmup_max_lr", "auto")) not in _UNSET:
        yield "learning_rate", number(rate)


# Parts of the file that are keys of ours: each function yields our keys and values.
_PARTS: dict[str, Any] = {
    "gradient_clipping": _clipping,
    "bf16": _bf16,
    "bfloat16": _bf16,
    "fp16": _fp16,
    "train_micro_batch_size_per_gpu": _same("per_device_train_batch_size"),
    "gradient_accumulation_steps": _same("gradient_accumulation_steps"),
    "optimizer": _optimizer,
    "scheduler": _scheduler,
}
