"""Keys of other trainers, so that the file a user has runs as it is: TRL's, transformers' and open-r1's GRPO configs.

There are three kinds. Some say what a key of ours says (`SYNONYMS`, `translated`). Some decide nothing that is learnt,
such as how often a line is logged (`IDLE`): they are passed over, and said once. The rest is refused with what to use
instead: always (`INSTEAD`), or unless it asks for what is done here anyway (`ONLY`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from outdo.errors import RecipeError

# Other names that people know for the same knob.
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

# Names of rewards in open-r1 and TRL, where ours means the same.
REWARDS = {
    "accuracy": "math",
    "accuracy_reward": "math",
    "repetition_penalty": "repetition",
    "soft_overlong_punishment": "overlong",
    "get_soft_overlong_punishment": "overlong",
}

# Keys that decide nothing that is learnt here: they are passed over.
IDLE = {
    "attn_implementation": "one attention serves all models, checked against their own",
    "auto_find_batch_size": "micro-batches fit themselves to the memory",
    "average_tokens_across_devices": "denominators count all tokens",
    "benchmarks": "`outdo eval`",
    "cache_implementation": "the sampler has its own",
    "callbacks": "",
    "cast_lm_head_to_fp32": "logits are in float32",
    "code_eval_test_batch_size": "code runs in the sandbox",
    "code_language": "code runs in the sandbox",
    "code_provider": "code runs in the sandbox",
    "dataset_num_proc": "",
    "dataset_streaming": "",
    "deepspeed": "",
    "disable_dropout": "",
    "disable_tqdm": "",
    "do_eval": "held-out success is measured before and after, and every eval_steps",
    "do_predict": "",
    "do_train": "",
    "ds3_gather_for_generation": "",
    "e2b_router_url": "code runs in the sandbox",
    "enable_jit_checkpoint": "a run that is told to stop writes a checkpoint",
    "env": "variables are set before the command",
    "eval_accumulation_steps": "",
    "eval_on_start": "held-out success is measured before and after",
    "full_determinism": "a seed gives the same run",
    "gradient_checkpointing_kwargs": "",
    "greater_is_better": "",
    "group_by_length": "",
    "include_num_input_tokens_seen": "",
    "include_tokens_per_second": "every step tells its tokens a second",
    "ioi_provider": "code runs in the sandbox",
    "load_best_model_at_end": "the best checkpoint is kept beside the last",
    "metric_for_best_model": "",
    "morph_router_url": "code runs in the sandbox",
    "num_completions_to_print": "every answer is in groups/",
    "num_generations_eval": "eval_samples",
    "overwrite_output_dir": "a folder that holds a run is never written over",
    "pad_to_multiple_of": "nothing is padded",
    "parallel_code_exec_per_proc": "code runs in the sandbox",
    "per_device_eval_batch_size": "the sampler fills its rows itself",
    "ref_model_mixup_alpha": "the reference stays the starting model",
    "ref_model_sync_steps": "the reference stays the starting model",
    "remove_unused_columns": "rewards get every column that they name",
    "save_on_each_node": "",
    "save_only_model": "a checkpoint has all that a run goes on from",
    "save_safetensors": "always",
    "skip_memory_metrics": "",
    "tags": "",
    "tf32": "",
    "use_liger_kernel": "logits are never whole here either",
    "use_liger_loss": "logits are never whole here either",
    "use_transformers_paged": "the sampler has its own",
    "use_vllm": "the sampler shares the learner's weights: there is no engine to switch on",
}
IDLE |= dict.fromkeys(  # how their trainers run, which is nothing to ours
    (
        *("accelerator_config", "batch_eval_metrics", "bf16_full_eval", "bnb_4bit_quant_storage", "data_seed", "debug"),
        *("eval_delay", "eval_do_concat_batches", "eval_use_gather_object", "fp16_full_eval"),
        *("gradient_checkpointing_use_reentrant", "streaming", "train_sampling_strategy", "use_flash_attention_2"),
        *("half_precision_backend", "ignore_bias_buffers", "ignore_data_skip", "include_for_metrics", "jit_mode_eval"),
        *("label_names", "length_column_name", "liger_kernel_config", "local_rank", "mp_parameters", "past_index"),
        *("overwrite_hub_revision", "parallelism_config", "prediction_loss_only", "ray_scope"),
        *("restore_callback_states_from_checkpoint", "sapo_temperature_neg", "sapo_temperature_pos"),
        *("torch_empty_cache_steps", "torchdynamo", "use_bnb_nested_quant", "use_cache", "use_ipex", "use_mps_device"),
    ),
    "",
)
IDLE_PREFIXES = {
    "dataloader_": "",
    "ddp_": "",
    "fsdp": "",
    "hub_": "nothing is uploaded",
    "log_": "every step is logged",
    "logging_": "every step is logged",
    "push_to_hub": "nothing is uploaded: the model is in output_dir/model",
    "torch_compile": "",
    "trackio_": "trackio's own variables say where: TRACKIO_SPACE_ID",
    "vllm_": "the sampler shares the learner's weights",
    "tpu_": "",
    "wandb_": "wandb's own variables say where: WANDB_ENTITY, WANDB_RUN_GROUP",
}

# Keys that may ask for one thing only, which is what is done here: anything else is refused. None asks for nothing.
ONLY: dict[str, tuple[Any, str]] = {
    "adam_epsilon": (1e-8, "it is 1e-8 here"),
    "bnb_4bit_quant_type": ("nf4", "load_in_4bit keeps them as nf4"),
    "chat_template": (None, "put the template in the model's folder"),
    "chat_template_kwargs": ({}, "the template gets the messages alone"),
    "cosine_max_value_correct": (1.0, "the numbers of `cosine` are fixed; a reward of your own is file.py:function"),
    "cosine_max_value_wrong": (-0.5, "the numbers of `cosine` are fixed; a reward of your own is file.py:function"),
    "cosine_min_value_correct": (0.5, "the numbers of `cosine` are fixed; a reward of your own is file.py:function"),
    "cosine_min_value_wrong": (-1.0, "the numbers of `cosine` are fixed; a reward of your own is file.py:function"),
    "cosine_max_len": (None, "`cosine` counts tokens up to max_completion_length"),
    "delta": (None, "epsilon_high bounds the ratio from above"),
    "fp16": (False, "use dtype=bfloat16 or float32"),
    "generation_kwargs": ({}, "temperature, top_p, top_k, min_p and stop are keys of their own"),
    "importance_sampling_level": ("token", "loss_type=gspo weighs whole answers"),
    "label_smoothing_factor": (0.0, "nothing is smoothed"),
    "load_in_8bit": (False, "load_in_4bit=true keeps the frozen weights in four bits"),
    "lora_modules_to_save": (None, "only the adapter learns; train all weights without use_peft"),
    "lora_target_parameters": (None, "lora_target_modules names layers"),
    "lora_task_type": ("CAUSAL_LM", "models here are causal language models"),
    "max_completion_len": (None, "`overlong` counts tokens up to max_completion_length"),
    "max_tool_calling_iterations": (None, "an answer is one turn"),
    "model_init_kwargs": ({}, "dtype and device are keys of their own"),
    "model_revision": ("main", "download that revision, and give its folder as model_name_or_path"),
    "multi_objective_aggregation": ("sum_then_normalize", "rewards are summed, then compared within their group"),
    "neftune_noise_alpha": (None, "no noise is put into the embeddings"),
    "repetition_max_penalty": (-1.0, "`repetition` pays down to -1; weigh it by reward_weights"),
    "off_policy_mask_threshold": (None, "importance_sampling=mask leaves tokens out"),
    "optim_target_modules": (None, "all weights have the same optimizer"),
    "optim_args": (None, "adam_beta1, adam_beta2 and weight_decay are keys of their own"),
    "repetition_n_grams": (3, "`repetition` looks at 3-grams"),
    "repetition_penalty": (1.0, "nothing is penalised while sampling; the reward `repetition` pays for it"),
    "shuffle_dataset": (True, "prompts come in an order that the seed decides"),
    "soft_punish_cache": (None, "`overlong` falls over the last fifth of max_completion_length"),
    "sync_ref_model": (False, "the reference stays the starting model"),
    "top_entropy_quantile": (1.0, "all tokens are trained on"),
    "trust_remote_code": (False, "code from a model folder or a data set is never run"),
    "use_bias_correction_kl": (False, "kl_estimator chooses how KL is estimated"),
    "use_dora": (False, "the adapter is LoRA"),
    "use_rslora": (False, "lora_alpha / lora_r scales the adapter"),
    "vllm_guided_decoding_regex": (None, "answers are not held to a form while they are sampled; pay for it"),
    "vllm_structured_outputs_regex": (None, "answers are not held to a form while they are sampled; pay for it"),
}

# Of these, the numbers of one reward: where it is not used they decide nothing.
NUMBERS_OF = {
    **{key: "cosine" for key in ONLY if key.startswith("cosine_")},
    **dict.fromkeys(("repetition_max_penalty", "repetition_n_grams"), "repetition"),
    **dict.fromkeys(("max_completion_len", "soft_punish_cache"), "overlong"),
}

# Keys that would change what is learnt, and what to use instead.
INSTEAD = {
    "sweep": "this recipe is many runs, and they are made by: outdo sweep FILE",
    "datasets": "several tasks by weight are dataset_mixture: [{dataset_name: a.jsonl}, {dataset_name: b.jsonl}]",
    **dict.fromkeys(
        ("actor_rollout_ref", "algorithm", "data", "trainer", "critic"),
        "verl's recipes are nested, and its keys have other names here: rollout.n is num_generations, optim.lr "
        "learning_rate, and docs/recipes.md has the rest",
    ),
    "test_split_size": "data without a test split have one row in ten held out",
    "batch_size": "answers of a step are generation_batch_size, of an update per_device_train_batch_size x "
    "gradient_accumulation_steps",
    "epochs": "a run is as long as max_steps says; num_iterations are the passes over each step's answers",
    "reward_model_name_or_path": "a reward is a function here: reward_funcs=path/to/file.py:function",
    "reward_model_path": "a reward is a function here: reward_funcs=path/to/file.py:function",
}

# Keys of ours that other trainers let be null, meaning their default.
_NULL_IS_DEFAULT = {"eval_steps", "lora_target_modules", "max_completion_length", "max_grad_norm", "min_p"}
_NULL_IS_DEFAULT |= {"num_generations", "reward_funcs", "reward_weights", "save_total_limit", "top_k"}
_OFF = (None, False, "no")  # YAML reads a bare `no` as false


def translated(
    data: Mapping[str, Any], where: str, say: Callable[[str], None], known: Mapping[str, Any]
) -> dict[str, Any]:
    """The same recipe without the keys that are idle here, and with those that have another form put into ours.

    Raises RecipeError for what is refused. Keys that nobody knows are left for the caller.
    """
    out: dict[str, Any] = {}
    idle: list[str] = []
    data = {key: value for key, value in data.items() if value is not None or not _null_is_default(key)}
    for key, value in data.items():
        if key in FORMS:
            continue
        if key in known or key in SYNONYMS:
            out[key] = value
        elif key in ONLY:
            _refuse_other(key, value, data, where)
            idle.append(key)
        elif key in IDLE or key.startswith(tuple(IDLE_PREFIXES)):
            idle.append(key)
        else:
            out[key] = value
    for key in (key for key in data if key in FORMS):
        for name, value in FORMS[key](data[key], data, where):
            if name != key or _shown(value) != _shown(data[key]):
                say(f"{where}: {key}={_shown(data[key])} is {name}={_shown(value)} here")
            out[name] = value
    if idle:
        say(f"{where}: of no consequence here: {', '.join(idle)}")
    return out


def _null_is_default(key: str) -> bool:
    return SYNONYMS.get(key, key) in _NULL_IS_DEFAULT


def _refuse_other(key: str, value: Any, data: Mapping[str, Any], where: str) -> None:
    only, instead = ONLY[key]
    unused = key in NUMBERS_OF and NUMBERS_OF[key] not in str(data.get("reward_funcs"))
    if value is not None and _number(value) != only and not unused:
        raise RecipeError(f"{where}: {key}={_shown(value)} is not known here: {instead}")


def _number(value: Any) -> Any:
    """YAML reads 1e-8, without a point, as text."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _shown(value: Any) -> str:
    """As one would type it."""
    if isinstance(value, list):
        return ",".join(map(str, value))
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


# --- keys that say in another form what a key of ours says: each yields our keys with their values

Form = Callable[[Any, Mapping[str, Any], str], Iterator[tuple[str, Any]]]


def _bf16(value: Any, data: Mapping[str, Any], where: str) -> Iterator[tuple[str, Any]]:
    if value is True and data.get("dtype", data.get("torch_dtype")) in (None, "auto"):
        yield "dtype", "bfloat16"


def _max_steps(value: Any, data: Mapping[str, Any], where: str) -> Iterator[tuple[str, Any]]:
    if value != -1:  # transformers': as long as num_train_epochs says
        yield "max_steps", value


def _dtype(name: str) -> Form:
    def form(value: Any, data: Mapping[str, Any], where: str) -> Iterator[tuple[str, Any]]:
        if value not in (None, "auto"):
            yield name, value

    return form


def _strategy(steps: str) -> Form:
    def form(value: Any, data: Mapping[str, Any], where: str) -> Iterator[tuple[str, Any]]:
        if value in _OFF:
            yield steps, 0

    return form


def _cpu(value: Any, data: Mapping[str, Any], where: str) -> Iterator[tuple[str, Any]]:
    if value is True:
        yield "device", "cpu"


def _resume(value: Any, data: Mapping[str, Any], where: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, str):
        raise RecipeError(f"{where}: resume_from_checkpoint={value}: outdo train --resume FOLDER goes on with a run")
    if value:
        yield "resume", "auto"


def _schedule(value: Any, data: Mapping[str, Any], where: str) -> Iterator[tuple[str, Any]]:
    given = dict(value) if isinstance(value, Mapping) else {} if value in (None, "") else {"?": value}
    if "min_lr" in given:
        rate, least = _number(data.get("learning_rate", data.get("lr"))), _number(given.pop("min_lr"))
        if not isinstance(rate, (int, float)) or not isinstance(least, (int, float)) or not rate:
            raise RecipeError(f"{where}: lr_scheduler_kwargs.min_lr needs learning_rate beside it; or give min_lr_rate")
        given["min_lr_rate"] = round(least / rate, 9)
    if set(given) - {"min_lr_rate"}:
        raise RecipeError(f"{where}: lr_scheduler_kwargs={given}: min_lr_rate and min_lr are known")
    yield from given.items()


def _warmup(value: Any, data: Mapping[str, Any], where: str) -> Iterator[tuple[str, Any]]:
    share = isinstance(value, float) and 0 < value < 1  # as transformers 5 has it
    yield "warmup_ratio" if share else "warmup_steps", value


def _prompt_column(value: Any, data: Mapping[str, Any], where: str) -> Iterator[tuple[str, Any]]:
    if value not in (None, "prompt"):
        columns = data.get("columns")
        yield "columns", {"prompt": value, **(columns if isinstance(columns, Mapping) else {})}


def _rewards(value: Any, data: Mapping[str, Any], where: str) -> Iterator[tuple[str, Any]]:
    names = [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value
    if isinstance(names, list):
        names = [_reward(name) if isinstance(name, str) else name for name in names]
    yield "reward_funcs", names


def _reward(name: str) -> str:
    """Ours. A function of a package is `package.module.function` to TRL, and `package.module:function` here."""
    module, _, function = name.rpartition(".")
    dotted = all(part.isidentifier() for part in name.split(".")) and module and function not in ("py", "json")
    return f"{module}:{function}" if dotted else REWARDS.get(name, name)


def _project(value: Any, data: Mapping[str, Any], where: str) -> Iterator[tuple[str, Any]]:
    if value is not None:
        yield "project", value


def _optimizer(value: Any, data: Mapping[str, Any], where: str) -> Iterator[tuple[str, Any]]:
    if value is not None and not str(value).removeprefix("paged_").startswith("adamw"):
        raise RecipeError(f"{where}: optim={_shown(value)}: the optimizer is AdamW")
    return iter(())


def _mixture(value: Any, data: Mapping[str, Any], where: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        raise RecipeError(
            f"{where}: dataset_mixture is a list here, and its weights say how often each task comes up: "
            "[{dataset_name: arithmetic, weight: 2}, {dataset_name: problems.jsonl}]"
        )
    yield "dataset_mixture", value


def _correction(value: Any, data: Mapping[str, Any], where: str) -> Iterator[tuple[str, Any]]:
    if value is False:
        yield "importance_sampling", "never"


FORMS: dict[str, Form] = {
    "bf16": _bf16,
    "dtype": _dtype("dtype"),
    "torch_dtype": _dtype("torch_dtype"),
    "max_steps": _max_steps,
    "eval_strategy": _strategy("eval_steps"),
    "evaluation_strategy": _strategy("eval_steps"),
    "save_strategy": _strategy("save_steps"),
    "use_cpu": _cpu,
    "no_cuda": _cpu,
    "resume_from_checkpoint": _resume,
    "lr_scheduler_kwargs": _schedule,
    "warmup_steps": _warmup,
    "dataset_prompt_column": _prompt_column,
    "reward_funcs": _rewards,
    "optim": _optimizer,
    "wandb_project": _project,
    "dataset_mixture": _mixture,
    "vllm_importance_sampling_correction": _correction,
}
