"""A recipe as a command of verl: its overrides, its data, and a file with `compute_score`."""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Iterator
from typing import Any

from outdo.bridges.convert.data import Data, columns_of, data_of, messages_of
from outdo.bridges.convert.files import MODEL_FOLDER, Files, model_files, name_of
from outdo.bridges.convert.plan import Plan, as_comment, literal, refuse_lost
from outdo.bridges.convert.rewards import Carried, Sources, carry_rewards, graders_text
from outdo.bridges.convert.script import PROMPT_ROOM
from outdo.bridges.convert.settings import safety_notes
from outdo.bridges.convert.single import call_for_one
from outdo.bridges.keys import CISPO_CAP
from outdo.recipe.schema import Recipe

HERE = "$HERE"  # in a value: the script's folder
REWARD_FILE = "reward.py"
# Our loss: verl's policy loss, and how it is averaged.
LOSSES = {
    "grpo": ("vanilla", "seq-mean-token-mean"),
    "bnpo": ("vanilla", "token-mean"),
    "dapo": ("vanilla", "token-mean"),
    "dr_grpo": ("vanilla", "seq-mean-token-sum-norm"),
    "gspo": ("gspo", "seq-mean-token-mean"),
    "cispo": ("cispo", "token-mean"),
}
KL_LOSSES = {"k1": "kl", "k2": "mse", "k3": "low_var_kl"}
ESTIMATORS = {name: name for name in ("grpo", "rloo", "reinforce_plus_plus")}
SCHEDULES = {
    "constant": "constant",
    "constant_with_warmup": "constant",
    "cosine": "cosine",
    "cosine_with_min_lr": "cosine",
}
NO_DUAL_CLIP = 1e6  # verl always has its second bound, on the ratio of tokens with a negative advantage
BARE = re.compile(r"[A-Za-z0-9_./:@+-]+")  # what Hydra reads without quotes
UNSUPPORTED: dict[str, tuple[Any, str]] = {
    "kl_target": (None, "leave it out: verl's adaptive controller is another one"),
    "temperature_end": (None, "the temperature is fixed there"),
    "stop": ([], "answers end at tokens there"),
    "dynamic_sampling": (False, "only the recipe `dapo` of verl samples groups again"),
    "curriculum_steps": (0, "the data has one task: train on the easier task first"),
    "curriculum_pass_rate": (False, "prompts are drawn alike there"),
    "mask_truncated_completions": (False, "verl trains on answers that were cut"),
    "load_in_4bit": (False, "verl trains adapters of 16-bit weights: load_in_4bit=false"),
    "min_p": (0.0, "verl's sampler has no such key: min_p=0"),
    "importance_sampling_level": ("token", "use loss_type=gspo"),
    "top_entropy_quantile": (1.0, "verl trains on all tokens"),
    "off_policy_mask_threshold": (None, "verl has no such mask"),
    "use_bias_correction_kl": (False, "verl adds KL as it is"),
    "multi_objective_aggregation": ("sum_then_normalize", "verl gets one score"),
    "adv_eps": (1e-4, "it is 1e-6 there"),
}
Overrides = Iterator[tuple[str, Any]]


def verl_files(plan: Plan, allow_missing: bool) -> Files:
    data = data_of(plan.recipe, plan.task)
    sources = carry_rewards(plan, ())
    files = Files(main="train.sh")
    model = model_files(plan, files)
    overrides = dict(_overrides(plan, data, f"{HERE}/{MODEL_FOLDER}" if files.folders else _path(model)))
    _note(plan)
    refuse_lost(plan, allow_missing)
    files.texts["train.jsonl"] = _lines(plan, data.train, "train")
    files.texts["test.jsonl"] = _lines(plan, data.test or data.train[:1], "test")
    files.texts[REWARD_FILE] = _reward_file(plan, data, sources)
    files.copies |= sources.files
    files.texts[files.main] = _script(plan, overrides)
    return files


def _path(expression: str) -> str:
    """The name of a model, of its literal."""
    return str(ast.literal_eval(expression))


def _overrides(plan: Plan, data: Data, model: str) -> Overrides:
    r = plan.recipe
    yield "data.train_files", f"{HERE}/train.jsonl"
    yield "data.val_files", f"{HERE}/test.jsonl"
    yield "data.prompt_key", "prompt"
    yield "data.train_batch_size", r.prompts_per_step
    yield "data.max_prompt_length", r.max_prompt_length or PROMPT_ROOM
    yield "data.max_response_length", r.max_completion_length
    yield "data.filter_overlong_prompts", True
    yield "data.shuffle", not data.in_order
    yield "data.seed", r.seed
    yield "actor_rollout_ref.model.path", model
    yield "actor_rollout_ref.model.enable_gradient_checkpointing", r.gradient_checkpointing
    if r.use_peft:
        yield "actor_rollout_ref.model.lora_rank", r.lora_r
        yield "actor_rollout_ref.model.lora_alpha", r.lora_alpha
        yield (
            "actor_rollout_ref.model.target_modules",
            ("all-linear" if r.lora_target_modules == ["all-linear"] else r.lora_target_modules),
        )
    yield from _sampling(r)
    yield from _objective(plan)
    yield from _optimizer(plan)
    yield "reward.custom_reward_function.path", f"{HERE}/{REWARD_FILE}"
    yield "reward.custom_reward_function.name", "compute_score"
    yield from _run(plan)


def _sampling(r: Recipe) -> Overrides:
    rollout = "actor_rollout_ref.rollout"
    yield f"{rollout}.name", "vllm"
    yield f"{rollout}.n", r.num_generations
    yield f"{rollout}.temperature", r.temperature
    yield f"{rollout}.top_p", r.top_p
    yield f"{rollout}.top_k", r.top_k or -1
    yield f"{rollout}.dtype", r.dtype
    yield f"{rollout}.tensor_model_parallel_size", 1


def _objective(plan: Plan) -> Overrides:
    r, actor = plan.recipe, "actor_rollout_ref.actor"
    mode, aggregation = LOSSES.get(r.loss_type, LOSSES["grpo"])
    if r.loss_type not in LOSSES:
        plan.lost.append(f"loss_type={r.loss_type}: it is one of {', '.join(LOSSES)}")
    if r.scale_rewards == "batch":
        plan.lost.append("scale_rewards=batch: verl divides by the group's standard deviation or not at all")
    if r.advantage_estimator not in ESTIMATORS:
        plan.lost.append(f"advantage_estimator={r.advantage_estimator}: it is one of {', '.join(ESTIMATORS)}")
    high = r.epsilon if r.epsilon_high is None else r.epsilon_high
    if r.loss_type == "cispo":
        high = (CISPO_CAP if r.epsilon_high is None else r.epsilon_high) - 1  # a distance from 1 there, the cap here
    yield "algorithm.adv_estimator", ESTIMATORS.get(r.advantage_estimator, "grpo")
    yield "algorithm.norm_adv_by_std_in_grpo", r.scale_rewards == "group"
    yield f"{actor}.policy_loss.loss_mode", mode
    yield f"{actor}.loss_agg_mode", aggregation
    if r.loss_type == "dr_grpo":
        yield f"{actor}.loss_scale_factor", r.max_completion_length
    yield f"{actor}.clip_ratio", r.epsilon
    yield f"{actor}.clip_ratio_low", r.epsilon
    yield f"{actor}.clip_ratio_high", high
    yield f"{actor}.clip_ratio_c", r.delta or NO_DUAL_CLIP
    yield f"{actor}.use_kl_loss", bool(r.beta and not r.kl_in_reward)
    yield f"{actor}.kl_loss_coef", r.beta
    yield f"{actor}.kl_loss_type", KL_LOSSES.get(r.kl_estimator, r.kl_estimator)
    yield "algorithm.use_kl_in_reward", bool(r.kl_in_reward)
    if r.kl_in_reward:
        yield "algorithm.kl_ctrl.kl_coef", r.beta
    yield f"{actor}.entropy_coeff", r.entropy_coef


def _optimizer(plan: Plan) -> Overrides:
    r, actor = plan.recipe, "actor_rollout_ref.actor"
    if r.lr_scheduler_type not in SCHEDULES:
        plan.lost.append(f"lr_scheduler_type={r.lr_scheduler_type}: verl has constant and cosine")
    yield f"{actor}.ppo_mini_batch_size", r.prompts_per_step // r.updates_per_step
    yield f"{actor}.ppo_epochs", r.num_iterations
    yield f"{actor}.use_dynamic_bsz", True
    yield f"{actor}.ppo_max_token_len_per_gpu", 4 * ((r.max_prompt_length or PROMPT_ROOM) + r.max_completion_length)
    yield f"{actor}.grad_clip", r.max_grad_norm
    yield f"{actor}.fsdp_config.dtype", r.dtype
    yield f"{actor}.optim.lr", r.learning_rate
    yield f"{actor}.optim.lr_scheduler_type", SCHEDULES.get(r.lr_scheduler_type, "constant")
    yield f"{actor}.optim.lr_warmup_steps", r.warmup * plan.updates
    yield f"{actor}.optim.min_lr_ratio", r.min_lr_rate
    yield f"{actor}.optim.weight_decay", r.weight_decay
    yield f"{actor}.optim.betas", [r.adam_beta1, r.adam_beta2]


def _run(plan: Plan) -> Overrides:
    r = plan.recipe
    yield "trainer.total_training_steps", r.max_steps
    yield "trainer.total_epochs", max(1, r.max_steps)  # total_training_steps ends it
    yield "trainer.n_gpus_per_node", 1
    yield "trainer.nnodes", 1
    yield "trainer.test_freq", r.eval_steps or -1
    yield "trainer.save_freq", r.save_steps or -1
    yield "trainer.logger", ["console", *[name for name in r.report_to if name in ("wandb", "mlflow", "tensorboard")]]
    yield "trainer.project_name", "outdo"
    yield "trainer.experiment_name", name_of(plan)


def _note(plan: Plan) -> None:
    r = plan.recipe
    for key, (unused, why) in UNSUPPORTED.items():
        if getattr(r, key) != unused:
            plan.lost.append(f"{key}={getattr(r, key)}: {why}")
    if r.sft_steps or r.sft_epochs:
        plan.lost.append("the SFT warm-up: run it first (outdo sft RECIPE), name its model, and take sft_steps=0")
    if not r.optim.startswith("adamw"):
        plan.lost.append(f"optim={r.optim}: verl's is AdamW")
    if r.scale_rewards == "group" and r.adv_std == "population":
        plan.notes.append("advantages are divided by the sample standard deviation there (adv_std=sample)")
    if r.max_prompt_length is None:
        plan.notes.append(f"prompts of more than {PROMPT_ROOM} tokens are left out there: data.max_prompt_length")
    plan.notes.append("an answer that cannot be judged gets 0 there; here it is broken, and left out of its group")
    plan.notes += safety_notes(r, plan.rewards)


def _lines(plan: Plan, prompts: Any, split: str) -> str:
    """Rows in verl's form. Columns are one JSON text, so that all rows have the same types."""
    rows = []
    for index, prompt in enumerate(prompts):
        columns, messages = columns_of(prompt), messages_of(prompt)
        gold = columns.get("answer", "")
        row = {
            "data_source": name_of(plan),
            "prompt": messages,
            "ability": "outdo",
            "reward_model": {"style": "rule", "ground_truth": gold if isinstance(gold, str) else json.dumps(gold)},
            "extra_info": {
                "split": split,
                "index": index,
                "item": json.dumps(columns),
                "messages": json.dumps(messages),
            },
        }
        rows.append(json.dumps(row) + "\n")
    return "".join(rows)


def _reward_file(plan: Plan, data: Data, sources: Sources) -> str:
    """`compute_score`, with copies of our graders above it."""
    lines = [_line(one, plan, data) for one in sources.carried] or ['        "reward": _not_written(),']
    body = _COMPUTE.format(rewards="\n".join(lines), weights=literal({one.name: one.weight for one in sources.carried}))
    modules = dict.fromkeys(one.module for one in sources.carried if not one.builtin)
    imports = "".join(f"import {module}\n" for module in modules)
    path = (
        "import sys\nfrom pathlib import Path\n\nsys.path.insert(0, str(Path(__file__).resolve().parent))\n\n"
        if modules
        else ""
    )
    stub = "" if sources.carried else _STUB
    more = f"\n\nimport json\n{path}{imports}\n\n{stub}{body}"
    if sources.graders:
        return graders_text(sources.graders, more)
    return f'"""The rewards of a recipe of outdo, for verl."""\n{more}'


def _line(one: Carried, plan: Plan, data: Data) -> str:
    function = one.function if one.builtin else f"{one.module}.{one.function}"
    call = call_for_one(one, plan, data, function)
    return f'        "{one.name}": {call}{".reward" if one.gives_grades else ""},'


_STUB = """def _not_written():
    raise NotImplementedError("none of the recipe's rewards could be carried over: write the reward here")


"""

_COMPUTE = '''def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    """The score of one answer, as verl calls it, with each reward for its logs."""
    text = solution_str
    item, messages = json.loads(extra_info["item"]), json.loads(extra_info["messages"])
    rewards = {{
{rewards}
    }}
    weights = {weights}
    paid = {{name: 0.0 if reward is None else float(reward) for name, reward in rewards.items()}}
    return {{**paid, "score": sum(weights.get(name, 1.0) * reward for name, reward in paid.items())}}
'''


def _script(plan: Plan, overrides: dict[str, Any]) -> str:
    lines = [
        f"GRPO with verl: written by outdo convert from {plan.name}.",
        "pip install verl vllm, then run it where there is a GPU: bash train.sh",
        *(["", *plan.header] if plan.header else []),
    ]
    values = [f"    {_override(key, value)}" for key, value in overrides.items()]
    command = " \\\n".join(["python3 -m verl.trainer.main_ppo", *values, '    "$@"'])
    return f'{as_comment(lines)}\nset -e\nHERE="$(cd "$(dirname "$0")" && pwd)"\n\n{command}\n'


def _override(key: str, value: Any) -> str:
    """One override, quoted for Hydra and for the shell."""
    if isinstance(value, str) and value.startswith(HERE):
        return f'{key}="{HERE}"{shlex.quote(value.removeprefix(HERE))}'
    return shlex.quote(f"{key}={_hydra(value)}")


def _hydra(value: Any) -> str:
    if isinstance(value, list):
        return f"[{','.join(map(_hydra, value))}]"
    if isinstance(value, str) and not BARE.fullmatch(value):
        return "'" + re.sub(r"(\\*)'", r"\1\1\\'", value) + "'"
    return str(value)
