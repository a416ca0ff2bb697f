"""pass@k against the definition by enumeration, Wilson's interval against its defining equation and printed values."""

import itertools
import math
import random

import pytest

from outdo.metrics.estimate import mean_interval, paired_difference, pass_at_k, ratio_difference, wilson


def test_pass_at_k_by_enumeration():
    for n in range(1, 9):
        for c, k in itertools.product(range(n + 1), range(1, n + 1)):
            subsets = list(itertools.combinations([True] * c + [False] * (n - c), k))
            assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets), abs=1e-12), (n, c, k)


def test_pass_at_k_by_hand():
    assert pass_at_k(10, 3, 1) == pytest.approx(0.3)
    assert pass_at_k(10, 3, 10) == 1.0
    assert pass_at_k(10, 0, 10) == 0.0
    assert pass_at_k(5, 2, 2) == pytest.approx(0.7)  # 1 - C(3, 2) / C(5, 2)
    assert pass_at_k(5, 2, 2) != pytest.approx(1 - 0.6**2)  # the biased plug-in


def test_pass_at_k_many_samples():
    expected = 1 - math.comb(9_990, 100) / math.comb(10_000, 100)
    assert pass_at_k(10_000, 10, 100) == pytest.approx(expected, rel=1e-9)


def test_pass_at_k_is_unbiased():
    """The mean over all outcomes of n draws with success p is exactly 1 - (1 - p)^k."""
    n, k, p = 6, 3, 0.35
    mean = sum(math.comb(n, c) * p**c * (1 - p) ** (n - c) * pass_at_k(n, c, k) for c in range(n + 1))
    assert mean == pytest.approx(1 - (1 - p) ** k, abs=1e-12)


@pytest.mark.parametrize(("n", "c", "k"), [(5, 6, 1), (5, -1, 1), (5, 2, 0), (5, 2, 6), (0, 0, 1)])
def test_pass_at_k_refuses_bad_arguments(n, c, k):
    with pytest.raises(ValueError, match=rf"n={n}, c={c}, k={k}"):
        pass_at_k(n, c, k)


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [
        (5, 10, 0.236593, 0.763407),
        (0, 10, 0.0, 0.277540),  # z^2 / (n + z^2)
        (10, 10, 0.722460, 1.0),  # n / (n + z^2)
        (1, 1, 0.206543, 1.0),
        (81, 263, 0.255285, 0.366228),  # Newcombe (1998), table I: 0.2553 to 0.3662
        (15, 148, 0.062386, 0.160517),  # 0.0624 to 0.1605
        (1, 29, 0.006113, 0.171758),  # 0.0061 to 0.1718
    ],
)
def test_wilson_published_values(successes, n, low, high):
    assert wilson(successes, n) == (pytest.approx(low, abs=6e-5), pytest.approx(high, abs=6e-5))


@pytest.mark.parametrize(("successes", "n"), [(1, 3), (7, 9), (50, 100), (3, 1000), (999, 1000)])
@pytest.mark.parametrize("z", [1.0, 1.96, 2.576])
def test_wilson_definition(successes, n, z):
    """Its definition: the ends p solve |share - p| = z sqrt(p (1 - p) / n)."""
    low, high = wilson(successes, n, z)
    share = successes / n
    assert low < share < high
    for p in (low, high):
        assert abs(share - p) == pytest.approx(z * math.sqrt(p * (1 - p) / n), rel=1e-9)


def test_wilson_symmetric_and_bounded():
    for n in range(1, 40):
        for successes in range(n + 1):
            low, high = wilson(successes, n)
            mirrored = wilson(n - successes, n)
            assert 0.0 <= low < high <= 1.0
            assert (low, high) == (pytest.approx(1 - mirrored[1]), pytest.approx(1 - mirrored[0]))


@pytest.mark.parametrize(("successes", "n"), [(0, 0), (-1, 5), (6, 5)])
def test_wilson_refuses_bad_arguments(successes, n):
    with pytest.raises(ValueError, match=rf"successes={successes}, n={n}"):
        wilson(successes, n)


def test_mean_interval_of_binary_values():
    for right, n in ((0, 7), (3, 10), (7, 7), (1, 40)):
        assert mean_interval([1.0] * right + [0.0] * (n - right)) == pytest.approx(wilson(right, n))


def test_mean_interval_against_bootstrap():
    rng = random.Random(0)
    values = [pass_at_k(8, min(8, int(rng.betavariate(0.5, 1.5) * 9)), 4) for _ in range(300)]
    means = sorted(sum(rng.choices(values, k=300)) / 300 for _ in range(2000))
    low, high = mean_interval(values)
    assert (low, high) == (pytest.approx(means[50], abs=0.006), pytest.approx(means[-50], abs=0.006))
    flips_low, flips_high = wilson(round(sum(values)), 300)
    assert high - low < flips_high - flips_low  # problems that are half solved scatter less than coins


def test_mean_interval_of_equal_values():
    low, high = mean_interval([0.5] * 20)
    assert low < 0.35 and high > 0.65
    with pytest.raises(ValueError, match="all of them in"):
        mean_interval([0.5, 1.5])


def paired(both, new_only, old_only, neither):
    new = [1.0] * (both + new_only) + [0.0] * (old_only + neither)
    old = [1.0] * both + [0.0] * new_only + [1.0] * old_only + [0.0] * neither
    return paired_difference(new, old)


@pytest.mark.parametrize(
    ("table", "value", "low", "high"),
    [
        ((14, 5, 0, 22), 0.122, 0.011, 0.226),  # Altman et al., Statistics with Confidence (2000), table 6.2
        ((1, 1, 7, 12), -0.286, -0.507, -0.026),  # Fagerland et al. (2014), the data of Bentur et al.
    ],
)
def test_paired_difference_published_values(table, value, low, high):
    difference = paired(*table)
    assert (difference.value, difference.low, difference.high) == pytest.approx((value, low, high), abs=6e-4)
    assert not difference.is_noise and difference.n == sum(table)


def test_paired_difference_is_narrower():
    """11 more right of 100, and none lost: two intervals overlap, the paired one does not hold 0."""
    difference = paired(40, 11, 0, 49)
    assert wilson(51, 100)[0] < wilson(40, 100)[1] and difference.low > 0.04
    assert paired(40, 6, 5, 49).is_noise
    assert paired(30, 0, 0, 0).is_noise and paired(30, 0, 0, 0).high > 0.0  # no difference seen is not no difference


def test_paired_difference_coverage():
    rng, inside = random.Random(1), 0
    for _ in range(400):
        chances = [rng.betavariate(1, 2) for _ in range(120)]
        old = [float(rng.random() < p) for p in chances]
        new = [float(rng.random() < p + 0.1 * (1 - p)) for p in chances]
        difference = paired_difference(new, old)
        inside += difference.low <= 0.1 * 2 / 3 <= difference.high  # the mean of 1 - p is 2/3
    assert 0.92 <= inside / 400 <= 0.99


def test_ratio_difference():
    difference = ratio_difference([-1.0, -3.0, -2.0], [10, 10, 20])
    assert difference.value == pytest.approx(-0.15)
    scatter = (0.5**2 + 1.5**2 + 1.0**2) * 3 / 2
    assert difference.high - difference.value == pytest.approx(1.96 * math.sqrt(scatter) / 40)
    assert ratio_difference([-1.0], [10]).is_noise
