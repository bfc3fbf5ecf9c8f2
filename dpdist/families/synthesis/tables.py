"""The pair tables of the model's attributes, one flat vector of exact counts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from dpdist.data.count import PairCounts
from dpdist.families.synthesis.marginals import Coding

Pair = tuple[int, int]


@dataclass(frozen=True, eq=False, repr=False)
class PairTables:
    """Counts of all pairs of the model's attributes but those of one source. Confidential.

    Attributes
    ----------
    cardinalities : tuple of int
    pairs : tuple of (int, int)
        Ascending in each.
    cells : ndarray of int64
        The tables of the pairs, one after another, in C order.
    """

    cardinalities: tuple[int, ...]
    pairs: tuple[Pair, ...]
    cells: NDArray[np.int64]

    def __repr__(self) -> str:
        return f"PairTables(cardinalities={self.cardinalities}, <counts hidden>)"

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """Number of cells of each pair's table."""
        return np.array([self.cardinalities[a] * self.cardinalities[b] for a, b in self.pairs], np.int64)

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """Where each pair's table starts in `cells`."""
        return np.concatenate([[0], np.cumsum(self.sizes)[:-1]]).astype(np.int64)

    def table(self, index: int) -> NDArray[np.int64]:
        """The table of pair number `index`."""
        a, b = self.pairs[index]
        start = int(self.starts[index])
        size = int(self.sizes[index])
        return self.cells[start : start + size].reshape(self.cardinalities[a], self.cardinalities[b])

    def distances(self, expected: NDArray[np.int64]) -> NDArray[np.int64]:
        """L1 distance of each pair's table to a public table of integers; one record changes each by at most 1."""
        if not self.pairs:
            return np.zeros(0, np.int64)
        return np.add.reduceat(np.abs(self.cells - expected), self.starts)


def recode(counts: PairCounts, coding: Coding) -> PairTables:
    """Sum the exact pair counts onto the codes of the model."""
    cards, source = coding.cardinalities, coding.source
    pairs = tuple(p for p in combinations(range(len(cards)), 2) if source[p[0]] != source[p[1]])
    spread = [
        None if np.array_equal(m, np.arange(c)) else (m[:, None] == np.arange(c)).astype(np.float64)
        for m, c in zip(coding.maps, cards, strict=True)
    ]
    pieces = []
    for a, b in pairs:
        table = counts.pair(source[a], source[b])
        left, right = spread[a], spread[b]
        if left is not None or right is not None:  # sums of integers below 2**53 are exact
            exact = table.astype(np.float64)
            exact = exact if left is None else left.T @ exact
            table = np.rint(exact if right is None else exact @ right).astype(np.int64)
        pieces.append(table.ravel())
    return PairTables(cards, pairs, np.concatenate(pieces) if pieces else np.zeros(0, np.int64))
