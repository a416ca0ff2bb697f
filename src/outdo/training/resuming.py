"""Going on with a run: finding it, and what must not have changed since."""

from __future__ import annotations

import hashlib
import itertools
import json
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from outdo.errors import RecipeError, RunError, TaskError
from outdo.recipe.schema import Recipe
from outdo.rewards.compose import Reward, Rewards
from outdo.runs import checkpoint
from outdo.runs.files import is_locked, restore_replaced
from outdo.runs.manifest import Manifest, read_manifest
from outdo.runs.writer import RunWriter
from outdo.tasks.task import Task

# Keys that may change in the middle of a run: they decide what is looked at and kept, not what is learnt.
FREE = {
    *("device", "output_dir", "resume", "save_steps", "save_total_limit", "eval_steps", "eval_size", "eval_samples"),
    *("eval_ks", "eval_sampling", "eval_split", "final_eval_split"),
    *("kl_limit", "kl_guard", "broken_limit", "reward_audit", "reward_timeout", "audit_reward", "doctor"),
    *("report_to", "run_name", "project"),
}


def unfinished(recipe: Recipe, data: str, kind: str = "grpo", rewards: Mapping[str, str] | None = None) -> Path | None:
    """The run that `resume=auto` goes on with: that of `output_dir`, else the newest of the same recipe, data and
    `rewards`, which are hashes by file."""
    if recipe.output_dir:
        return Path(recipe.output_dir) if Path(recipe.output_dir, "run.json").exists() else None
    wanted = recipe.model_dump(mode="json")
    for path in sorted(Path("runs").glob("*/run.json"), key=lambda path: path.stat().st_mtime, reverse=True):
        try:
            manifest = read_manifest(path.parent)
        except RunError:
            continue
        same = manifest.kind == kind and manifest.data in (None, data)
        same = same and not changes(manifest.recipe, wanted) and not _rewritten(manifest, rewards or {})
        if same and manifest.status != "done" and not is_locked(path.parent):
            return path.parent
    return None


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """The keys that matter and differ, with both values."""
    first = {key: field.get_default() for key, field in Recipe.model_fields.items()}  # of keys that came later
    free = FREE if _is_scheduled(new) else {*FREE, "max_steps"}  # more of the same, or less
    keys = [key for key in {**old, **new} if key not in free and old.get(key, first.get(key)) != new.get(key)]
    return [f"{key} was {old.get(key)!r} and is {new.get(key)!r}" for key in keys]


def _is_scheduled(recipe: Mapping[str, Any]) -> bool:
    """Whether anything of a step depends on how many there are in all."""
    constant = str(recipe.get("lr_scheduler_type")).startswith("constant")
    return not constant or bool(recipe.get("warmup_ratio")) or recipe.get("temperature_end") is not None


def fingerprint(task: Task, seed: int) -> str:
    """Tells one data set from another: a hash of the first prompts of each split."""
    digest = hashlib.blake2b(digest_size=16)
    for split in task.splits:
        with suppress(TaskError):  # a split without prompts is told of where it is needed
            for prompt in itertools.islice(task.prompts(split, seed), 32):
                shown = [split, prompt.id, [dict(message) for message in prompt.messages], prompt.answer]
                digest.update(json.dumps(shown, sort_keys=True, default=_steady).encode())
    return digest.hexdigest()


def _steady(value: Any) -> Any:
    """Something of a value that is the same in every process."""
    return sorted(map(repr, value)) if isinstance(value, (set, frozenset)) else type(value).__name__


def reward_files(rewards: Rewards | None) -> dict[str, str]:
    """A hash of each file that a reward of the user's is in, but for one that is only looked at. Objects have none,
    and what such a file imports is not looked into."""
    if rewards is None:
        return {}
    found: dict[str, str] = {}
    for part in rewards.by_part.values():
        found |= reward_files(part)
    for reward in rewards.parts:
        name, path = _file_of(reward)
        if path and (reward.name != rewards.audit or reward.name == rewards.truth):
            with suppress(OSError):  # a package in an archive
                found[name] = hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
    return found


def _file_of(reward: Reward) -> tuple[str, Path | None]:
    """What the user named and the file of it; of a package's function, its module's. Those of outdo have a version."""
    name = reward.source if reward.source.endswith(".json") else reward.source.rpartition(":")[0]
    if name.endswith((".py", ".json")):
        return name, Path(name)
    module = getattr(reward.function, "__module__", None) if reward.source else None
    path = getattr(sys.modules.get(module or ""), "__file__", None)
    return str(module), Path(path) if path and str(module).partition(".")[0] != "outdo" else None


def _rewritten(manifest: Manifest, rewards: Mapping[str, str]) -> list[str]:
    """The files of rewards that are other than they were. A run of before they were noted has none."""
    had = manifest.reward_files
    had = had if isinstance(had, dict) else {}
    return [
        f"the reward file {file} is another one than it was"
        for file in rewards
        if had.get(file, "") not in ("", rewards[file])
    ]


def refuse_elsewhere(folder: Path, had: Any, output_dir: str | None) -> None:
    """A run goes on where it is: another `output_dir` than it `had` is refused, not passed over."""
    if output_dir not in (None, had) and Path(str(output_dir)).resolve() != folder.resolve():
        raise RecipeError(
            f"{folder} goes on where it is, not in output_dir={output_dir}: leave that out, or copy the folder there "
            "and go on with the copy"
        )


def check(
    run: RunWriter, recipe: Recipe, data: str, rewards: Mapping[str, str], versions: Mapping[str, str], force: bool
) -> list[str]:
    """What has changed since the run was started, to be said. Raises RecipeError where it matters, unless forced."""
    matters = changes(run.manifest.recipe, recipe.model_dump(mode="json"))
    if run.manifest.data not in (None, data):
        matters.append("the data set is another one than it was")
    matters += _rewritten(run.manifest, rewards)
    if matters and not force:
        raise RecipeError(
            f"{run.folder} cannot be gone on with: {'; '.join(matters)}. Put it back, or start a new run; "
            "--force goes on all the same"
        )
    before = run.manifest.versions
    before = before if isinstance(before, dict) else {}
    code = [f"{name} was {before[name]} and is {now}" for name, now in versions.items() if before.get(name, now) != now]
    return [*matters, *code]


def newest(run: RunWriter) -> tuple[Path | None, dict[str, Any], list[str]]:
    """The newest checkpoint that is whole and whose rows are still there, its state, and why newer ones are not.

    Newer ones are taken out of the row. Where none can be used, all stay as they are.
    """
    passed: list[str] = []
    unusable: list[Path] = []
    restore_replaced(run.checkpoints)
    for folder in reversed(checkpoint.existing(run.checkpoints)):
        wrong = checkpoint.corruption(folder)
        if not wrong:
            state = json.loads((folder / "state.json").read_text(encoding="utf-8"))  # its hash is right: it is ours
            short = run.truncated_file(state["offsets"])
            if not short:
                for bad in unusable:
                    checkpoint.set_unusable(bad)
                return folder, state, passed
            wrong = f"{short} is shorter than it was when this was saved"
        passed.append(f"{folder}: {wrong}")
        unusable.append(folder)
    return None, {}, passed
