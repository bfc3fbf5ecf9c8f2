"""One-way tables measured twice, and the coding they give: rare values merged, large attributes with a coarse copy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dpdist.families.synthesis.account import GaussianAccount
from dpdist.families.synthesis.zeros import code_classes
from dpdist.privacy.arrays import Counts, Floats
from dpdist.privacy.portable import exp, exp2
from dpdist.spec.rules import Rules

SEEN = 4.0
"""A value is rare in the first measurement where its noisy count is below so many deviations."""

_LARGE = 8.0
_GRID: Floats = np.concatenate([[0.02], exp2(np.arange(-24.0, 0.0) / 6), np.arange(1.0, 12.0, 0.25)])
"""Counts of rare values, in deviations."""

_PRIOR: Floats = np.concatenate([[3.0], np.ones(24), 0.25 / (0.1155 * _GRID[25:])])
_PRIOR /= _PRIOR.sum()
_PRIOR_VALUES = 8.0
_UPDATES = 50


@dataclass(frozen=True, eq=False)
class OneWay:
    """Noisy one-way tables.

    Attributes
    ----------
    counts : tuple of ndarray of float64
        Unbiased noisy counts of each attribute's values, on its declared domain.
    sigmas : ndarray of float64
        Deviation of each attribute's counts.
    records : float
        Precision-weighted noisy number of records, at least 1.
    """

    counts: tuple[Floats, ...]
    sigmas: Floats
    records: float


Levels = Sequence[Sequence[NDArray[np.integer]]]
"""Of each attribute, groups of its values from fine to coarse; nothing for no attribute."""


class OneWayCounts(Protocol):
    """Exact counts of the values of each attribute."""

    @property
    def cardinalities(self) -> tuple[int, ...]:
        """Number of values of each attribute."""

    def single(self, i: int) -> Counts:
        """Counts of attribute `i`."""


def measure_one_way(counts: OneWayCounts, account: GaussianAccount, *, first: float, again: float) -> OneWay:
    """Measure all one-way tables, then again with most precision where rare values were seen.

    Parameters
    ----------
    first, again : float
        Shares of the account. The weights are the roots of the numbers of values, in the second measurement of the
        numbers of rare values, plus a quarter.
    """
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
    """The values of one attribute on the codes that the model uses.

    Attributes
    ----------
    codes : ndarray of int64, shape (values,)
        Code of each value; the rare values share the last one.
    cardinality : int
    rare : ndarray of int64
        The merged values; empty where nothing was merged.
    weights : ndarray of float64, shape of `rare`
        Expected counts of the rare values; positive.
    """

    codes: Counts
    cardinality: int
    rare: Counts
    weights: Floats


def merge_rare(counts: Floats, sigma: float, *, below: float, records: float) -> Merging:
    """Merge the values whose noisy counts are under ``below * sigma``, if there are two or more."""
    kept = counts >= below * sigma
    if np.count_nonzero(~kept) < 2:
        kept = np.ones(len(counts), bool)
    codes = np.where(kept, np.cumsum(kept) - 1, np.count_nonzero(kept))
    rare = np.flatnonzero(~kept)
    weights = expected_counts(counts, sigma, records=records)[rare] if len(rare) else np.zeros(0)
    return Merging(codes, int(np.count_nonzero(kept)) + bool(len(rare)), rare, weights)


def expected_counts(counts: Floats, sigma: float, *, records: float) -> Floats:
    """Empirical Bayes means of the counts of one table: what few records and much noise would make of them.

    Small counts have a prior on `_GRID` that is fitted to all of them, starting from density ``1/count``, which
    counts as `_PRIOR_VALUES` values. Noisy counts over `_LARGE` deviations stay as they are. Then the counts are
    conditioned on their sum, by their variances.

    Parameters
    ----------
    counts : ndarray of float64
        Unbiased noisy counts with deviation `sigma`.
    sigma, records : float

    Returns
    -------
    ndarray of float64
        Positive.
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


@dataclass(frozen=True, eq=False)
class Coding:
    """The attributes of the model: the table's own with rare values merged, and coarse copies of large ones.

    Attributes
    ----------
    source : tuple of int
        The table's attribute that each model attribute is a function of.
    maps : tuple of ndarray of int64
        Model code of each of the source's values.
    cardinalities : tuple of int
        Model attributes are in ascending order of these.
    fine : tuple of int
        The model attribute that stands for each of the table's.
    links : dict of (int, int) to ndarray of bool
        Pairs of a coarse copy and what it is a copy of, and which combinations are possible.
    merging : tuple of Merging
        Of each of the table's attributes.
    """

    source: tuple[int, ...]
    maps: tuple[Counts, ...]
    cardinalities: tuple[int, ...]
    fine: tuple[int, ...]
    links: dict[tuple[int, int], NDArray[np.bool_]]
    merging: tuple[Merging, ...]


def coding_of(
    one_way: OneWay,
    *,
    merge_below: float,
    coarse: Sequence[tuple[int, int]],
    rules: Rules = (),
    levels: Levels = (),
) -> Coding:
    """The coding that the noisy one-way tables give.

    Parameters
    ----------
    merge_below : float
        In deviations; see `merge_rare`.
    coarse : sequence of (int, int)
        (from, groups), falling: an attribute, or its last coarse copy, with `from` codes or more gets a coarse copy of
        so many groups of about equal noisy mass, in code order.
    rules : Rules
        Groups keep apart what they tell apart, unless there were then more than twice as many groups.
    levels : Levels
        Public hierarchies of the values. A copy has those of the finest
        level of at most twice as many groups, if there is one, and all merged values are a group of it.
    """
    merging = tuple(
        merge_rare(table, sigma, below=merge_below, records=one_way.records)
        for table, sigma in zip(one_way.counts, one_way.sigmas.tolist(), strict=True)
    )
    found: list[tuple[int, int, int, Counts]] = []  # cardinality, level, attribute, map
    groupings: list[tuple[int, int, Counts]] = []  # attribute, level of the copy, group of each code one level up
    classes = code_classes(rules, [m.codes for m in merging])
    for i, m in enumerate(merging):
        kinds = classes[i]
        codes, cardinality, level = m.codes, m.cardinality, 0
        found.append((cardinality, level, i, codes))
        for least, groups in coarse:
            if cardinality >= least:
                mass: Floats = np.bincount(codes, weights=one_way.counts[i], minlength=cardinality).astype(np.float64)
                group = _of_level(m, codes, levels[i] if levels else (), groups)
                group = _equal_mass(mass, groups) if group is None else group
                if kinds is not None:
                    group, kinds = _split(group, kinds, most=2 * groups)
                codes, cardinality, level = group[codes], int(group.max()) + 1, level + 1
                found.append((cardinality, level, i, codes))
                groupings.append((i, level, group))
    found.sort(key=lambda item: (item[0], -item[1], item[2]))
    place = {(i, level): k for k, (_, level, i, _) in enumerate(found)}
    links = {
        (place[i, level], place[i, level - 1]): np.arange(group.max() + 1)[:, None] == group
        for i, level, group in groupings
    }
    return Coding(
        tuple(item[2] for item in found),
        tuple(item[3] for item in found),
        tuple(item[0] for item in found),
        tuple(place[i, 0] for i in range(len(merging))),
        links,
        merging,
    )


def _of_level(merging: Merging, codes: Counts, levels: Sequence[NDArray[np.integer]], groups: int) -> Counts | None:
    """Groups of codes by the finest level that has few enough and joins some; None where there is none."""
    number = int(codes.max()) + 1
    for level in levels:
        own: Counts = level.astype(np.int64) + 1
        own[merging.rare] = 0
        found = np.unique(np.stack([codes, own]), axis=1)
        if found.shape[1] == number and len(set(found[1])) <= min(2 * groups, number - 1):
            return np.asarray(np.unique(found[1], return_inverse=True)[1], np.int64)
    return None


def _split(group: Counts, kinds: Counts, *, most: int) -> tuple[Counts, Counts | None]:
    """Groups of codes of one kind each, and their kinds; the groups as they are where there were too many."""
    number = int(kinds.max()) + 1
    found, split = np.unique(group * number + kinds, return_inverse=True)
    return (split.reshape(-1).astype(np.int64), found % number) if len(found) <= most else (group, None)


def _equal_mass(counts: Floats, groups: int) -> Counts:
    """Group number of each code, groups of about equal mass in code order."""
    mass = np.maximum(counts, 0)
    middle = (np.cumsum(mass) - mass / 2) / max(mass.sum(), 1e-300)
    numbers: Counts = np.unique(np.minimum((middle * groups).astype(np.int64), groups - 1), return_inverse=True)[1]
    return numbers
