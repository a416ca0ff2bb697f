"""Resuming a run: finding it, and what must not have changed since."""

from __future__ import annotations

import hashlib
import itertools
import json
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from outdo.bridges.backend import OWN
from outdo.errors import RecipeError, RunError, TaskError
from outdo.recipe import plugins
from outdo.recipe.schema import Recipe
from outdo.rewards.compose import Reward, Rewards
from outdo.runs import checkpoint, layout
from outdo.runs.files import is_locked, restore_replaced
from outdo.runs.manifest import Manifest, holds_run, read_manifest
from outdo.runs.reader import run_folders
from outdo.runs.writer import RunWriter
from outdo.tasks.task import Task
from outdo.training.checkpointing import read_state
from outdo.training.run import ResumePoint

# Keys that may change in the middle of a run: they decide what is measured and kept, not what is learnt.
FREE = {
    *("device", "output_dir", "resume", "save_steps", "save_total_limit", "eval_steps", "eval_size", "eval_samples"),
    *("tokens_per_micro_batch", "rollout_rows", "gradient_checkpointing", "regrade_steps", "eval_metric", "log_tokens"),
    *("eval_ks", "eval_sampling", "eval_split", "final_eval_split", "callbacks"),
    *("early_stopping_patience", "early_stopping_threshold"),
    *("parallel_sharding", "parallel_replicas", "parallel_offload", "parallel_timeout", "parallel_pretend"),
    *("kl_steps", "kl_limit", "kl_guard", "broken_limit", "reward_audit", "reward_timeout", "audit_reward", "doctor"),
    *("report_to", "run_name", "project", "price_per_hour", "save_strategy", "eval_strategy", "load_best_model_at_end"),
    "backend_python",
    *("metric_for_best_model", "greater_is_better", "push_to_hub", "hub_model_id", "hub_private_repo", "hub_revision"),
}


def find_unfinished(recipe: Recipe, data: str, kind: str, rewards: Mapping[str, str]) -> tuple[Path, Manifest] | None:
    """The run that `resume=auto` resumes: that of `output_dir`, else the newest unfinished one with the same recipe,
    data and `rewards` (hashes by file)."""
    if recipe.output_dir:
        folder = Path(recipe.output_dir)
        return (folder, read_manifest(folder)) if holds_run(folder) else None
    wanted = recipe.model_dump(mode="json")
    for folder in run_folders(Path("runs")):
        try:
            manifest = read_manifest(folder)
        except RunError:
            continue
        same = manifest.kind == kind and manifest.data in (None, data)
        same = same and not changes(manifest.recipe, wanted) and not _changed_rewards(manifest, rewards)
        if same and manifest.status != "done" and not is_locked(folder):
            return folder, manifest
    return None


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """The keys that matter and differ, with both values."""
    defaults = {key: field.get_default() for key, field in Recipe.model_fields.items()}  # of keys that came later
    free = FREE if _depends_on_length(new) else {*FREE, "max_steps"}
    keys = [key for key in {**old, **new} if key not in free and old.get(key, defaults.get(key)) != new.get(key)]
    return [f"{key} was {old.get(key)!r} and is {new.get(key)!r}" for key in keys]


def _depends_on_length(recipe: Mapping[str, Any]) -> bool:
    """Whether anything of a step depends on how many there are in all."""
    constant = str(recipe.get("lr_scheduler_type")).startswith("constant")
    return not constant or bool(recipe.get("warmup_ratio")) or recipe.get("temperature_end") is not None


def fingerprint(task: Task, seed: int) -> str:
    """Tells one data set from another: a hash of the first prompts of each split."""
    digest = hashlib.blake2b(digest_size=16)
    for split in task.splits:
        with suppress(TaskError):  # a split without prompts is reported where it is needed
            for prompt in itertools.islice(task.prompts(split, seed), 32):
                content = [split, prompt.id, [dict(message) for message in prompt.messages], prompt.answer]
                digest.update(json.dumps(content, sort_keys=True, default=_stable).encode())
    return digest.hexdigest()


def _stable(value: Any) -> Any:
    """Something of a value that is the same in every process."""
    return sorted(map(repr, value)) if isinstance(value, (set, frozenset)) else type(value).__name__


def reward_files(rewards: Rewards | None) -> dict[str, str]:
    """A hash of each file that one of the user's rewards is in, except one that is only measured. Objects have none,
    and what such a file imports is not looked into."""
    if rewards is None:
        return {}
    hashes: dict[str, str] = {}
    for part in rewards.by_part.values():
        hashes |= reward_files(part)
    for reward in rewards.parts:
        name, path = _file_of(reward)
        if path and (reward.name != rewards.audit or reward.name == rewards.truth):
            with suppress(OSError):  # a package in an archive
                hashes[name] = hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
    return hashes


def _file_of(reward: Reward) -> tuple[str, Path | None]:
    """What the user named and its file; of a package's function, its module's. Those of outdo have a version."""
    source = plugins.local_name(reward.source) or reward.source
    name = source if source.endswith(".json") else source.rpartition(":")[0]
    if name.endswith((".py", ".json")):
        return name, Path(name)
    module = getattr(reward.function, "__module__", None) if reward.source else None
    path = getattr(sys.modules.get(module or ""), "__file__", None)
    return str(module), Path(path) if path and str(module).partition(".")[0] != "outdo" else None


def _changed_rewards(manifest: Manifest, rewards: Mapping[str, str]) -> list[str]:
    """The reward files that changed. A run of before they were recorded has none."""
    before = manifest.reward_files if isinstance(manifest.reward_files, dict) else {}
    changed = [file for file in rewards if before.get(file, "") not in ("", rewards[file])]
    return [f"the reward file {file} has changed" for file in changed]


def check(
    run: RunWriter, recipe: Recipe, data: str, rewards: Mapping[str, str], versions: Mapping[str, str], force: bool
) -> list[str]:
    """What has changed since the run was started. Raises RecipeError where it matters, unless forced."""
    if (trainer := run.manifest.recipe.get("backend", OWN)) != recipe.backend:
        raise RecipeError(
            f"{run.folder} was trained by backend={trainer}, whose optimizer backend={recipe.backend} cannot continue: "
            f"start a new run from its model, model_name_or_path={run.folder / layout.MODEL}"
        )
    matters = changes(run.manifest.recipe, recipe.model_dump(mode="json"))
    if run.manifest.data not in (None, data):
        matters.append("the data set has changed")
    matters += _changed_rewards(run.manifest, rewards)
    refuse_changes(run.folder, matters, force, "--force resumes all the same")
    before = run.manifest.versions if isinstance(run.manifest.versions, dict) else {}
    code = [f"{name} was {before[name]} and is {now}" for name, now in versions.items() if before.get(name, now) != now]
    return [*matters, *code]


def refuse_changes(folder: Path, changed: list[str], force: bool, with_force: str) -> None:
    if changed and not force:
        raise RecipeError(
            f"{folder} cannot be resumed: {'; '.join(changed)}. Restore it, or start a new run; {with_force}"
        )


def after_halt(manifest: Manifest, recipe: Recipe) -> tuple[int | None, list[str]]:
    """For a run that a guard halted: the last step to resume from, where the recipe was changed so that it may not go
    wrong again, and whether it will halt again."""
    halted = manifest.halted if isinstance(manifest.halted, dict) else None
    if halted is None or manifest.status != "stopped":
        return None, []
    now, keys, onset = recipe.model_dump(mode="json"), halted.get("keys") or [], halted.get("onset")
    if onset is not None and changes(manifest.recipe, now):
        return max(0, onset - 2), [f"halted before: it resumes from before step {onset}, where it went wrong"]
    is_changed = any(manifest.recipe.get(key) != now.get(key) for key in keys)
    if is_changed or (onset is not None and recipe.doctor != manifest.recipe.get("doctor")):
        return None, []
    remedy = f"; resume with {halted['remedy']}" if halted.get("remedy") else ""
    return None, [f"halted before: {manifest.why}", f"nothing that matters was changed, so it will halt again{remedy}"]


def newest_checkpoint(run: RunWriter, at_most: int | None = None) -> tuple[ResumePoint | None, list[str]]:
    """The newest checkpoint that is valid and whose rows are still there, of a step up to `at_most`, and why newer ones
    are not. Those are renamed; where none is valid, all stay as they are."""
    unusable: dict[Path, str] = {}
    point = None
    restore_replaced(run.checkpoints)
    for folder in reversed(checkpoint.existing(run.checkpoints)):
        is_late = at_most is not None and checkpoint.step_of(folder) > at_most
        problem = "it is from after it went wrong" if is_late else checkpoint.corruption(folder)
        if not problem:
            state = read_state(folder)
            truncated = run.truncated_file(state["offsets"])
            if not truncated:
                point = ResumePoint(folder, state)
                break
            problem = f"{truncated} is shorter than it was when this was saved"
        unusable[folder] = problem
    for folder in unusable if point else ():
        checkpoint.set_unusable(folder)
    return point, [f"{folder}: {problem}" for folder, problem in unusable.items()]
