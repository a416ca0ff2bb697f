"""How long a run has used its devices: the sum over the processes that worked on it, each a segment in the manifest.

A segment is written with the manifest, which a running process rewrites now and then: of one that was killed, the time
since is lost, and the time until another resumes is never counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outdo.runs.values import as_float, as_int, dicts_in

HEARTBEAT = 15.0  # seconds between two writes of the manifest at most, while steps are made


def add_segment(segments: Any, started: str, devices: int = 1) -> list[dict[str, Any]]:
    """With a new segment at the end."""
    used = {"devices": devices} if devices > 1 else {}
    return [*dicts_in(segments), {"started": started, "seconds": 0.0, **used}]


def with_seconds(segments: Any, seconds: float) -> list[dict[str, Any]]:
    """With the length of the last segment so far."""
    *earlier, last = dicts_in(segments)
    return [*earlier, {**last, "seconds": round(seconds, 3)}]


def running_seconds(manifest: Mapping[str, Any], step_seconds: float = 0.0) -> float:
    """The sum of the segments. `step_seconds` is the time of its steps alone: all that runs of older versions have."""
    lengths = (as_float(segment.get("seconds")) for segment in dicts_in(manifest.get("segments")))
    seconds = sum(length for length in lengths if length is not None and 0 <= length < 1e12)
    return max(seconds, step_seconds)


def device_seconds(manifest: Mapping[str, Any], step_seconds: float) -> float:
    """The same times the number of devices, which a resumed run may have changed; 0 where that is not known, as of runs
    of other trainers."""
    if manifest.get("trainer") and not manifest.get("world_size"):
        return 0.0
    now, segments = as_int(manifest.get("world_size")) or 1, dicts_in(manifest.get("segments"))
    if not any("devices" in segment for segment in segments):
        return running_seconds(manifest, step_seconds) * now
    each = [{**manifest, "segments": [segment]} for segment in segments]
    return sum(running_seconds(one) * (as_int(one["segments"][0].get("devices")) or 1) for one in each)


def price_of(recipe: Mapping[str, Any], device_seconds: float) -> float | None:
    """What the device time cost; None where the recipe has no price."""
    price = as_float(recipe.get("price_per_hour"))
    return None if price is None else price * device_seconds / 3600
