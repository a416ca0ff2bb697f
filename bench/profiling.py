"""Where a device's time goes, by kernel."""

from __future__ import annotations

from typing import Any


def shown(found: Any, most: int = 25) -> str:
    """A profile of torch's, as lines: share of the busy time, time and count of each kernel."""
    events = [e for e in found.key_averages() if e.self_device_time_total > 0 and str(e.device_type).endswith("CUDA")]
    events.sort(key=lambda e: -e.self_device_time_total)
    busy = sum(e.self_device_time_total for e in events) / 1e6
    lines = [f"the device was busy {busy:.3f} s"]
    for e in events[:most]:
        share, each = e.self_device_time_total / 1e6 / busy, e.self_device_time_total / e.count
        lines.append(f"  {share:6.1%} {each:8.1f} us x {e.count:6}  {e.key[:90]}")
    return "\n".join(lines)
