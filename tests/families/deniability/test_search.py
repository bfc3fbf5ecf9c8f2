"""The parent searches: formulas, limits, and graphs without cycles."""

from __future__ import annotations

from math import prod, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpdist.families.base.network import check_order
from dpdist.families.deniability.search import _Paths, cfs_parents, dependence_parents, merit, topological_order


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
    parents = cfs_parents(child, between, turns=range(6), admissible=lambda i, chosen: True)
    chosen: list[int] = []  # the first attribute chooses freely
    while True:
        scores = {j: merit(child, between, 0, [*chosen, j]) for j in range(1, 6) if j not in chosen}
        best = max(scores, key=lambda j: (scores[j], -j), default=None)
        if best is None or scores[best] <= merit(child, between, 0, chosen):
            break
        chosen.append(best)
    assert parents[0] == sorted(chosen)


def test_ties_go_to_the_first_attribute():
    parents = cfs_parents(np.full((3, 3), 0.5), np.ones((3, 3)), turns=(1, 0, 2), admissible=lambda i, chosen: True)
    assert parents == [[2], [0], []]  # 1 takes 0; 0 takes 2, as 1 would close a cycle


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 7), st.integers(1, 200), st.booleans())
def test_searches_keep_their_limits_and_make_no_cycle(seed, m, limit, cfs):
    random = np.random.default_rng(seed)
    sizes = random.integers(1, 9, m).tolist()

    def admissible(i, chosen):
        return prod(sizes[p] for p in chosen) <= limit

    def search():
        child, between = _correlations(seed, m)
        if cfs:
            return cfs_parents(child, between, turns=range(m), admissible=admissible)
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
    check_order(parents, order)
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


def test_a_cycle_has_no_order():
    with pytest.raises(ValueError, match="cycle"):
        topological_order([[1], [0]], [0, 0])
