"""A device's busy time by kernel."""

from __future__ import annotations

from typing import Any


def format_profile(profile: Any, max_kernels: int = 25) -> str:
    """A torch profile as lines: share of the busy time, time and count of each kernel."""
    events = [e for e in profile.key_averages() if e.self_device_time_total > 0 and str(e.device_type).endswith("CUDA")]
    events.sort(key=lambda e: -e.self_device_time_total)
    busy = sum(e.self_device_time_total for e in events) / 1e6
    lines = [f"the device was busy {busy:.3f} s"]
    for e in events[:max_kernels]:
        share, each = e.self_device_time_total / 1e6 / busy, e.self_device_time_total / e.count
        lines.append(f"  {share:6.1%} {each:8.1f} us x {e.count:6}  {e.key[:90]}")
    return "\n".join(lines)
