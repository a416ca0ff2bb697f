"""Loads a recipe from a YAML file with `key=value` overrides; an unknown key is refused with the nearest name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from outdo.errors import RecipeError, did_you_mean
from outdo.recipe import plugins
from outdo.recipe.batches import fitting_batch, refuse_batches
from outdo.recipe.foreign import INSTEAD, SYNONYMS, is_foreign, their_defaults, translate_keys
from outdo.recipe.launchers import refuse_launcher_file
from outdo.recipe.objective import describe_objective, refuse_objective
from outdo.recipe.parse import parse_overrides, read_yaml
from outdo.recipe.schema import GROUPS, MIXTURE, SINGLE_TASK_KEYS, Recipe
from outdo.recipe.trust import CODE_KEYS


def load_recipe(
    path: str | Path | None = None,
    overrides: Sequence[str] | Mapping[str, Any] = (),
    notify: Callable[[str], None] = lambda line: None,
    base_of: Mapping[str, Any] | None = None,
    where: str = "command line",
) -> Recipe:
    """The recipe of a YAML file (none: the embedded default) with `key=value` overrides. Raises RecipeError.

    `notify` gets a line for every key of another trainer that was translated or ignored. `base_of` is a complete recipe
    to override instead of a file's. `where` names the source of the overrides in messages.
    """
    over = parse_overrides(overrides) if not isinstance(overrides, Mapping) else dict(overrides)
    over = _canonical(over, where, notify)
    if base_of is not None:
        base = _canonical(base_of, "the recipe", notify)
    elif path is not None:
        file = read_yaml(Path(path))
        refuse_launcher_file(file, str(path))
        base = beside_recipe(_canonical(file, str(path), notify), Path(path).parent)
    elif over.get("model_name_or_path", "tiny") == "tiny":
        base = yaml.safe_load(resources.files("outdo.recipe").joinpath("default.yaml").read_text())
    else:
        base = {}  # the default's learning rates suit only the tiny model
    merged = _merge(base, over)
    own = {**(base if path is not None or base_of is not None else {}), **over}
    if own.get("eval_strategy") == "steps" and "eval_steps" not in own:
        raise RecipeError("eval_strategy=steps needs eval_steps, the steps between two evaluations: 50")
    merged |= fitting_batch(merged, own, notify)
    if merged.get("dataset_mixture"):
        _refuse_beside_mixture(over, where)
        if path is not None and not over.get("dataset_mixture"):
            _refuse_beside_mixture(base, str(path))
        if base_of is None or over.get("dataset_mixture"):  # the mixture replaces the base's single task
            merged = {key: value for key, value in merged.items() if key not in SINGLE_TASK_KEYS}
            merged["dataset_name"] = MIXTURE
    try:
        recipe = Recipe(**merged)
    except ValidationError as error:
        raise RecipeError("\n".join(_describe_error(e) for e in error.errors())) from None
    _refuse_contradictions(recipe)
    for line in describe_objective(recipe):
        notify(line)
    if path is not None and is_foreign(file, Recipe.model_fields) and (other := their_defaults(merged)):
        notify(f"{path}: not set in it, and another default in TRL: {other.format(**recipe.model_dump())}")
    return recipe


def beside_recipe(keys: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The keys with functions that are not in the working folder but beside the recipe named by their files."""

    def found(value: Any) -> Any:
        if isinstance(value, list):
            return [found(one) for one in value]
        if not isinstance(value, str) or plugins.local_name(value) or Path(value.rpartition(":")[0]).is_absolute():
            return value
        return plugins.local_name(value, folder) or value

    named = {key: found(keys[key]) for key in CODE_KEYS if key in keys}
    entries = keys.get("dataset_mixture")
    if isinstance(entries, list) and all(isinstance(entry, Mapping) for entry in entries):
        named["dataset_mixture"] = [beside_recipe(entry, folder) for entry in entries]
    return {**keys, **named}


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Overrides win. Arguments of a task are merged one by one, and dropped where the task changes."""
    merged = {**base, **over}
    same_task = over.get("dataset_name", base.get("dataset_name")) == base.get("dataset_name")
    for one, other in (("sft_steps", "sft_epochs"), ("sft_epochs", "sft_steps")):
        if over.get(one) and not over.get(other):
            merged[other] = 0  # two ways to set one length: the override wins over the file's other way
    if over.get("num_train_epochs") and "max_steps" not in over:
        merged.pop("max_steps", None)  # likewise
    if isinstance(over.get("stages"), Mapping):
        merged["stages"] = _override_stages(base.get("stages", []), over["stages"])
    same_easier = (
        same_task and over.get("curriculum_dataset_name", easier := base.get("curriculum_dataset_name")) == easier
    )
    for name in ("task_args", "curriculum_args", "columns"):
        old, new = base.get(name, {}), over.get(name, {})
        if isinstance(old, dict) and isinstance(new, dict):
            merged[name] = {**old, **new} if (same_easier if name == "curriculum_args" else same_task) else new
    if isinstance(base.get("reward_args"), dict) and isinstance(over.get("reward_args"), dict):
        merged["reward_args"] = {**base["reward_args"], **over["reward_args"]}
    return merged


def _refuse_beside_mixture(given: Mapping[str, Any], where: str) -> None:
    """Refuses keys of a single task beside a mixture. Their defaults may stay, as in a run's saved recipe."""
    defaults = {key: Recipe.model_fields[key].get_default() for key in SINGLE_TASK_KEYS} | {"dataset_name": MIXTURE}
    for key, value in given.items():
        if key in defaults and value != defaults[key]:
            raise RecipeError(
                f"{where}: {key}={value!r} would be ignored beside dataset_mixture, whose entries each have their own: "
                f"[{{dataset_name: NAME, task_args: {{…}}}}, …]. Put it there, or set dataset_mixture=[]"
            )


def _override_stages(stages: Any, over: Mapping[str, Any]) -> list[dict[str, Any]]:
    """`stages.2.max_steps=50` on the command line sets a key of one stage, counted from 1."""
    new = [dict(stage) for stage in stages if isinstance(stage, Mapping)]
    for key, value in over.items():
        number, _, inner = str(key).partition(".")
        if not inner or not number.isdecimal() or not 1 <= int(number) <= len(new):
            raise RecipeError(
                f"stages.{key}: expected stages.N.key=value, with N from 1 to {len(new)}, the number of stages"
            )
        new[int(number) - 1][inner] = value
    return new


def _refuse_contradictions(r: Recipe) -> None:
    """Combinations of values that the types allow and no run can have."""
    _refuse_duplicate_settings(r)
    _refuse_adapter_settings(r)
    _refuse_rounding_of_float32(r)
    _refuse_no_evaluation(r)
    refuse_batches(r)
    refuse_objective(r)
    if r.reward_weights and len(r.reward_weights) != len(r.reward_funcs):
        counts = f"{len(r.reward_weights)} entries and reward_funcs {len(r.reward_funcs)}"
        raise RecipeError(f"reward_weights has {counts}: give one weight per reward function")
    for key in ("kl_in_reward", "kl_target"):
        if getattr(r, key) and not r.beta:
            raise RecipeError(
                f"{key}={getattr(r, key)} needs a KL coefficient, and beta is 0: set beta, for example 0.04"
            )
    if r.kl_guard == "raise_beta" and not r.beta:
        raise RecipeError("kl_guard=raise_beta doubles beta, and beta is 0: set beta, for example 0.01")
    if r.eval_ks and not all(1 <= k <= r.eval_samples for k in r.eval_ks):
        raise RecipeError(f"eval_ks={r.eval_ks}: pass@k needs k from 1 to eval_samples={r.eval_samples}")
    if r.curriculum_steps and r.dataset_mixture:
        raise RecipeError("curriculum_steps needs a single task, and dataset_mixture has several: remove one of them")
    if r.curriculum_steps and not r.curriculum_args and not r.curriculum_dataset_name:
        raise RecipeError(
            "curriculum_steps needs an easier task: its arguments, such as curriculum_args.digits=1, or another task, "
            "such as curriculum_dataset_name=easy.jsonl"
        )
    if r.curriculum_dataset_name and not r.curriculum_steps:
        raise RecipeError(
            f"curriculum_dataset_name={r.curriculum_dataset_name} needs curriculum_steps, the most steps on it: 50"
        )


def _refuse_no_evaluation(r: Recipe) -> None:
    """Refuses to look for the best checkpoint where none is evaluated."""
    if str(r.metric_for_best_model).removeprefix("eval_") == "loss":
        raise RecipeError("metric_for_best_model=loss: evaluations measure success, not a loss: use success_rate")
    key = "load_best_model_at_end=true" if r.load_best_model_at_end else "save_strategy=best"
    wants_best = r.load_best_model_at_end or r.save_strategy == "best"
    if wants_best and (r.eval_strategy == "no" or (r.eval_strategy == "steps" and not r.eval_steps)):
        strategy = " eval_strategy=steps" if r.eval_strategy == "no" else ""
        raise RecipeError(f"{key} needs evaluations during training: set{strategy} eval_steps, such as eval_steps=25")


def _refuse_adapter_settings(r: Recipe) -> None:
    if r.lora_dropout:
        raise RecipeError(
            f"lora_dropout={r.lora_dropout}: only 0 is supported, because sampler and learner share merged weights"
        )
    if r.load_in_4bit and not r.use_peft:
        raise RecipeError("load_in_4bit=true freezes the weights, so only an adapter can be trained: set use_peft=true")


def _refuse_rounding_of_float32(r: Recipe) -> None:
    if r.stochastic_rounding and (r.dtype != "bfloat16" or r.use_peft):
        change = "use_peft=false: an adapter's factors are" if r.use_peft else "dtype=bfloat16: the weights are"
        raise RecipeError(f"stochastic_rounding=true needs {change} float32, which needs no rounding")


def _refuse_duplicate_settings(r: Recipe) -> None:
    alternatives = (("generation_batch_size", "steps_per_generation"), ("sft_steps", "sft_epochs"))
    for one, other in (*alternatives, ("warmup_steps", "warmup_ratio")):
        if getattr(r, one) and getattr(r, other):
            raise RecipeError(f"{one} and {other} set the same thing: give only one of them")


def _canonical(data: Mapping[str, Any], where: str, notify: Callable[[str], None]) -> dict[str, Any]:
    """The same values under canonical names. Refuses an unknown key, with the nearest known one."""
    out: dict[str, Any] = {}
    given_as: dict[str, str] = {}
    for key, value in _flatten(translate_keys(data, where, notify, Recipe.model_fields)):
        name = SYNONYMS.get(key, key)
        if name not in Recipe.model_fields:
            near = did_you_mean(key, [*Recipe.model_fields, *SYNONYMS]) or "; docs/recipes.md lists all keys"
            raise RecipeError(f"{where}: unknown key {key!r}{f': {INSTEAD[key]}' if key in INSTEAD else near}")
        if name in out and out[name] != value:
            raise RecipeError(
                f"{where}: {given_as[name]!r} and {key!r} both set {name}, to {out[name]!r} and {value!r}"
            )
        if key != name:
            notify(f"{where}: {key} is {name} here")
        out[name], given_as[name] = value, key
    return out


def _flatten(data: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """`sft: {epochs: 3}` and `sft.epochs: 3` become sft_epochs: 3, and so on for the other groups of keys."""
    for key, value in data.items():
        group, dot, rest = str(key).partition(".")
        if key in GROUPS and isinstance(value, Mapping):
            yield from ((f"{key}_{inner}", v) for inner, v in value.items())
        elif dot and group in GROUPS:
            yield f"{group}_{rest}", value
        else:
            yield key, value


def _describe_error(error: Any) -> str:
    where = ".".join(str(part) for part in error["loc"])
    message = error["msg"].removeprefix("Value error, ")
    return f"{where}={error['input']!r:.200}: {message[0].lower()}{message[1:]}"
