"""Estimators from samples: unbiased pass@k, and intervals of a share and of a difference.

Intervals are 95% by default. The unit is the problem: answers to the same problem are not independent.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Z = 1.96
Interval = Callable[[Sequence[float], float], tuple[float, float]]  # of a mean, from a value for each problem


def pass_at_k(n: int, c: int, k: int) -> float:
    """The chance that at least one of k answers is right, from n samples with c right: 1 - C(n-c, k) / C(n, k).

    The unbiased estimator of Chen et al. (2021). Raises ValueError unless 0 <= c <= n and 1 <= k <= n.
    """
    if not 0 <= c <= n or not 1 <= k <= n:
        raise ValueError(f"pass_at_k(n={n}, c={c}, k={k}): needs 0 <= c <= n and 1 <= k <= n")
    if n - c < k:
        return 1.0
    return 1.0 - math.prod(1.0 - k / i for i in range(n - c + 1, n + 1))


def format_share(value: float | None) -> str:
    """Success or pass@k as tables and pages show it."""
    return "–" if value is None else f"{value:.3f}"


def wilson(successes: int, n: int, z: float = Z) -> tuple[float, float]:
    """Wilson's interval for a share: valid at 0, at 1 and for small n."""
    if not 0 <= successes <= n or n < 1:
        raise ValueError(f"wilson(successes={successes}, n={n}): needs 0 <= successes <= n and n >= 1")
    return _score(successes / n, n, z)


def share_interval(share: float, n: int, z: float = Z) -> tuple[float, float]:
    """Wilson's interval of a share that n problems may not be able to have, such as 0.5 of 7."""
    return _score(share, n, z)


def mean_interval(values: Sequence[float], z: float = Z) -> tuple[float, float]:
    """For the mean of values in [0, 1], one for each problem, such as its pass@k.

    Wilson's interval with the number of coin flips that has the variance of the values: for values of 0 and 1 it is
    Wilson's own, and for equal values it still has a width.
    """
    if not values or not all(0.0 <= value <= 1.0 for value in values):
        raise ValueError(f"mean_interval of {len(values)} values: needs at least one, all of them in [0, 1]")
    n, mean = len(values), math.fsum(values) / len(values)
    flip_variance, variance = mean * (1.0 - mean), math.fsum((value - mean) ** 2 for value in values) / n
    return _score(mean, n * min(MAX_FLIPS, flip_variance / variance) if variance > 0.0 else n, z)


def reward_interval(values: Sequence[float], z: float = Z) -> tuple[float, float]:
    """For the mean of rewards, one for each problem: `mean_interval` on the scale of the rewards. Of rewards of 0 and 1
    it is Wilson's; it never leaves the range of what was paid, or 0 to 1 where that is wider.

    Where all are equal, as many problems as Wilson allows may be paid the least or the most of that range instead.
    """
    low, width = _scale(values)
    if len(set(values)) == 1:
        unseen = wilson(0, len(values), z)[1]
        return values[0] - unseen * (values[0] - low), values[0] + unseen * (low + width - values[0])
    down, up = mean_interval([_scaled(value, low, width) for value in values], z)
    return low + width * down, low + width * up


def _scale(values: Sequence[float]) -> tuple[float, float]:
    """The least of the range and its width: 0 to 1, or further where a value lies outside."""
    if not values or not all(map(math.isfinite, values)):
        raise ValueError(f"an interval of {len(values)} rewards: needs at least one, all of them finite")
    low = min(0.0, *values)
    return low, max(1.0, *values) - low


def _scaled(value: float, low: float, width: float) -> float:
    return min(1.0, max(0.0, (value - low) / width))


MAX_FLIPS = 1000.0  # that one problem counts for: beyond it the interval has no width to three decimals


def _score(share: float, n: float, z: float) -> tuple[float, float]:
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    low = 0.0 if share == 0.0 else max(0.0, centre - half)
    high = 1.0 if share == 1.0 else min(1.0, centre + half)
    return low, high


# Student's t at 97.5%, by degrees of freedom.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)


def t_quantile(freedom: int) -> float:
    """97.5% of Student's t; beyond the table by its expansion around the normal's, exact to three digits there."""
    if freedom <= len(_T):
        return _T[freedom - 1]
    z = 1.959964
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def t_interval(values: Sequence[float]) -> tuple[float, float]:
    """Of the mean of a few values. One value has no variance: its interval is unbounded."""
    if len(values) < 2:
        return -math.inf, math.inf
    half = t_quantile(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return statistics.fmean(values) - half, statistics.fmean(values) + half


@dataclass(frozen=True)
class Difference:
    """The mean difference of two models on the same problems, with its interval."""

    n: int
    value: float
    low: float
    high: float

    @property
    def is_noise(self) -> bool:
        """True where the interval contains 0."""
        return self.low <= 0.0 <= self.high


def paired_difference(
    new: Sequence[float], old: Sequence[float], z: float = Z, interval: Interval = mean_interval
) -> Difference:
    """Mean of `new` minus mean of `old`, values in [0, 1] paired by problem.

    Newcombe's square-and-add interval (1998, method 10): the two means' own intervals, corrected for their
    correlation. For values of 0 and 1 it is his; for pass@k it uses `mean_interval`.
    """
    n, a, b = len(new), math.fsum(new) / len(new), math.fsum(old) / len(old)
    (low_a, high_a), (low_b, high_b) = interval(new, z), interval(old, z)
    covariance = math.fsum((x - a) * (y - b) for x, y in zip(new, old, strict=True)) / n
    covariance = max(0.0, covariance - 0.5 / n) if covariance > 0 else covariance
    spread = math.sqrt(math.fsum((x - a) ** 2 for x in new) * math.fsum((y - b) ** 2 for y in old)) / n
    r = covariance / spread if spread > 0 else 0.0
    down, up = (a - low_a, high_b - b), (high_a - a, b - low_b)
    reach = [math.sqrt(max(0.0, x * x - 2 * r * x * y + y * y)) for x, y in (down, up)]
    return Difference(n, a - b, a - b - reach[0], a - b + reach[1])


def mcnemar(gained: int, lost: int) -> float:
    """McNemar's test on paired yes and no answers: the two-sided p-value of so uneven a split of those that changed,
    if either way were as likely. Exact up to a thousand changes, beyond that by the normal approximation."""
    n = gained + lost
    if n > 1000:
        return math.erfc(max(0, abs(gained - lost) - 1) / math.sqrt(2 * n))
    tail = sum(math.comb(n, i) for i in range(min(gained, lost) + 1))
    return min(1.0, 2 * tail / 2**n)


def paired_rewards(new: Sequence[float], old: Sequence[float], z: float = Z) -> Difference:
    """`paired_difference` of rewards, which may lie outside of 0 to 1."""
    return paired_difference(new, old, z, reward_interval)


def ratio_difference(sums: Sequence[float], counts: Sequence[int], z: float = Z) -> Difference:
    """A mean over all tokens, from each text's sum and number of tokens. Texts are the unit: tokens of one text are not
    independent. One text alone has no variance: its interval is unbounded."""
    n, total = len(sums), sum(counts)
    mean = math.fsum(sums) / total
    if n < 2:
        return Difference(n, mean, -math.inf, math.inf)
    squares = math.fsum((s - mean * c) ** 2 for s, c in zip(sums, counts, strict=True))
    half = z * math.sqrt(squares * n / (n - 1)) / total
    return Difference(n, mean, mean - half, mean + half)
