"""Pairwise dependence: entropies and distances of all pairs of attributes, and the correlations made of them.

Pure functions: exact statistics from counts, and correlation matrices from statistics, noisy or exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, permutations
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpdist.data.count import PairCounts, coarsen
from dpdist.privacy.portable import log2
from dpdist.spec.schema import Schema

Axes: TypeAlias = tuple[tuple[int, bool], ...]
"""The columns of a joint distribution: (attribute, whether it is seen through its buckets)."""


def entropy_columns(schema: Schema) -> tuple[Axes, ...]:
    """The distinct entropies that symmetrical uncertainty needs, in a fixed order.

    H(x_i), H(b_i), H(x_i, b_j) and H(b_i, b_j), b for buckets; an attribute whose buckets are its values counts
    once.
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
    """Symmetrical uncertainty u(x_i, b_j) and u(b_i, b_j), clipped to [0, 1]; zero on the diagonal.

    ``u(x, y) = 2 (H(x) + H(y) - H(x, y)) / (H(x) + H(y))`` (PD section 3.3).
    """
    seen = []
    for coarse in (False, True):
        single, joint = _pairs(values, schema, coarse=coarse)
        uncertainty = 2 * (single - joint) / np.where(single > 0, single, 1.0)
        seen.append(np.clip(np.where(single > 0, uncertainty, 0.0), 0.0, 1.0))
    return seen[0], seen[1]


def mutual_information(values: Sequence[float], schema: Schema) -> NDArray[np.float64]:
    """Mutual information of x_i (row) and b_j (column) in bits, not below zero; zero on the diagonal."""
    single, joint = _pairs(values, schema, coarse=False)
    return np.maximum(single - joint, 0.0)


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
