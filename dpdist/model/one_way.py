"""One-way tables measured twice, and what they tell: rare values merged, expected counts of all values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dpdist.model.account import GaussianAccount
from dpdist.privacy.arrays import Counts, Floats
from dpdist.privacy.portable import exp, exp2

if TYPE_CHECKING:
    from dpdist.data.count import PairCounts
    from dpdist.model.coding import SingleCounts
    from dpdist.model.sums import AskedCounts

SEEN = 4.0  # a value is rare in the first measurement where its noisy count is below this many deviations
_LARGE = 8.0
# counts of rare values, in deviations
_GRID: Floats = np.concatenate([[0.02], exp2(np.arange(-24.0, 0.0) / 6), np.arange(1.0, 12.0, 0.25)])
_PRIOR: Floats = np.concatenate([[3.0], np.ones(24), 0.25 / (0.1155 * _GRID[25:])])
_PRIOR /= _PRIOR.sum()
_PRIOR_VALUES = 8.0
_UPDATES = 50


@dataclass(frozen=True, eq=False)
class OneWay:
    """Noisy one-way tables."""

    counts: tuple[Floats, ...]  # unbiased noisy counts of each attribute's values, on its declared domain
    sigmas: Floats  # deviation of each attribute's counts
    records: float  # precision-weighted noisy number of records, at least 1


def measure_one_way(
    counts: PairCounts | SingleCounts | AskedCounts, account: GaussianAccount, *, first: float, again: float
) -> OneWay:
    """Measure all one-way tables with the share `first`, then `again` with most precision where values are rare."""
    tables = [counts.single(i) for i in range(len(counts.cardinalities))]
    weights = [math.sqrt(table.size) for table in tables]
    noisy, sigmas = account.measure("one-way", tables, share=first, weights=weights)
    if not again:
        return combine([noisy], [sigmas])
    rare = [int(np.count_nonzero(table < SEEN * sigma)) for table, sigma in zip(noisy, sigmas, strict=True)]
    second, second_sigmas = account.measure(
        "one-way/again", tables, share=again, weights=[math.sqrt(number) + 0.25 for number in rare]
    )
    return combine([noisy, second], [sigmas, second_sigmas])


def combine(measurements: Sequence[Sequence[NDArray[np.number]]], sigmas: Sequence[Floats]) -> OneWay:
    """Precision-weighted means of repeated measurements of the one-way tables."""
    precision = [1 / sigma**2 for sigma in sigmas]
    total = np.sum(precision, axis=0)
    attributes = range(len(measurements[0]))
    means = tuple(
        np.sum([tables[i] * weight[i] for tables, weight in zip(measurements, precision, strict=True)], axis=0)
        / total[i]
        for i in attributes
    )
    weights = [float(total[i]) / means[i].size for i in attributes]
    records = math.fsum(table.sum() * weight for table, weight in zip(means, weights, strict=True)) / math.fsum(weights)
    return OneWay(means, 1 / np.sqrt(total), max(records, 1.0))


@dataclass(frozen=True, eq=False)
class Merging:
    """The values of one attribute on the codes that the model uses."""

    codes: Counts  # shape (values,); code of each value; the rare values share the last one
    cardinality: int
    rare: Counts  # the merged values; empty where nothing was merged
    weights: Floats  # shape of `rare`; expected counts of the rare values; positive


def merge_rare(counts: Floats, sigma: float, *, below: float, records: float) -> Merging:
    """Merge the values whose noisy counts are under ``below * sigma``, if there are two or more."""
    kept = counts >= below * sigma
    if np.count_nonzero(~kept) < 2:
        kept = np.ones(len(counts), bool)
    return merging_of(np.where(kept, np.cumsum(kept) - 1, np.count_nonzero(kept)), counts, sigma, records)


def merging_of(codes: Counts, counts: Floats, sigma: float, records: float) -> Merging:
    """How the rare values of an attribute share their code."""
    rare = np.flatnonzero(np.bincount(codes)[codes] > 1)
    weights = expected_counts(counts, sigma, records=records)[rare] if len(rare) else np.zeros(0)
    return Merging(codes, int(codes.max()) + 1, rare, weights)


def expected_counts(counts: Floats, sigma: float, *, records: float) -> Floats:
    """Empirical Bayes means of unbiased noisy counts of one table, positive. Small counts have a prior on `_GRID` that
    is fitted to all of them. Then the counts are conditioned on their sum, by their variances.
    """
    noisy = counts / sigma
    small = np.flatnonzero(noisy < _LARGE)
    mean, variance = noisy.copy(), np.ones(len(noisy))
    if len(small):
        exponent = -((noisy[small, None] - _GRID) ** 2) / 2
        likelihood = exp(exponent - exponent.max(1, keepdims=True))
        prior = _PRIOR
        for _ in range(_UPDATES):
            posterior = likelihood * prior
            posterior /= posterior.sum(1, keepdims=True)
            prior = (posterior.sum(0) + _PRIOR_VALUES * _PRIOR) / (len(small) + _PRIOR_VALUES)
        posterior = likelihood * prior
        posterior /= posterior.sum(1, keepdims=True)
        mean[small] = (posterior * _GRID).sum(1)
        variance[small] = (posterior * (_GRID - mean[small, None]) ** 2).sum(1)
    mean += variance * ((records / sigma - mean.sum()) / variance.sum())
    return np.asarray(np.maximum(mean, _GRID[0]) * sigma)
