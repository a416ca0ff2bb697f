"""This machine: its memory, its threads, and whether it reaches the hub."""

from __future__ import annotations

import ctypes
import os
import socket
import sys
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlparse

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def share_cores() -> None:
    """Makes torch's threads spin only briefly while they wait for each other. Call it before torch is imported.

    Long spinning gains nothing on an idle machine and makes a step several times slower beside another busy process; no
    spinning at all makes it twice as slow on an idle one. A variable that is already set is not changed.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")


def one_thread() -> None:
    """Limits torch to one thread, so that results do not depend on the cores. Call it before torch is imported."""
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"


def available_memory() -> int | None:
    """Bytes that a process can still allocate, by the machine's or its container's limit. None: unknown."""
    limits = []
    with suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        limits += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    with suppress(OSError, ValueError):  # "max" where there is no limit
        limit, used = (int(Path("/sys/fs/cgroup", f"memory.{name}").read_text()) for name in ("max", "current"))
        stats = dict(line.split() for line in Path("/sys/fs/cgroup/memory.stat").read_text().splitlines())
        limits.append(max(0, limit - used + int(stats.get("inactive_file", 0))))  # cached files can be evicted
    return min(limits, default=None)


def keep_memory() -> None:
    """Makes glibc reuse freed memory instead of returning it to the system: a CPU step is about a tenth faster.

    Else every large activation is mapped, faulted in page by page and unmapped again. Does nothing without glibc.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 1 << 30)
        mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)


def hub_answers() -> bool:
    """Whether the hub's name resolves: if not, every request would be retried for a minute."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return False
    host = urlparse(os.environ.get("HF_ENDPOINT", "https://huggingface.co")).hostname or ""
    try:
        return bool(socket.getaddrinfo(host, 443))
    except OSError:
        return False
