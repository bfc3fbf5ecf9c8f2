"""From noisy count tables to conditional probabilities: post-processing, which costs no privacy.

``max(0, .)`` on each noisy cell would add about 0.4 standard deviations of noise to every empty cell. Instead:

1. What several tables say about the same bucket counts is pooled, weighted by precision.
2. Noisy counts are projected onto the nearest non-negative counts with the right total.
3. Every table is fitted from coarse to fine: the attribute alone, given each single parent, given all parents. Each
   finer count is shrunk towards what the coarser fit predicts, by an empirical-Bayes weight
   ``signal / (signal + noise)`` estimated from the noisy counts themselves.
4. The conditional table is raked so that the records the network generates have the fitted counts with each single
   parent, although their parents follow the network and not the data.
5. A Dirichlet prior, centred on the fit with single parents, gives every value a positive probability.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpdist.data.count import configuration_index
from dpdist.families.base.calibration import common_total, project, project_rows
from dpdist.families.base.network import Network, draw, thresholds_from_weights
from dpdist.families.deniability.parameters import NoisyTables
from dpdist.families.deniability.regression import regression_table
from dpdist.families.deniability.structure import Structure
from dpdist.privacy.arrays import AnyFloats
from dpdist.privacy.noise import Noise
from dpdist.spec.schema import Schema

# fitted counts with some axes of the table summed out, kept with length one
Target: TypeAlias = tuple[tuple[int, ...], AnyFloats]

SIMULATED = 1 << 18  # records drawn from the network so far, to know how often each parent configuration will occur
_SWEEPS = 4
PRIOR = 0.1  # weight of the Dirichlet prior, in records per value: every value is possible, and few records outweigh it
_UNIFORM = 0.05  # share of the prior that is spread evenly over the values
_TINY = 1e-9


def estimate_network(
    noisy: NoisyTables,
    structure: Structure,
    schema: Schema,
    *,
    noise: Noise,
) -> Network:
    """The network that the noisy tables support, by posterior means where the paper draws from the posterior (PD
    section 3.4). Streams of the noise: ``parameters/fit/<attribute index>`` (records simulated to weigh parent
    configurations).
    """
    maps = tuple(a.bucket_map for a in schema.attributes)
    tables = pool([table.astype(np.float64) for table in noisy.tables], noisy.variances, structure, maps)
    total = max(common_total(tables, noisy.variances), 1.0)
    thresholds: list[NDArray[np.uint64]] = [np.empty((0, 0), np.uint64)] * len(tables)
    buckets: dict[int, NDArray[np.uint32]] = {}
    for i in structure.order:
        chosen = structure.parents[i]
        sizes = [structure.bucket_counts[p] for p in chosen]
        row = configuration_index([buckets[p] for p in chosen], sizes) if chosen else np.zeros(SIMULATED, np.int64)
        expected = np.bincount(row, minlength=prod(sizes)) * (total / SIMULATED)
        if structure.sums[i]:
            (margin,) = fit(tables[i], noisy.variances[i], expected=np.array([total]), sizes=[], prior=PRIOR)
            sums, variance = noisy.sums[i].astype(np.float64), noisy.sum_variances[i]
            posterior = regression_table(margin, sums, variance, expected=expected, sizes=sizes, prior=PRIOR)
        else:
            posterior = fit(tables[i], noisy.variances[i], expected=expected, sizes=sizes, prior=PRIOR)
        thresholds[i] = thresholds_from_weights(posterior)
        buckets[i] = maps[i][draw(thresholds[i], row, noise.words(f"parameters/fit/{i}", SIMULATED))]
    return Network(
        cardinalities=structure.cardinalities,
        bucket_maps=maps,
        bucket_counts=structure.bucket_counts,
        parents=structure.parents,
        order=structure.order,
        thresholds=tuple(thresholds),
    )


def fit(table: AnyFloats, variance: float, *, expected: AnyFloats, sizes: Sequence[int], prior: float) -> AnyFloats:
    """Dirichlet posterior of each row of a noisy table, with the prior: float64[configurations, values], non-negative,
    each row with a positive sum.

    `variance` is that of the noise in a cell; `expected`, float64[configurations], how often each configuration occurs
    among as many records of the network; `sizes` the buckets of each parent; `prior` in records per value.
    """
    values, parents = table.shape[1], len(sizes)
    total = max(float(expected.sum()), 1.0)
    marginal = project(table.sum(axis=0), total=total)
    cells = table.reshape(*sizes, values)
    generated = np.maximum(expected, _TINY).reshape(*sizes, 1)
    shrunk = shrink(generated, cells.sum(-1, keepdims=True), variance * values)
    rows: AnyFloats = np.maximum(project(shrunk, total=total), _TINY)
    fitted: AnyFloats = rows * (marginal / total)
    targets: list[Target] = []
    for axis in range(parents):
        others = tuple(a for a in range(parents) if a != axis)
        coarse, seen = fitted.sum(axis=others, keepdims=True), cells.sum(axis=others, keepdims=True)
        targets.append((others, refine(coarse, seen, variance * prod(sizes[a] for a in others))))
    single = rake(fitted, targets, rows)
    fitted = refine(single, cells, variance) if parents > 1 else single
    fitted = rows * _normalised(fitted, marginal)
    if parents > 1:
        scaled = [(axes, _normalised(t, marginal) * generated.sum(axis=axes, keepdims=True)) for axes, t in targets]
        raked = rake(_normalised(fitted, marginal) * generated, scaled, generated)
        fitted = rows * _normalised(raked, marginal)
    centre = (1 - _UNIFORM) * _normalised(single, marginal) + _UNIFORM / values
    return np.asarray(fitted + prior * values * centre).reshape(table.shape)


def pool(
    tables: Sequence[AnyFloats], variances: Sequence[float], structure: Structure, maps: Sequence[NDArray[np.uint32]]
) -> list[AnyFloats]:
    """Correct each table's own attribute by the bucket counts that all tables imply: the average of its own margin
    and of those in the tables of its children, weighted by precision. The difference is spread evenly over the cells.
    """
    if min(variances) == 0:
        return [np.asarray(table) for table in tables]
    m = len(tables)
    sums = [np.zeros(count) for count in structure.bucket_counts]
    precision = [np.zeros(count) for count in structure.bucket_counts]
    own = [np.bincount(maps[i], weights=tables[i].sum(axis=0)) for i in range(m)]
    width = [np.bincount(buckets) for buckets in maps]
    for i, chosen in enumerate(structure.counted):
        weight = 1 / (variances[i] * len(tables[i]) * width[i])
        sums[i] += weight * own[i]
        precision[i] += weight
        cells = tables[i].sum(axis=1).reshape([structure.bucket_counts[p] for p in chosen])
        for axis, p in enumerate(chosen):
            margin = cells.sum(axis=tuple(a for a in range(len(chosen)) if a != axis))
            share = structure.bucket_counts[p] / (variances[i] * tables[i].size)
            sums[p] += share * margin
            precision[p] += share
    return [tables[i] + ((sums[i] / precision[i] - own[i]) / (width[i] * len(tables[i])))[maps[i]] for i in range(m)]


def shrink(predicted: AnyFloats, noisy: AnyFloats, variance: float) -> AnyFloats:
    """Move non-negative predictions towards noisy counts of the same shape, by how much of the difference is signal.

    Cells are grouped by the binary order of magnitude of their prediction. In a group the mean squared difference less
    the `variance` of the noise in a cell estimates the signal; it is smoothed over neighbouring groups, and one cell's
    worth of sampling variance (the prediction itself) is added so that small groups do not overfit.
    """
    difference = noisy - predicted
    group = np.floor(np.log2(np.maximum(predicted, 2.0**-10))).astype(np.int64)
    group -= group.min()
    flat = group.reshape(-1)
    count = np.bincount(flat)
    excess = np.bincount(flat, weights=(difference**2 - variance).reshape(-1))
    sampling = np.bincount(flat, weights=predicted.reshape(-1)) / np.maximum(count, 1)
    kernel = np.array([0.5, 1.0, 0.5])
    around, number = np.convolve(excess, kernel)[1:-1], np.convolve(count, kernel)[1:-1]
    signal = (np.maximum(around, 0) + sampling) / (number + 1)
    weight = signal / np.maximum(signal + variance, _TINY)
    return np.asarray(predicted + weight[group] * difference)


def refine(predicted: AnyFloats, noisy: AnyFloats, variance: float) -> AnyFloats:
    """Shrink noisy counts towards the predicted ones and project each row onto its predicted sum."""
    rows = predicted.reshape(-1, predicted.shape[-1])
    shrunk = shrink(predicted, noisy, variance).reshape(rows.shape)
    return project_rows(shrunk, np.maximum(rows.sum(axis=1), _TINY)).reshape(predicted.shape)


def rake(fitted: AnyFloats, targets: Sequence[Target], rows: AnyFloats) -> AnyFloats:
    """Iterative proportional fitting of a table to margins, and to the sum of each row (Deming and Stephan 1940)."""
    for _ in range(_SWEEPS):
        for axes, target in targets:
            fitted = fitted * (target / np.maximum(fitted.sum(axis=axes, keepdims=True), _TINY))
        fitted = fitted * (rows / np.maximum(fitted.sum(axis=-1, keepdims=True), _TINY))
    return fitted


def _normalised(counts: AnyFloats, marginal: AnyFloats) -> AnyFloats:
    """Rows that sum to one; the marginal where a row is empty."""
    sums = counts.sum(axis=-1, keepdims=True)
    return np.asarray(np.where(sums > _TINY**2, counts / np.maximum(sums, _TINY**2), marginal / marginal.sum()))
