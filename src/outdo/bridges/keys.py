"""A recipe's keys as fields of TRL's GRPOConfig: each is passed on, translated, kept on our side, or refused.

Every key stands in exactly one of SAME, TRANSLATED, OURS and ONLY; a test holds that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from outdo.errors import RecipeError, did_you_mean
from outdo.recipe.schema import Recipe

CISPO_CAP = 5.0  # ours where epsilon_high is not set; TRL's would be epsilon
# The same name and the same meaning there.
SAME = (
    *("max_completion_length", "num_generations", "temperature", "top_p", "top_k"),
    *("per_device_train_batch_size", "num_iterations", "gradient_checkpointing"),
    *("epsilon", "delta", "importance_sampling_level", "beta", "use_bias_correction_kl"),
    *("entropy_coef", "top_entropy_quantile", "off_policy_mask_threshold", "mask_truncated_completions"),
    *("sapo_temperature_pos", "sapo_temperature_neg"),
    *("vespo_k_pos", "vespo_lambda_pos", "vespo_k_neg", "vespo_lambda_neg"),
    *("learning_rate", "weight_decay", "adam_beta1", "adam_beta2", "max_grad_norm", "seed"),
)
_OPTIMIZERS = {"adamw": "adamw_torch", "paged_adamw": "paged_adamw_32bit"}  # ours by the names of transformers
# Under another name, or in another form: GRPOConfig's fields.
TRANSLATED: dict[str, Callable[[Recipe], dict[str, Any]]] = {
    "max_steps": lambda r: {"max_steps": r.max_steps * updates_per_step(r)},
    "generation_batch_size": lambda r: {"steps_per_generation": r.answers_per_step // r.per_device_train_batch_size},
    "gradient_accumulation_steps": lambda r: {
        "gradient_accumulation_steps": max(1, r.answers_per_update // r.per_device_train_batch_size)
    },
    "steps_per_generation": lambda r: {},  # by generation_batch_size
    "min_p": lambda r: {"min_p": r.min_p or None},
    "dtype": lambda r: {"bf16": r.dtype == "bfloat16"},
    "device": lambda r: {"use_cpu": r.device == "cpu" or not _sees_gpu()},
    "optim": lambda r: {"optim": _OPTIMIZERS.get(r.optim, r.optim)},
    "epsilon_high": lambda r: {
        "epsilon_high": CISPO_CAP if r.loss_type == "cispo" and r.epsilon_high is None else r.epsilon_high
    },
    "scale_rewards": lambda r: {"scale_rewards": r.scale_rewards},
    "loss_type": lambda r: _LOSSES.get(r.loss_type, {"loss_type": r.loss_type}),
    "max_turns": lambda r: {"max_tool_calling_iterations": r.max_tool_calling_iterations or r.max_turns},
    "max_tool_calling_iterations": lambda r: {},  # by max_turns
}
# Losses that it has; gspo under another name.
LOSSES = ("grpo", "bnpo", "dapo", "dr_grpo", "gspo", "cispo", "sapo", "vespo", "luspo")
_LOSSES: dict[str, dict[str, Any]] = {"gspo": {"loss_type": "grpo", "importance_sampling_level": "sequence"}}
# What we do ourselves around the trainer, by what it is.
_OURS: dict[str, tuple[str, ...]] = {
    "the model, its adapter and the warm-up": (
        *("model_name_or_path", "use_peft", "lora_r", "lora_alpha", "lora_dropout", "lora_target_modules"),
        *("sft_steps", "sft_epochs", "sft_batch_size", "sft_learning_rate", "sft_lr_scheduler_type"),
        *("sft_warmup_ratio", "sft_weight_decay", "sft_max_length", "sft_dataset_name", "sft_task_args", "sft_columns"),
        *("harvest_size", "harvest_samples", "harvest_keep", "harvest_teacher", "stages"),
    ),
    "the prompts": (
        *("dataset_name", "task_args", "columns", "dataset_config", "dataset_train_split", "dataset_test_split"),
        *("eval_fraction", "dataset_mixture", "system_prompt", "max_prompt_length", "num_train_epochs"),
        *("curriculum_args", "curriculum_dataset_name", "curriculum_informative"),
    ),
    "tools and environments": ("tools", "environment_factory", "environment_args", "tool_timeout"),
    "the rewards": (
        *("reward_funcs", "reward_weights", "reward_args", "reward_batch", "reward_input", "reward_gate"),
        *("pass_threshold", "audit_reward", "reward_timeout", "reward_audit", "regrade_steps", "broken_limit"),
    ),
    "the learning rate of each step": ("lr_scheduler_type", "min_lr_rate", "warmup_steps", "warmup_ratio"),
    "evaluation, by our sampler": (
        *("eval_strategy", "eval_steps", "eval_size", "eval_samples", "eval_ks", "eval_sampling", "eval_metric"),
        *("eval_split", "final_eval_split", "sampler", "rollout_rows", "rollout_memory"),
    ),
    "the run's folder, its checkpoints and what watches it": (
        *("output_dir", "save_strategy", "save_steps", "save_total_limit", "load_best_model_at_end"),
        *("metric_for_best_model", "greater_is_better", "push_to_hub", "hub_model_id", "hub_private_repo"),
        *("hub_revision", "log_tokens", "price_per_hour", "resume", "report_to", "callbacks"),
        *("early_stopping_patience", "early_stopping_threshold", "run_name", "project", "doctor"),
        *("kl_limit", "kl_guard", "kl_steps"),
    ),
    "how the trainer is started": ("backend", "backend_python", "backend_args", "parallel_timeout"),
}
OURS = {key: what for what, keys in _OURS.items() for key in keys}
_NO_LOSS = "it has no loss that reads it"
# Values that the trainer has no equal of. Each is refused unless it is the one here.
ONLY: dict[str, tuple[tuple[Any, ...], str]] = {
    "advantage_estimator": (("grpo",), "it has the advantages of GRPO only"),
    "adv_eps": ((1e-4,), "it always adds 1e-4"),
    "adv_std": (("population", "sample"), ""),
    "agent": ((None,), "it plays no agents; use tools or environment_factory"),
    "clip_cov_lb": ((1.0,), _NO_LOSS),
    "clip_cov_ratio": ((0.0002,), _NO_LOSS),
    "clip_cov_ub": ((5.0,), _NO_LOSS),
    "clip_ratio_c": ((10.0,), _NO_LOSS),
    "curriculum_pass_rate": ((False,), "prompts are drawn before their answers are known"),
    "curriculum_steps": ((0,), "prompts are drawn before their answers are known; use stages"),
    "divergence_type": (("binary_tv",), _NO_LOSS),
    "dynamic_sampling": ((False,), "it does not sample again"),
    "max_resample": ((2.0,), "it does not sample again"),
    "importance_sampling": (("auto", "never"), "use backend_args.vllm_importance_sampling_mode with its vLLM"),
    "importance_sampling_cap": ((None,), "use backend_args.vllm_importance_sampling_clip_max with its vLLM"),
    "kl_cov_ratio": ((0.0002,), _NO_LOSS),
    "kl_estimator": (("k3",), "it has k3 only"),
    "kl_in_reward": ((False,), "its KL term is in the loss"),
    "kl_target": ((None,), "its beta is fixed"),
    "load_in_4bit": ((False,), "evaluations here need the weights"),
    "multi_objective_aggregation": (("sum_then_normalize",), "it gets the weighted sum of the rewards"),
    "parallel_offload": (("none",), "this is of our own learner"),
    "parallel_pretend": (("",), "the plan is of our own learner"),
    "parallel_replicas": ((1,), "it runs in one process here"),
    "parallel_sharding": (("auto", "none"), "it runs in one process here"),
    "ppo_kl_coef": ((0.1,), _NO_LOSS),
    "stochastic_rounding": ((False,), "this is of our own optimizer"),
    "stop": (([],), "use backend_args.generation_kwargs"),
    "temperature_end": ((None,), "its temperature is fixed"),
    "tokens_per_micro_batch": ((None,), "its micro-batches are per_device_train_batch_size answers"),
    "tool_format": (("auto",), "calls are written as the chat template does it"),
}
# What means something else there, where the recipe's value makes the difference.
DIFFERENT: dict[str, tuple[Callable[[Recipe], bool], str]] = {
    "adv_std": (
        lambda r: r.adv_std == "population" and r.scale_rewards != "none",
        "the standard deviation is the population's in outdo; {name} divides by the sample's",
    ),
    "max_steps": (
        lambda r: updates_per_step(r) > 1,
        "counts batches of answers in outdo; {name} counts updates, and gets {updates}",
    ),
    "per_device_train_batch_size": (
        lambda r: True,
        "with gradient_accumulation_steps the answers of an update in outdo; in {name} also what is in one forward and "
        "backward ({answers} answers), so it decides the memory",
    ),
    "mask_truncated_completions": (
        lambda r: r.mask_truncated_completions and r.loss_type in ("grpo", "gspo", "sapo", "luspo"),
        "answers that are excluded do not count in the mean over answers in outdo; they do in {name}",
    ),
    "top_entropy_quantile": (
        lambda r: r.top_entropy_quantile < 1,
        "the quantile is the update's in outdo; in {name} that of each forward and backward",
    ),
    "loss_type": (
        lambda r: r.loss_type == "bnpo" and r.answers_per_update > r.per_device_train_batch_size,
        "bnpo is the mean over the tokens of an update in outdo; in {name} of each forward and backward",
    ),
    "generation_batch_size": (
        lambda r: r.updates_per_step > 1,
        "groups stay together in the updates of a step in outdo; {name} shuffles answers between them",
    ),
    "dtype": (
        lambda r: r.dtype == "bfloat16",
        "bfloat16 weights with float32 masters in outdo; float32 weights under autocast in {name}",
    ),
    "kl_steps": (
        lambda r: not r.beta,
        "KL is also measured where beta is 0 in outdo; {name} measures it with beta only",
    ),
}
# What the run around the trainer depends on.
FIXED: dict[str, Any] = {
    **{"save_strategy": "no", "eval_strategy": "no", "report_to": "none", "logging_steps": 1, "disable_tqdm": True},
    **{"logging_strategy": "steps", "shuffle_dataset": False, "remove_unused_columns": False},
    **{"lr_scheduler_type": "constant", "dataloader_pin_memory": False},
}
# Fields of GRPOConfig that are not settings here, and what decides instead.
_RESERVED = {
    **dict.fromkeys(FIXED, "the run's folder depends on it"),
    **{
        key: f"set the recipe's own {key} instead"
        for key in ("output_dir", "reward_weights", "report_to", "save_steps", "save_strategy", "eval_steps")
    },
    **{key: f"set the recipe's own {key} instead" for key in ("lr_scheduler_type", "warmup_steps", "warmup_ratio")},
    **{key: f"set the recipe's own {key} instead" for key in ("push_to_hub", "hub_model_id", "optim")},
    "lr_scheduler_kwargs": "set the recipe's own min_lr_rate instead",
    "logging_first_step": "the run's folder depends on it",
    "sync_ref_model": "checkpoints keep the reference of the start",
    "resume_from_checkpoint": "use outdo train --resume",
    "trust_remote_code": "code from a model is never run",
    "model_init_kwargs": "the model is loaded by the recipe's dtype and device",
}


ADAPTER_REFERENCE = (
    "its reference is the model without the adapter, and this adapter was trained before: set beta=0, or warm up "
    "all weights first (outdo sft use_peft=false) and start from that model"
)


def updates_per_step(recipe: Recipe) -> int:
    """The trainer's updates for one batch of answers."""
    return max(1, recipe.answers_per_step // recipe.answers_per_update) * recipe.num_iterations


def _sees_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def config_of(recipe: Recipe) -> dict[str, Any]:
    """The fields of GRPOConfig that the recipe's own keys decide."""
    fields = {key: getattr(recipe, key) for key in SAME}
    for translate in TRANSLATED.values():
        fields |= translate(recipe)
    return fields


def refuse_keys(recipe: Recipe, name: str) -> None:
    """Raises RecipeError where the trainer called `name` cannot do what the recipe says."""
    problems = []
    for key, (values, why) in ONLY.items():
        if (value := getattr(recipe, key)) not in values:
            problems.append(f"{key}={value}: {why}")
    if recipe.loss_type not in LOSSES:
        problems.append(f"loss_type={recipe.loss_type}: it has {', '.join(LOSSES)}")
    answers, size = recipe.answers_per_step, recipe.per_device_train_batch_size
    if answers % recipe.answers_per_update or answers % size:
        problems.append(
            f"{answers} answers a step cannot be split into updates of {recipe.answers_per_update}: use a multiple"
        )
    if recipe.optim == "adamw_bf16":
        problems.append("optim=adamw_bf16: this is of our own learner")
    if recipe.beta and recipe.use_peft and (recipe.sft_steps or recipe.sft_epochs):
        problems.append(f"beta={recipe.beta:g}: {ADAPTER_REFERENCE}")
    if recipe.device not in ("auto", "cpu", "cuda"):
        problems.append(f"device={recipe.device}: it takes the first GPU; choose one by CUDA_VISIBLE_DEVICES")
    if problems:
        listed = "\n".join(f"  {problem}" for problem in problems)
        raise RecipeError(f"{name} cannot run this recipe (backend={recipe.backend}):\n{listed}")


def refuse_args(recipe: Recipe, fields: Iterable[str], name: str) -> None:
    """Raises RecipeError where `backend_args` names no field of the trainer's, or one that a key of ours decides."""
    ours = (
        dict.fromkeys(config_of(recipe), "the recipe's own keys decide it; docs/backends.md has the table") | _RESERVED
    )
    for key in recipe.backend_args:
        if key in ours:
            raise RecipeError(f"backend_args.{key}: {ours[key]}")
        if key not in fields:
            near = did_you_mean(key, fields)
            raise RecipeError(f"backend_args.{key}: {name} has no such setting{near}")


def differences(recipe: Recipe, name: str) -> list[str]:
    """What the recipe's keys mean in outdo and there, a line each."""
    updates, answers = recipe.max_steps * updates_per_step(recipe), recipe.per_device_train_batch_size
    return [
        f"{key}: {text.format(name=name, updates=updates, answers=answers)}"
        for key, (applies, text) in DIFFERENT.items()
        if applies(recipe)
    ]
