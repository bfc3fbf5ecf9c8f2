"""Pairwise dependence, and the searches for parents on it."""

import math
from collections import Counter
from itertools import combinations, product
from math import prod, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from releases import integer_schema

from dpdist.data.count import pair_counts
from dpdist.families.deniability.search import (
    _Paths,
    cfs_parents,
    dependence_parents,
    entropies,
    entropy_columns,
    merit,
    pair_distances,
    pair_matrix,
    symmetrical_uncertainty,
    topological_order,
    total_variation_sensitivity,
)

SIZES, WIDTHS = (6, 2, 5, 4), (2, 1, 3, 1)
SCHEMA = integer_schema(SIZES, WIDTHS)


@pytest.fixture(scope="module")
def records():
    """300 records of dependent codes."""
    random = np.random.default_rng(4)
    first = random.integers(0, 6, 300)
    columns = [first, first // 3, (first + random.integers(0, 2, 300)) % 5, random.integers(0, 4, 300)]
    return [column.astype(np.uint8) for column in columns]


def _entropy(rows) -> float:
    counts = Counter(rows)
    total = sum(counts.values())
    return -sum(c / total * math.log2(c / total) for c in counts.values())


def _view(records, i, coarse):
    return [int(v) // WIDTHS[i] if coarse else int(v) for v in records[i]]


def test_entropies_are_those_of_the_columns(records):
    values = entropies(pair_counts(records, SIZES), SCHEMA)
    columns = entropy_columns(SCHEMA)
    assert len(values) == len(columns) == len(set(columns))
    for value, key in zip(values, columns, strict=True):
        assert value == pytest.approx(_entropy(zip(*(_view(records, i, c) for i, c in key), strict=True)), abs=1e-12)


def test_an_attribute_whose_buckets_are_its_values_counts_once():
    # Attributes 0 and 2 have coarser buckets: 4 + 2 single entropies. Of the 6 pairs, one has none coarser (1 entropy),
    # four have one coarser (2 entropies), one has both coarser (3 entropies).
    assert len(entropy_columns(SCHEMA)) == 6 + 1 * 1 + 4 * 2 + 1 * 3


def test_entropies_of_no_record_are_zero():
    empty = pair_counts([np.zeros(0, np.uint8)] * 4, SIZES)
    assert not entropies(empty, SCHEMA).any()
    assert not pair_distances(empty, SCHEMA).any()


def test_correlations_follow_their_formulas(records):
    values = entropies(pair_counts(records, SIZES), SCHEMA)
    child, between = symmetrical_uncertainty(values, SCHEMA)
    for i, j in product(range(4), repeat=2):
        if i == j:
            assert child[i, j] == between[i, j] == 0
            continue
        x, b, bx = _view(records, i, False), _view(records, j, True), _view(records, i, True)
        mutual = _entropy(x) + _entropy(b) - _entropy(zip(x, b, strict=True))
        assert child[i, j] == pytest.approx(2 * mutual / (_entropy(x) + _entropy(b)), abs=1e-12)
        mutual = _entropy(bx) + _entropy(b) - _entropy(zip(bx, b, strict=True))
        assert between[i, j] == pytest.approx(2 * mutual / (_entropy(bx) + _entropy(b)), abs=1e-12)


def test_noisy_correlations_are_clipped():
    columns = entropy_columns(SCHEMA)
    for single, pair in ((1.0, 5.0), (1.0, -5.0), (-1.0, 0.0)):
        values = [single if len(key) == 1 else pair for key in columns]
        child, between = symmetrical_uncertainty(values, SCHEMA)
        for matrix in (child, between):
            assert set(matrix[~np.eye(4, dtype=bool)]) == {1.0 if pair < -1 else 0.0}


def test_distances_are_those_of_the_bucketised_pairs(records):
    values = pair_distances(pair_counts(records, SIZES), SCHEMA)
    for value, (i, j) in zip(values, combinations(range(4), 2), strict=True):
        x, y = _view(records, i, True), _view(records, j, True)
        joint, left, right = Counter(zip(x, y, strict=True)), Counter(x), Counter(y)
        n = len(x)
        expected = sum(abs(joint[a, b] / n - left[a] * right[b] / n**2) for a in left for b in right) / 2
        assert value == pytest.approx(expected, abs=1e-14)
    matrix = pair_matrix(values, 4)
    np.testing.assert_array_equal(matrix, matrix.T)
    assert matrix[1, 3] == values[4]
    assert not np.diag(matrix).any()


def _tables(cells: int, n: int):
    """All ways to put n records in the cells."""
    if cells == 1:
        yield (n,)
        return
    for first in range(n + 1):
        for rest in _tables(cells - 1, n - first):
            yield (first, *rest)


def _distance(table: np.ndarray) -> np.ndarray:
    joint = table / table.sum(axis=(-2, -1), keepdims=True)
    return 0.5 * np.abs(joint - joint.sum(-1, keepdims=True) * joint.sum(-2, keepdims=True)).sum(axis=(-2, -1))


@pytest.mark.parametrize(("shape", "largest"), [((2, 2), 12), ((2, 3), 7), ((3, 3), 5)])
def test_no_table_exceeds_the_sensitivity_of_the_distance(shape, largest):
    cells = shape[0] * shape[1]
    for n in range(2, largest + 1):
        before = np.array(list(_tables(cells, n - 1)), float).reshape(-1, *shape)
        base = _distance(before)
        change = 0.0
        for cell in range(cells):
            after = before.copy()
            after.reshape(-1, cells)[:, cell] += 1
            change = max(change, float(np.abs(_distance(after) - base).max()))
        assert change <= total_variation_sensitivity(n)
        assert change >= 2 * (n - 1) / n**2 - 1e-12  # one record against all others in another cell


def test_the_distance_comes_near_its_sensitivity():
    """A nearly diagonal table, with a small independent row and column: the new record meets them."""
    k, row, n = 400, 1_000.0, 10**8
    table = np.zeros((k + 1, k + 1))
    side = n / k
    table[np.arange(k), np.arange(k)] = side
    table[k, :k] = table[:k, k] = row
    after = table.copy()
    after[k, k] += 1
    change = float(_distance(table) - _distance(after))
    assert 0.9 * total_variation_sensitivity(int(after.sum())) < change <= total_variation_sensitivity(int(after.sum()))


def _correlations(seed: int, m: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    child, between = random.random((m, m)), random.random((m, m))
    between = np.maximum(between, between.T)
    np.fill_diagonal(child, 0)
    np.fill_diagonal(between, 0)
    return child, between


def test_merit_is_the_published_score():
    child, between = _correlations(0, 5)
    assert merit(child, between, 2, []) == 0
    assert merit(child, between, 2, [4]) == pytest.approx(child[2, 4])
    chosen = [0, 1, 3]
    inner = sum(between[j, k] for j in chosen for k in chosen if j != k)
    assert merit(child, between, 2, chosen) == pytest.approx(sum(child[2, j] for j in chosen) / sqrt(3 + inner))


def test_cfs_adds_the_best_parent_while_the_merit_grows():
    child, between = _correlations(1, 6)
    parents = cfs_parents(child, between, sequence=range(6), admissible=lambda i, chosen: True)
    chosen: list[int] = []  # the first attribute chooses freely
    while True:
        scores = {j: merit(child, between, 0, [*chosen, j]) for j in range(1, 6) if j not in chosen}
        best = max(scores, key=lambda j: (scores[j], -j), default=None)
        if best is None or scores[best] <= merit(child, between, 0, chosen):
            break
        chosen.append(best)
    assert parents[0] == sorted(chosen)


def test_ties_go_to_the_first_attribute():
    parents = cfs_parents(np.full((3, 3), 0.5), np.ones((3, 3)), sequence=(1, 0, 2), admissible=lambda i, chosen: True)
    assert parents == [[2], [0], []]  # 1 takes 0; 0 takes 2, as 1 would close a cycle


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 7), st.integers(1, 200), st.booleans())
def test_searches_keep_their_limits_and_make_no_cycle(seed, m, limit, cfs):
    random = np.random.default_rng(seed)
    sizes = random.integers(1, 9, m).tolist()

    def admissible(i, chosen):
        return prod(sizes[p] for p in chosen) <= limit

    def search():
        child, between = _correlations(seed, m)
        if cfs:
            return cfs_parents(child, between, sequence=range(m), admissible=admissible)
        dependence = np.maximum(child, child.T)
        return dependence_parents(
            dependence,
            np.minimum(child, dependence),
            cardinalities=sizes,
            bucket_counts=sizes,
            relative_noise=10.0 ** -random.integers(1, 8),
            admissible=admissible,
        )

    random = np.random.default_rng(seed + 1)
    parents = search()
    order = topological_order(parents, sizes)
    assert sorted(order) == list(range(len(parents)))
    assert all(order.index(p) < order.index(i) for i, chosen in enumerate(parents) for p in chosen)
    assert all(admissible(i, chosen) for i, chosen in enumerate(parents))
    random = np.random.default_rng(seed + 1)
    assert search() == parents


def _chain(m: int, information: float) -> np.ndarray:
    """Mutual information of a Gaussian chain."""
    r = sqrt(-np.expm1(-2 * information))
    distance = np.abs(np.subtract.outer(np.arange(m), np.arange(m)))
    result = -0.5 * np.log1p(-np.minimum(r ** (2.0 * distance), 1 - 1e-9))
    np.fill_diagonal(result, 0)
    return result


def _dependence(information: np.ndarray, noise: float) -> list[list[int]]:
    m = len(information)
    return dependence_parents(
        information,
        information,
        cardinalities=[10] * m,
        bucket_counts=[10] * m,
        relative_noise=noise,
        admissible=lambda i, chosen: True,
    )


def best_paths(parents: list[list[int]], correlation: np.ndarray) -> np.ndarray:
    """The best path between each two attributes, from scratch in topological order."""
    path, before = np.eye(len(parents)), []
    for i in topological_order(parents, range(len(parents))):
        for x in before if parents[i] else []:
            path[i, x] = path[x, i] = max(correlation[i, p] * path[p, x] for p in parents[i])
        before.append(i)
    return path


def grown(parents: list[list[int]], correlation: np.ndarray, dependence: np.ndarray | None = None) -> _Paths:
    paths = _Paths(np.zeros_like(correlation) if dependence is None else dependence, correlation)
    for i, chosen in enumerate(parents):
        for p in chosen:
            paths.add(i, p)
    return paths


@pytest.mark.parametrize("seed", range(20))
def test_paths_grow_as_they_are_found_from_scratch(seed: int) -> None:
    rng = np.random.default_rng(seed)
    m = int(rng.integers(2, 9))
    order = rng.permutation(m)
    parents: list[list[int]] = [[] for _ in range(m)]
    for place, i in enumerate(order):
        parents[i] = sorted(rng.permutation(order[:place])[: rng.integers(0, 4)].tolist())
    correlation = rng.uniform(0.1, 0.95, (m, m))
    dependence = rng.gamma(0.5, 0.5, (m, m))
    dependence = np.triu(dependence, 1) + np.triu(dependence, 1).T
    paths = grown(parents, correlation, dependence)
    np.testing.assert_allclose(paths.best, best_paths(parents, correlation), rtol=1e-12)

    def error(chosen: list[list[int]]) -> float:
        carried = -0.5 * np.log1p(-np.minimum(best_paths(chosen, correlation) ** 2, 1 - 1e-12))
        return float(np.sqrt(np.maximum(np.triu(dependence - carried, 1), 0) / np.pi).sum())

    for i in range(m):
        for j in range(m):
            if i != j and not paths.down[j, i] and j not in parents[i]:
                more = [[*chosen, j] if k == i else chosen for k, chosen in enumerate(parents)]
                assert paths.gain(i, j) == pytest.approx(error(parents) - error(more), abs=1e-12)


def test_a_chain_is_found_and_carries_all_pairs():
    parents = _dependence(_chain(6, 0.2), noise=1e-5)
    edges = {frozenset((i, p)) for i, chosen in enumerate(parents) for p in chosen}
    assert edges == {frozenset((i, i + 1)) for i in range(5)}
    chain = [[i - 1] if i else [] for i in range(6)]
    best = grown(chain, np.sqrt(-np.expm1(-2 * _chain(6, 0.2)))).best
    np.testing.assert_allclose(-0.5 * np.log1p(-(best**2) * (1 - np.eye(6))), _chain(6, 0.2), atol=1e-9)


def test_a_common_child_carries_nothing_between_its_parents():
    correlation = np.full((3, 3), 0.5)
    best = grown([[], [], [0, 1]], correlation).best
    assert best[0, 1] == 0
    assert best[0, 2] == best[1, 2] == 0.5


def test_more_noise_keeps_fewer_parents():
    information = _chain(6, 0.3)
    edges = [sum(map(len, _dependence(information, noise))) for noise in (1e-6, 1e-4, 1e-3, 1.0)]
    assert edges == sorted(edges, reverse=True)
    assert edges[-1] == 0


def test_parents_seen_through_coarse_buckets_are_avoided():
    information = np.array([[0.0, 0.3], [0.3, 0.0]])
    seen = information * np.array([0.9, 1.0])  # attribute 0 has coarse buckets
    parents = dependence_parents(
        information,
        seen,
        cardinalities=[10, 10],
        bucket_counts=[5, 5],
        relative_noise=1e-6,
        admissible=lambda i, chosen: True,
    )
    assert parents == [[1], []]


def test_topological_order_takes_the_least_priority_among_the_free():
    parents = [[2], [], [], [1]]
    assert topological_order(parents, [1, 5, 9, 2]) == (1, 3, 2, 0)
    assert topological_order(parents, range(4)) == (1, 2, 0, 3)
    assert topological_order([[], [], []], [3, 3, 1]) == (2, 0, 1)
