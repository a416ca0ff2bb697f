"""pass@k against the definition by enumeration, Wilson's interval against its defining equation and printed values."""

import itertools
import math

import pytest

from outdo.evals.estimate import pass_at_k, wilson


def test_pass_at_k_is_the_share_of_subsets_with_a_right_answer():
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


def test_pass_at_k_is_exact_for_many_samples():
    expected = 1 - math.comb(9_990, 100) / math.comb(10_000, 100)
    assert pass_at_k(10_000, 10, 100) == pytest.approx(expected, rel=1e-9)


def test_pass_at_k_is_unbiased():
    """The mean over all outcomes of n draws with success p is exactly 1 - (1 - p)^k."""
    n, k, p = 6, 3, 0.35
    mean = sum(math.comb(n, c) * p**c * (1 - p) ** (n - c) * pass_at_k(n, c, k) for c in range(n + 1))
    assert mean == pytest.approx(1 - (1 - p) ** k, abs=1e-12)


@pytest.mark.parametrize(("n", "c", "k"), [(5, 6, 1), (5, -1, 1), (5, 2, 0), (5, 2, 6), (0, 0, 1)])
def test_pass_at_k_refuses_what_cannot_be(n, c, k):
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
def test_wilson_by_hand_and_in_print(successes, n, low, high):
    assert wilson(successes, n) == (pytest.approx(low, abs=6e-5), pytest.approx(high, abs=6e-5))


@pytest.mark.parametrize(("successes", "n"), [(1, 3), (7, 9), (50, 100), (3, 1000), (999, 1000)])
@pytest.mark.parametrize("z", [1.0, 1.96, 2.576])
def test_wilson_ends_are_z_standard_errors_from_the_share(successes, n, z):
    """Its definition: the ends p solve |share - p| = z sqrt(p (1 - p) / n)."""
    low, high = wilson(successes, n, z)
    share = successes / n
    assert low < share < high
    for p in (low, high):
        assert abs(share - p) == pytest.approx(z * math.sqrt(p * (1 - p) / n), rel=1e-9)


def test_wilson_is_symmetric_and_inside_0_and_1():
    for n in range(1, 40):
        for successes in range(n + 1):
            low, high = wilson(successes, n)
            mirrored = wilson(n - successes, n)
            assert 0.0 <= low < high <= 1.0
            assert (low, high) == (pytest.approx(1 - mirrored[1]), pytest.approx(1 - mirrored[0]))


@pytest.mark.parametrize(("successes", "n"), [(0, 0), (-1, 5), (6, 5)])
def test_wilson_refuses_what_cannot_be(successes, n):
    with pytest.raises(ValueError, match=rf"successes={successes}, n={n}"):
        wilson(successes, n)
