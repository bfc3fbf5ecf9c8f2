"""Pairwise dependence: entropies and distances of all pairs of attributes, and the correlations made of them.

Pure functions: exact statistics from counts, and correlation matrices from statistics, noisy or exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpdist.data.count import PairCounts, coarsen
from dpdist.schema.schema import Schema

Columns: TypeAlias = tuple[tuple[int, bool], ...]
"""The columns of a joint distribution: (attribute, whether it is seen through its buckets)."""


def entropy_columns(schema: Schema) -> tuple[Columns, ...]:
    """The distinct entropies that symmetrical uncertainty needs, in a fixed order.

    H(x_i), H(b_i), H(x_i, b_j) and H(b_i, b_j), b for buckets; an attribute whose buckets are its values counts
    once.
    """
    m = range(len(schema.attributes))
    coarse = [a.bucket_count < a.cardinality for a in schema.attributes]
    distinct: set[Columns] = {((i, view),) for i in m for view in {False, coarse[i]}}
    for i, j in combinations(m, 2):
        distinct |= {((i, coarse[i]), (j, coarse[j])), ((i, False), (j, coarse[j])), ((i, coarse[i]), (j, False))}
    return tuple(sorted(distinct, key=lambda columns: (len(columns), columns)))


def entropies(counts: PairCounts, schema: Schema) -> NDArray[np.float64]:
    """Shannon entropies in bits, in the order of `entropy_columns`."""
    result = []
    for columns in entropy_columns(schema):
        table = np.asarray(counts.single(columns[0][0]) if len(columns) == 1 else counts.pair(*(i for i, _ in columns)))
        for axis, (i, coarse) in enumerate(columns):
            if coarse:
                attribute = schema.attributes[i]
                table = coarsen(table, attribute.bucket_map, buckets=attribute.bucket_count, axis=axis)
        cells = table[table > 0].astype(np.float64)
        total = cells.sum()
        result.append(math.log2(total) - float(np.sum(cells * np.log2(cells))) / total if total else 0.0)
    return np.array(result)


def pair_distances(counts: PairCounts, schema: Schema) -> NDArray[np.float64]:
    """Total variation distance of each pair of bucketised attributes from independence, in the order of the pairs."""
    result = []
    for i, j in combinations(range(len(schema.attributes)), 2):
        table = counts.pair(i, j)
        for axis, k in enumerate((i, j)):
            attribute = schema.attributes[k]
            table = coarsen(table, attribute.bucket_map, buckets=attribute.bucket_count, axis=axis)
        joint = table / max(table.sum(), 1)
        result.append(0.5 * float(np.abs(joint - np.outer(joint.sum(1), joint.sum(0))).sum()))
    return np.array(result)


def total_variation_sensitivity(n: int) -> float:
    """Sensitivity of the total variation distance between a pair's joint distribution and independence.

    Adding record (a, b) to n-1 others moves the joint distribution P to ``(1-t) P + t δ_ab``, t = 1/n, and with
    ``M = P - P_X P_Y`` the distance ``R = |M|_1 / 2`` to ``(1-t) |M + t (δ_a - P_X)(δ_b - P_Y)|_1 / 2``. The product
    has 1-norm at most 4, so R rises by at most ``2 t (1-t)`` and falls by at most ``t R + 2 t (1-t) <= 3 t``.
    """
    return 3 / max(n, 1) * (1 + 2.0**-50)


def symmetrical_uncertainty(values: Sequence[float], schema: Schema) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Symmetrical uncertainty u(x_i, b_j) and u(b_i, b_j), clipped to [0, 1]; zero on the diagonal.

    ``u(x, y) = 2 (H(x) + H(y) - H(x, y)) / (H(x) + H(y))`` (PD section 3.3).
    """
    m = len(schema.attributes)
    entropy = dict(zip(entropy_columns(schema), values, strict=True))
    coarse = [a.bucket_count < a.cardinality for a in schema.attributes]
    child, between = np.zeros((m, m)), np.zeros((m, m))
    for i in range(m):
        for j in range(m):
            if i != j:
                child[i, j] = _uncertainty(entropy, (i, False), (j, coarse[j]))
                between[i, j] = _uncertainty(entropy, (i, coarse[i]), (j, coarse[j]))
    return child, between


def _uncertainty(entropy: dict[Columns, float], x: tuple[int, bool], y: tuple[int, bool]) -> float:
    single = entropy[(x,)] + entropy[(y,)]
    if single <= 0:
        return 0.0
    return min(max(2 * (single - entropy[tuple(sorted((x, y)))]) / single, 0.0), 1.0)


def mutual_information(values: Sequence[float], schema: Schema) -> NDArray[np.float64]:
    """Mutual information of x_i (row) and b_j (column) in bits, not below zero; zero on the diagonal."""
    m = len(schema.attributes)
    entropy = dict(zip(entropy_columns(schema), values, strict=True))
    coarse = [a.bucket_count < a.cardinality for a in schema.attributes]
    result = np.zeros((m, m))
    for i in range(m):
        for j in range(m):
            if i != j:
                x, y = (i, False), (j, coarse[j])
                result[i, j] = max(entropy[(x,)] + entropy[(y,)] - entropy[tuple(sorted((x, y)))], 0.0)
    return result


def pair_matrix(values: Sequence[float], m: int) -> NDArray[np.float64]:
    """Symmetric matrix with zero diagonal from the values of the pairs."""
    result = np.zeros((m, m))
    result[np.triu_indices(m, 1)] = values
    return result + result.T
