"""Checkpoints: complete or not there.

A checkpoint is a folder, `step-000040`. It is written under another name, every file flushed and hashed, and renamed
when it is whole; the hashes are in `manifest.json`, which is written last. What was cut short, by whatever, has no such
name or does not match its hashes, and is passed over for the one before it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

MANIFEST = "manifest.json"
_ASIDE, _OLD, _UNUSABLE = ".writing-", ".old-", "unusable-"

Writer = Callable[[Path], None]  # writes its files into the folder that it is given


def name_of(step: int) -> str:
    return f"step-{step:06d}"


def step_of(folder: Path) -> int:
    return int(folder.name.rpartition("-")[2])


def save(parent: Path, step: int, write: Writer) -> Path:
    """Writes the checkpoint of a step. Raises OSError, with nothing left but what was there before."""

    def hashed(aside: Path) -> None:
        write(aside)
        files = {str(path.relative_to(aside)): _hash(path) for path in sorted(aside.rglob("*")) if path.is_file()}
        text = json.dumps({"files": files, "sum": _sum(files)}, indent=1) + "\n"
        (aside / MANIFEST).write_text(text, encoding="utf-8")

    return write_whole(parent / name_of(step), hashed)


def write_whole(folder: Path, write: Writer) -> Path:
    """A folder that is there as a whole, in place of one that was, which stays until the new one is on the disk."""
    aside, old = (folder.with_name(f"{mark}{folder.name}") for mark in (_ASIDE, _OLD))
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        write(aside)
        for path in sorted(aside.rglob("*")):
            _flush(path)
        _flush(aside)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    if folder.exists():
        shutil.rmtree(old, ignore_errors=True)
        os.replace(folder, old)
    os.replace(aside, folder)
    _flush(folder.parent)
    shutil.rmtree(old, ignore_errors=True)
    return folder


def recover(parent: Path) -> None:
    """Puts back what a process was replacing when it was killed."""
    for old in parent.glob(f"{_OLD}*"):
        folder = parent / old.name.removeprefix(_OLD)
        if folder.exists():
            shutil.rmtree(old, ignore_errors=True)
        else:
            os.replace(old, folder)


def set_aside(folder: Path) -> None:
    """Takes a checkpoint that cannot be used out of the row, so that it is not found again."""
    bad = folder.with_name(f"{_UNUSABLE}{folder.name}")
    shutil.rmtree(bad, ignore_errors=True)
    os.replace(folder, bad)


def trouble(folder: Path) -> str:
    """What is wrong with a checkpoint: the file, and how; nothing where it is whole."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        files = dict(manifest["files"])
        if manifest["sum"] != _sum(files):
            return f"{MANIFEST} is not what was written"
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        return f"{MANIFEST} cannot be read ({type(error).__name__})"
    for name, expected in files.items():
        path = folder / str(name)
        if not path.is_file():
            return f"{name} is missing"
        try:
            if _hash(path) != expected:
                return f"{name} is not what was written (its hash differs)"
        except OSError as error:
            return f"{name} cannot be read: {error.strerror or error}"
    return ""


def existing(parent: Path) -> list[Path]:
    """Every folder that has a checkpoint's name, oldest first."""
    found = [path for path in parent.glob("step-*") if path.name.rpartition("-")[2].isdecimal() and path.is_dir()]
    return sorted(found, key=step_of)


def were_there(parent: Path) -> bool:
    """Whether there ever was a checkpoint, of use or not."""
    return bool(existing(parent)) or any(parent.glob(f"{_UNUSABLE}step-*"))


def prune(parent: Path, keep: int, best: Sequence[int] = ()) -> None:
    """Removes all but the newest `keep` and those of the `best` steps, and what was left half-written."""
    for folder in existing(parent)[:-keep]:
        if step_of(folder) not in best:
            shutil.rmtree(folder, ignore_errors=True)
    for folder in parent.glob(f"{_ASIDE}*"):
        shutil.rmtree(folder, ignore_errors=True)


def _sum(files: Mapping[str, str]) -> str:
    return hashlib.blake2b(json.dumps(files, sort_keys=True).encode(), digest_size=16).hexdigest()


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def _flush(path: Path) -> None:
    """To the disk itself, folders too: a rename counts only when its folder is on it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
