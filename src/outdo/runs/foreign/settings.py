"""The recipe keys of a run of another trainer that are known from its files. A key that is not known is absent."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from outdo.recipe.schema import Recipe
from outdo.runs.foreign.logs import Facts, Log, settings_text
from outdo.runs.foreign.rows import Rows
from outdo.runs.foreign.sources import Source
from outdo.runs.safe_open import open_regular, read_object
from outdo.runs.values import as_dict, as_float, as_list, as_text, json_safe

MAX_VALUE_CHARS = 300
CARD, MAX_CARD_BYTES = "README.md", 64 << 10
BASE_MODEL = re.compile(r"^base_model: *(\S{1,300}) *$", re.MULTILINE)
PLACES = (  # not about the training
    *("output_dir", "resume", "run_name", "hub_model_id", "hub_token", "push_to_hub", "report_to", "project"),
    *("logging_dir", "log_completions", "trackio_space_id"),
)
NESTED = {  # verl's settings, and prime-rl's
    "actor_rollout_ref/model/path": "model_name_or_path",
    "actor_rollout_ref/rollout/n": "num_generations",
    "actor_rollout_ref/rollout/temperature": "temperature",
    "actor_rollout_ref/actor/optim/lr": "learning_rate",
    "actor_rollout_ref/actor/clip_ratio": "epsilon",
    "data/max_response_length": "max_completion_length",
    "trainer/total_training_steps": "max_steps",
    "model/name": "model_name_or_path",
    "optim/lr": "learning_rate",
}
# Which trainer logs such a name. The first that fits decides.
MARKS = {
    "TRL": ("completions/mean_length", "frac_reward_zero_std", "clip_ratio/region_mean", "completion_length"),
    "verl": ("critic/score/mean", "actor/pg_loss", "actor/entropy", "critic/rewards/mean"),
    "prime-rl": ("reward/all/mean", "progress/decode_tokens", "agg/all/reward/mean", "optim/grad_norm"),
    "transformers": ("train_runtime", "total_flos"),
}
FORMATS = {"state": "transformers", "events": "TensorBoard", "wandb": "W&B", "lines": "JSON Lines"}


def trainer_of(source: Source, rows: Rows) -> str:
    """The trainer, by the names that it logs; else the format."""
    names = {name.removeprefix("train/") for name in rows.last}
    for trainer, marks in MARKS.items():
        if names & {*marks}:
            return trainer
    if not source.logs:
        is_verl = bool(source.answers) and source.answers[0][1].name[0].isdecimal()
        return "TRL" if source.answers[0][1].suffix == ".parquet" else "verl" if is_verl else "prime-rl"
    return FORMATS[source.logs[-1][0]]


def settings(source: Source, logs: Sequence[Log], rows: Rows, named: Iterable[Mapping[str, float]]) -> Facts:
    """Those that logs hold as text, then W&B's configuration, then what the curves show."""
    found: Facts = {}
    for given in [*(text for log in logs for text in settings_text(log)), *(log.config for log in logs)]:
        found |= _ours(given)
    if "model_name_or_path" not in found and (name := _model_name(source)):
        found["model_name_or_path"] = name
    if parts := reward_parts(rows):
        found.setdefault("reward_funcs", parts)
    steps = next((log.facts["max_steps"] for log in logs if log.facts.get("max_steps")), None)
    if steps:
        found["max_steps"] = steps
    for key, column in (("learning_rate", "lr"), ("beta", "beta")):
        values = [value for row in named if math.isfinite(value := row.get(column, math.nan))]
        if key not in found and values:
            found[key] = max(values)
    return {key: value for key, value in found.items() if not (key == "max_steps" and not _is_positive(value))}


def _is_positive(value: Any) -> bool:
    number = as_float(value)
    return number is not None and number > 0


def _ours(given: Mapping[str, Any]) -> Facts:
    """The keys that a recipe has, with values that it could have."""
    flat = {**given, **{NESTED[path]: value for path in NESTED if (value := _at(given, path)) is not None}}
    if isinstance(name := given.get("_name_or_path"), str) and name:
        flat.setdefault("model_name_or_path", name)
    return {
        key: json_safe(value)
        for key, value in flat.items()
        if key in Recipe.model_fields and key not in PLACES and value is not None and _is_short(value)
    }


def _at(given: Mapping[str, Any], path: str) -> Any:
    value: Any = given
    for name in path.split("/"):
        value = as_dict(value).get(name)
    return given.get(path) if value is None else value


def _is_short(value: Any) -> bool:
    values = as_list(value) if isinstance(value, list) else [value]
    return len(values) <= 50 and all(
        isinstance(one, (bool, int, float)) or (isinstance(one, str) and len(one) <= MAX_VALUE_CHARS) for one in values
    )


def _model_name(source: Source) -> str:
    """From the model's config.json, else from the card that TRL writes beside it."""
    with suppress(OSError, ValueError):
        if source.config and (name := read_object(source.root, source.config).get("_name_or_path")):
            return as_text(name, MAX_VALUE_CHARS)
    with suppress(OSError, ValueError), open_regular(source.root, source.path / CARD) as file:
        match = BASE_MODEL.search(file.read(MAX_CARD_BYTES).decode("utf-8", "replace"))
        return match[1].strip("\"'") if match else ""
    return ""


def reward_parts(rows: Rows) -> list[str]:
    """The names of TRL's reward functions, in its order."""
    names = dict.fromkeys(name.removeprefix("train/") for name in rows.last)
    return [name[8:-5] for name in names if name.startswith("rewards/") and name.endswith("/mean") and len(name) > 13]


def evaluated_steps(rows: Rows) -> dict[int, dict[str, float]]:
    """The steps at which TRL also evaluated, with the mean of each part of the training reward."""
    parts, out = reward_parts(rows), dict[int, dict[str, float]]()
    for step, row in rows:
        if any(name.startswith(("eval_", "eval/")) for name in row):
            flat = {name.removeprefix("train/"): as_float(value) for name, value in row.items()}
            means = {part: flat.get(f"rewards/{part}/mean") for part in parts}
            out[step] = {part: mean for part, mean in means.items() if mean is not None}
    return out


def reward_weights(recipe: Mapping[str, Any], rows: Rows) -> dict[str, float] | None:
    """The weight of each part of the reward: those of the settings, or 1 where the logged reward is the sum of the
    parts. None where neither holds."""
    parts = reward_parts(rows)
    given = [as_float(weight) for weight in as_list(recipe.get("reward_weights"))]
    known = [weight for weight in given if weight is not None]
    if parts and len(known) == len(parts):
        return dict(zip(parts, known, strict=True))
    for _, row in rows:
        flat = {name.removeprefix("train/"): value for name, value in row.items()}
        values = [as_float(flat.get(f"rewards/{part}/mean")) for part in parts]
        total, found = as_float(flat.get("reward")), [value for value in values if value is not None]
        if total is not None and found and len(found) == len(values):
            ones = math.isclose(total, math.fsum(found), rel_tol=1e-4, abs_tol=1e-6)
            return dict.fromkeys(parts, 1.0) if ones else None
    return None
