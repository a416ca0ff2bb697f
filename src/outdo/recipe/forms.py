"""Keys of other trainers that express our keys in another form: each function yields our keys and their values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from outdo.errors import RecipeError
from outdo.recipe.reward_names import canonical_reward

_OFF = (None, False, "no")  # YAML reads a bare `no` as false
UNCLIPPED = 1e9  # a gradient norm that is never reached


def number(value: Any) -> Any:
    """The number in a text: YAML reads 1e-8, without a point, as text."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def format_value(value: Any) -> str:
    """As typed on the command line."""
    if isinstance(value, list):
        return ",".join(map(str, value))
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


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
        rate, min_lr = number(data.get("learning_rate", data.get("lr"))), number(given.pop("min_lr"))
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
        names = [canonical_reward(name) if isinstance(name, str) else name for name in names]
    yield "reward_funcs", names


def _enum(key: str) -> Form:
    """Our key by the name of an enum's member, as transformers prints it: OptimizerNames.ADAMW_TORCH."""
    return lambda value, data, where: iter([] if value is None else [(key, str(value).rpartition(".")[2].lower())])


def _evaluations(value: Any, data: Mapping[str, Any], where: str) -> Items:
    """eval_strategy: no, steps (with eval_steps), epoch."""
    kind = str(value).rpartition(".")[2].lower() if value not in _OFF else "no"
    yield "eval_strategy", kind


def _saves(value: Any, data: Mapping[str, Any], where: str) -> Items:
    yield "save_strategy", "no" if value in _OFF else str(value).rpartition(".")[2].lower()


def _every(key: str) -> Form:
    """Steps between two events; a fraction is a share of max_steps, as in transformers."""

    def form(value: Any, data: Mapping[str, Any], where: str) -> Items:
        share, steps = number(value), number(data.get("max_steps", data.get("steps")))
        if key == "eval_steps" and data.get("eval_strategy", data.get("evaluation_strategy")) in ("epoch", False, "no"):
            return  # not used by them either
        if isinstance(share, bool) or not isinstance(share, float) or not 0 < share < 1:
            yield key, value
        elif isinstance(steps, int | float) and steps > 0:
            yield key, max(1, math.ceil(share * steps))
        else:
            raise RecipeError(f"{where}: {key}={value} is a share of max_steps, which is not set: set {key} in steps")

    return form


def _grad_norm(value: Any, data: Mapping[str, Any], where: str) -> Items:
    yield "max_grad_norm", UNCLIPPED if number(value) == 0 else value  # transformers: 0 does not clip


def _context(value: Any, data: Mapping[str, Any], where: str) -> Items:
    """max_seq_length of Unsloth's notebooks: the prompt and the answer together."""
    if data.get("max_completion_length", data.get("max_new_tokens")) is None:
        raise RecipeError(
            f"{where}: max_seq_length={value} is the prompt and the answer together: set max_completion_length, and "
            "max_prompt_length to skip longer prompts"
        )
    return iter(())


def _recompute(value: Any, data: Mapping[str, Any], where: str) -> Items:
    if value is not None:
        yield "gradient_checkpointing", bool(value)  # "unsloth" is one of theirs


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
    "eval_strategy": _evaluations,
    "evaluation_strategy": _evaluations,
    "eval_steps": _every("eval_steps"),
    "save_steps": _every("save_steps"),
    "max_grad_norm": _grad_norm,
    "max_seq_length": _context,
    "use_gradient_checkpointing": _recompute,
    "save_strategy": _saves,
    "push_to_hub_model_id": _same("hub_model_id", None),
    "push_to_hub_revision": _constant("push_to_hub", True, True),  # of open-r1
    "use_cpu": _constant("device", "cpu", True),
    "no_cuda": _constant("device", "cpu", True),
    "resume_from_checkpoint": _resume,
    "lr_scheduler_kwargs": _schedule,
    "warmup_steps": _warmup,
    "dataset_prompt_column": _prompt_column,
    "reward_funcs": _rewards,
    "optim": _enum("optim"),
    "optimizer": _enum("optim"),
    "wandb_project": _same("project", None),
    "callbacks": _callbacks,
    "dataset_mixture": _mixture,
    "vllm_importance_sampling_correction": _constant("importance_sampling", "never", False),
}
