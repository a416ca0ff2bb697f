"""The recipe: one flat, typed model. YAML in, key=value over it, anything unknown refused with the nearest name.

Names are TRL's where TRL has one. A field is documented once, here, beside its default.
"""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

Schedule = Literal["constant", "constant_with_warmup", "linear", "cosine", "cosine_with_min_lr"]
Trackers = Literal["tensorboard", "wandb", "mlflow", "trackio", "all"]  # all: those that are installed
GROUPS = ("sft", "harvest")  # keys that begin alike may be given as a mapping
MIXTURE = "mixture"  # what dataset_name is where dataset_mixture names the tasks
# What each entry of a mixture has of its own: beside the mixture these would decide nothing.
OF_ONE_TASK = ("task_args", "columns", "dataset_config", "dataset_train_split", "dataset_test_split")


class Recipe(BaseModel):
    """Everything that decides a run. The defaults suit a small pretrained model; `default.yaml` trains the tiny one."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, protected_namespaces=())

    # --- the model
    model_name_or_path: str = "tiny"  # a folder, .gguf, adapter or hub name; smollm2; tiny: a million from scratch
    dtype: Literal["float32", "bfloat16"] = "float32"
    device: str = "auto"  # auto, cpu, cuda, cuda:1
    use_peft: bool = False  # train a low-rank adapter (LoRA) instead of all weights
    lora_r: int = Field(16, ge=1)  # its rank
    lora_alpha: float = Field(32.0, gt=0)  # W = W0 + lora_alpha / lora_r x B A
    lora_dropout: float = Field(0.0, ge=0, lt=1)  # 0 only: the adapter is always merged
    lora_target_modules: list[str] = ["all-linear"]  # ends of the layers' names, or all-linear: all but the head
    load_in_4bit: bool = False  # keep the frozen weights in four bits (QLoRA); needs bitsandbytes
    # --- the task
    dataset_name: str = "arithmetic"  # a task's name, data (docs/data.md), or path/to/file.py:function
    task_args: dict[str, Any] = {}  # handed to the task's function: task_args.digits=3
    columns: dict[str, str] = {}  # what the data calls ours: columns.prompt=question columns.answer=solution
    dataset_config: str | None = None  # which of a hub data set's configurations
    dataset_train_split: str = "train"
    dataset_test_split: str = "test"  # held out; where the data has none, one row in ten is
    dataset_mixture: list[dict[str, Any]] = []  # several by weight: [{dataset_name: …, weight: 2, task_args: {…}}, …]
    system_prompt: str | None = None  # put before every prompt that has none of its own
    max_prompt_length: int | None = Field(None, ge=1)  # tokens; longer prompts, or past the context, are left out
    # --- the rewards
    reward_funcs: list[str] = []  # names, package.module:function or path/to/file.py:function; empty: the task's own
    reward_weights: list[float] = []  # one for each of reward_funcs; empty: all 1
    reward_gate: str = ""  # the name of a reward: the others pay only where it is right
    audit_reward: str = ""  # a strict reward, logged as audit_reward_mean and never trained on: it shows a gamed one
    reward_timeout: float = Field(10.0, gt=0)  # seconds for one answer, or for one call of your own function
    reward_audit: bool = True  # try the rewards before training, and refuse one that can be fooled
    broken_limit: float = Field(0.2, ge=0, le=1)  # halt when a larger share of a step's answers cannot be judged
    # --- rollouts
    num_generations: int = Field(8, ge=2)  # G, the answers to one prompt
    max_completion_length: int = Field(256, ge=1)  # tokens
    temperature: float = Field(1.0, gt=0)
    temperature_end: float | None = Field(None, gt=0)  # at the last step, in a straight line; default: as it was
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=0)  # 0: no limit
    min_p: float = Field(0.0, ge=0, le=1)  # leave out what is less likely than this share of the likeliest token
    stop: list[str] = []  # texts that end an answer
    sampler: Literal["local", "hf"] = "local"  # hf: transformers' generate, the slow reference
    rollout_rows: int | None = Field(None, ge=1)  # answers decoded side by side; default: 1024 on a GPU, else 512
    rollout_memory: float | None = Field(None, gt=0)  # on a GPU, GiB for their cache; default: half of the free
    dynamic_sampling: bool = False  # replace groups without spread by new prompts (DAPO) …
    max_resample: float = Field(2.0, ge=0)  # … making at most so many times the step's groups again
    # --- batches, as TRL counts them: answers, not prompts
    per_device_train_batch_size: int = Field(8, ge=1)  # answers, as TRL counts; memory is tokens_per_micro_batch's job
    gradient_accumulation_steps: int = Field(1, ge=1)  # of those in one update of the weights
    steps_per_generation: int | None = Field(None, ge=1)  # of those in one step; default: gradient_accumulation_steps
    generation_batch_size: int | None = Field(None, ge=2)  # answers in one step; the other way to say it
    tokens_per_micro_batch: int | None = Field(None, ge=1)  # in one forward and backward; changes no gradient
    gradient_checkpointing: bool = False  # compute activations again in the backward, to save memory
    num_iterations: int = Field(1, ge=1)  # times that a step's answers are gone through
    max_steps: int = Field(100, ge=1, le=10**9)  # where it is given it wins over …
    num_train_epochs: float | None = Field(None, gt=0)  # … times through the prompts of data that have an end
    # --- the objective
    loss_type: str = "grpo"  # grpo, bnpo, dapo, dr_grpo, gspo, cispo
    advantage_estimator: str = "grpo"  # grpo, rloo, reinforce_plus_plus
    scale_rewards: Literal["group", "batch", "none"] = "group"  # what advantages are divided by
    epsilon: float = Field(0.2, gt=0, le=10)  # how far the ratio may move from 1 before it is clipped, downwards …
    epsilon_high: float | None = Field(None, gt=0, le=10)  # … and upwards; default: epsilon. For cispo, the cap
    beta: float = Field(0.0, ge=0)  # weight of the KL to the frozen starting model; 0 needs no reference
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    kl_in_reward: bool = False  # take beta x KL off the reward instead of adding it to the loss
    kl_target: float | None = Field(None, gt=0)  # adapt beta so that KL comes out here
    kl_limit: float | None = Field(0.1, gt=0)  # a guard acts when three steps in a row have a KL past this; null: never
    kl_guard: Literal["stop", "lower_rate", "raise_beta"] = "stop"  # halt, or halve learning_rate, or double beta
    entropy_coef: float = Field(0.0, ge=0)
    # when sampler and learner differ: weigh tokens by their ratio, cut at the cap, or leave those past it out
    importance_sampling: Literal["auto", "truncate", "mask", "never"] = "auto"  # auto: only past rounding
    importance_sampling_cap: float | None = Field(None, gt=0)  # default 2; given, auto means truncate
    mask_truncated_completions: bool = False  # answers cut at the limit teach nothing
    # --- the optimizer
    learning_rate: float = Field(1e-6, gt=0)
    lr_scheduler_type: Schedule = "constant"
    min_lr_rate: float = Field(0.0, ge=0, le=1)  # the share of learning_rate that linear and cosine end at
    warmup_steps: int = Field(0, ge=0)  # in which the rate climbs; or …
    warmup_ratio: float = Field(0.0, ge=0, le=1)  # … a share of all steps
    weight_decay: float = Field(0.0, ge=0)
    adam_beta1: float = Field(0.9, ge=0, lt=1)
    adam_beta2: float = Field(0.999, ge=0, lt=1)
    max_grad_norm: float = Field(1.0, gt=0)
    # --- supervised training: the warm-up before GRPO, and `outdo sft`; `sft: {epochs: 3}` says the same
    sft_steps: int = Field(0, ge=0, le=10**9)  # updates, or …
    sft_epochs: float = Field(0, ge=0)  # … times through data that have an end, each example once a time
    sft_batch_size: int = Field(64, ge=1)  # examples in one update
    sft_learning_rate: float = Field(1e-5, gt=0)
    sft_lr_scheduler_type: Literal["constant", "linear", "cosine"] = "cosine"
    sft_warmup_ratio: float = Field(0.05, ge=0, le=1)  # the share of the updates in which the rate climbs
    sft_weight_decay: float = Field(0.0, ge=0)
    sft_max_length: int | None = Field(None, ge=2)  # tokens, prompt included; longer answers are cut; default: no limit
    sft_dataset_name: str | None = None  # data with a `completion`; default: the task's own demonstrations
    sft_task_args: dict[str, Any] = {}  # handed to sft_dataset_name's function
    sft_columns: dict[str, str] = {}  # our name: its name there, as columns is for dataset_name
    # --- harvesting: right answers of the model's own, as demonstrations
    harvest_size: int = Field(1000, ge=0)  # prompts; 0: all, where they have an end
    harvest_samples: int = Field(8, ge=1)  # answers to each
    harvest_keep: int = Field(4, ge=1)  # of the distinct right ones, at most
    harvest_teacher: bool = False  # the task's own demonstrations beside them
    # --- stages: each is {stage: sft, grpo or harvest, and keys of its own over the others}
    stages: list[dict[str, Any]] = []
    # --- the curriculum: an easier task first, or the prompts that teach most
    curriculum_steps: int = Field(0, ge=0)  # at most so many steps
    curriculum_args: dict[str, Any] = {}  # task_args of the easier task
    curriculum_informative: float = Field(0.0, ge=0, le=1)  # and no longer than this share of its groups has spread
    curriculum_pass_rate: bool = False  # prefer prompts that are answered rightly neither never nor always
    # --- evaluation, on held-out problems
    eval_steps: int = Field(0, ge=0)  # every so many steps; 0: before and after only
    eval_size: int = Field(200, ge=0)  # problems in a split; 0: all of them
    eval_samples: int = Field(10, ge=0)  # answers to each, for pass@1 and pass@k; 0: greedy only
    eval_ks: list[int] = []  # the k's of pass@k; empty: 1, and 8 or 10, or eval_samples where that is less
    eval_sampling: Literal["temperature", "rollout"] = "temperature"  # of pass@k; rollout: top_p, top_k and min_p too
    eval_split: list[str] = []  # where to look before, during and after; empty: test and ood, where the task has them
    final_eval_split: list[str] = []  # looked at after the last step only: settings are chosen on eval_split
    # --- the run
    output_dir: str | None = None  # default: runs/TASK-DATE-TIME
    save_steps: int = Field(25, ge=0)  # a checkpoint every so many steps; 0: only when the run is told to stop
    save_total_limit: int = Field(2, ge=1)  # the newest checkpoints that are kept, beside the best evaluated one
    log_tokens: int = Field(1, ge=0)  # groups a step whose tokens are kept with log-probabilities and ratios
    resume: Literal["never", "auto"] = "never"  # auto: go on with an unfinished run of the same recipe, if there is one
    report_to: list[Trackers] = []  # trackers (docs/trackers.md): tensorboard, wandb, mlflow, trackio; all
    run_name: str | None = None  # what trackers call the run; default: its folder's name
    project: str | None = None  # what they keep it under; default: as their own variable says, else outdo
    doctor: Literal["quiet", "note", "halt"] = "note"  # what is wrong is told as it arises; halt: and it stops, exit 3
    seed: int = Field(0, ge=0)

    @field_validator("*")
    @classmethod
    def _countable(cls, value: Any) -> Any:
        if isinstance(value, int) and value >= 2**63:
            raise ValueError("the number is too large")
        return value

    @field_validator("*", mode="before")
    @classmethod
    def _number(cls, value: Any, info: ValidationInfo) -> Any:
        kind = cls.model_fields[info.field_name or ""].annotation
        if isinstance(value, bool) and {int, float} & {kind, *get_args(kind)}:  # to Python it is 1 or 0
            raise ValueError(f"expected a number, not {'yes' if value else 'no'}")
        return value

    @field_validator("scale_rewards", mode="before")
    @classmethod
    def _trl_bool(cls, value: Any) -> Any:
        return {True: "group", False: "none"}.get(value, value) if isinstance(value, bool) else value

    @field_validator(
        *("reward_funcs", "reward_weights", "eval_ks", "eval_split", "final_eval_split", "lora_target_modules"),
        mode="before",
    )
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        if isinstance(value, str):
            return [part.strip() for part in value.split(",") if part.strip()]
        return [value] if isinstance(value, (int, float)) else value

    @field_validator("report_to", mode="before")
    @classmethod
    def _trackers(cls, value: Any) -> Any:
        """`none`, one name, or several, as other trainers have it."""
        names = value.split(",") if isinstance(value, str) else [] if value is None else value
        if not isinstance(names, list):
            return names
        return [name for each in names if (name := each.strip() if isinstance(each, str) else each) not in ("none", "")]

    @field_validator("stop", mode="before")
    @classmethod
    def _one_text(cls, value: Any) -> Any:
        texts = [value] if isinstance(value, str) else value
        if isinstance(texts, list) and "" in texts:
            raise ValueError("an empty text would end every answer at once")
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
        """Of the weights, in one pass over a step's answers: of one group at least, since groups are not split."""
        return min(self.answers_per_step // self.answers_per_update, self.prompts_per_step)

    @property
    def warmup(self) -> int:
        """Steps in which the learning rate climbs."""
        return self.warmup_steps or math.ceil(self.warmup_ratio * self.max_steps)

    def temperature_at(self, step: int) -> float:
        """A straight line from the first step's to the last one's."""
        if self.temperature_end is None:
            return self.temperature
        return self.temperature + (self.temperature_end - self.temperature) * step / max(self.max_steps - 1, 1)
