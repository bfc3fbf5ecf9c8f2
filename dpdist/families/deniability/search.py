"""Choosing the parents of every attribute from pairwise dependence: acyclic, greedy and deterministic.

Two searches. `cfs_parents` is the published one: correlation-based feature selection, attribute by attribute (PD
section 3.3). `dependence_parents` chooses the edge that lowers most the expected error of all two-way marginals: the
dependence that the network does not yet carry, plus the noise that larger count tables bring.

Both see released statistics only, so whatever they do costs no privacy.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from math import sqrt
from typing import Any

import numpy as np

from dpdist.privacy.arrays import AnyFloats

Parents = list[list[int]]
Admissible = Callable[[int, Sequence[int]], bool]
"""Whether an attribute may have these parents."""

NOISE_SHARE = sqrt(2 / np.pi) / 2
"""Half of the mean absolute value of a standard Gaussian: what a noisy cell adds to a total variation distance."""

_LEAST_GAIN = 1e-12


def merit(child: AnyFloats, between: AnyFloats, i: int, parents: Sequence[int]) -> float:
    """Merit score of a set of parents (PD section 3.3, after Hall 1999).

    ``sum_j u(x_i, b_j) / sqrt(|P| + sum_{j != l} u(b_j, b_l))``: parents that tell much about the attribute and little
    about each other. `child`, float64[m, m], is the correlation of attribute i (row) with the buckets of attribute j
    (column), `between` that of the buckets of two attributes; both in [0, 1].
    """
    if not parents:
        return 0.0
    chosen = list(parents)
    inner = between[np.ix_(chosen, chosen)]
    return float(child[i, chosen].sum() / sqrt(len(chosen) + inner.sum() - np.trace(inner)))


def cfs_parents(child: AnyFloats, between: AnyFloats, *, turns: Sequence[int], admissible: Admissible) -> Parents:
    """Parents by correlation-based feature selection, from the correlations of `merit`.

    The attributes choose in the order of `turns`. Each adds, one at a time, the parent that raises its merit most, as
    long as one does, the graph stays acyclic and the parents are admissible. Ties go to the first attribute.
    """
    parents: Parents = [[] for _ in turns]
    for i in turns:
        best = 0.0
        while True:
            found = -1
            for j in range(len(parents)):
                if j == i or j in parents[i] or not admissible(i, [*parents[i], j]) or _reaches(parents, j, i):
                    continue
                score = merit(child, between, i, [*parents[i], j])
                if score > best + _LEAST_GAIN:
                    best, found = score, j
            if found < 0:
                break
            parents[i].append(found)
    return [sorted(chosen) for chosen in parents]


def dependence_parents(
    dependence: AnyFloats,
    seen: AnyFloats,
    *,
    cardinalities: Sequence[int],
    bucket_counts: Sequence[int],
    relative_noise: float,
    admissible: Admissible,
) -> Parents:
    """Parents that lower the expected error of all two-way marginals, edge by edge.

    A weak dependence of mutual information I (nats) moves a pair's cells by about ``sqrt(2 I)`` relative standard
    deviations, a total variation distance of ``sqrt(I / pi)`` from independence. Of that the network carries what the
    best path between the two attributes does: a child sees a parent through its buckets, and along a path the
    correlations ``r^2 = 1 - e^{-2 I}`` multiply. An edge also multiplies the cells of its child's table, whose noise
    spreads over all pairs of that attribute. The edge with the largest gain is added while there is one. Ties go to the
    first edge.

    `dependence`, float64[m, m], is the mutual information of each pair in nats, `seen` that of attribute i (row) with
    the buckets of attribute j (column); `relative_noise` the deviation of the noise in a cell of the count tables as a
    share of all records counted.
    """
    m = len(dependence)
    parents: Parents = [[] for _ in range(m)]
    correlation = np.sqrt(-np.expm1(-2 * np.maximum(seen, 0.0)))

    def noise(i: int, chosen: Sequence[int]) -> float:
        configurations = float(np.prod([bucket_counts[p] for p in chosen], dtype=float))
        spread = sum(sqrt(bucket_counts[p]) for p in chosen) + (m - 1 - len(chosen))
        return NOISE_SHARE * relative_noise * cardinalities[i] * sqrt(configurations) * spread

    def error() -> float:
        left = np.triu(dependence - _carried(parents, correlation), 1)
        pairs = np.sqrt(np.maximum(left, 0.0) / np.pi)
        return float(pairs.sum()) + sum(noise(i, chosen) for i, chosen in enumerate(parents))

    _add_best_edges(parents, error, admissible)
    return [sorted(chosen) for chosen in parents]


def _add_best_edges(parents: Parents, error: Callable[[], float], admissible: Admissible) -> None:
    """Add the edge that lowers the error most, in place, while there is one.

    Gains hardly ever grow, so an edge whose recomputed gain still leads the stale ones is the best.
    """
    m, current = len(parents), error()

    def gain(i: int, j: int) -> float:
        parents[i].append(j)
        after = error()
        parents[i].pop()
        return current - after

    queue = [(-gain(i, j), i, j) for i in range(m) for j in range(m) if i != j and admissible(i, [j])]
    heapq.heapify(queue)
    while queue:
        _, i, j = heapq.heappop(queue)
        if not admissible(i, [*parents[i], j]) or _reaches(parents, j, i):
            continue  # and so it stays
        fresh = gain(i, j)
        if fresh <= _LEAST_GAIN:
            continue
        if queue and (-fresh, i, j) > queue[0]:
            heapq.heappush(queue, (-fresh, i, j))
            continue
        parents[i].append(j)
        current -= fresh


def _carried(parents: Parents, correlation: AnyFloats) -> AnyFloats:
    """Mutual information (nats) of each pair along its best path through the parents."""
    m = len(parents)
    path = np.eye(m)
    before: list[int] = []
    for i in topological_order(parents, range(m)):
        chosen = parents[i]
        if chosen:
            reach = np.max(correlation[i, chosen][:, None] * path[np.ix_(chosen, before)], axis=0)
            path[i, before] = path[before, i] = reach
        before.append(i)
    np.fill_diagonal(path, 0.0)
    carried: AnyFloats = -0.5 * np.log1p(-np.minimum(path * path, 1 - 1e-12))
    return carried


def topological_order(parents: Sequence[Sequence[int]], priority: Sequence[Any]) -> tuple[int, ...]:
    """The attributes, parents first; among those that are free, the one with the least (priority, index) first. Raises
    ValueError: the parents form a cycle.
    """
    missing = [len(chosen) for chosen in parents]
    children: list[list[int]] = [[] for _ in parents]
    for i, chosen in enumerate(parents):
        for p in chosen:
            children[p].append(i)
    free = [(priority[i], i) for i, count in enumerate(missing) if count == 0]
    heapq.heapify(free)
    order = []
    while free:
        _, i = heapq.heappop(free)
        order.append(i)
        for child in children[i]:
            missing[child] -= 1
            if missing[child] == 0:
                heapq.heappush(free, (priority[child], child))
    if len(order) != len(parents):
        raise ValueError("the parents form a cycle")
    return tuple(order)


def _reaches(parents: Parents, start: int, target: int) -> bool:
    """Whether `target` is `start` or one of its ancestors."""
    seen, stack = {start}, [start]
    while stack:
        i = stack.pop()
        if i == target:
            return True
        new = [p for p in parents[i] if p not in seen]
        seen.update(new)
        stack += new
    return False
