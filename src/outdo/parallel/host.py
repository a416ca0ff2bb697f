"""This machine: how much it holds, keeping hold of it, and whether it reaches the hub."""

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
    """Lets torch's threads spin only briefly while they wait for each other. Call it before torch is imported.

    Spinning for long gains nothing on an idle machine, and beside another busy process it makes a step several times
    slower; not spinning at all makes it twice as slow on an idle one. Whoever set either variable keeps it.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")


def one_thread() -> None:
    """Torch computes with one thread: its numbers do not depend on the cores. Call it before torch is imported."""
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"


def available_memory() -> int | None:
    """Bytes that a process may still take: what the machine has, or what its container is allowed. None: unknown."""
    found = []
    with suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        found += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    with suppress(OSError, ValueError):  # "max" where there is no limit
        limit, used = (int(Path("/sys/fs/cgroup", f"memory.{name}").read_text()) for name in ("max", "current"))
        kept = dict(line.split() for line in Path("/sys/fs/cgroup/memory.stat").read_text().splitlines())
        found.append(max(0, limit - used + int(kept.get("inactive_file", 0))))  # files that it would let go of
    return min(found, default=None)


def keep_memory() -> None:
    """Asks glibc to reuse freed memory instead of handing it back: a CPU step is about a tenth faster.

    Without it every large activation is mapped, faulted in page by page and unmapped again. Elsewhere: nothing.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 1 << 30)
        mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)


def hub_answers() -> bool:
    """Whether the hub's name can be looked up: without that, every request would be tried for a minute."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return False
    host = urlparse(os.environ.get("HF_ENDPOINT", "https://huggingface.co")).hostname or ""
    try:
        return bool(socket.getaddrinfo(host, 443))
    except OSError:
        return False
