"""What a handful of samples says about a model: pass@k without bias, and how far to trust a share."""

from __future__ import annotations

import math


def pass_at_k(n: int, c: int, k: int) -> float:
    """The chance that at least one of k answers is right, from n samples of which c were: 1 - C(n-c, k) / C(n, k).

    The unbiased estimator of Chen et al. (2021). Raises ValueError unless 0 <= c <= n and 1 <= k <= n.
    """
    if not 0 <= c <= n or not 1 <= k <= n:
        raise ValueError(f"pass_at_k(n={n}, c={c}, k={k}): needs 0 <= c <= n and 1 <= k <= n")
    if n - c < k:
        return 1.0
    return 1.0 - math.prod(1.0 - k / i for i in range(n - c + 1, n + 1))


def wilson(successes: int, n: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's interval for a share, 95% unless told: sane at 0, at 1 and for small n."""
    if not 0 <= successes <= n or n < 1:
        raise ValueError(f"wilson(successes={successes}, n={n}): needs 0 <= successes <= n and n >= 1")
    share = successes / n
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    high = 1.0 if successes == n else min(1.0, centre + half)
    return low, high
