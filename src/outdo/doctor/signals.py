"""Robust statistics of one curve: levels, noise, slopes and onsets. Pure; N steps, B blocks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Curve = NDArray[np.float64]  # NaN where a step has no value

MAX_BLOCKS = 120  # of a slope
MAX_WINDOW = 51  # steps of a rolling median
MAD_TO_STD = 1.4826  # of a normal distribution


@dataclass(frozen=True)
class Shift:
    """How a curve moved from its start to its end."""

    before: float
    after: float
    error: float  # standard error of the difference

    @property
    def gain(self) -> float:
        return self.after - self.before

    @property
    def z(self) -> float:
        return self.gain / max(self.error, 1e-12)

    @property
    def ratio(self) -> float:
        return self.after / self.before if self.before > 0 else float("nan")


def finite(curve: Curve) -> Curve:
    return curve[np.isfinite(curve)]


def edge_size(n: int) -> int:
    """The number of values that represent either end of n."""
    return int(min(max(5, n // 6), 250, max(1, n // 2)))


def noise(curve: Curve) -> float:
    """Standard deviation from step to step, without the trend: from the median of second differences."""
    values = finite(curve)
    if len(values) < 4:
        return float("inf")
    second_differences = values[2:] - 2 * values[1:-1] + values[:-2]
    spread = MAD_TO_STD * float(np.median(np.abs(second_differences))) / np.sqrt(6.0)
    return spread if spread > 0 else float(np.std(second_differences)) / float(np.sqrt(6.0))  # most may be 0


def late(curve: Curve) -> float:
    """The median at the end."""
    values = finite(curve)
    return float(np.median(values[-edge_size(len(values)) :])) if len(values) else float("nan")


def early(curve: Curve) -> float:
    return late(curve[::-1])


def late_mean(curve: Curve) -> float:
    """The mean at the end, for fractions that are mostly 0."""
    values = finite(curve)
    return float(np.mean(values[-edge_size(len(values)) :])) if len(values) else float("nan")


def trimmed_mean(values: Curve) -> float:
    """The mean without the lowest and the highest tenth: nearly as precise as the mean, and robust to outliers."""
    cut = len(values) // 10
    return float(np.mean(np.sort(values)[cut : len(values) - cut]))


def shift(curve: Curve) -> Shift:
    """From the trimmed mean of the start to that of the end; NaN where there are fewer than two values."""
    values = finite(curve)
    if len(values) < 2:
        return Shift(float("nan"), float("nan"), float("inf"))
    size = edge_size(len(values))
    error = 1.1 * noise(values) * float(np.sqrt(2.0 / size))
    return Shift(trimmed_mean(values[:size]), trimmed_mean(values[-size:]), error)


def trend(curve: Curve) -> Shift:
    """The shift along a straight line through all values: more precise than two ends where a curve rises slowly."""
    values = finite(curve)
    rise = slope(values) * len(values)
    level = float(np.median(values))
    return Shift(level - rise / 2, level + rise / 2, 1.1 * noise(values) * float(np.sqrt(12.0 / max(len(values), 1))))


def windows(values: Curve, count: int) -> Curve:
    """The means of `count` or fewer windows of the same size, the last of which ends with the last value."""
    size = max(1, -(-len(values) // count))
    used = values[len(values) % size :] if len(values) >= size else values
    return np.asarray(used.reshape(-1, size).mean(axis=1), dtype=np.float64)


def reversals(values: Curve, least: float) -> list[int]:
    """The indices of the turning points between swings of at least that size: highs and lows in turn."""
    turns: list[int] = []
    low = high = 0
    way = 0
    for index, value in enumerate(values):
        if value > values[high]:
            high = index
        if value < values[low]:
            low = index
        if way <= 0 and value - values[low] >= least:
            turns, way, high = [*turns, low], 1, index
        elif way >= 0 and values[high] - value >= least:
            turns, way, low = [*turns, high], -1, index
    return turns


def slope(curve: Curve) -> float:
    """Change per row, by Theil and Sen: the median of the slopes between all pairs of blocks."""
    at = np.flatnonzero(np.isfinite(curve))
    if len(at) < 2:
        return 0.0
    size = -(-len(at) // MAX_BLOCKS)
    count = len(at) // size
    used = at[len(at) - count * size :].reshape(count, size)  # drops the oldest few where it does not divide
    x_B, y_B = used.mean(axis=1), np.median(curve[used], axis=1)
    if count < 2:
        return 0.0
    first, second = np.triu_indices(count, 1)
    return float(np.median((y_B[second] - y_B[first]) / (x_B[second] - x_B[first])))


def smooth(curve: Curve) -> Curve:
    """A rolling median of the finite values, as long as the curve."""
    at = np.flatnonzero(np.isfinite(curve))
    out = np.full(len(curve), np.nan)
    if not len(at):
        return out
    half = min(MAX_WINDOW, max(3, len(at) // 20)) // 2
    padded = np.pad(curve[at], half, mode="edge")
    rolled = np.median(np.lib.stride_tricks.sliding_window_view(padded, 2 * half + 1), axis=1)
    return np.asarray(np.interp(np.arange(len(curve)), at, rolled), dtype=np.float64)


def onset(curve: Curve, level: float, above: bool = True) -> int:
    """The index from which the smoothed curve stays on one side of a level; the last index where it does not."""
    rolled = smooth(curve)
    outside = np.flatnonzero(~(rolled > level) if above else ~(rolled < level))
    return int(min(outside[-1] + 1, len(curve) - 1)) if len(outside) else 0


def departure(curve: Curve) -> int:
    """The index from which a curve stays beyond a fifth of its shift from start to end."""
    if len(finite(curve)) < 4:
        return 0
    moved = shift(curve)
    return onset(curve, moved.before + moved.gain / 5, above=moved.gain > 0)
