"""Choosing the parents of every attribute from pairwise dependence: acyclic, greedy and deterministic.

Two searches. `cfs_parents` is the published one, attribute by attribute (PD section 3.3). `dependence_parents` chooses
the edge that lowers most the expected error of all two-way marginals: the dependence that the network does not yet
carry, plus the noise that larger count tables bring. Both see released statistics only, which costs no privacy.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Sequence
from itertools import combinations, permutations
from math import sqrt
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpdist.data.count import PairCounts, coarsen
from dpdist.families.deniability.regression import SUMS_SHARE
from dpdist.privacy.arrays import AnyFloats
from dpdist.privacy.portable import log2
from dpdist.spec.schema import Schema

# the columns of a joint distribution: (attribute, whether it is seen through its buckets)
Axes: TypeAlias = tuple[tuple[int, bool], ...]


def entropy_columns(schema: Schema) -> tuple[Axes, ...]:
    """The distinct entropies that symmetrical uncertainty needs, in a fixed order: H(x_i), H(b_i), H(x_i, b_j) and
    H(b_i, b_j), b for buckets; an attribute whose buckets are its values counts once.
    """
    m = range(len(schema.attributes))
    coarse = [a.bucket_count < a.cardinality for a in schema.attributes]
    distinct: set[Axes] = {((i, view),) for i in m for view in {False, coarse[i]}}
    for i, j in combinations(m, 2):
        distinct |= {((i, coarse[i]), (j, coarse[j])), ((i, False), (j, coarse[j])), ((i, coarse[i]), (j, False))}
    return tuple(sorted(distinct, key=lambda columns: (len(columns), columns)))


def entropies(counts: PairCounts, schema: Schema) -> NDArray[np.float64]:
    """Shannon entropies in bits, in the order of `entropy_columns`."""
    result = []
    for columns in entropy_columns(schema):
        table = _counts(counts, schema, columns)
        cells = table[table > 0].astype(np.float64)
        total = cells.sum(keepdims=True)
        result.append(float(log2(total)[0] - np.sum(cells * log2(cells)) / total[0]) if cells.size else 0.0)
    return np.array(result)


def pair_distances(counts: PairCounts, schema: Schema) -> NDArray[np.float64]:
    """Total variation distance of each pair of bucketised attributes from independence, in the order of the pairs."""
    result = []
    for i, j in combinations(range(len(schema.attributes)), 2):
        table = _counts(counts, schema, ((i, True), (j, True)))
        joint = table / max(table.sum(), 1)
        result.append(0.5 * float(np.abs(joint - np.outer(joint.sum(1), joint.sum(0))).sum()))
    return np.array(result)


def _counts(counts: PairCounts, schema: Schema, columns: Axes) -> NDArray[Any]:
    """The counts of an attribute or a pair, seen through buckets where the columns say so."""
    table = np.asarray(counts.single(columns[0][0]) if len(columns) == 1 else counts.pair(*(i for i, _ in columns)))
    for axis, (i, coarse) in enumerate(columns):
        if coarse:
            attribute = schema.attributes[i]
            table = coarsen(table, attribute.bucket_map, buckets=attribute.bucket_count, axis=axis)
    return table


def total_variation_sensitivity(n: int) -> float:
    """Sensitivity of the total variation distance between a pair's joint distribution and independence.

    Adding record (a, b) to n-1 others moves the joint distribution P to ``(1-t) P + t δ_ab``, t = 1/n, and with
    ``M = P - P_X P_Y`` the distance ``R = |M|_1 / 2`` to ``(1-t) |M + t (δ_a - P_X)(δ_b - P_Y)|_1 / 2``. The product
    has 1-norm at most 4, so R rises by at most ``2 t (1-t)`` and falls by at most ``t R + 2 t (1-t) <= 3 t``.
    """
    return 3 / max(n, 1) * (1 + 2.0**-50)


def symmetrical_uncertainty(values: Sequence[float], schema: Schema) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Symmetrical uncertainty u(x_i, b_j) and u(b_i, b_j), clipped to [0, 1]; zero on the diagonal. ``u(x, y) = 2 (H(x)
    + H(y) - H(x, y)) / (H(x) + H(y))`` (PD section 3.3).
    """
    seen = []
    for coarse in (False, True):
        single, joint = _pairs(values, schema, coarse=coarse)
        uncertainty = 2 * (single - joint) / np.where(single > 0, single, 1.0)
        seen.append(np.clip(np.where(single > 0, uncertainty, 0.0), 0.0, 1.0))
    return seen[0], seen[1]


def _pairs(values: Sequence[float], schema: Schema, *, coarse: bool) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """H(x_i) + H(b_j) and H(x_i, b_j), both 0 on the diagonal; if `coarse`, of b_i in place of x_i."""
    entropy = dict(zip(entropy_columns(schema), values, strict=True))
    buckets = [(i, a.bucket_count < a.cardinality) for i, a in enumerate(schema.attributes)]
    single, joint = np.zeros((2, len(buckets), len(buckets)))
    for i, j in permutations(range(len(buckets)), 2):
        x, y = buckets[i] if coarse else (i, False), buckets[j]
        single[i, j], joint[i, j] = entropy[(x,)] + entropy[(y,)], entropy[tuple(sorted((x, y)))]
    return single, joint


def pair_matrix(values: Sequence[float], m: int) -> NDArray[np.float64]:
    """Symmetric matrix with zero diagonal from the values of the pairs."""
    result = np.zeros((m, m))
    result[np.triu_indices(m, 1)] = values
    return result + result.T


Parents = list[list[int]]
Admissible = Callable[[int, Sequence[int]], bool]  # whether an attribute may have these parents

# half of the mean absolute value of a standard Gaussian: what a noisy cell adds to a total variation distance
NOISE_SHARE = sqrt(2 / np.pi) / 2
_LEAST_GAIN = 1e-12
# what noise in a sum of scores adds to total variation distances, in what noise in a cell adds, for noise of as many
# records. In the pair of child and parent that is ``4 / sqrt(2 pi)`` where scores deviate by half of the largest, as
# normal ones; measured on census tables, up to ten are about as accurate.
_TILT = 4.0


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


def cfs_parents(child: AnyFloats, between: AnyFloats, *, sequence: Sequence[int], admissible: Admissible) -> Parents:
    """Parents by correlation-based feature selection, from the correlations of `merit`. The attributes choose in the
    order of `sequence`; each adds the parent that raises its merit most, as long as one does, the graph stays acyclic
    and the parents are admissible. Ties go to the first attribute.
    """
    parents: Parents = [[] for _ in sequence]
    for i in sequence:
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
    regressed: Collection[int] = (),
) -> Parents:
    """Parents that lower the expected error of all two-way marginals, edge by edge.

    A weak dependence of mutual information I (nats) moves a pair's cells by about ``sqrt(2 I)`` relative standard
    deviations, a total variation distance of ``sqrt(I / pi)`` from independence. Of that the network carries what the
    best path between the two attributes does: a child sees a parent through its buckets, and along a path the
    correlations ``r^2 = 1 - e^{-2 I}`` multiply. An edge also multiplies the cells of its child's table, whose noise
    spreads over all pairs of that attribute; of a `regressed` child it adds a sum for each bucket instead. The edge
    with the largest gain is added while there is one. Ties go to the first edge.

    `dependence`, float64[m, m], is the mutual information of each pair in nats, `seen` that of attribute i (row) with
    the buckets of attribute j (column); `relative_noise` the deviation of the noise in a cell of the count tables as a
    share of all records counted.
    """
    m = len(dependence)
    parents: Parents = [[] for _ in range(m)]
    correlation = np.sqrt(-np.expm1(-2 * np.maximum(seen, 0.0)))

    def noise(i: int, chosen: Sequence[int]) -> float:
        if i in regressed:
            counts = cardinalities[i] * (m - 1) / sqrt(1 - SUMS_SHARE)
            sums = _TILT * sum(bucket_counts[p] for p in chosen) * sqrt(len(chosen) / SUMS_SHARE)
            return NOISE_SHARE * relative_noise * (counts + sums)
        configurations = float(np.prod([bucket_counts[p] for p in chosen], dtype=float))
        spread = sum(sqrt(bucket_counts[p]) for p in chosen) + (m - 1 - len(chosen))
        return NOISE_SHARE * relative_noise * cardinalities[i] * sqrt(configurations) * spread

    paths = _Paths(dependence, correlation)
    _add_best_edges(parents, paths, noise, admissible)
    return [sorted(chosen) for chosen in parents]


class _Paths:
    """The best path between each two attributes of a growing network, up to a common ancestor and down, and what it
    leaves of their dependence. An edge from parent j to child i adds paths that end at i, or at a descendant of it:
    nothing else changes. `dependence` and `correlation`, float64[m, m], are as for `dependence_parents`.
    """

    def __init__(self, dependence: AnyFloats, correlation: AnyFloats) -> None:
        upper = np.triu(dependence, 1)
        self._dependence = upper + upper.T
        self._correlation = correlation
        self.best = np.eye(len(dependence))
        self.down = np.eye(len(dependence))  # from an ancestor (column) to an attribute (row)
        self._missed = self._error(self.best, slice(None))

    def _error(self, best: AnyFloats, rows: slice | NDArray[np.intp]) -> AnyFloats:
        """The total variation distance that the paths of some attributes leave."""
        carried = -0.5 * np.log1p(-np.minimum(best * best, 1 - 1e-12))
        missed: AnyFloats = np.sqrt(np.maximum(self._dependence[rows] - carried, 0.0) / np.pi)
        return missed

    def _with(self, i: int, j: int) -> tuple[NDArray[np.intp], AnyFloats]:
        """Child i and its descendants, and their best paths with an edge from j."""
        rows = np.flatnonzero(self.down[:, i])
        down, along = self.down[rows, i], self._correlation[i, j] * self.best[j]
        new = np.maximum(down[:, None] * along, along[rows][:, None] * self.down[:, i])
        return rows, np.maximum(self.best[rows], new)

    def gain(self, i: int, j: int) -> float:
        """How much less the paths miss with an edge from j to i."""
        rows, best = self._with(i, j)
        less = self._missed[rows] - self._error(best, rows)
        return float(less.sum()) - float(less[:, rows].sum()) / 2

    def add(self, i: int, j: int) -> None:
        """Add an edge from j to i."""
        rows, best = self._with(i, j)
        self.best[rows], self.best[:, rows] = best, best.T
        self._missed[rows] = self._error(best, rows)
        self._missed[:, rows] = self._missed[rows].T
        down = np.outer(self.down[:, i] * self._correlation[i, j], self.down[j])
        np.maximum(self.down, down, out=self.down)


def _add_best_edges(
    parents: Parents, paths: _Paths, noise: Callable[[int, Sequence[int]], float], admissible: Admissible
) -> None:
    """Add the edge that lowers the error most, in place, while there is one. Gains hardly ever grow, so an edge whose
    recomputed gain still leads the stale ones is the best.
    """

    def gain(i: int, j: int) -> float:
        return paths.gain(i, j) - noise(i, [*parents[i], j]) + noise(i, parents[i])

    m = len(parents)
    queue = [(-gain(i, j), i, j) for i in range(m) for j in range(m) if i != j and admissible(i, [j])]
    heapq.heapify(queue)
    while queue:
        _, i, j = heapq.heappop(queue)
        if not admissible(i, [*parents[i], j]) or paths.down[j, i]:
            continue  # and so it stays
        fresh = gain(i, j)
        if fresh <= _LEAST_GAIN:
            continue
        if queue and (-fresh, i, j) > queue[0]:
            heapq.heappush(queue, (-fresh, i, j))
            continue
        parents[i].append(j)
        paths.add(i, j)


def topological_order(parents: Sequence[Sequence[int]], priority: Sequence[Any]) -> tuple[int, ...]:
    """The attributes, parents first, else by least (priority, index)."""
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
