"""Domains whose pair tables do not fit a worker: one-way tables first, then pairs of the codes that these leave.

The exact tables that noise is added to are the same as those of a table that fits: sums over merged values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations

import numpy as np

from dpdist.data.count import PairCounts, cells_of_pairs
from dpdist.data.operators import Operator, pair_counts_operator, table_counts_operator, through
from dpdist.families.synthesis.choices import MOST_CODED_CELLS, Choices
from dpdist.families.synthesis.marginals import Coding, Levels, OneWay, coding_of
from dpdist.families.synthesis.tables import PairTables
from dpdist.privacy.arrays import Codes, Counts
from dpdist.spec.rules import Rules

_FARTHER = 1.5
"""Factor of the threshold of rare values, until the tables of all pairs fit."""


def single_counts_operator(cardinalities: Sequence[int]) -> Operator:
    """The one-way tables, one after another."""
    return table_counts_operator(cardinalities, [(i,) for i in range(len(cardinalities))])


@dataclass(frozen=True, eq=False, repr=False)
class SingleCounts:
    """Exact one-way counts, and the pass that counts pairs of coded values. Confidential.

    Attributes
    ----------
    cardinalities : tuple of int
    cells : ndarray of int64
        The one-way tables, one after another.
    count : callable
        Makes a pass over the records by an operator, and returns its summary.
    """

    cardinalities: tuple[int, ...]
    cells: Counts
    count: Callable[[Operator], PairCounts]

    def single(self, i: int) -> Counts:
        """Counts of attribute `i`, shape (cardinalities[i],)."""
        start = sum(self.cardinalities[:i])
        return self.cells[start : start + self.cardinalities[i]]

    def coded(self, one_way: OneWay, choices: Choices, rules: Rules, levels: Levels) -> tuple[Coding, PairTables]:
        """The coding, with so many rare values merged that all pairs fit, and its pair tables."""
        below = choices.merge_below
        while True:
            coding = coding_of(one_way, merge_below=below, coarse=choices.coarse, rules=rules, levels=levels)
            if cells_of_pairs(coding.cardinalities) <= MOST_CODED_CELLS:
                break
            below *= _FARTHER
        counts = self.count(through(partial(model_codes, coding), pair_counts_operator(coding.cardinalities)))
        source = coding.source
        pairs = tuple(p for p in combinations(range(len(source)), 2) if source[p[0]] != source[p[1]])
        pieces = [counts.pair(*pair).ravel() for pair in pairs]
        return coding, PairTables(coding.cardinalities, pairs, np.concatenate([np.zeros(0, np.int64), *pieces]))


def model_codes(coding: Coding, codes: Codes) -> Codes:
    """The codes of the model's attributes."""
    return [table[codes[i]] for i, table in zip(coding.source, _small(coding), strict=True)]


def _small(coding: Coding) -> list[np.ndarray]:
    """The maps in the least integers that hold them."""
    return [m.astype(np.min_scalar_type(c - 1)) for m, c in zip(coding.maps, coding.cardinalities, strict=True)]
