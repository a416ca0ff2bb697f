"""A recipe's settings as the arguments of TRL's GRPOConfig, SFTConfig and LoraConfig.

Every setting with another default there is written out, so that the meaning does not depend on TRL's version. What has
no argument there is noted in the plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from outdo.bridges.convert.plan import Plan
from outdo.bridges.keys import LOSSES, ONLY, config_of
from outdo.learn.sft import BETAS
from outdo.recipe.schema import Recipe
from outdo.rewards.compose import Rewards

Settings = dict[str, dict[str, Any]]  # by heading, their keys and values

OPTIMIZERS = {"adamw": "adamw_torch", "adamw_bf16": "adamw_torch", "paged_adamw": "paged_adamw_32bit"}
ADV_EPS = 1e-4  # theirs, fixed
# Keys that change the training and that TRL has no counterpart of, unless they have their default.
ONLY_HERE = (
    *(
        "advantage_estimator",
        "kl_estimator",
        "kl_in_reward",
        "kl_target",
        "temperature_end",
        "stop",
        "dynamic_sampling",
    ),
    *("curriculum_steps", "curriculum_pass_rate"),
)
OBJECTIVE = (
    *("loss_type", "importance_sampling_level", "scale_rewards", "epsilon", "beta", "use_bias_correction_kl"),
    *("entropy_coef", "mask_truncated_completions"),
)  # written out, because their defaults there may be others
# Written where the recipe sets them.
OPTIONAL = (
    *("epsilon_high", "delta", "sapo_temperature_pos", "sapo_temperature_neg", "top_entropy_quantile"),
    *("off_policy_mask_threshold", "vespo_k_pos", "vespo_lambda_pos", "vespo_k_neg", "vespo_lambda_neg"),
)
# Recipe keys that decide nothing of a healthy run, or only how it is carried out.
NOTED: dict[str, tuple[Any, str]] = {
    "importance_sampling": ("auto", "no correction for the sampler's rounding; with use_vllm TRL has its own"),
    "stochastic_rounding": (False, "weights are float32 there"),
    "callbacks": ([], "write them anew as transformers' TrainerCallback"),
    "max_prompt_length": (None, "longer prompts are not skipped there"),
    "load_best_model_at_end": (False, "TRL evaluates rewards, not success"),
    "parallel_sharding": ("auto", "start it with `accelerate launch` and a configuration of your own"),
    "parallel_offload": ("none", "start it with `accelerate launch` and a configuration of your own"),
}


def grpo_settings(plan: Plan, rewards: list[float]) -> Settings:
    """The arguments of GRPOConfig. `rewards` are the weights of those that were carried over."""
    r = plan.recipe
    note_differences(plan)
    return {
        "the model": {"model_init_kwargs": {"dtype": "float32"}, **_precision(r)},
        "a step": dict(_batches(plan)),
        "sampling": dict(_sampling(r)),
        "the objective": dict(_objective(plan, rewards)),
        "the optimizer": dict(_optimizer(r, plan.updates)),
        "the run": dict(_run(plan)),
    }


def _precision(r: Recipe) -> dict[str, Any]:
    return {"bf16": r.dtype == "bfloat16", "gradient_checkpointing": r.gradient_checkpointing}


def _batches(plan: Plan) -> Iterator[tuple[str, Any]]:
    r = plan.recipe
    update = r.answers_per_step // r.updates_per_step
    size = next(n for n in range(min(r.per_device_train_batch_size, update), 0, -1) if update % n == 0)
    yield "num_generations", r.num_generations
    yield "per_device_train_batch_size", size
    yield "gradient_accumulation_steps", update // size
    yield "steps_per_generation", r.answers_per_step // size
    yield "num_iterations", r.num_iterations
    yield "max_steps", r.max_steps * plan.updates


def _sampling(r: Recipe) -> Iterator[tuple[str, Any]]:
    yield "max_completion_length", r.max_completion_length
    yield "temperature", r.temperature
    yield "top_p", r.top_p
    yield "top_k", r.top_k
    if r.min_p:
        yield "min_p", r.min_p


def _objective(plan: Plan, rewards: list[float]) -> Iterator[tuple[str, Any]]:
    r = plan.recipe
    fields, unset = config_of(r), config_of(Recipe.model_validate({}))
    if r.loss_type not in LOSSES:
        plan.lost.append(f"loss_type={r.loss_type}: TRL has no such loss; it has {', '.join(LOSSES)}")
        fields["loss_type"] = "grpo"
    yield from ((key, fields[key]) for key in OBJECTIVE)
    if any(weight != 1.0 for weight in rewards):
        yield "reward_weights", rewards
    yield from ((key, fields[key]) for key in OPTIONAL if fields[key] != unset[key])
    if r.multi_objective_aggregation != Recipe.model_fields["multi_objective_aggregation"].default:
        yield "multi_objective_aggregation", r.multi_objective_aggregation


def _optimizer(r: Recipe, updates: int) -> Iterator[tuple[str, Any]]:
    yield "optim", OPTIMIZERS.get(r.optim, r.optim)
    yield "learning_rate", r.learning_rate
    yield from _schedule(r.lr_scheduler_type, r.learning_rate, r.min_lr_rate, r.warmup * updates)
    yield "weight_decay", r.weight_decay
    yield "adam_beta1", r.adam_beta1
    yield "adam_beta2", r.adam_beta2
    yield "max_grad_norm", r.max_grad_norm


def _schedule(name: str, rate: float, floor: float, warmup: int) -> Iterator[tuple[str, Any]]:
    """transformers' schedule with the same curve."""
    if name == "linear" and floor:
        yield "lr_scheduler_type", "polynomial"
        yield "lr_scheduler_kwargs", {"lr_end": rate * floor, "power": 1.0}
    elif name.startswith("cosine") and floor:
        yield "lr_scheduler_type", "cosine_with_min_lr"
        yield "lr_scheduler_kwargs", {"min_lr_rate": floor}
    elif name.startswith("constant"):
        yield "lr_scheduler_type", "constant_with_warmup" if warmup else "constant"
    else:
        yield "lr_scheduler_type", "cosine" if name.startswith("cosine") else name
    yield "warmup_steps", max(0, warmup - 1)  # theirs begins at 0, one update before ours, and ends where ours does


def _run(plan: Plan) -> Iterator[tuple[str, Any]]:
    r = plan.recipe
    yield "seed", r.seed
    yield "logging_steps", 1
    yield "report_to", [name for name in r.report_to if name != "all"] or ["none"]
    if r.run_name:
        yield "run_name", r.run_name
    if r.eval_strategy == "epoch":
        yield "eval_strategy", "epoch"
    elif r.eval_strategy == "steps" and r.eval_steps:
        yield "eval_strategy", "steps"
        yield "eval_steps", r.eval_steps * plan.updates
    yield "per_device_eval_batch_size", max(8, r.per_device_train_batch_size)
    yield "num_generations_eval", 1
    saves = r.save_steps > 0 and r.save_strategy != "no"
    yield "save_strategy", ("epoch" if r.save_strategy == "epoch" else "steps") if saves else "no"
    if saves:
        yield "save_steps", r.save_steps * plan.updates
        yield "save_total_limit", r.save_total_limit
    if r.push_to_hub:
        yield "push_to_hub", True
        yield "hub_model_id", r.hub_model_id
        yield "hub_private_repo", r.hub_private_repo


def lora_settings(r: Recipe) -> dict[str, Any]:
    """The arguments of PEFT's LoraConfig."""
    names = r.lora_target_modules
    target = "all-linear" if names == ["all-linear"] else names
    return {"r": r.lora_r, "lora_alpha": r.lora_alpha, "lora_dropout": 0.0, "target_modules": target}


def sft_settings(plan: Plan) -> dict[str, Any]:
    """The arguments of SFTConfig, for the warm-up. Its file has the examples of all epochs, in their order."""
    r, steps = plan.recipe, warmup_steps_of(plan)
    warmup = max(1, int(steps * r.sft_warmup_ratio)) if r.sft_warmup_ratio else 0
    return {
        **_precision(r),
        "max_steps": steps,
        "per_device_train_batch_size": r.sft_batch_size,
        "train_sampling_strategy": "sequential",
        "completion_only_loss": True,
        "max_length": r.sft_max_length,
        "optim": OPTIMIZERS.get(r.optim, r.optim),
        "learning_rate": r.sft_learning_rate,
        **dict(_schedule(r.sft_lr_scheduler_type, r.sft_learning_rate, 0.0, warmup)),
        "weight_decay": r.sft_weight_decay,
        "adam_beta1": BETAS[0],
        "adam_beta2": BETAS[1],
        "max_grad_norm": r.max_grad_norm,
        "seed": r.seed,
        "logging_steps": 10,
        "report_to": ["none"],
        "save_strategy": "no",
    }


def warmup_steps_of(plan: Plan) -> int:
    from outdo.tasks.demonstrations import find_demonstrations

    found = find_demonstrations(plan.recipe, plan.task)
    return found.steps if found else 0


def note_differences(plan: Plan) -> None:
    """What has no argument in TRL, and what means something else there."""
    r = plan.recipe
    for key in ONLY_HERE:
        values, why = ONLY[key]
        if getattr(r, key) not in values:
            plan.lost.append(f"{key}={getattr(r, key)}: {why}: take {key}={values[0]}")
    plan.notes += [
        f"{key}={getattr(r, key)}: {why}" for key, (unused, why) in NOTED.items() if getattr(r, key) != unused
    ]
    if r.scale_rewards != "none" and r.adv_std == "population":
        plan.notes.append(
            f"advantages are divided by the sample standard deviation there (adv_std=sample), so those of a group of "
            f"{r.num_generations} are {((r.num_generations - 1) / r.num_generations) ** 0.5:.3f} times ours"
        )
    if r.scale_rewards != "none" and r.adv_eps != ADV_EPS:
        plan.notes.append(f"adv_eps={r.adv_eps:g}: it is fixed at {ADV_EPS:g} there")
    if r.loss_type == "bnpo" and r.answers_per_update > r.per_device_train_batch_size:
        plan.notes.append("bnpo: TRL takes the mean over the tokens of each micro-batch, not of the whole update")
    if r.mask_truncated_completions and r.loss_type in ("grpo", "gspo", "dr_grpo"):
        plan.notes.append("answers that are masked because they were cut still count as answers in TRL's mean")
    if plan.updates > 1 and r.updates_per_step > 1:
        plan.notes.append("a step has several updates, and TRL shuffles answers between them, which splits groups")
    if r.warmup:
        plan.notes.append("the first update of the warm-up has the learning rate 0 there")
    if r.optim == "adamw_bf16":
        plan.notes.append("optim=adamw_bf16: adamw_torch there, whose state is float32")
    if r.use_peft and warmup_steps_of(plan):
        plan.notes.append("the warm-up trains all weights there, and the adapter alone here")
    plan.notes += safety_notes(r, plan.rewards)


def safety_notes(r: Recipe, rewards: Rewards) -> list[str]:
    """What guards a run here, and is not there."""
    notes = ["the reward is not audited before training, and no doctor reads the run"]
    if any(not part.grader for part in rewards.parts):
        notes.append(
            "your reward functions run in the trainer's process: none is ended after reward_timeout, and one that "
            "raises ends the training; here its answers are broken, or wrong where they are its cause"
        )
    if r.kl_limit is not None and (r.beta or r.kl_steps != 0):
        notes.append(f"nothing acts where KL passes kl_limit={r.kl_limit:g} (kl_guard={r.kl_guard})")
    if rewards.audit:
        notes.append(f"audit_reward={rewards.audit} is not measured")
    notes.append("evaluations are mean rewards of one sampled answer, not greedy success and pass@k")
    return notes
