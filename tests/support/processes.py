"""What a test left running."""

from __future__ import annotations

import os
import time

import psutil

MARKS = ("/inside.py", "outdo.sandbox.worker")


def left_running(but: set[int] = frozenset(), seconds: float = 5.0) -> list[str]:
    """Processes of sandboxes and pools that this process, or nobody any more, has above it; given a moment to end."""
    ends = time.monotonic() + seconds
    while (found := _ours(but)) and time.monotonic() < ends:
        time.sleep(0.05)
    return found


def running() -> set[int]:
    return {int(line.split()[0]) for line in _ours(set())}


def _ours(but: set[int]) -> list[str]:
    lines = {}
    for process in psutil.process_iter(["pid", "ppid", "cmdline", "status"]):
        words = process.info["cmdline"] or []
        if any(mark in words for mark in MARKS) and process.info["status"] != psutil.STATUS_ZOMBIE:
            lines[process.info["pid"]] = (process.info["ppid"], " ".join(words[-8:]))
    found = []
    for pid, (above, line) in lines.items():
        top = above
        while top in lines:
            top = lines[top][0]
        if top in (1, os.getpid()) and pid not in but:
            found.append(f"{pid} {line}")
    return found
