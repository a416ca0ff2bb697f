"""Opens files of untrusted folders: regular files only, inside a root only, never blocking."""

from __future__ import annotations

import io
import os
import stat
from pathlib import Path

from outdo.runs.reader import JsonRow
from outdo.runs.values import parse_object

MAX_OBJECT_BYTES = 8 << 20  # of a manifest

Stamp = tuple[int, int, int]  # inode, size, time of the last write


class OutsideRoot(OSError):
    """A path that leads out of the root."""


def resolve_inside(root: Path, path: Path) -> Path:
    """Where a path leads. Raises OSError where that is outside the root or cannot be resolved."""
    try:
        resolved = Path(os.path.realpath(path))
    except ValueError as error:  # a null byte
        raise OutsideRoot(str(error)) from None
    if resolved != root and root not in resolved.parents:
        raise OutsideRoot(f"{path.name} leads out of the folder that is shown")
    return resolved


def file_stamp(path: Path) -> Stamp | None:
    """Changes whenever the file does; None where there is no regular file."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return stamp_of(status) if stat.S_ISREG(status.st_mode) else None


def stamp_of(status: os.stat_result) -> Stamp:
    return status.st_ino, status.st_size, status.st_mtime_ns


def open_regular(root: Path, path: Path) -> io.FileIO:
    """Opens a regular file inside the root for reading. A pipe, device or folder is refused before it can block."""
    resolved = resolve_inside(root, path)
    if not stat.S_ISREG(os.stat(resolved).st_mode):
        raise OSError(f"{path.name} is not a regular file")
    descriptor = os.open(resolved, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    file = io.FileIO(descriptor, "rb")
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        file.close()
        raise OSError(f"{path.name} is not a regular file")
    return file


def read_object(root: Path, path: Path, max_bytes: int = MAX_OBJECT_BYTES) -> JsonRow:
    """The JSON object of a file. Raises OSError or ValueError, with the reason."""
    with open_regular(root, path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > max_bytes:
            raise ValueError(f"{path.name} has {size >> 20} MB; at most {max_bytes >> 20} MB are read")
        value = parse_object(file.read(max_bytes))
    if value is None:
        raise ValueError(f"{path.name} is not a JSON object")
    return value
