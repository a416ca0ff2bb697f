"""Writing into folders that a stranger may have made. A link, a hard link, a pipe or a device in the place of a file is
never written to, emptied or locked: what it leads to is not ours. The run's folder itself may be a link."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO, Any

from outdo.errors import PlaceError
from outdo.runs.layout import LOCK, MANIFEST, MODEL, ROW_FILES, SUBFOLDERS

MAX_NAMED = 5  # links in a message
OURS = (*ROW_FILES, LOCK, MANIFEST, *sorted(SUBFOLDERS))  # names that a new run takes
FOREIGN = ("wandb",)  # folders of other programs, which make links of their own


def open_no_links(root: Path, path: Path, mode: str = "a") -> IO[Any]:
    """Opens a file below a root for writing: `a` to append, `a+` and `r+b` to read and change. No part of the path
    below the root may be a link. Raises PlaceError for what is no regular file of one name, and OSError."""
    parts = path.relative_to(root).parts
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts[:-1]:
            inner = _open_folder(folder, part, path)
            os.close(folder)
            folder = inner
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        flags |= os.O_APPEND if mode == "a" else 0
        flags |= 0 if mode.startswith("r") else os.O_CREAT
        try:
            descriptor = os.open(parts[-1], flags, 0o666, dir_fd=folder)
        except OSError as error:
            if (kind := _kind_at(parts[-1], folder)) not in ("", "a folder"):
                raise PlaceError(_refusal(path, kind)) from error
            raise
    finally:
        os.close(folder)
    if kind := _kind(os.fstat(descriptor)):
        os.close(descriptor)
        raise PlaceError(_refusal(path, kind))
    return open(descriptor, mode, encoding=None if "b" in mode else "utf-8")


def create_no_links(path: Path, mode: str = "w") -> IO[Any]:
    """A new file under that name, whatever had it before: that is removed, not written to."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    return open(descriptor, mode, encoding=None if "b" in mode else "utf-8")


def refuse_links(folder: Path, only: Collection[str] = ()) -> None:
    """Raises PlaceError where a folder to write into has links, hard links, pipes or devices; those are named. `only`
    are the names in it that are looked at; default: all."""
    entries = [folder / name for name in only] if only else [folder]
    found = [f"{path.relative_to(folder)} is {kind}" for entry in entries for path, kind in _foreign(entry)]
    if found:
        more = f" and {len(found) - MAX_NAMED} more" if len(found) > MAX_NAMED else ""
        raise PlaceError(
            f"{folder} is not written to: {', '.join(found[:MAX_NAMED])}{more}. What they lead to would be changed: "
            "replace them by files of their own, or remove them"
        )


def _foreign(folder: Path) -> Iterator[tuple[Path, str]]:
    if folder.name in OURS and (kind := _kind_of(folder)) not in ("", "a folder"):
        yield folder, kind
        return
    for place, folders, files in os.walk(folder, followlinks=False):
        here = Path(place)
        is_run = (here / MANIFEST).exists()
        for name in sorted([*folders, *files]):
            path = here / name
            kind = _kind_of(path)
            own = kind == "a link" and is_run and (name == MODEL or os.readlink(path) == f"{MODEL}/{name}")
            if kind not in ("", "a folder") and not own:
                yield path, kind
        folders[:] = [name for name in folders if name not in FOREIGN]


def _open_folder(parent: int, name: str, path: Path) -> int:
    try:
        return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    except OSError as error:
        if (kind := _kind_at(name, parent)) not in ("", "a folder"):
            raise PlaceError(_refusal(path, f"in {name}, which is {kind}")) from error
        raise


def _refusal(path: Path, kind: str) -> str:
    return f"{path} is not written to: it is {kind}, and what it leads to would be changed; remove it"


def _kind_at(name: str, folder: int) -> str:
    try:
        return _kind(os.stat(name, dir_fd=folder, follow_symlinks=False))
    except OSError:
        return ""


def _kind_of(path: Path) -> str:
    try:
        return _kind(os.lstat(path))
    except OSError:
        return ""


def _kind(status: os.stat_result) -> str:
    """What is no regular file of one name; empty where it is one."""
    if stat.S_ISLNK(status.st_mode):
        return "a link"
    if stat.S_ISDIR(status.st_mode):
        return "a folder"
    if not stat.S_ISREG(status.st_mode):
        return "a pipe, socket or device"
    return "a hard link, with another name elsewhere" if status.st_nlink > 1 else ""
