"""Distances between the marginals of two tables.

The distance of two marginals is their total variation distance, half the sum of the absolute differences of their
relative frequencies: the largest difference in the share of records that any statement about these attributes can show.
The k-marginal score of NIST's SDNist is ``(2 - mean sum |p - q|) * 500``, that is a thousand times one minus the mean
distance of the k-way marginals [1]_.

References
----------
.. [1] Task, Bhagat, Howarth, *SDNist v2: Deidentified Data Report Tool*, NIST, 2023.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdist.data.count import PairCounts
from dpdist.data.operators import Operator, pair_counts_operator, table_counts_operator, together
from dpdist.privacy.arrays import Counts, Floats

Subset = tuple[int, ...]

MAX_TRIPLES = 200  # three-way marginals compared, unless fewer exist
TRIPLE_CELLS = 1 << 23  # cells of all three-way tables together (64 MiB of int64)


@dataclass(frozen=True, eq=False, repr=False)
class Marginals:
    """Counts of the one-, two- and some wider marginals of a table; confidential where the table is."""

    pairs: PairCounts
    triples: Mapping[Subset, Counts]  # of three attributes or more

    @property
    def records(self) -> int:
        """Number of records counted."""
        return self.pairs.total

    def __add__(self, other: Marginals) -> Marginals:
        return Marginals(
            self.pairs + other.pairs, {which: table + other.triples[which] for which, table in self.triples.items()}
        )

    def table(self, which: Subset) -> Counts:
        """Counts of one marginal, flat, in C order."""
        if len(which) == 1:
            return self.pairs.single(which[0])
        if len(which) == 2:
            return self.pairs.pair(*which).ravel()
        return self.triples[which]

    def subsets(self, k: int) -> list[Subset]:
        """The k-way marginals that are counted."""
        if k > 2:
            return [which for which in self.triples if len(which) == k]
        return list(combinations(range(len(self.pairs.cardinalities)), k))


def chosen_triples(
    sizes: Sequence[int], *, seed: int, most: int = MAX_TRIPLES, cells: int = TRIPLE_CELLS
) -> tuple[Subset, ...]:
    """Three-way marginals: all, or a random sample of `most` whose tables have at most `cells` together."""
    every = list(combinations(range(len(sizes)), 3))
    order = np.random.default_rng(seed).permutation(len(every))
    chosen: list[Subset] = []
    left = cells
    for place in order.tolist():
        need = prod(sizes[i] for i in every[place])
        if len(chosen) < most and need <= left:
            chosen.append(every[place])
            left -= need
    return tuple(sorted(chosen))


def marginals_operator(sizes: Sequence[int], triples: Sequence[Subset]) -> Operator:
    """`Marginals` of records of these sizes, in one pass."""
    both = together([pair_counts_operator(sizes), table_counts_operator(sizes, triples)])
    return replace(both, finish=partial(_marginals, triples=tuple(triples)))


def _marginals(counted: tuple[PairCounts, Counts], triples: Sequence[Subset]) -> Marginals:
    pairs, cells = counted
    ends = np.cumsum([prod(pairs.cardinalities[i] for i in which) for which in triples])
    tables = np.split(cells, ends[:-1]) if triples else []
    return Marginals(pairs, dict(zip(triples, tables, strict=True)))


def total_variation(a: NDArray[Any], b: NDArray[Any]) -> float:
    """Total variation distance of two tables of counts or probabilities, each divided by its sum; 1 if one is empty."""
    total_a, total_b = float(a.sum()), float(b.sum())
    if total_a <= 0 or total_b <= 0:
        return float(total_a > 0 or total_b > 0)
    return float(np.abs(a / total_a - b / total_b).sum() / 2)


def distances(a: Marginals, b: Marginals, k: int) -> Floats:
    """Total variation distances of all k-way marginals, float64[subsets]."""
    return np.array([total_variation(a.table(which), b.table(which)) for which in a.subsets(k)])


def distances_to_independence(a: Marginals, k: int) -> Floats:
    """Distances of the k-way marginals to the products of the table's own one-way marginals, float64[subsets]."""
    shares = [a.table((i,)) / max(a.records, 1) for i in range(len(a.pairs.cardinalities))]
    result = []
    for which in a.subsets(k):
        product = shares[which[0]]
        for i in which[1:]:
            product = np.multiply.outer(product, shares[i]).ravel()
        result.append(total_variation(a.table(which), product))
    return np.array(result)


def k_marginal_score(distance: Floats) -> float:
    """NIST's score, from 0 to 1000: a thousand times one minus the mean distance; NaN without marginals."""
    return float(1000 * (1 - distance.mean())) if distance.size else float("nan")


SUBSAMPLES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8)


def subsample_scores(a: Marginals, k: int, *, seed: int, shares: Sequence[float] = SUBSAMPLES) -> Floats:
    """The score of a random part of the table itself, for each share, float64[shares].

    Each marginal is thinned by itself: the expected score of one part on all marginals is the same.
    """
    rng = np.random.default_rng(seed)
    tables = [table[table > 0] for table in map(a.table, a.subsets(k))]
    return np.array(
        [k_marginal_score(np.array([total_variation(rng.binomial(t, share), t) for t in tables])) for share in shares]
    )


def subsample_scores_by_halves(halves: Floats, shares: Sequence[float] = SUBSAMPLES) -> Floats:
    """As `subsample_scores`, from the distances of two random halves: about, for small parts.

    Heavy records are in a part with all their weight, or not at all.
    """
    odds = np.array(shares) / (1 - np.array(shares))
    return np.asarray(1000 * (1 - halves.mean() / 2 / np.sqrt(odds)))


def equivalent_share(score: float, scores: Floats, shares: Sequence[float] = SUBSAMPLES) -> float | None:
    """The share of the table whose random part scores like `score`; None below the smallest share.

    Interpolated in the logarithms of share and distance; 1.0 above the largest share.
    """
    if not np.isfinite(score) or score < scores[0]:
        return None
    if score >= scores[-1]:
        return 1.0
    gaps = np.log(np.maximum(1000 - np.maximum.accumulate(scores), 1e-9))
    return float(np.exp(np.interp(-np.log(max(1000 - score, 1e-9)), -gaps, np.log(shares))))
