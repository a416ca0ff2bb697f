"""Checkpoints: complete or absent.

A checkpoint is a folder, `step-000040`. It is written under another name, every file flushed and hashed, and renamed
when it is complete; the hashes are in `manifest.json`, which is written last. One that was cut short, by whatever, has
no such name or does not match its hashes, and is skipped for the one before it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from outdo.runs.files import Writer, remove, remove_unfinished, temporary_of, write_folder
from outdo.untrusted.parse import parse_json

HASHES = "manifest.json"
_UNUSABLE = "unusable-"


def name_of(step: int) -> str:
    return f"step-{step:06d}"


def step_of(folder: Path) -> int:
    return int(folder.name.rpartition("-")[2])


def save(parent: Path, step: int, write: Writer) -> Path:
    """Writes the checkpoint of a step. Raises OSError, with nothing left but what was there before."""

    def with_hashes(folder: Path) -> None:
        write(folder)
        hashes = {str(path.relative_to(folder)): _hash(path) for path in sorted(folder.rglob("*")) if path.is_file()}
        text = json.dumps({"files": hashes, "sum": _sum(hashes)}, indent=1) + "\n"
        (folder / HASHES).write_text(text, encoding="utf-8")

    return write_folder(parent / name_of(step), with_hashes)


def unfinished(parent: Path, step: int) -> Path:
    """The folder that a checkpoint is written in until it is complete."""
    return temporary_of(parent / name_of(step))


def set_unusable(folder: Path) -> None:
    """Renames a checkpoint that cannot be used, so that it is not found again."""
    renamed = folder.with_name(f"{_UNUSABLE}{folder.name}")
    remove(renamed)
    os.replace(folder, renamed)


def corruption(folder: Path) -> str:
    """What is wrong with a checkpoint: the file, and how; empty where it is valid."""
    try:
        manifest = parse_json((folder / HASHES).read_text(encoding="utf-8"))
        hashes = dict(manifest["files"])
        if manifest["sum"] != _sum(hashes):
            return f"{HASHES} is corrupt"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{HASHES} cannot be read ({type(error).__name__})"
    for name, expected in hashes.items():
        path = folder / str(name)
        if not path.is_file():
            return f"{name} is missing"
        try:
            if _hash(path) != expected:
                return f"{name} is corrupt (its hash differs)"
        except OSError as error:
            return f"{name} cannot be read: {error.strerror or error}"
    return ""


def existing(parent: Path) -> list[Path]:
    """Every folder that has a checkpoint's name, oldest first."""
    folders = [path for path in parent.glob("step-*") if path.name.rpartition("-")[2].isdecimal() and path.is_dir()]
    return sorted(folders, key=step_of)


def newest_valid(parent: Path, at_most: int | None = None) -> Path | None:
    """The newest checkpoint that is not corrupt, of a step up to `at_most`."""
    folders = [folder for folder in existing(parent) if at_most is None or step_of(folder) <= at_most]
    return next((folder for folder in reversed(folders) if not corruption(folder)), None)


def ever_saved(parent: Path) -> bool:
    """Whether there ever was a checkpoint, usable or not."""
    return bool(existing(parent)) or any(parent.glob(f"{_UNUSABLE}step-*"))


def prune(parent: Path, keep: int | None, best: Sequence[int] = ()) -> None:
    """Removes all but the newest `keep` (None: all) and those of the `best` steps, and what was left half-written."""
    for folder in existing(parent)[:-keep] if keep else ():
        if step_of(folder) not in best:
            shutil.rmtree(folder, ignore_errors=True)
    remove_unfinished(parent)


def _sum(hashes: Mapping[str, str]) -> str:
    return hashlib.blake2b(json.dumps(hashes, sort_keys=True).encode(), digest_size=16).hexdigest()


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
