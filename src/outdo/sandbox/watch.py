"""Bounds what a whole sandbox takes: memory of all its processes, and files in its temporary folders.

Limits of the kernel are per process (`inside.limit`), and bubblewrap's temporary folders have no limit on the number of
files, each of which takes a kilobyte of the kernel. So a thread looks at every open sandbox many times a second and
kills one that exceeds its share. Where this process may create a memory cgroup (root, or a delegated one), each sandbox
also runs in one, and the kernel enforces its memory, its own included.

Not covered: without a cgroup, what a sandbox takes between two looks, and memory of the kernel that is neither files
nor address space (socket buffers, locks), which other limits bound.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

from outdo.sandbox.jail import Limits

INTERVAL = 0.05  # seconds between two looks
FAST_INTERVAL = 0.01  # while a sandbox uses more than a quarter of its share
FOLDERS = ("tmp", "dev/shm")
MAX_PIDS = 1000  # of one sandbox
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_CGROUPS = Path("/sys/fs/cgroup")


class Watched(Protocol):
    """A sandbox as the watcher sees it."""

    limits: Limits
    killed_for: str

    def started_pid(self) -> int | None: ...  # of the first process of its namespace, once there is one

    def destroy(self, reason: str) -> None: ...


@dataclass(frozen=True)
class Usage:
    pids: tuple[int, ...]
    resident: int  # bytes in memory; those that processes share are counted for each
    mapped: int  # bytes of address space
    files: int


def usage(init_pid: int) -> Usage:
    """What a sandbox uses, by the first process of its namespace."""
    resident = mapped = files = 0
    pids: list[int] = []
    pending = [init_pid]
    while pending and len(pids) < MAX_PIDS:
        pids.append(pid := pending.pop())
        with suppress(OSError, ValueError):
            size, present = Path(f"/proc/{pid}/statm").read_text().split()[:2]
            mapped += int(size) * PAGE_BYTES
            resident += int(present) * PAGE_BYTES
            pending += children(pid)
    root = f"/proc/{init_pid}/root"
    for folder in FOLDERS if os.path.exists(f"{root}/inside.py") else ():  # before, its root is that of the host
        with suppress(OSError):
            status = os.statvfs(f"{root}/{folder}")
            files += status.f_files - status.f_ffree
    return Usage(tuple(pids), resident, mapped, files)


def children(pid: int) -> list[int]:
    """The processes that a process has started, or that came to it from others that have ended."""
    pids: list[int] = []
    with suppress(OSError, ValueError):
        for task in os.listdir(f"/proc/{pid}/task"):
            pids += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    return pids


def _proportional(pids: tuple[int, ...]) -> int:
    """Bytes in memory, where those that processes share are divided among them. Takes longer to read."""
    total = 0
    for pid in pids:
        with suppress(OSError, ValueError, IndexError):
            rows = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total += sum(int(row.split()[1]) * 1024 for row in rows if row.startswith("Pss:"))
    return total


def excess(limits: Limits, used: Usage) -> tuple[str, float]:
    """What a sandbox has too much of, or nothing; and the share of its limits that it uses."""
    most = limits.total_mb * 2**20
    resident = used.resident if used.resident <= most else _proportional(used.pids)
    shares = {
        f"used more than {limits.total_mb} MB of memory": resident / most,
        f"used more than {2 * limits.total_mb} MB of address space": used.mapped / (2 * most),
        f"created more than {limits.files} files": used.files / limits.files,
    }
    reason, share = max(shares.items(), key=lambda item: item[1])
    return (reason if share > 1 else ""), share


class Watcher:
    """The thread that looks at open sandboxes. It starts with the first and sleeps while there is none."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._watched: set[Watched] = set()
        self._thread: threading.Thread | None = None

    def add(self, sandbox: Watched) -> None:
        with self._condition:
            self._watched.add(sandbox)
            if self._thread is None or not self._thread.is_alive():  # a fork has none of its parent's threads
                self._thread = threading.Thread(target=self._run, name="sandbox watcher", daemon=True)
                self._thread.start()
            self._condition.notify()

    def remove(self, sandbox: Watched) -> None:
        with self._condition:
            self._watched.discard(sandbox)

    def _run(self) -> None:
        while True:
            with self._condition:
                while not self._watched:
                    self._condition.wait()
                watched = list(self._watched)
            time.sleep(FAST_INTERVAL if max(map(_look, watched)) > 0.25 else INTERVAL)


def _look(sandbox: Watched) -> float:
    """Kills a sandbox that exceeds its share; the share that it uses."""
    pid = None if sandbox.killed_for else sandbox.started_pid()
    if pid is None:
        return 0.0
    used = usage(pid)
    reason, share = excess(sandbox.limits, used)
    if reason:
        sandbox.destroy(reason)
    return share


WATCHER = Watcher()


class Cgroups:
    """Memory cgroups that sandboxes use one after another. Empty where this process may not create them."""

    def __init__(self, parent: Path | None) -> None:
        self.parent = parent
        self._lock = threading.Lock()
        self._idle: dict[int, list[Path]] = {}  # by megabytes
        self._created: list[Path] = []

    def take(self, limit_mb: int) -> Path | None:
        """A cgroup with that limit, or None."""
        with self._lock:
            if idle := self._idle.get(limit_mb):
                return idle.pop()
            if self.parent is None:
                return None
            path = self.parent / f"outdo-{os.getpid()}-{len(self._created)}"
            try:
                _create(path, limit_mb)
            except OSError:
                return None
            self._created.append(path)
            return path

    def give_back(self, path: Path | None, limit_mb: int) -> None:
        """For the next sandbox, once this one's processes are gone."""
        if path is not None:
            with self._lock:
                self._idle.setdefault(limit_mb, []).append(path)

    def close(self) -> None:
        with self._lock:
            for path in self._created:
                with suppress(OSError):
                    path.rmdir()
            self._created, self._idle, self.parent = [], {}, None


def _create(path: Path, limit_mb: int) -> None:
    path.mkdir()
    try:
        name = "memory.max" if (path / "memory.max").exists() else "memory.limit_in_bytes"
        (path / name).write_text(str(limit_mb * 2**20))
        for extra, value in (("memory.swap.max", "0"), ("memory.oom.group", "1"), ("memory.swappiness", "0")):
            with suppress(OSError):
                if (path / extra).exists():
                    (path / extra).write_text(value)
    except OSError:
        path.rmdir()
        raise


@cache
def cgroups() -> Cgroups:
    """The cgroups of this process, tried once."""
    for parent in _parents():
        _remove_stale(parent)
        path = parent / f"outdo-{os.getpid()}-try"
        with suppress(OSError):
            _create(path, 64)
            with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
                enter(path, process.pid)
                works = process.pid in members(path)
            path.rmdir()
            if works:
                pool = Cgroups(parent)
                atexit.register(pool.close)
                return pool
    return Cgroups(None)


def members(path: Path) -> set[int]:
    """The processes in a cgroup."""
    with suppress(OSError, ValueError):
        return set(map(int, (path / "cgroup.procs").read_text().split()))
    return set()


def enter(path: Path | None, *pids: int) -> None:
    """Moves processes into a cgroup, and so those that they start later."""
    for pid in pids if path is not None else ():
        with suppress(OSError):
            Path(path or "", "cgroup.procs").write_text(str(pid))


def _parents() -> list[Path]:
    """Where a child cgroup with a memory limit may be created: below this process's own, or beside it (version 2)."""
    parents = []
    with suppress(OSError):
        for row in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, name = row.split(":", 2)
            if "memory" in controllers.split(","):
                parents.append(_CGROUPS / "memory" / name.lstrip("/"))
            elif not controllers:
                own = _CGROUPS / name.lstrip("/")
                parents += [own, own.parent] if own != _CGROUPS else [own]
    return [path for path in parents if os.access(path, os.W_OK) and _limits_memory(path)]


def _limits_memory(parent: Path) -> bool:
    control = parent / "cgroup.subtree_control"
    return "memory" in control.read_text().split() if control.exists() else (parent / "memory.limit_in_bytes").exists()


def _remove_stale(parent: Path) -> None:
    """Removes what processes that were killed left there."""
    for path in parent.glob("outdo-*-*"):
        with suppress(OSError, ValueError):
            if not Path("/proc", str(int(path.name.split("-")[1]))).exists():
                path.rmdir()


def how_limited() -> str:
    """How the memory of a sandbox is limited here, for people."""
    return "cgroup" if cgroups().parent else "watched, no cgroup that this user may create"
