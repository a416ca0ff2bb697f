"""Keys of other trainers (TRL, transformers, open-r1), so that their GRPO configs run unchanged.

Some mean the same as one of our keys (`SYNONYMS`, `FORMS`); some do not affect training (`IGNORED`). Others are
refused, with what to use instead: always (`INSTEAD`), or unless the value is the one that holds here anyway (`ONLY`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from outdo.errors import RecipeError

# Other common names for our keys.
SYNONYMS = {
    "group_size": "num_generations",
    "clip_range": "epsilon",
    "cliprange": "epsilon",
    "clip_range_high": "epsilon_high",
    "kl_coef": "beta",
    "kl_penalty": "beta",
    "task": "dataset_name",
    "model": "model_name_or_path",
    "lr": "learning_rate",
    "max_new_tokens": "max_completion_length",
    "adv_estimator": "advantage_estimator",
    "eval_every": "eval_steps",
    "torch_dtype": "dtype",
    "steps": "max_steps",
    "vllm_importance_sampling_cap": "importance_sampling_cap",
}

# Rewards of open-r1 and TRL: our name for the same reward.
REWARDS = {
    "accuracy": "math",
    "accuracy_reward": "math",
    "repetition_penalty": "repetition",
    "soft_overlong_punishment": "overlong",
    "get_soft_overlong_punishment": "overlong",
}

_CODE_KEYS = ["code_eval_test_batch_size", "code_language", "code_provider", "e2b_router_url", "ioi_provider"]
_CODE_KEYS += ["morph_router_url", "parallel_code_exec_per_proc"]
# Keys that do not affect training here, and why.
IGNORED = {
    "attn_implementation": "all models share one attention, which is checked against their own",
    "auto_find_batch_size": "micro-batches are sized to fit in memory",
    "average_tokens_across_devices": "denominators count all tokens",
    "benchmarks": "use `outdo eval`",
    "cache_implementation": "the sampler has its own KV cache",
    "cast_lm_head_to_fp32": "logits are always float32",
    "do_eval": "evaluation runs before and after training, and every eval_steps",
    "enable_jit_checkpoint": "a run that is stopped always saves a checkpoint",
    "env": "set environment variables before the command",
    "eval_on_start": "evaluation always runs before training",
    "full_determinism": "a seed always gives the same run",
    "include_tokens_per_second": "tokens per second are always logged",
    "load_best_model_at_end": "the best checkpoint is kept in addition to the last",
    "num_completions_to_print": "every answer is saved in the run folder",
    "num_generations_eval": "use eval_samples",
    "overwrite_output_dir": "a folder that holds a run is never overwritten",
    "pad_to_multiple_of": "batches are packed, not padded",
    "per_device_eval_batch_size": "the sampler sets its own batch size",
    "remove_unused_columns": "rewards get every column that they name",
    "save_only_model": "a checkpoint always has the state needed to resume",
    "save_safetensors": "checkpoints are always safetensors",
    "use_transformers_paged": "the sampler has its own paged cache",
    "use_vllm": "the sampler shares the learner's weights, so no separate engine is needed",
    **dict.fromkeys(("use_liger_kernel", "use_liger_loss"), "the loss never holds all logits in memory"),
    **dict.fromkeys(("ref_model_mixup_alpha", "ref_model_sync_steps"), "the reference is always the starting model"),
    **dict.fromkeys(_CODE_KEYS, "code runs in the sandbox"),
}
_INTERNAL = "internal to another trainer"
IGNORED |= dict.fromkeys(
    (
        *("accelerator_config", "batch_eval_metrics", "bf16_full_eval", "bnb_4bit_quant_storage"),
        *("data_seed", "dataset_num_proc", "dataset_streaming", "debug", "deepspeed", "disable_dropout"),
        *("disable_tqdm", "do_predict", "do_train", "ds3_gather_for_generation", "eval_accumulation_steps"),
        *("eval_delay", "eval_do_concat_batches", "eval_use_gather_object", "fp16_full_eval"),
        *("gradient_checkpointing_kwargs", "gradient_checkpointing_use_reentrant", "greater_is_better"),
        *("group_by_length", "half_precision_backend", "ignore_bias_buffers", "ignore_data_skip"),
        *("include_for_metrics", "include_num_input_tokens_seen", "jit_mode_eval", "label_names"),
        *("length_column_name", "liger_kernel_config", "local_rank", "metric_for_best_model", "mp_parameters"),
        *("overwrite_hub_revision", "parallelism_config", "past_index", "prediction_loss_only", "ray_scope"),
        *("restore_callback_states_from_checkpoint", "sapo_temperature_neg", "sapo_temperature_pos"),
        *("save_on_each_node", "skip_memory_metrics", "streaming", "tags", "tf32", "torch_empty_cache_steps"),
        *("torchdynamo", "train_sampling_strategy", "use_bnb_nested_quant", "use_cache", "use_flash_attention_2"),
        *("use_ipex", "use_mps_device"),
    ),
    _INTERNAL,
)
IGNORED_PREFIXES = {
    **dict.fromkeys(("dataloader_", "ddp_", "fsdp", "torch_compile", "tpu_"), _INTERNAL),
    "hub_": "nothing is uploaded",
    **dict.fromkeys(("log_", "logging_"), "every step is logged"),
    "push_to_hub": "nothing is uploaded; the model is saved in output_dir/model",
    "trackio_": "trackio reads its own environment variables: TRACKIO_SPACE_ID",
    "vllm_": "the sampler shares the learner's weights",
    "wandb_": "wandb reads its own environment variables: WANDB_ENTITY, WANDB_RUN_GROUP",
}

_COSINE = "the parameters of `cosine` are fixed; write your own reward as file.py:function"
_CONSTRAINED = "sampling is not constrained to a format; reward the format instead"
# Keys that may have one value only, the one that holds here, or null; and what to use instead.
ONLY: dict[str, tuple[Any, str]] = {
    "adam_epsilon": (1e-8, "it is fixed at 1e-8"),
    "bnb_4bit_quant_type": ("nf4", "load_in_4bit always uses nf4"),
    "chat_template": (None, "put the template in the model's folder"),
    "chat_template_kwargs": ({}, "the template gets only the messages"),
    "cosine_max_value_correct": (1.0, _COSINE),
    "cosine_max_value_wrong": (-0.5, _COSINE),
    "cosine_min_value_correct": (0.5, _COSINE),
    "cosine_min_value_wrong": (-1.0, _COSINE),
    "cosine_max_len": (None, "`cosine` counts tokens up to max_completion_length"),
    "delta": (None, "epsilon_high bounds the ratio from above"),
    "fp16": (False, "use dtype=bfloat16 or float32"),
    "generation_kwargs": ({}, "use the keys temperature, top_p, top_k, min_p and stop"),
    "importance_sampling_level": ("token", "use loss_type=gspo for ratios per answer"),
    "label_smoothing_factor": (0.0, "labels are not smoothed"),
    "load_in_8bit": (False, "use load_in_4bit=true"),
    "lora_modules_to_save": (None, "only the adapter is trained; without use_peft, all weights are"),
    "lora_target_parameters": (None, "use lora_target_modules, which names layers"),
    "lora_task_type": ("CAUSAL_LM", "only causal language models are trained"),
    "max_completion_len": (None, "`overlong` counts tokens up to max_completion_length"),
    "max_tool_calling_iterations": (None, "an answer is a single turn"),
    "model_init_kwargs": ({}, "use the keys dtype and device"),
    "model_revision": ("main", "download that revision, and give its folder as model_name_or_path"),
    "multi_objective_aggregation": ("sum_then_normalize", "rewards are summed, then normalized within their group"),
    "neftune_noise_alpha": (None, "no noise is added to the embeddings"),
    "repetition_max_penalty": (-1.0, "`repetition` pays down to -1; scale it with reward_weights"),
    "off_policy_mask_threshold": (None, "use importance_sampling=mask"),
    "optim_target_modules": (None, "all weights have the same optimizer"),
    "optim_args": (None, "use the keys adam_beta1, adam_beta2 and weight_decay"),
    "repetition_n_grams": (3, "`repetition` counts 3-grams"),
    "repetition_penalty": (1.0, "sampling has no repetition penalty; use the reward `repetition`"),
    "shuffle_dataset": (True, "prompts are always shuffled by the seed"),
    "soft_punish_cache": (None, "`overlong` falls over the last fifth of max_completion_length"),
    "sync_ref_model": (False, "the reference is always the starting model"),
    "top_entropy_quantile": (1.0, "all tokens are trained on"),
    "trust_remote_code": (False, "code from a model or data set is never run"),
    "use_bias_correction_kl": (False, "use kl_estimator"),
    "use_dora": (False, "the adapter is LoRA"),
    "use_rslora": (False, "the adapter is scaled by lora_alpha / lora_r"),
    "vllm_guided_decoding_regex": (None, _CONSTRAINED),
    "vllm_structured_outputs_regex": (None, _CONSTRAINED),
}

# Keys of ONLY that are parameters of one reward: any value is accepted where that reward is not used.
REWARD_PARAMETERS = {
    **{key: "cosine" for key in ONLY if key.startswith("cosine_")},
    **dict.fromkeys(("repetition_max_penalty", "repetition_n_grams"), "repetition"),
    **dict.fromkeys(("max_completion_len", "soft_punish_cache"), "overlong"),
}

# Keys that would change training and are not supported, and what to use instead.
INSTEAD = {
    "sweep": "this recipe describes many runs; run it with: outdo sweep FILE",
    "datasets": "for several tasks use dataset_mixture: [{dataset_name: a.jsonl}, {dataset_name: b.jsonl}]",
    **dict.fromkeys(
        ("actor_rollout_ref", "algorithm", "data", "trainer", "critic"),
        "verl's nested recipes are not supported, and its keys have other names here: rollout.n is num_generations, "
        "optim.lr is learning_rate; docs/recipes.md lists the rest",
    ),
    "test_split_size": "without a test split, eval_fraction of the rows is held out",
    "batch_size": "use generation_batch_size (answers per step), or per_device_train_batch_size x "
    "gradient_accumulation_steps (answers per update)",
    "epochs": "use max_steps for the length of the run, num_iterations for the passes over each step's answers",
    "reward_model_name_or_path": "a reward is a function: reward_funcs=path/to/file.py:function",
    "reward_model_path": "a reward is a function: reward_funcs=path/to/file.py:function",
}

# Our keys that other trainers allow to be null, meaning their default.
_NULL_IS_DEFAULT = {"eval_steps", "lora_target_modules", "max_completion_length", "max_grad_norm", "min_p"}
_NULL_IS_DEFAULT |= {"num_generations", "reward_funcs", "reward_weights", "save_total_limit", "top_k"}
_OFF = (None, False, "no")  # YAML reads a bare `no` as false


def translate_keys(
    data: Mapping[str, Any], where: str, notify: Callable[[str], None], our_keys: Mapping[str, Any]
) -> dict[str, Any]:
    """The recipe in our forms, without ignored keys; synonyms and unknown keys stay. Raises RecipeError."""
    out: dict[str, Any] = {}
    ignored: list[str] = []
    unset = [key for key, value in data.items() if value is None and SYNONYMS.get(key, key) in _NULL_IS_DEFAULT]
    data = {key: value for key, value in data.items() if key not in unset}
    for key, value in data.items():
        if key in FORMS:
            continue
        if key in our_keys or key in SYNONYMS:
            out[key] = value
        elif key in ONLY:
            _refuse_other_value(key, value, data, where)
            ignored.append(key)
        elif key in IGNORED or key.startswith(tuple(IGNORED_PREFIXES)):
            ignored.append(key)
        else:
            out[key] = value
    for key in (key for key in data if key in FORMS):
        for name, value in FORMS[key](data[key], data, where):
            if name != key or _format_value(value) != _format_value(data[key]):
                notify(f"{where}: {key}={_format_value(data[key])} is {name}={_format_value(value)} here")
            out[name] = value
    if ignored:
        notify(f"{where}: ignored, because they change nothing here (docs/recipes.md): {', '.join(ignored)}")
    return out


def _refuse_other_value(key: str, value: Any, data: Mapping[str, Any], where: str) -> None:
    only, instead = ONLY[key]
    unused = key in REWARD_PARAMETERS and REWARD_PARAMETERS[key] not in str(data.get("reward_funcs"))
    if value is not None and _number(value) != only and not unused:
        raise RecipeError(f"{where}: {key}={_format_value(value)} is not supported: {instead}")


def _number(value: Any) -> Any:
    """The number in a text: YAML reads 1e-8, without a point, as text."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _format_value(value: Any) -> str:
    """As typed on the command line."""
    if isinstance(value, list):
        return ",".join(map(str, value))
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


# --- keys that express one of our keys in another form: each function yields our keys with their values

Items = Iterator[tuple[str, Any]]
Form = Callable[[Any, Mapping[str, Any], str], Items]


def _same(key: str, *unset: Any) -> Form:
    """Our key with the same value, unless it is one that means unset."""
    return lambda value, data, where: iter([(key, value)] if value not in unset else [])


def _constant(key: str, ours: Any, *values: Any) -> Form:
    """Our key with a fixed value, if theirs is one of `values`."""
    return lambda value, data, where: iter([(key, ours)] if value in values else [])


def _bf16(value: Any, data: Mapping[str, Any], where: str) -> Items:
    if value is True and data.get("dtype", data.get("torch_dtype")) in (None, "auto"):
        yield "dtype", "bfloat16"


def _resume(value: Any, data: Mapping[str, Any], where: str) -> Items:
    if isinstance(value, str):
        raise RecipeError(f"{where}: resume_from_checkpoint={value}: resume a run with: outdo train --resume FOLDER")
    if value:
        yield "resume", "auto"


def _schedule(value: Any, data: Mapping[str, Any], where: str) -> Items:
    given = dict(value) if isinstance(value, Mapping) else {} if value in (None, "") else {"?": value}
    if "min_lr" in given:
        rate, min_lr = _number(data.get("learning_rate", data.get("lr"))), _number(given.pop("min_lr"))
        if not isinstance(rate, (int, float)) or not isinstance(min_lr, (int, float)) or not rate:
            raise RecipeError(f"{where}: lr_scheduler_kwargs.min_lr needs learning_rate too; or give min_lr_rate")
        given["min_lr_rate"] = round(min_lr / rate, 9)
    if set(given) - {"min_lr_rate"}:
        raise RecipeError(f"{where}: lr_scheduler_kwargs={given}: only min_lr_rate and min_lr are supported")
    yield from given.items()


def _warmup(value: Any, data: Mapping[str, Any], where: str) -> Items:
    is_ratio = isinstance(value, float) and 0 < value < 1  # as in transformers 5
    yield "warmup_ratio" if is_ratio else "warmup_steps", value


def _prompt_column(value: Any, data: Mapping[str, Any], where: str) -> Items:
    if value not in (None, "prompt"):
        columns = data.get("columns")
        yield "columns", {"prompt": value, **(columns if isinstance(columns, Mapping) else {})}


def _callbacks(value: Any, data: Mapping[str, Any], where: str) -> Items:
    """open-r1 names callbacks of its own, which upload to the hub."""
    names = [value] if isinstance(value, str) else value
    yield "callbacks", [one for one in names if one != "push_to_hub_revision"] if isinstance(names, list) else names


def _rewards(value: Any, data: Mapping[str, Any], where: str) -> Items:
    names = [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value
    if isinstance(names, list):
        names = [_reward(name) if isinstance(name, str) else name for name in names]
    yield "reward_funcs", names


def _reward(name: str) -> str:
    """Our name for it. A function in a package is `package.module.function` in TRL, `package.module:function` here."""
    module, _, function = name.rpartition(".")
    is_dotted = all(part.isidentifier() for part in name.split(".")) and module and function not in ("py", "json")
    return f"{module}:{function}" if is_dotted else REWARDS.get(name, name)


def _optimizer(value: Any, data: Mapping[str, Any], where: str) -> Items:
    if value is not None and not str(value).removeprefix("paged_").startswith("adamw"):
        raise RecipeError(f"{where}: optim={_format_value(value)}: only AdamW is supported")
    return iter(())


def _mixture(value: Any, data: Mapping[str, Any], where: str) -> Items:
    if isinstance(value, Mapping):
        raise RecipeError(
            f"{where}: dataset_mixture is a list here, and weights set how often each task is drawn: "
            "[{dataset_name: arithmetic, weight: 2}, {dataset_name: problems.jsonl}]"
        )
    yield "dataset_mixture", value


FORMS: dict[str, Form] = {
    "bf16": _bf16,
    "dtype": _same("dtype", None, "auto"),
    "torch_dtype": _same("torch_dtype", None, "auto"),
    "max_steps": _same("max_steps", -1),  # transformers: num_train_epochs sets the length
    "eval_strategy": _constant("eval_steps", 0, *_OFF),
    "evaluation_strategy": _constant("eval_steps", 0, *_OFF),
    "save_strategy": _constant("save_steps", 0, *_OFF),
    "use_cpu": _constant("device", "cpu", True),
    "no_cuda": _constant("device", "cpu", True),
    "resume_from_checkpoint": _resume,
    "lr_scheduler_kwargs": _schedule,
    "warmup_steps": _warmup,
    "dataset_prompt_column": _prompt_column,
    "reward_funcs": _rewards,
    "optim": _optimizer,
    "wandb_project": _same("project", None),
    "callbacks": _callbacks,
    "dataset_mixture": _mixture,
    "vllm_importance_sampling_correction": _constant("importance_sampling", "never", False),
}
