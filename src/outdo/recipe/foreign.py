"""Keys of other trainers (TRL, transformers, open-r1), so that their GRPO configs run unchanged.

Some mean the same as one of our keys (`SYNONYMS`, and `FORMS` in forms.py); some do not affect training (`IGNORED`).
Others are refused, with what to use instead: always (`INSTEAD`), or unless the value is the one that holds here anyway
(`ONLY`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from outdo.errors import RecipeError
from outdo.recipe.deepspeed import deepspeed_keys
from outdo.recipe.forms import FORMS, format_value, number
from outdo.recipe.fsdp import fsdp_keys
from outdo.recipe.translated import Translated

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
    "max_tokens": "max_completion_length",
    "target_modules": "lora_target_modules",
    "lora_rank": "lora_r",
    "random_state": "seed",
    "base_model": "model_name_or_path",
    "micro_batch_size": "per_device_train_batch_size",
    "num_epochs": "num_train_epochs",
    "stop_strings": "stop",
    "use_lora": "use_peft",
    "num_steps": "max_steps",
    "grad_clip": "max_grad_norm",
    "clip_grad_norm": "max_grad_norm",
    "kl_beta": "beta",
    "max_gen_length": "max_completion_length",
    "ddp_timeout": "parallel_timeout",
}
# Keys with a whole configuration of another launcher.
CONFIGURATIONS = ("deepspeed", "fsdp", "fsdp_config")

_CODE_KEYS = ["code_eval_test_batch_size", "code_language", "code_provider", "e2b_router_url", "ioi_provider"]
_CODE_KEYS += ["morph_router_url", "parallel_code_exec_per_proc"]
# Keys that are ignored, by the reason. The reason is printed, and is true whatever the value is.
_REASONS: dict[str, tuple[str, ...]] = {
    "all models share one attention, which is checked against their own": (
        *("attn_implementation", "use_flash_attention_2"),
    ),
    "micro-batches are sized to fit in memory": ("auto_find_batch_size", "torch_empty_cache_steps"),
    "denominators count all tokens": ("average_tokens_across_devices",),
    "models are compared by `outdo eval`": ("benchmarks",),
    "the sampler has its own paged KV cache": ("cache_implementation", "use_transformers_paged", "use_cache"),
    "logits are always float32": ("cast_lm_head_to_fp32",),
    "evaluation runs before and after training, and every eval_steps": ("do_eval", "eval_delay", "eval_on_start"),
    "`outdo train` trains, and `outdo eval` evaluates": ("do_train", "do_predict"),
    "evaluation measures the success of sampled answers, in the model's dtype and batches of its own size": (
        *("batch_eval_metrics", "bf16_full_eval", "fp16_full_eval", "eval_accumulation_steps", "include_for_metrics"),
        *("eval_do_concat_batches", "eval_use_gather_object", "jit_mode_eval", "label_names", "past_index"),
        *("per_device_eval_batch_size", "prediction_loss_only"),
    ),
    "the number of answers per problem is eval_samples": ("num_generations_eval",),
    "a run that is stopped always saves a checkpoint": ("enable_jit_checkpoint",),
    "environment variables are set before the command": ("env",),
    "a seed always gives the same run": ("full_determinism",),
    "one seed decides the weights, the prompts and the samples: set seed": ("data_seed",),
    "tokens and seconds are always logged": (
        *("include_num_input_tokens_seen", "include_tokens_per_second", "skip_memory_metrics"),
    ),
    "every answer is saved in the run folder": ("log_completions", "num_completions_to_print", "log_unique_prompts"),
    "TensorBoard's files are in the run folder": ("logging_dir",),
    "a folder that holds a run is never overwritten: set another output_dir": ("overwrite_output_dir",),
    "batches are packed, not padded or grouped by length": (
        *("group_by_length", "length_column_name", "pad_to_multiple_of", "pad_token"),
    ),
    "prompts are always shuffled by the seed": ("train_sampling_strategy",),
    "rewards get every column that they name": ("remove_unused_columns",),
    "a checkpoint always has the state needed to resume, as safetensors": (
        *("save_only_model", "save_safetensors", "restore_callback_states_from_checkpoint", "save_on_each_node"),
    ),
    "a resumed run continues with the prompts that come next": ("ignore_data_skip",),
    "the sampler shares the learner's weights, so no separate engine is needed": (
        *("use_vllm", "fast_inference", "gpu_memory_utilization", "max_lora_rank", "ds3_gather_for_generation"),
    ),
    "the loss never holds all logits in memory": (
        *("use_liger_kernel", "use_liger_loss", "liger_kernel_config", "unsloth_num_chunks"),
    ),
    "the reference is always the starting model": ("ref_model_mixup_alpha", "ref_model_sync_steps"),
    "code runs in the sandbox": tuple(_CODE_KEYS),
    "the data is in memory, and each process takes its share of a step": ("accelerator_config",),
    "torchrun or `accelerate launch` numbers the processes": ("local_rank",),
    "each layer is a unit, fetched while the one before it is computed": (
        *("fsdp_min_num_params", "fsdp_transformer_layer_cls_to_wrap"),
    ),
    "they are of other backends": (
        *("ignore_bias_buffers", "mp_parameters", "ray_scope", "use_ipex", "use_mps_device"),
    ),
    "the data is read into memory before training": ("dataset_num_proc", "dataset_streaming", "streaming"),
    "gradient_checkpointing recomputes whole layers": (
        *("gradient_checkpointing_kwargs", "gradient_checkpointing_use_reentrant"),
    ),
    "dtype alone decides the precision": ("half_precision_backend", "tf32", "bnb_4bit_quant_storage"),
    "load_in_4bit stores the scales unquantized": ("use_bnb_nested_quant",),
    "progress is a live table in a terminal, and lines elsewhere": ("disable_tqdm", "debug"),
    "no model card is written": ("tags", "model_card"),
}
IGNORED = {key: reason for reason, keys in _REASONS.items() for key in keys}
IGNORED_PREFIXES = {
    "dataloader_": "the data is in memory, and needs no loader",
    "ddp_": "how gradients are exchanged changes no result",
    "tpu_": "they are of other backends",
    **dict.fromkeys(("torch_compile", "torchdynamo"), "the layers have kernels of their own"),
    **dict.fromkeys(("hub_", "overwrite_hub_"), "the model is uploaded once, when the run is done"),
    **dict.fromkeys(("log_", "logging_"), "every step is logged"),
    "trackio_": "trackio reads its own environment variables: TRACKIO_SPACE_ID",
    "vllm_": "the sampler shares the learner's weights",
    "wandb_": "wandb reads its own environment variables: WANDB_ENTITY, WANDB_RUN_GROUP",
}

_COSINE = "the parameters of `cosine` are fixed; write your own reward as file.py:function"
_TOKEN = "a recipe is stored in the run's folder: set the environment variable HF_TOKEN, or run `hf auth login`"
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
    "disable_dropout": (False, "set the dropout in the model's config.json to 0"),
    "fp16": (False, "use bf16=true (dtype=bfloat16) or float32"),
    "generation_kwargs": ({}, "use the keys temperature, top_p, top_k, min_p and stop"),
    "hub_token": (None, _TOKEN),
    "push_to_hub_token": (None, _TOKEN),
    "push_to_hub_organization": (None, "use hub_model_id=OWNER/NAME"),
    "label_smoothing_factor": (0.0, "labels are not smoothed"),
    "load_in_8bit": (False, "use load_in_4bit=true"),
    "lora_modules_to_save": (None, "only the adapter is trained; without use_peft, all weights are"),
    "lora_target_parameters": (None, "use lora_target_modules, which names layers"),
    "lora_task_type": ("CAUSAL_LM", "only causal language models are trained"),
    "max_completion_len": (None, "`overlong` counts tokens up to max_completion_length"),
    "model_init_kwargs": ({}, "use the keys dtype and device"),
    "model_revision": ("main", "download that revision, and give its folder as model_name_or_path"),
    "neftune_noise_alpha": (None, "no noise is added to the embeddings"),
    "repetition_max_penalty": (-1.0, "`repetition` pays down to -1; scale it with reward_weights"),
    "parallelism_config": (None, "a layer is never split between processes; use parallel.sharding"),
    "optim_target_modules": (None, "all weights have the same optimizer"),
    "optim_args": (None, "use the keys adam_beta1, adam_beta2 and weight_decay"),
    "repetition_n_grams": (3, "`repetition` counts 3-grams"),
    "repetition_penalty": (1.0, "sampling has no repetition penalty; use the reward `repetition`"),
    "shuffle_dataset": (True, "prompts are always shuffled by the seed"),
    "soft_punish_cache": (None, "`overlong` falls over the last fifth of max_completion_length"),
    "sync_ref_model": (False, "the reference is always the starting model"),
    "trust_remote_code": (False, "code from a model or data set is never run"),
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
    "deepspeed_config": "give the file of DeepSpeed itself: deepspeed=PATH; accelerate's is for `accelerate launch`",
    "mixed_precision": "use bf16=true (dtype=bfloat16); its originals are float32",
    "test_split_size": "without a test split, eval_fraction of the rows is held out",
    "batch_size": "use generation_batch_size (answers per step), or per_device_train_batch_size x "
    "gradient_accumulation_steps (answers per update)",
    **dict.fromkeys(
        ("world_size", "num_gpus", "n_gpus", "num_processes", "num_machines", "nproc_per_node"),
        "the launcher sets the number of processes: torchrun --nproc-per-node 8 -m outdo train RECIPE.yaml",
    ),
    **dict.fromkeys(
        ("tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size"),
        "a layer is never split between processes; parallel.sharding=full splits what is stored",
    ),
    **dict.fromkeys(
        ("model_args", "training_args", "training", "train", "grpo", "grpo_config", "peft_config", "lora_config"),
        "a recipe is flat: write the keys of this part at the top level, without its name",
    ),
    "epochs": "use max_steps for the length of the run, num_iterations for the passes over each step's answers",
    "reward_model_name_or_path": "a reward is a function: reward_funcs=path/to/file.py:function",
    "reward_model_path": "a reward is a function: reward_funcs=path/to/file.py:function",
}

# Our keys that other trainers allow to be null, meaning their default.
_NULL_IS_DEFAULT = {"eval_steps", "lora_target_modules", "max_completion_length", "max_grad_norm", "min_p"}
_NULL_IS_DEFAULT |= {"num_generations", "optim", "reward_funcs", "reward_weights", "top_k", "stop"}
_NULL_IS_DEFAULT |= {"eval_strategy", "save_strategy", "load_best_model_at_end", "push_to_hub"}
# Keys of ours with another default in TRL, which a file of TRL's that leaves them out means.
THEIR_DEFAULTS = {"loss_type": "dapo", "lr_scheduler_type": "linear", "adv_std": "sample"}
THEIR_KL = {"use_bias_correction_kl": "true"}  # likewise, where there is a KL term


def translate_keys(
    data: Mapping[str, Any], where: str, notify: Callable[[str], None], our_keys: Mapping[str, Any]
) -> dict[str, Any]:
    """The recipe in our forms, without ignored keys; synonyms and unknown keys stay. Raises RecipeError."""
    out: dict[str, Any] = {}
    ignored: dict[str, list[str]] = {}  # by reason
    unset = [key for key, value in data.items() if value is None and SYNONYMS.get(key, key) in _NULL_IS_DEFAULT]
    data = {key: value for key, value in data.items() if key not in unset}
    forms = [key for key in data if key in FORMS]
    for key, value in data.items():
        if key in forms or key in CONFIGURATIONS:
            continue
        if key in our_keys or key in SYNONYMS:
            out[key] = value
        elif reason := _why_ignored(key, value, data, where):
            ignored.setdefault(reason, []).append(key)
        else:
            out[key] = value
    for key in forms:
        for name, value in FORMS[key](data[key], data, where):
            if name != key or format_value(value) != format_value(data[key]):
                notify(f"{where}: {key}={format_value(data[key])} is {name}={format_value(value)} here")
            out[name] = value
    for part in _configurations(data, where):
        out |= part.keys_beside(out, SYNONYMS)
        for line in part.notes():
            notify(line)
    for reason, keys in ignored.items():
        notify(f"{where}: {', '.join(keys)} ignored, because {reason}")
    return out


def _configurations(data: Mapping[str, Any], where: str) -> list[Translated]:
    """What DeepSpeed's and FSDP's configurations in a recipe come to."""
    parts = []
    if data.get("deepspeed") not in (None, "", False):
        parts.append(deepspeed_keys(data["deepspeed"], where))
    if any(data.get(key) for key in ("fsdp", "fsdp_config")):
        group = data.get("parallel")
        grouped = group.get("replicas") if isinstance(group, Mapping) else None
        replicas = data.get("parallel_replicas", data.get("parallel.replicas", grouped))
        parts.append(fsdp_keys(data.get("fsdp"), data.get("fsdp_config"), where, replicas=replicas))
    return parts


def is_foreign(data: Mapping[str, Any], our_keys: Mapping[str, Any]) -> bool:
    """Whether a recipe has keys that only other trainers have."""
    return any(
        key not in our_keys and (key in (*FORMS, *ONLY, *CONFIGURATIONS) or _is_ignored(key))
        for key in map(str, data.keys())
    )


def their_defaults(data: Mapping[str, Any]) -> str:
    """What a file of another trainer's gets where it leaves out a key whose default is another there."""
    theirs_all = THEIR_DEFAULTS | (THEIR_KL if data.get("beta") else {})
    lacking = {key: theirs for key, theirs in theirs_all.items() if key not in data}
    return ", ".join(f"{key}={{{key}}} (TRL: {theirs})" for key, theirs in lacking.items())


def _is_ignored(key: str) -> bool:
    return key in IGNORED or key.startswith(tuple(IGNORED_PREFIXES))


def _why_ignored(key: str, value: Any, data: Mapping[str, Any], where: str) -> str:
    """The reason; empty where the key is not ignored. Raises RecipeError where its value is not the supported one."""
    if key in ONLY:
        only, hint = ONLY[key]
        unused = REWARD_PARAMETERS.get(key)
        if unused and unused not in str(data.get("reward_funcs")):
            return f"the reward {unused} is not used"
        if value is not None and number(value) != only:
            shown = "…" if key.endswith("_token") else format_value(value)  # a secret is not printed
            raise RecipeError(f"{where}: {key}={shown} is not supported: {hint}")
        return "this is what holds here anyway"
    if key in IGNORED:
        return IGNORED[key]
    return next((why for prefix, why in IGNORED_PREFIXES.items() if key.startswith(prefix)), "")
