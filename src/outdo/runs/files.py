"""Writing files so that a crash leaves the old one or the new one, never half of either; locks; errors of the disk."""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

from outdo.errors import PlaceError, RunError
from outdo.runs.layout import LOCK
from outdo.runs.no_links import create_no_links, open_no_links

Writer = Callable[[Path], None]  # writes its files into the folder that it is given
UNUSABLE_PATH = {errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ENOENT, errno.ENAMETOOLONG, errno.ELOOP}
LOCK_WAIT = 0.4  # seconds that a lock may be held by those who only check it
_TEMPORARY, _OLD = ".writing-", ".old-"


class disk_errors:
    """Turns an error of the disk into one that names the path and says what to do. `elsewhere` is how to choose another
    place, where one can be chosen."""

    def __init__(self, path: Path, elsewhere: str = "") -> None:
        self.path, self.elsewhere = path, elsewhere

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError) and not isinstance(error, RunError):
            full = "free some space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
            advice = " or ".join(filter(None, [full, self.elsewhere]))
            message = f"cannot write {self.path}: {error.strerror or error}" + (f"; {advice}" if advice else "")
            raise (PlaceError if error.errno in UNUSABLE_PATH else RunError)(message) from error


def write_atomic(path: Path, content: str | bytes, flush: bool = True) -> None:
    """Replaces a file as a whole, once the new one is on the disk where `flush`. A link of that name is replaced, not
    followed. Raises OSError."""
    temporary = path.with_name(f"{_TEMPORARY}{path.name}")
    with create_no_links(temporary, "wb" if isinstance(content, bytes) else "w") as file:
        file.write(content)
        file.flush()
        if flush:
            fsync(file.fileno())
    os.replace(temporary, path)


def temporary_of(folder: Path) -> Path:
    """Where `write_folder` writes it."""
    return folder.with_name(f"{_TEMPORARY}{folder.name}")


def write_folder(folder: Path, write: Writer) -> Path:
    """Replaces a folder as a whole; the old one stays until the new one is on the disk. Raises OSError."""
    temporary, old = temporary_of(folder), folder.with_name(f"{_OLD}{folder.name}")
    remove(temporary)
    temporary.mkdir(parents=True)
    try:
        write(temporary)
        for path in sorted(temporary.rglob("*")):
            fsync_path(path)
        fsync_path(temporary)
    except BaseException:
        remove(temporary)
        raise
    if os.path.lexists(folder):
        remove(old)
        os.replace(folder, old)
    os.replace(temporary, folder)
    fsync_path(folder.parent)
    remove(old)
    return folder


def remove(path: Path) -> None:
    """A folder with all that it has, or a file or a link itself, as far as that can be removed."""
    if path.is_symlink() or path.is_file():
        with suppress(OSError):
            path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)


def restore_replaced(parent: Path) -> None:
    """Puts back folders that a process was replacing when it was killed."""
    for old in parent.glob(f"{_OLD}*"):
        folder = parent / old.name.removeprefix(_OLD)
        if os.path.lexists(folder):
            remove(old)
        else:
            os.replace(old, folder)


def remove_unfinished(parent: Path) -> None:
    for folder in parent.glob(f"{_TEMPORARY}*"):
        remove(folder)


def fsync(descriptor: int) -> None:
    """To the disk itself, where the file is on one."""
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise


def fsync_path(path: Path) -> None:
    """To the disk itself, folders too: a rename is durable only when its folder is."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_locked(folder: Path, without_locks: bool = False) -> bool:
    """Whether a process is writing there now. Checking writes nothing and lets others check. `without_locks` is the
    answer on a disk that has no locks."""
    try:  # a pipe in its place might block forever, and a link may lead anywhere
        file = os.open(folder / LOCK, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return without_locks or isinstance(error, BlockingIOError)
    finally:
        os.close(file)
    return False


def acquire_lock(folder: Path) -> IO[str]:
    """Locks the folder for this process until the file is closed or the process ends. Raises PlaceError where another
    process has it."""
    path = folder / LOCK
    with disk_errors(path):
        file = open_no_links(folder, path, "a+")
    try:
        acquired = _try_lock(file)
    except OSError:  # a disk without locks
        return file
    if not acquired:
        file.seek(0)
        owner = file.read().strip() or "another process"
        file.close()
        raise PlaceError(f"{folder} is being written by {owner}: wait for it, or stop it first")
    file.seek(0)
    file.truncate()
    file.write(f"process {os.getpid()} on {platform.node()}")
    file.flush()
    return file


def _try_lock(file: IO[str]) -> bool:
    """Whether the lock is ours now. A process that only checks holds it for a moment: that is waited for."""
    deadline = time.monotonic() + LOCK_WAIT
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(LOCK_WAIT / 20)
