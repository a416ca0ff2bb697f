"""The manifest of a run, `run.json`: what it was started with, where it stands, and why it ended."""

from __future__ import annotations

import json
import platform
import subprocess
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from outdo.errors import PlaceError
from outdo.runs.files import disk_errors, write_atomic
from outdo.runs.layout import MANIFEST
from outdo.untrusted.parse import parse_json

MAX_BYTES = 8 << 20
Status = Literal["running", "done", "stopped", "failed"]


class Manifest(BaseModel):
    """Frozen: `updated` gives a new one. Facts that have no field here are kept as they are."""

    model_config = ConfigDict(extra="allow", frozen=True, protected_namespaces=())

    status: Status
    recipe: dict[str, Any]
    why: str = ""  # it stopped, failed or finished early
    kind: str = "grpo"  # grpo, sft, harvest or stages
    started: str | None = None
    ended: str | None = None
    versions: Any = None  # of Python, outdo, torch and transformers
    git: Any = None
    device: Any = None
    world_size: Any = None  # processes that work on it, each with a device
    num_parameters: Any = None
    tool_format: Any = None  # how the model writes calls of tools
    data: Any = None  # a fingerprint of the data set
    lessons: Any = None  # a fingerprint of the demonstrations
    reward_files: Any = None  # a hash of each of the user's reward files
    segments: Any = None  # when each process that worked on it began, and for how many seconds
    resumed: Any = None  # the steps that it was resumed at
    stages: Any = None  # names of the stages' folders
    model: Any = None  # of a harvest: the model that was sampled
    harvest: Any = None  # of a harvest: its demonstrations
    halted: Any = None  # by a guard: the keys that decide whether it halts again, the remedy, and the collapse's onset
    best: Any = None  # with load_best_model_at_end: the step whose weights model/ has, and its evaluation
    pushed: Any = None  # where the model was uploaded
    tracked: Any = None  # the name that trackers know it by
    trainer: Any = None  # of a run of another trainer: which one, and the folder or file that it was read from
    source: Any = None
    title: Any = None  # what that trainer calls it
    notes: Any = None  # what of it could not be read

    @model_validator(mode="before")
    @classmethod
    def _older_names(cls, data: Any) -> Any:
        return with_current_names(data) if isinstance(data, dict) else data

    def updated(self, **facts: Any) -> Manifest:
        return Manifest(**{**self.as_json(), **facts})

    def as_json(self) -> dict[str, Any]:
        """Without fields that were never set."""
        return self.model_dump(exclude_unset=True)


def new_manifest(recipe: dict[str, Any], facts: dict[str, Any]) -> Manifest:
    common = {"status": "running", "why": "", "started": timestamp(), "recipe": recipe}
    return Manifest(**{**common, "versions": library_versions(), "git": _git_state(), **facts})


def with_current_names(data: dict[str, Any]) -> dict[str, Any]:
    """A manifest of version 0.1, which has `parameters`, as one of today."""
    if "parameters" not in data:
        return data
    return {"num_parameters": data["parameters"]} | {key: data[key] for key in data if key != "parameters"}


def manifest_path(folder: Path) -> Path:
    return folder / MANIFEST


def holds_run(folder: Path) -> bool:
    return manifest_path(folder).exists()


def read_manifest(folder: Path) -> Manifest:
    """The manifest of the run in a folder. Raises PlaceError where it holds none."""
    path = manifest_path(folder)
    if not path.is_file():  # a pipe might never end
        missing = f"its {MANIFEST} is no file" if path.exists() else f"it has no {MANIFEST}"
        reason = missing if folder.is_dir() else "it is a file" if folder.exists() else "there is no such folder"
        raise PlaceError(f"{folder} holds no run: {reason}")
    try:
        if (size := path.stat().st_size) > MAX_BYTES:
            raise ValueError(f"it has {size >> 20} MB; at most {MAX_BYTES >> 20} MB are read")
        data = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PlaceError(f"{folder} holds no run ({MANIFEST} cannot be read: {error})") from None
    if not isinstance(data, dict) or not isinstance(data.get("recipe"), dict):
        raise PlaceError(f"{folder} holds no run: {MANIFEST} has no recipe")
    if data.get("status") not in get_args(Status):
        raise PlaceError(f"{folder}: {MANIFEST} has the unknown status {data.get('status')!r:.40}")
    try:
        return Manifest(**data)
    except ValidationError as error:
        first = error.errors()[0]
        raise PlaceError(f"{folder}: {MANIFEST}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def write_manifest(folder: Path, manifest: Manifest) -> None:
    path = manifest_path(folder)
    with disk_errors(path):
        write_atomic(path, json.dumps(manifest.as_json(), indent=2, default=str) + "\n")


def timestamp(ago: float = 0.0) -> str:
    """Of now, or of so many seconds ago."""
    return time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(time.time() - ago))


def library_versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in ("outdo", "torch", "transformers"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "not installed as a package"
    return versions


def _git_state() -> dict[str, Any] | None:
    """The commit of the working folder, and whether it has changes; None outside a repository."""
    try:
        commit, changes = (
            subprocess.run(["git", *words], capture_output=True, text=True, timeout=5, check=True).stdout.strip()
            for words in (["rev-parse", "HEAD"], ["status", "--porcelain"])
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return {"commit": commit, "changed": bool(changes)}
