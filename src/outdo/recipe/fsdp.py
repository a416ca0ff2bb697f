"""`fsdp` and `fsdp_config` of transformers and accelerate as keys of a recipe: what is sharded, what is offloaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outdo.errors import RecipeError, did_you_mean
from outdo.recipe.deepspeed import read_config
from outdo.recipe.translated import Translated

STRATEGIES = ("full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2")  # FSDP1 counts from 1
_SHARDING = dict(zip(STRATEGIES, ("full", "grads", "none", "full", "grads"), strict=True))
_TUNING = (
    *("min_num_params", "transformer_layer_cls_to_wrap", "transformer_cls_names_to_wrap", "auto_wrap_policy"),
    *("transformer_cls_to_wrap",),
    *("backward_prefetch", "backward_prefetch_policy", "forward_prefetch", "use_orig_params", "limit_all_gathers"),
    *("sync_module_states", "xla_fsdp_settings", "xla_fsdp_v2", "xla_fsdp_grad_ckpt", "min_params", "param_names"),
)
_UNIT = "each layer is a unit, fetched while the one before it is computed"
_IGNORED = {
    **dict.fromkeys(_TUNING, _UNIT),
    "version": "FSDP2 is what is used",
    "state_dict_type": "a checkpoint can be resumed by another number of processes",
    "cpu_ram_efficient_loading": "how weights are loaded is not configurable",
    "activation_checkpointing_offload": "activations stay on the device",
    "mixed_precision_policy": "dtype decides the precision",
}
_OFF: tuple[Any, ...] = (None, "", False, "false", "False", "no", "none", "None", [])


def is_on(value: Any) -> bool:
    """Whether a switch is on, as YAML, JSON or an environment variable has it."""
    return str(value).strip().lower() in ("true", "1", "yes", "on")


def fsdp_keys(
    options: Any, config: Any, where: str, what: str = "fsdp", replicas: int | None = None, version: str = "2"
) -> Translated:
    """What `fsdp` and `fsdp_config` ask for. `replicas`: copies of a hybrid strategy, which are the nodes; `version`:
    of FSDP where the configuration has none. Raises RecipeError."""
    out = Translated(where, what)
    given = read_config(config, f"{what}_config", where) if config else {}
    given = {str(key).removeprefix("fsdp_"): value for key, value in given.items()}
    if options in _OFF:
        if given:
            out.ignore(f"{what}_config", "fsdp is not set, as in transformers")
        return out
    words = options.replace(",", " ").split() if isinstance(options, str) else options
    words = [str(word).lower() for word in (words if isinstance(words, list) else [options])]
    strategy = _strategy({"version": version, **given}, words, out)
    out.take(strategy, {}, "parallel_sharding", _SHARDING[strategy])
    if strategy.startswith("hybrid"):
        if replicas is None:
            raise RecipeError(
                f"{where}: {what}={strategy} shards within a node, and nodes have copies: add parallel.replicas, the "
                "number of nodes"
            )
        out.take(strategy, {}, "parallel_replicas", replicas)
    if "offload" in words or is_on(given.get("cpu_offload")) or is_on(given.get("offload_params")):
        out.take("offload", {}, "parallel_offload", "parameters")
    if is_on(given.get("activation_checkpointing")):
        out.take("activation_checkpointing", True, "gradient_checkpointing", True)
    _rest(given, out)
    return out


def _strategy(given: Mapping[str, Any], words: list[str], out: Translated) -> str:
    """One of STRATEGIES: by the configuration, whose key differs between FSDP1 and FSDP2, else by the words."""
    for word in words:
        if word not in (*STRATEGIES, "auto_wrap", "offload", "true"):
            near = did_you_mean(word, (*STRATEGIES, "auto_wrap", "offload"))
            raise RecipeError(f"{out.where}: {out.what}={word} is not an option of FSDP{near}")
    named = next((word for word in words if word in STRATEGIES), "full_shard")
    key = "reshard_after_forward"
    if str(given["version"]) == "1" and given.get("sharding_strategy") is not None:
        key = "sharding_strategy"
    if given.get(key) is None:
        return named
    text = str(given[key]).lower()
    if text.isdecimal() and 1 <= int(text) <= len(STRATEGIES):
        return STRATEGIES[int(text) - 1]
    text = {"true": "full_shard", "false": "shard_grad_op", "no_reshard": "shard_grad_op"}.get(text, text)
    if text not in STRATEGIES:
        raise RecipeError(
            f"{out.where}: {out.what}: {key}={given[key]} is not supported{did_you_mean(text, STRATEGIES)}"
        )
    return text


def _rest(given: dict[str, Any], out: Translated) -> None:
    """What tunes is ignored; what would change training is refused."""
    read = ("reshard_after_forward", "sharding_strategy", "cpu_offload", "offload_params", "activation_checkpointing")
    for key, value in given.items():
        if key in read:
            continue
        if key == "mixed_precision_policy" and "16" in str(value) and "bf" not in str(value):
            raise RecipeError(f"{out.where}: {out.what}: {key}={value} is not supported: use bf16")
        if key in _IGNORED:
            out.ignore(key, _IGNORED[key])
        elif value not in _OFF:
            hint = did_you_mean(key, (*_IGNORED, *read)) or ": leave it out"
            raise RecipeError(f"{out.where}: {out.what}: {key}={value} is not supported{hint}")
