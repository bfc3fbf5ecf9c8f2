"""Sensitivities against exhaustive enumeration of all small tables."""

import math
from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest

from dpdist.errors import AccountingError
from dpdist.privacy import sensitivity

ORDERS = [0.3, 0.5, 0.9, 1, 1.1, 1.5, 2, 3, 5, 10]
ADJACENCIES = ["add/remove", "replacement"]


def partitions(n: int, largest: int) -> Iterator[tuple[int, ...]]:
    """All ways to share n records among bins, up to order."""
    if n == 0:
        yield ()
    for first in range(min(n, largest), 0, -1):
        for rest in partitions(n - first, first):
            yield (first, *rest)


def entropy(counts: tuple[int, ...], order: float) -> float:
    c = np.array([count for count in counts if count], dtype=float)
    if not len(c):
        return 0.0
    p = c / c.sum()
    return float(-(p * np.log2(p)).sum() if order == 1 else np.log2((p**order).sum()) / (1 - order))


@cache
def change(n: int, order: float, adjacency: str) -> float:
    """Largest change of the entropy over all tables of n records and all neighbours of at most n records."""
    largest = 0.0
    for counts in partitions(n, n):
        before = entropy(counts, order)
        for leaving in set(counts):
            rest = list(counts)
            rest[rest.index(leaving)] -= 1
            if adjacency == "add/remove":
                largest = max(largest, abs(entropy(tuple(rest), order) - before))
                continue
            for joined in {*rest, 0}:
                moved = [*rest, 0]
                moved[moved.index(joined)] += 1
                largest = max(largest, abs(entropy(tuple(moved), order) - before))
    return largest


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("order", ORDERS)
def test_exact_sensitivity_is_never_exceeded_and_attained(order: float, adjacency: str) -> None:
    for n in range(2, 15):
        bound = sensitivity.renyi(n, order=order, adjacency=adjacency)
        assert change(n, order, adjacency) <= bound
        assert change(n, order, adjacency) == pytest.approx(bound, rel=1e-9)


def test_shannon_is_attained_by_one_record_alone_in_its_bin() -> None:
    for n in (2, 3, 10, 1000, 10**6):
        alone = entropy((n - 1, 1), 1)
        assert alone <= sensitivity.shannon(n) * (1 + 1e-9)
        assert alone == pytest.approx(sensitivity.shannon(n), rel=1e-6)


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("order", [0.05, 0.7, 1.001, 1.01, 1.5, 2, 3.3, 10])
def test_search_finds_the_extremes_over_all_counts(order: float, adjacency: str) -> None:
    for n in (30, 9000, 30_000):
        moved, c = adjacency == "replacement", np.arange(n, dtype=float)
        smaller = n if moved else n - 1
        growth = np.log2(((c + 1) ** order + smaller - c - moved) / (c**order + smaller - c))
        if moved:
            expected = growth.max() if order > 1 else math.log2(((n - 1) ** order + 1) / n**order)
        else:
            r, alone = order * math.log2(n / smaller), math.log2(1 + float(smaller) ** -order)
            expected = max(growth.max() - r, r - alone) if order > 1 else max(alone - r, r - growth.min())
        bound = sensitivity.renyi(n, order=order, adjacency=adjacency)
        assert bound == pytest.approx(expected / abs(order - 1), rel=1e-6)


def test_theory_values_of_the_false_bound() -> None:
    assert sensitivity.renyi(10_000, order=2, adjacency="replacement") == pytest.approx(0.0144, rel=5e-3)
    assert sensitivity.renyi(10_000, order=10, adjacency="replacement") == pytest.approx(0.44, rel=1e-2)
    assert sensitivity.renyi_published(10_000, order=2) == pytest.approx(0.00058, rel=1e-2)
    assert sensitivity.renyi_published(10_000, order=10) == pytest.approx(0.00032, rel=1e-2)
    assert change(12, 2, "replacement") < sensitivity.renyi_published(12, order=2)  # small n hide it
    large = entropy((101, *(1,) * 9899), 2), entropy((100, *(1,) * 9900), 2)
    assert abs(large[0] - large[1]) > 20 * sensitivity.renyi_published(10_000, order=2)


def test_published_shannon_bound_is_valid_and_twice_too_large() -> None:
    for n in range(2, 15):
        assert change(n, 1, "add/remove") <= sensitivity.shannon_published(n)
    assert 1.9 < sensitivity.shannon_published(10**6) / sensitivity.shannon(10**6) < 2.1


def test_shannon_falls_with_the_size() -> None:
    values = [sensitivity.shannon(n) for n in (*range(2, 500), 10**4, 10**6, 10**9)]
    assert values == sorted(values, reverse=True)


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("order", [0.3, 0.9, 1, 1.5, 2, 5, 10, 60])
def test_sensitivity_from_a_lower_bound_covers_all_larger_sizes(order: float, adjacency: str) -> None:
    sizes = [*range(2, 200), 500, 10_000]
    exact = [sensitivity.renyi(n, order=order, adjacency=adjacency) for n in sizes]
    for low in (2, 4, 7, 50, 199):
        bound = sensitivity.renyi_from(low, order=order, adjacency=adjacency)
        assert bound >= max(exact[sizes.index(low) :])
        if low < 50:
            assert bound == pytest.approx(max(exact[sizes.index(low) :]), rel=1e-6)


def test_order_ten_does_not_fall_with_the_size() -> None:
    four, seven = (sensitivity.renyi(n, order=10) for n in (4, 7))
    assert four < seven <= sensitivity.renyi_from(4, order=10)


def test_a_billion_records_are_quick_and_finite() -> None:
    for order in (0.3, 1, 1.5, 2, 60):
        for adjacency in ADJACENCIES:
            assert 0 < sensitivity.renyi(10**9, order=order, adjacency=adjacency) < 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sensitivity.shannon(0), "at least 1"),
        (lambda: sensitivity.renyi(10, order=0), "order"),
        (lambda: sensitivity.renyi(10, order=1 + 1e-9), "order"),
        (lambda: sensitivity.renyi(10, order=100), "order"),
    ],
)
def test_bad_input(call, message: str) -> None:
    with pytest.raises(AccountingError, match=message):
        call()
