"""Held-out success as levels: the means of windows of evaluations, and the clearest fall among them. W windows.

The error of a level is that of its sampled problems, or more where evaluations differ more from their neighbours than
that explains. Moves that belong to the fall are not counted as noise, so that a fall does not hide itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from outdo.doctor.history import Held
from outdo.doctor.signals import Curve, Shift, noise
from outdo.metrics import limits as at

WINDOWS = 8  # that evaluations are averaged in
FIRST_STEPS = 5  # whose success counts as that of the start
FEW = 3  # evaluations, that do not show their noise
MANY = 10  # evaluations, whose noise is a median
UNCERTAIN = 2.0  # times the variance of EVAL_SIZE problems: for few evaluations that do not give their size
STUDENT = 5  # a variance from n differences alone counts 1 + STUDENT / n times, as Student's t is wider
PRIOR = 4  # differences of neighbours that the error of the sampled problems counts for, and more of them where …
MOVES = 0.05  # … it exceeds this: a policy's success moves less than that from one evaluation to the next


@dataclass(frozen=True)
class Levels:
    """Held-out success as means of windows of evaluations, and how it moved."""

    values: tuple[float, ...]
    steps: tuple[int, ...]  # the middle of each window
    first: Shift  # from the first few evaluations to the last window
    fall: Shift  # the clearest one; it gains where success only rises

    @property
    def best(self) -> int:
        """The best window before the last."""
        return int(np.argmax(self.values[:-1]))

    @property
    def falls(self) -> bool:
        return self.fall.gain <= -at.SUCCESS_DROP and self.fall.z < -self.least_z

    @property
    def least_z(self) -> float:
        """The standard errors that a fall needs. The clearest of many is large by chance: where success stays the
        same, about one history in 200 exceeds this."""
        return at.Z_WEAK + 0.1 + 0.4 * float(np.log(len(self.values) - 1))


@dataclass(frozen=True)
class _Sample:
    """The problems of some evaluations, and the successes among them."""

    right: float
    problems: float

    def shift_to(self, later: _Sample, excess: float = 1.0) -> Shift:
        """The error is that of two samples with the same success, because it is compared with no fall at all."""
        pooled = (self.right + later.right + 1) / (self.problems + later.problems + 2)
        error = np.sqrt(excess * pooled * (1 - pooled) * (1 / self.problems + 1 / later.problems))
        return Shift(self.right / self.problems, later.right / later.problems, float(error))


@dataclass(frozen=True)
class _Excess:
    """The variance of an evaluation relative to that of its sampled problems, 1 or more, for two kinds of falls."""

    deep: float  # less remains of what was gained since the start than a third of the fall
    shallow: float  # more: the rise before it may be noise as well

    def of(self, fall: Shift, start: float) -> float:
        return self.deep if fall.after - start <= -fall.gain / 3 else self.shallow


def levels_of(points: Sequence[Held]) -> Levels | None:
    """None for fewer than two evaluations."""
    if len(points) < 2:
        return None
    parts = [[points[i] for i in part] for part in np.array_split(np.arange(len(points)), min(WINDOWS, len(points)))]
    values = tuple(float(np.mean([point.success for point in part])) for part in parts)
    deep = _excess(points, parts, _against_fall)
    excess = _Excess(deep, max(deep, _excess(points, parts, _of_neighbours)))
    few = min(len(parts[0]), 3, sum(point.step < points[0].step + FIRST_STEPS for point in points))
    first = _sample(points[:few]).shift_to(_sample(parts[-1]), excess.deep)
    steps = tuple(part[len(part) // 2].step for part in parts)
    return Levels(values, steps, first, _clearest_fall(parts, excess, first.before))


def _sample(points: Sequence[Held]) -> _Sample:
    return _Sample(sum(point.success * point.size for point in points), float(sum(point.size for point in points)))


def _clearest_fall(parts: Sequence[Sequence[Held]], excess: _Excess, start: float) -> Shift:
    """From some windows in a row to the last ones, however many; those between them, where success falls, are left
    out."""
    samples = [_sample(part) for part in parts]
    right = np.cumsum([0.0, *(sample.right for sample in samples)]).tolist()
    size = np.cumsum([0.0, *(sample.problems for sample in samples)]).tolist()
    falls = []
    for begin, end in combinations(range(len(parts)), 2):
        before = _Sample(right[end] - right[begin], size[end] - size[begin])
        for last in range(end, len(parts)):
            fall = before.shift_to(_Sample(right[-1] - right[last], size[-1] - size[last]))
            falls.append(replace(fall, error=fall.error * excess.of(fall, start) ** 0.5))
    large = [fall for fall in falls if fall.gain <= -at.SUCCESS_DROP]
    return min(large or falls, key=lambda fall: fall.z)


def _excess(points: Sequence[Held], parts: Sequence[Sequence[Held]], variance: Callable[[Curve], float]) -> float:
    """The variance of evaluations relative to that of their problems, and where there are many of them, of windows
    relative to that of their evaluations as well: success may wander. `variance` is what the values show."""
    known = all(point.n for point in points)
    sampled = float(np.mean([_sampled(point) for point in points]))
    expected = sampled if known or len(points) > FEW else UNCERTAIN * sampled
    success = np.array([point.success for point in points])
    seen, count = variance(success), len(points) / 2 - 1
    if len(points) >= MANY:
        seen, count = max(seen, noise(success) ** 2), len(points) - 2
    if not known and count:
        seen *= 1 + STUDENT / count
    excess = max(expected, _mixed(expected, PRIOR if known else 1, seen, count)) / sampled
    if len(points) < 2 * WINDOWS:
        return excess
    means = np.array([np.mean([point.success for point in part]) for part in parts])
    sampled = excess * float(np.mean([np.mean([_sampled(point) for point in part]) / len(part) for part in parts]))
    return excess * max(1.0, _mixed(sampled, PRIOR, variance(means), len(means) / 2 - 1) / sampled)


def _sampled(point: Held) -> float:
    """The variance of an evaluation that is due to its problems."""
    share = (point.success * point.size + 1) / (point.size + 2)
    return share * (1 - share) / point.size


def _mixed(expected: float, prior: float, seen: float, count: float) -> float:
    """A variance from `count` differences and the expected one, as a few differences alone show it badly."""
    weight = prior * max(1.0, expected / MOVES**2) ** 2
    return (weight * expected + count * seen) / (weight + count)


def _of_neighbours(values: Curve) -> float:
    """The variance of a value, without the trend."""
    second_differences = values[2:] - 2 * values[1:-1] + values[:-2]
    return float(np.mean(second_differences**2)) / 6 if len(values) > 2 else 0.0


def _against_fall(values: Curve) -> float:
    """The same around a rise to the best and a fall from there, which may be steep; 0 for fewer than four values.

    Only moves the other way are noise for certain. The denominator is what the sum of their squares is on average for
    values that scatter by 1 around nothing.
    """
    if len(values) <= FEW:
        return 0.0
    moves, best = np.diff(values), int(np.argmax(values))
    against = np.r_[np.minimum(moves[:best], 0.0), np.maximum(moves[best:], 0.0)]
    return float(np.sum(against**2)) / (0.75 * (len(values) - 2.75))
