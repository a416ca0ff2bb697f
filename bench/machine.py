"""What a figure was measured on."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any


def num_cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def facts() -> dict[str, Any]:
    return {
        "cpu": _cpu_model(),
        "cores": num_cores(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
        "torch": version("torch"),
        "load_at_start": round(os.getloadavg()[0], 2),  # far above 0: others were using the machine too
    }


def line(found: dict[str, Any]) -> str:
    return "{cpu}, {cores} cores, {memory_gb} GB, Python {python}, torch {torch}, load {load_at_start}".format(**found)


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((text.partition(":")[2].strip() for text in lines if text.startswith("model name")), platform.machine())
