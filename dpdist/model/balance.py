"""Balanced records: a sample of model rows whose pair tables are close to the model's.

Rows are drawn in excess, and rows in the sample are exchanged for rows outside it where that brings the pair tables
closer to their expected counts. All arithmetic is on integers, and the rows that are looked at are chosen by keyed
words: the result is a pure function of model, key and part.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dpdist.privacy.arrays import Counts
from dpdist.privacy.noise import Noise

CELL_BITS = 10  # expected counts are in units of 2**-10 records
# weights of cells are in units of 2**-26: a cell of a million records has one, too, and costs stay below 2**62
WEIGHT_BITS = 26
LOOKED_AT = 2048  # rows of a sample that a round looks at: this number, or a sixteenth up to four times it
_CELLS_AT_ONCE = 1 << 23  # places of the rows' cells, so that wide rows take no more memory than others
# cells of all rows are held where they take no more places: the rounds look at each of them many times
_HELD = 1 << 25


@dataclass(frozen=True, eq=False)
class PairIndex:
    """Where each pair's cells stand in one flat vector."""

    left: NDArray[np.intp]  # left, right: shape (pairs,)
    right: NDArray[np.intp]
    width: NDArray[np.int32]  # shape (pairs,); number of values of the right attribute
    start: NDArray[np.int32]  # shape (pairs,)
    cells: int

    @classmethod
    def of(cls, cardinalities: tuple[int, ...]) -> PairIndex:
        """All pairs (i, j), i < j, of the attributes, in C order."""
        left, right = np.triu_indices(len(cardinalities), 1)
        sizes = np.array(cardinalities, np.int64)
        cells = sizes[left] * sizes[right]
        starts = np.cumsum(cells) - cells
        return cls(left, right, sizes[right].astype(np.int32), starts.astype(np.int32), int(cells.sum()))

    def of_rows(self, rows: NDArray[np.int32]) -> NDArray[np.int32]:
        """Cells of some rows, shape (pairs, rows), from values of shape (attributes, rows)."""
        cells = rows[self.left]
        cells *= self.width[:, None]
        cells += self.start[:, None]
        cells += rows[self.right]
        return cells


@dataclass(frozen=True, eq=False)
class CellCosts:
    """What one record more (sign 1), or fewer (-1), changes in the objective of `balance`, but for a common factor."""

    excess: Counts  # excess, weight: shape (cells,)
    weight: Counts
    sign: int

    def at(self, cells: NDArray[np.int32]) -> Counts:
        """The costs of some cells."""
        if len(self.excess) < 2 * cells.size:
            return self._of(self.excess, self.weight).take(cells)
        return self._of(self.excess.take(cells), self.weight.take(cells))

    def __getitem__(self, cells: slice) -> CellCosts:
        return CellCosts(self.excess[cells], self.weight[cells], self.sign)

    def _of(self, excess: Counts, weight: Counts) -> Counts:
        return ((2 * excess * weight) >> CELL_BITS) + self.sign * weight


class Exchangeable(Protocol):
    """What may be in a sample: rows of a table, or several that belong together."""

    def __len__(self) -> int: ...

    def counts(self, items: Counts) -> Counts:
        """How often some items are in each cell."""
        ...

    def costs(self, items: Counts, of_cells: CellCosts) -> Counts:
        """The sum of what its cells cost, for each of some items."""
        ...


@dataclass(frozen=True, eq=False)
class TableRows:
    """Rows of one table, and their cells."""

    values: NDArray[np.int32]  # shape (attributes, rows)
    index: PairIndex

    def __len__(self) -> int:
        return int(self.values.shape[1])

    @cached_property
    def held(self) -> NDArray[np.int32] | None:
        """The cells of all rows, shape (rows, pairs); None where they would take much memory."""
        if len(self) * len(self.index.left) > _HELD:
            return None
        return np.ascontiguousarray(self.index.of_rows(self.values).T)

    def counts(self, items: Counts) -> Counts:
        """How many of the rows are in each cell."""
        found = np.zeros(self.index.cells, np.int64)
        for cells in self._cells(items):
            found += np.bincount(cells.ravel(), minlength=self.index.cells)
        return found

    def costs(self, items: Counts, of_cells: CellCosts) -> Counts:
        """What the cells of each row cost."""
        found = [of_cells.at(cells).sum(1) for cells in self._cells(items)]
        return np.concatenate([np.zeros(0, np.int64), *found])

    def _cells(self, items: Counts) -> Iterator[NDArray[np.int32]]:
        """The cells of some rows, shape (rows, pairs), a piece of the rows at a time."""
        piece = max(_CELLS_AT_ONCE // max(len(self.index.left), 1), 1)
        for start in range(0, len(items), piece):
            some = items[start : start + piece]
            yield self.index.of_rows(self.values[:, some]).T if self.held is None else self.held.take(some, axis=0)


def balance(
    pool: Exchangeable,
    chosen: Counts,
    expected: Counts,
    noise: Noise,
    name: str,
    *,
    rounds: int,
    weights: Counts | None = None,
) -> Counts:
    """Exchange items of a sample until its tables are close to the expected ones.

    Minimises ``sum over cells of weight (count - expected)^2``: in each round the worst of some items in the sample are
    exchanged for the best of others while it pays. `expected` counts are in units of 2**-10, `weights` in any unit (``1
    / (expected + 1)`` where not given).
    """
    inside = chosen.copy()
    outside = np.flatnonzero(np.bincount(chosen, minlength=len(pool)) == 0)
    if not len(inside) or not len(outside):
        return inside
    looked_at = min(max(len(inside) // 16, LOOKED_AT), 4 * LOOKED_AT)
    at_once = min(looked_at, len(inside)) // 16
    least = min(max(at_once // 16, 1), 8)  # of few rows one at a time: many alike would leave a cell together
    weight = (1 << (WEIGHT_BITS + CELL_BITS)) // (expected + (1 << CELL_BITS)) if weights is None else weights
    excess = (pool.counts(inside) << CELL_BITS) - expected
    for r in range(rounds):
        most = max(at_once * (rounds - r) // rounds, least)
        a = noise.integers(f"{name}/inside/{r}", looked_at, high=len(inside))
        b = noise.integers(f"{name}/outside/{r}", looked_at, high=len(outside))
        a, b = (np.flatnonzero(np.bincount(places)) for places in (a, b))
        cost_a = pool.costs(inside[a], CellCosts(excess, weight, -1))
        cost_b = pool.costs(outside[b], CellCosts(excess, weight, 1))
        worst, best = np.argsort(-cost_a, kind="stable")[:most], np.argsort(cost_b, kind="stable")[:most]
        pairs = min(len(worst), len(best))
        pays = cost_a[worst[:pairs]] > cost_b[best[:pairs]]
        worst, best = worst[:pairs][pays], best[:pairs][pays]
        if not len(worst):
            if len(a) == len(inside) and len(b) == len(outside):
                break  # of all exchanges none pays
            continue
        leaving, entering = inside[a[worst]], outside[b[best]]
        excess += (pool.counts(entering) - pool.counts(leaving)) << CELL_BITS
        inside[a[worst]], outside[b[best]] = entering, leaving
    return inside
