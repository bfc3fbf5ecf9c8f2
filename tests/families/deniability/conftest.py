"""Small random networks and tables."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from scipy import stats

from dpdist.families.base.network import Network, thresholds_from_weights
from dpdist.privacy.arrays import Codes


def _network(seed: int, cardinalities: Sequence[int], *, parents: int = 2) -> Network:
    random = np.random.default_rng(seed)
    m = len(cardinalities)
    order = tuple(int(i) for i in random.permutation(m))
    bucket_counts = tuple(int(random.integers(1, size + 1)) for size in cardinalities)
    maps = tuple(
        (random.permutation(size) % buckets).astype(np.uint32)
        for size, buckets in zip(cardinalities, bucket_counts, strict=True)
    )
    links: list[tuple[int, ...]] = [()] * m
    for position, i in enumerate(order):
        chosen = random.permutation(order[:position])[: int(random.integers(0, parents + 1))]
        links[i] = tuple(sorted(int(p) for p in chosen))
    thresholds = []
    for i in range(m):
        rows = int(np.prod([bucket_counts[p] for p in links[i]], dtype=int))
        thresholds.append(thresholds_from_weights(random.gamma(0.7, size=(rows, cardinalities[i])) + 0.02))
    return Network(tuple(cardinalities), maps, bucket_counts, tuple(links), order, tuple(thresholds))


@pytest.fixture(scope="session")
def random_network() -> Callable[..., Network]:
    """A network over attributes of the given cardinalities, drawn from the given seed."""
    return _network


@pytest.fixture(scope="session")
def random_codes() -> Callable[[int, Sequence[int], int], Codes]:
    """A table of n records in which the first values of each domain are the most frequent."""

    def make(seed: int, cardinalities: Sequence[int], rows: int) -> Codes:
        random = np.random.default_rng(seed)
        return [(size * random.random(rows) ** 2).astype(np.min_scalar_type(size - 1)) for size in cardinalities]

    return make


@pytest.fixture(scope="session")
def chi_square() -> Callable[[np.ndarray, np.ndarray], float]:
    """p-value of observed against expected counts; 0 where something impossible was observed."""

    def p_value(seen: np.ndarray, expected: np.ndarray) -> float:
        possible = expected > 1e-6
        if seen[~possible].any():
            return 0.0
        seen, expected = seen[possible], expected[possible]
        rare = expected < 10
        a, b = ([*counts[~rare], counts[rare].sum()] for counts in (seen, expected))
        terms = [(x - y) ** 2 / y for x, y in zip(a, b, strict=True) if y > 0]
        return float(stats.chi2.sf(sum(terms), len(terms) - 1))

    return p_value
