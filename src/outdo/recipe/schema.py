"""The recipe: one flat, typed model of every setting of a run.

Keys have TRL's names where TRL has one. The comment beside a field is its documentation: docs/recipes.md is made of it.
"""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from outdo.errors import did_you_mean

GROUPS = ("sft", "harvest", "parallel")  # prefixes whose keys may also be written as a mapping
MIXTURE = "mixture"  # dataset_name where dataset_mixture names the tasks
# Keys of a single task. Each entry of a mixture has its own.
SINGLE_TASK_KEYS = ("task_args", "columns", "dataset_config", "dataset_train_split", "dataset_test_split")
# Where names are registered. Addresses instead of imports: the recipe lies below these modules.
REGISTRIES = {  # recipe key: module:mapping
    "loss_type": "outdo.algo.losses:LOSSES",
    "advantage_estimator": "outdo.algo.advantage:ESTIMATORS",
    "kl_estimator": "outdo.algo.divergence:ESTIMATORS",
    "lr_scheduler_type": "outdo.algo.schedules:SCHEDULES",
    "sft_lr_scheduler_type": "outdo.algo.schedules:SCHEDULES",
    "report_to": "outdo.training.trackers:TRACKERS",
    "sampler": "outdo.rollout:ENGINES",
    "optim": "outdo.learn.optimizers:OPTIMIZERS",
    "tool_format": "outdo.models.tool_formats:FORMATS",
    "backend": "outdo.bridges.backend:BACKENDS",
}
GROUP_NAMES = {"report_to": ("all",), "tool_format": ("auto",)}  # names that stand for several entries


def registered_names(key: str) -> tuple[str, ...]:
    """The names that a recipe key may have."""
    module, _, mapping = REGISTRIES[key].partition(":")
    return (*getattr(importlib.import_module(module), mapping), *GROUP_NAMES.get(key, ()))


class Recipe(BaseModel):
    """All settings of a run. The defaults suit a small pretrained model; `default.yaml` trains the tiny one."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, protected_namespaces=())

    # --- the model
    model_name_or_path: str = "tiny"  # folder, .gguf, adapter or hub name; smollm2; tiny: 1M parameters from scratch
    dtype: Literal["float32", "bfloat16"] = "float32"
    device: str = "auto"  # auto, cpu, cuda, cuda:1
    use_peft: bool = False  # train a low-rank adapter (LoRA) instead of all weights
    lora_r: int = Field(16, ge=1)  # rank of the adapter
    lora_alpha: float = Field(32.0, gt=0)  # W = W0 + lora_alpha / lora_r x B A
    lora_dropout: float = Field(0.0, ge=0, lt=1)  # must be 0: the adapter is always merged
    lora_target_modules: list[str] = ["all-linear"]  # suffixes of layer names; all-linear: all but the output head
    load_in_4bit: bool = False  # keep the frozen weights in 4 bits (QLoRA); needs bitsandbytes
    # --- the task
    dataset_name: str = "arithmetic"  # a task, a data set (docs/data.md), file.py:function, or verifiers:NAME
    task_args: dict[str, Any] = {}  # arguments of the task's function: task_args.digits=3
    columns: dict[str, str] = {}  # our column name: the data's name; columns.prompt=question columns.answer=solution
    dataset_config: str | None = None  # configuration of a hub data set that has several
    dataset_train_split: str = "train"
    dataset_test_split: str = "test"  # held out; if the data has no such split, eval_fraction of the training rows is
    eval_fraction: float = Field(0.1, gt=0, lt=1)  # of the rows is held out if the data has no test split
    dataset_mixture: list[dict[str, Any]] = []  # several tasks by weight: [{dataset_name: …, weight: 2}, …]
    system_prompt: str | None = None  # added to every prompt that has no system message
    max_prompt_length: int | None = Field(None, ge=1)  # tokens; longer prompts, and any past the context, are skipped
    # --- tools and environments: answers of several turns
    tools: list[Any] = []  # functions that the model may call: calculator, python, search:FOLDER, file.py:function
    environment_factory: str | dict[str, str] | None = None  # file.py:Class or a name; several, by a column environment
    environment_args: dict[str, Any] = {}  # arguments of that class; of several, by their names
    agent: str | None = None  # file.py:function that plays an answer through OpenAI's client (docs/agents.md)
    max_turns: int = Field(16, ge=1)  # of the model in one answer; tokens of all turns count in max_completion_length
    max_tool_calling_iterations: int | None = Field(None, ge=1)  # turns with calls of tools; default: no limit
    tool_timeout: float = Field(10.0, gt=0)  # seconds for one call of a tool
    tool_format: str = "auto"  # how the model writes a call; auto: as its chat template does
    # --- the rewards
    reward_funcs: list[str] = []  # names, package.module:function or path/to/file.py:function; empty: the task's own
    reward_weights: list[float] = []  # one per reward function; empty: all 1
    reward_args: dict[str, dict[str, Any]] = {}  # arguments of rewards, by name: reward_args.llm_judge.model=NAME
    reward_batch: Literal["group", "step"] = "group"  # answers in one call of your function: a group's or a step's
    reward_input: Literal["auto", "text", "messages"] = "auto"  # completions as text or messages; auto: as the prompts
    reward_gate: str = ""  # name of a reward: the others pay only if its verdict is right
    pass_threshold: float | None = None  # reward from which an answer is a success; null: 1, or a grader.json's own
    audit_reward: str = ""  # strict reward, logged as audit_reward_mean, never trained on; reveals reward hacking
    reward_timeout: float = Field(10.0, gt=0)  # seconds for one answer, or for one call of your own function
    reward_audit: bool = True  # test the rewards before training and refuse one that can be fooled
    regrade_steps: int = Field(10, ge=0)  # grade early answers again this often, to notice a changed grader; 0: off
    broken_limit: float = Field(0.2, ge=0, le=1)  # halt if more than this share of a step's answers cannot be graded
    # --- rollouts
    num_generations: int = Field(8, ge=2)  # group size G: answers per prompt
    max_completion_length: int = Field(256, ge=1)  # tokens per answer
    temperature: float = Field(1.0, gt=0)
    temperature_end: float | None = Field(None, gt=0)  # temperature at the last step, linear; default: constant
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=0)  # 0: no limit
    min_p: float = Field(0.0, ge=0, le=1)  # drop tokens less likely than this share of the likeliest one
    stop: list[str] = []  # strings that end an answer
    sampler: str = "local"  # the engine; fp8: faster from 7B on, less exact; hf: transformers' generate
    rollout_rows: int | None = Field(None, ge=1)  # answers decoded in parallel; default: 1024 on a GPU, 512 on a CPU
    rollout_memory: float | None = Field(None, gt=0)  # GiB of GPU memory for the KV cache; default: half the free
    dynamic_sampling: bool = False  # resample groups without reward spread, as DAPO does …
    max_resample: float = Field(2.0, ge=0)  # … up to this many times the number of groups in a step
    # --- batches, counted as in TRL: answers, not prompts
    per_device_train_batch_size: int = Field(8, ge=1)  # answers; memory use is set by tokens_per_micro_batch instead
    gradient_accumulation_steps: int = Field(1, ge=1)  # such batches per update of the weights
    steps_per_generation: int | None = Field(None, ge=1)  # such batches per step; default: gradient_accumulation_steps
    generation_batch_size: int | None = Field(None, ge=2)  # answers per step; replaces steps_per_generation
    tokens_per_micro_batch: int | None = Field(None, ge=1)  # per forward and backward; does not change the gradient
    gradient_checkpointing: bool = False  # recompute activations in the backward to save memory
    num_iterations: int = Field(1, ge=1)  # passes over the answers of a step
    max_steps: int = Field(100, ge=1, le=10**9)  # takes precedence over …
    num_train_epochs: float | None = Field(None, gt=0)  # … passes over the training prompts of a finite data set
    # --- the objective
    loss_type: str = "grpo"
    advantage_estimator: str = "grpo"
    scale_rewards: Literal["group", "batch", "none"] = "group"  # standard deviation that advantages are divided by
    adv_std: Literal["population", "sample"] = "population"  # its estimate: over n, or over n - 1 as in TRL
    adv_eps: float = Field(1e-4, ge=0)  # added to that standard deviation
    epsilon: float = Field(0.2, gt=0, le=10)  # the ratio is clipped below 1 - epsilon …
    epsilon_high: float | None = Field(None, gt=0, le=10)  # … and above 1 + this; default: epsilon. cispo: its cap
    delta: float | None = Field(None, gt=1)  # where the advantage is negative, clipped above this too (dual clip): 4
    importance_sampling_level: Literal["token", "sequence"] = "token"  # one ratio per token, or per answer as in GSPO
    beta: float = Field(0.0, ge=0)  # weight of the KL to the frozen starting model; 0: measured at most (kl_steps)
    kl_steps: int | None = Field(None, ge=0)  # with beta 0, measure KL every so many steps; 0: never; default: if cheap
    kl_estimator: str = "k3"
    kl_in_reward: bool = False  # subtract beta x KL from the reward instead of adding it to the loss
    kl_target: float | None = Field(None, gt=0)  # adapt beta to keep the KL here
    kl_limit: float | None = Field(1.0, gt=0)  # kl_guard acts at three measured steps in a row above it; null: never
    kl_guard: Literal["stop", "lower_rate", "raise_beta"] = "stop"  # halt, halve learning_rate, or double beta
    use_bias_correction_kl: bool = False  # multiply the KL term by the ratio, so that its gradient is unbiased
    entropy_coef: float = Field(0.0, ge=0)  # weight of an entropy bonus
    top_entropy_quantile: float = Field(1.0, ge=0, le=1)  # train on this share of the tokens: those of highest entropy
    off_policy_mask_threshold: float | None = Field(None, gt=0)  # drop worse answers whose KL to the sampler is above
    # weight tokens by the ratio of learner to sampler
    importance_sampling: Literal["auto", "truncate", "mask", "never"] = "auto"  # auto: only beyond rounding error
    importance_sampling_cap: float | None = Field(None, gt=0)  # truncate or mask past it; default: 2; auto: truncate
    mask_truncated_completions: bool = False  # exclude answers cut at the length limit from the loss
    # sum_then_normalize: the weighted sum is normalised; normalize_then_sum: each reward by itself (GDPO)
    multi_objective_aggregation: Literal["sum_then_normalize", "normalize_then_sum"] = "sum_then_normalize"
    # --- parameters of some losses (docs/method.md)
    sapo_temperature_pos: float = Field(1.0, gt=0)  # sapo: how fast the gate closes where the advantage is positive …
    sapo_temperature_neg: float = Field(1.05, gt=0)  # … and where it is not
    vespo_k_pos: float = Field(2.0, ge=0)  # vespo: an answer weighs w^k exp(lambda (1 - w)) by its importance weight w
    vespo_lambda_pos: float = Field(3.0, ge=0)  # … with these where the advantage is positive or 0 …
    vespo_k_neg: float = Field(3.0, ge=0)  # … and with these where it is negative
    vespo_lambda_neg: float = Field(2.0, ge=0)
    divergence_type: Literal["binary_tv", "binary_kl"] = "binary_tv"  # dppo: what the epsilons bound
    clip_ratio_c: float = Field(10.0, gt=1)  # dppo: cap of the ratio between policy and sampler
    clip_cov_ratio: float = Field(0.0002, gt=0, le=1)  # clip_cov: share of the tokens without a gradient, at random …
    clip_cov_lb: float = 1.0  # … among those with a covariance above this …
    clip_cov_ub: float = 5.0  # … and below this
    kl_cov_ratio: float = Field(0.0002, gt=0, le=1)  # kl_cov: share of the tokens with a penalty …
    ppo_kl_coef: float = Field(0.1, gt=0)  # … of this times |log ratio|
    # --- the optimizer
    optim: str = "adamw_torch_fused"  # of GRPO and SFT; 8 bit: a quarter of AdamW's memory, pip install 'outdo[8bit]'
    stochastic_rounding: bool = False  # train bfloat16 weights themselves, rounded at random: no float32 copies of them
    learning_rate: float = Field(1e-6, gt=0)
    lr_scheduler_type: str = "constant"
    min_lr_rate: float = Field(0.0, ge=0, le=1)  # linear and cosine end at this share of learning_rate
    warmup_steps: int = Field(0, ge=0)  # steps of linear warm-up, or …
    warmup_ratio: float = Field(0.0, ge=0, le=1)  # … a share of all steps
    weight_decay: float = Field(0.0, ge=0)
    adam_beta1: float = Field(0.9, ge=0, lt=1)
    adam_beta2: float = Field(0.999, ge=0, lt=1)
    max_grad_norm: float = Field(1.0, gt=0)
    # --- several processes, as torchrun starts them (docs/parallel.md); also written `parallel: {sharding: full}`
    # none: replicas; grads: gradients and optimizer over the processes (ZeRO-2); full: weights too (FSDP2, ZeRO-3)
    parallel_sharding: Literal["auto", "none", "grads", "full"] = "auto"  # auto: the first of these that fits
    parallel_replicas: int = Field(1, ge=1)  # copies of what is sharded (HSDP): each is over 1/this of the processes
    parallel_offload: Literal["none", "optimizer", "parameters"] = "none"  # kept in the host's memory between updates
    parallel_timeout: float = Field(1800, gt=0)  # seconds that a process waits for the others before the run ends
    parallel_pretend: str = ""  # plan for a cluster that is not here, with --dry-run: 8xH100, 2x8xH200
    # --- another trainer on the same recipe, into the same run folder (docs/backends.md)
    backend: str = "outdo"  # who trains: outdo, or trl or unsloth, which are packages of their own
    backend_python: str | None = None  # the Python of an environment that has them; default: this one
    backend_args: dict[str, Any] = {}  # further settings of TRL's GRPOConfig: backend_args.use_vllm=true
    # --- SFT: the warm-up before GRPO, and `outdo sft`; also written `sft: {epochs: 3}`
    sft_steps: int = Field(0, ge=0, le=10**9)  # updates, or …
    sft_epochs: float = Field(0, ge=0)  # … passes over finite data
    sft_batch_size: int = Field(64, ge=1)  # examples per update
    sft_learning_rate: float = Field(1e-5, gt=0)
    sft_lr_scheduler_type: str = "cosine"
    sft_warmup_ratio: float = Field(0.05, ge=0, le=1)  # share of the updates with linear warm-up
    sft_weight_decay: float = Field(0.0, ge=0)
    sft_max_length: int | None = Field(None, ge=2)  # tokens with the prompt; longer answers are cut; default: no limit
    sft_dataset_name: str | None = None  # data with a `completion`; default: the task's own demonstrations
    sft_task_args: dict[str, Any] = {}  # arguments of sft_dataset_name's function
    sft_columns: dict[str, str] = {}  # the same as columns, for sft_dataset_name
    # --- harvesting: correct answers of the model itself, saved as demonstrations
    harvest_size: int = Field(1000, ge=0)  # prompts; 0: all of a finite task
    harvest_samples: int = Field(8, ge=1)  # answers per prompt
    harvest_keep: int = Field(4, ge=1)  # distinct correct answers kept per prompt, at most
    harvest_teacher: bool = False  # add the task's own demonstrations
    # --- stages: each is {stage: sft, grpo or harvest, …keys that override the recipe's}
    stages: list[dict[str, Any]] = []
    # --- the curriculum: an easier task first, or the most informative prompts
    curriculum_steps: int = Field(0, ge=0)  # steps on the easier task, at most
    curriculum_args: dict[str, Any] = {}  # task_args of the easier task
    curriculum_dataset_name: str | None = None  # the easier task; default: dataset_name, with curriculum_args
    curriculum_informative: float = Field(0.0, ge=0, le=1)  # leave it once fewer than this share of groups have spread
    curriculum_pass_rate: bool = False  # prefer prompts whose pass rate is neither 0 nor 1
    # --- evaluation, on held-out problems
    eval_strategy: Literal["steps", "epoch", "no"] = "steps"  # epoch: when the training prompts were seen once
    eval_steps: int = Field(0, ge=0)  # evaluate every so many steps; 0: only before and after training
    eval_size: int = Field(200, ge=0)  # problems per split; 0: all
    eval_samples: int = Field(10, ge=0)  # answers per problem, for pass@1 and pass@k; 0: greedy only
    eval_ks: list[int] = []  # k of pass@k; empty: 1, and 8 or 10, or eval_samples if that is less
    eval_sampling: Literal["temperature", "rollout"] = "temperature"  # of pass@k; rollout: also top_p, top_k and min_p
    eval_metric: Literal["auto", "success", "reward"] = "auto"  # which decides; auto: reward if no answer succeeds
    eval_split: list[str] = []  # splits evaluated before, during and after; empty: test and ood, if the task has them
    final_eval_split: list[str] = []  # splits evaluated only after the last step, not used to choose settings
    # --- the run
    output_dir: str | None = None  # default: runs/RUN_NAME, or runs/TASK-DATE-TIME
    # when to save a checkpoint; best: when an evaluation is the best so far; one is always saved where a run ends
    save_strategy: Literal["steps", "epoch", "best", "no"] = "steps"
    save_steps: int = Field(25, ge=0)  # save a checkpoint every so many steps; 0: only when the run is stopped
    save_total_limit: int | None = Field(2, ge=1)  # newest checkpoints to keep, beside the best evaluated; null: all
    load_best_model_at_end: bool = False  # model/ is the best evaluated checkpoint, not the last; needs eval_steps
    metric_for_best_model: str | None = None  # a field of an evaluation: success_rate, pass@1; default: success_rate
    greater_is_better: bool | None = None  # default: true
    push_to_hub: bool = False  # upload model/ when the run is done; the token is HF_TOKEN, or that of `hf auth login`
    hub_model_id: str | None = None  # repository, as NAME or OWNER/NAME; default: the name of the run's folder
    hub_private_repo: bool | None = None  # default: as the hub does it for you
    hub_revision: str | None = None  # branch to upload to; default: main
    log_tokens: int = Field(1, ge=0)  # groups per step whose tokens, log-probabilities and ratios are logged
    price_per_hour: float | None = Field(None, ge=0)  # of one device, in your currency: reports then show the cost
    resume: Literal["never", "auto"] = "never"  # auto: resume an unfinished run of the same recipe, if one exists
    report_to: list[str] = []  # trackers (docs/trackers.md); all: those that are installed
    callbacks: list[str] = []  # early_stopping, or your own: path/to/file.py:Class
    early_stopping_patience: int | None = Field(None, ge=1)  # stop after so many evaluations without improvement …
    early_stopping_threshold: float = Field(0.0, ge=0)  # … of held-out success by more than this; see eval_steps
    run_name: str | None = None  # name of the run's folder in runs/ and of the run in trackers
    project: str | None = None  # project in trackers; default: the tracker's own environment variable, else outdo
    # the doctor's findings during training
    doctor: Literal["quiet", "note", "auto", "halt"] = "auto"  # note: report; auto: halt if dead; halt: if critical
    seed: int = Field(0, ge=0)

    @field_validator("*")
    @classmethod
    def _fits_int64(cls, value: Any) -> Any:
        if isinstance(value, int) and value >= 2**63:
            raise ValueError("the number is too large")
        return value

    @field_validator("*", mode="before")
    @classmethod
    def _not_bool(cls, value: Any, info: ValidationInfo) -> Any:
        kind = cls.model_fields[info.field_name or ""].annotation
        if isinstance(value, bool) and {int, float} & {kind, *get_args(kind)}:  # pydantic would take it for 1 or 0
            raise ValueError(f"expected a number, not {'yes' if value else 'no'}")
        return value

    @field_validator(*REGISTRIES)
    @classmethod
    def _registered(cls, value: str | list[str], info: ValidationInfo) -> Any:
        key = info.field_name or ""
        if value != cls.model_fields[key].default:  # which is known to be registered: nothing is loaded for it
            names = registered_names(key)
            for name in [value] if isinstance(value, str) else value:
                if name not in names:
                    raise ValueError(f"{name!r} is not one of {', '.join(names)}{did_you_mean(name, names)}")
        return value

    @field_validator("eval_strategy", "save_strategy", mode="before")
    @classmethod
    def _yaml_no(cls, value: Any) -> Any:
        return "no" if value is False else value  # YAML reads a bare `no` as false

    @field_validator("output_dir", "model_name_or_path", "dataset_name", mode="before")
    @classmethod
    def _path(cls, value: Any) -> Any:
        return str(value) if isinstance(value, Path) else value

    @field_validator("scale_rewards", mode="before")
    @classmethod
    def _trl_bool(cls, value: Any) -> Any:
        return {True: "group", False: "none"}.get(value, value) if isinstance(value, bool) else value

    @field_validator(
        *("reward_funcs", "reward_weights", "eval_ks", "eval_split", "final_eval_split", "lora_target_modules"),
        *("callbacks", "tools"),
        mode="before",
    )
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        if isinstance(value, str):
            return [part.strip() for part in value.split(",") if part.strip()]
        return [value] if isinstance(value, (int, float)) else value

    @field_validator("reward_args", mode="before")
    @classmethod
    def _by_reward(cls, value: Any) -> Any:
        """`reward_args.judge.model=x` on the command line sets one argument of one reward."""
        if not isinstance(value, dict):
            return value
        plain = {key: inner for key, inner in value.items() if "." not in str(key)}
        for key in [key for key in value if key not in plain]:
            name, _, argument = key.rpartition(".")
            plain[name] = {**(plain.get(name) or {}), argument: value[key]}
        for name, inner in plain.items():
            if not isinstance(inner, dict):
                raise ValueError(f"{name}={inner!r:.40}: expected reward_args.NAME.ARGUMENT=VALUE")
        return plain

    @field_validator("report_to", mode="before")
    @classmethod
    def _trackers(cls, value: Any) -> Any:
        """`none`, one name, or several, as other trainers accept them."""
        names = value.split(",") if isinstance(value, str) else [] if value is None else value
        if not isinstance(names, list):
            return names
        return [name for each in names if (name := each.strip() if isinstance(each, str) else each) not in ("none", "")]

    @field_validator("stop", mode="before")
    @classmethod
    def _stop_strings(cls, value: Any) -> Any:
        texts = [value] if isinstance(value, str) else value
        if isinstance(texts, list) and "" in texts:
            raise ValueError("an empty string would end every answer at once")
        return texts

    @property
    def answers_per_step(self) -> int:
        if self.generation_batch_size is not None:
            return self.generation_batch_size
        return self.per_device_train_batch_size * (self.steps_per_generation or self.gradient_accumulation_steps)

    @property
    def answers_per_update(self) -> int:
        return min(self.per_device_train_batch_size * self.gradient_accumulation_steps, self.answers_per_step)

    @property
    def prompts_per_step(self) -> int:
        return self.answers_per_step // self.num_generations

    @property
    def updates_per_step(self) -> int:
        """Updates of the weights in one pass over a step's answers. A group is never split between two."""
        return min(self.answers_per_step // self.answers_per_update, self.prompts_per_step)

    @property
    def warmup(self) -> int:
        """Steps of learning-rate warm-up."""
        return self.warmup_steps or math.ceil(self.warmup_ratio * self.max_steps)

    def temperature_at(self, step: int) -> float:
        """Linear from `temperature` at the first step to `temperature_end` at the last."""
        if self.temperature_end is None:
            return self.temperature
        return self.temperature + (self.temperature_end - self.temperature) * step / max(self.max_steps - 1, 1)
