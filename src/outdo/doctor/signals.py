"""Robust statistics of one curve: levels, noise, slopes, and when something began. Pure; N steps, B blocks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Curve = NDArray[np.float64]  # NaN where a step has no value

BLOCKS = 120  # points that a slope is taken from at most
WINDOW = 51  # steps that a rolling median looks at, at most
NORMAL = 1.4826  # MAD to standard deviation


@dataclass(frozen=True)
class Shift:
    """How a curve moved from the start of a stretch to its end."""

    before: float
    after: float
    error: float  # of the difference

    @property
    def gain(self) -> float:
        return self.after - self.before

    @property
    def z(self) -> float:
        return self.gain / max(self.error, 1e-12)

    @property
    def ratio(self) -> float:
        return self.after / self.before if self.before > 0 else float("nan")


def known(curve: Curve) -> Curve:
    return curve[np.isfinite(curve)]


def edge(n: int) -> int:
    """Steps at either end that stand for that end."""
    return int(min(max(5, n // 6), 250, max(1, n // 2)))


def noise(curve: Curve) -> float:
    """Standard deviation from step to step, whatever the trend: from second differences, by their median."""
    values = known(curve)
    if len(values) < 4:
        return float("inf")
    bends = values[2:] - 2 * values[1:-1] + values[:-2]
    spread = NORMAL * float(np.median(np.abs(bends))) / np.sqrt(6.0)
    return spread if spread > 0 else float(np.std(bends)) / float(np.sqrt(6.0))  # most may be 0


def late(curve: Curve) -> float:
    """The level at the end."""
    values = known(curve)
    return float(np.median(values[-edge(len(values)) :])) if len(values) else float("nan")


def early(curve: Curve) -> float:
    values = known(curve)
    return float(np.median(values[: edge(len(values))])) if len(values) else float("nan")


def late_mean(curve: Curve) -> float:
    """The mean at the end, for shares that are mostly 0."""
    values = known(curve)
    return float(np.mean(values[-edge(len(values)) :])) if len(values) else float("nan")


def middle(values: Curve) -> float:
    """The mean without a tenth at either end: as steady as a mean, and no single step moves it."""
    cut = len(values) // 10
    return float(np.mean(np.sort(values)[cut : len(values) - cut]))


def shift(curve: Curve) -> Shift:
    """The middle of both ends, with the error of their difference; not a number where there are no two values."""
    values = known(curve)
    if len(values) < 2:
        return Shift(float("nan"), float("nan"), float("inf"))
    size = edge(len(values))
    return Shift(middle(values[:size]), middle(values[-size:]), 1.1 * noise(values) * float(np.sqrt(2.0 / size)))


def trend(curve: Curve) -> Shift:
    """A straight line through all of it: surer than two ends where a curve climbs slowly."""
    values = known(curve)
    rise = slope(values) * len(values)
    level = float(np.median(values))
    return Shift(level - rise / 2, level + rise / 2, 1.1 * noise(values) * float(np.sqrt(12.0 / max(len(values), 1))))


def slope(curve: Curve) -> float:
    """Change a row, by Theil and Sen: the median of the slopes between all pairs of blocks."""
    at = np.flatnonzero(np.isfinite(curve))
    if len(at) < 2:
        return 0.0
    size = -(-len(at) // BLOCKS)
    count = len(at) // size
    used = at[len(at) - count * size :].reshape(count, size)  # the oldest few are left out where it does not divide
    x_B, y_B = used.mean(axis=1), np.median(curve[used], axis=1)
    if count < 2:
        return 0.0
    first, second = np.triu_indices(count, 1)
    return float(np.median((y_B[second] - y_B[first]) / (x_B[second] - x_B[first])))


def smooth(curve: Curve) -> Curve:
    """A rolling median of what is known, as long as the curve."""
    at = np.flatnonzero(np.isfinite(curve))
    out = np.full(len(curve), np.nan)
    if not len(at):
        return out
    half = smoothing(len(at)) // 2
    padded = np.pad(curve[at], half, mode="edge")
    rolled = np.median(np.lib.stride_tricks.sliding_window_view(padded, 2 * half + 1), axis=1)
    return np.asarray(np.interp(np.arange(len(curve)), at, rolled), dtype=np.float64)


def smoothing(n: int) -> int:
    """Steps that a rolling median looks at, an odd number."""
    return int(min(WINDOW, max(3, n // 20))) // 2 * 2 + 1


def onset(curve: Curve, level: float, above: bool = True) -> int:
    """The index from which the smoothed curve stays on that side of a level to the end; the last where it does not."""
    rolled = smooth(curve)
    outside = np.flatnonzero(~(rolled > level) if above else ~(rolled < level))
    return int(min(outside[-1] + 1, len(curve) - 1)) if len(outside) else 0


def departure(curve: Curve) -> int:
    """When a curve that ended elsewhere left where it had been: where it passed a fifth of the way for good."""
    if len(known(curve)) < 4:
        return 0
    moved = shift(curve)
    return onset(curve, moved.before + moved.gain / 5, above=moved.gain > 0)
