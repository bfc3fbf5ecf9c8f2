"""Balanced records: a sample of model rows whose pair tables are close to the model's.

Rows drawn from a model miss its pair tables by chance, though no more than the noise of the measurements does. Rows are
therefore drawn in excess, and rows in the sample are exchanged for rows outside it where that brings the pair tables
closer to their expected counts. All arithmetic is on integers, and the rows that are looked at are chosen by keyed
words: the result is a pure function of model, key and part.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpdist.privacy.arrays import Counts
from dpdist.privacy.noise import Noise

CELL_BITS = 10
"""Expected counts are in units of 2**-10 records."""

WEIGHT_BITS = 12
"""Weights of cells are in units of 2**-12."""

LOOKED_AT = 2048
"""Rows of a sample that a round looks at: so many or a sixteenth, at most four times as many."""

PIECE = 1 << 15  # rows at a time


@dataclass(frozen=True, eq=False)
class PairIndex:
    """Where each pair's cells stand in one flat vector.

    Attributes
    ----------
    left, right : ndarray of int, shape (pairs,)
    width : ndarray of int32, shape (pairs,)
        Number of values of the right attribute.
    start : ndarray of int32, shape (pairs,)
    cells : int
    """

    left: NDArray[np.intp]
    right: NDArray[np.intp]
    width: NDArray[np.int32]
    start: NDArray[np.int32]
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


def balance(
    values: NDArray[np.int32],
    chosen: Counts,
    expected: Counts,
    index: PairIndex,
    noise: Noise,
    name: str,
    *,
    rounds: int,
) -> Counts:
    """Exchange rows of a sample until its pair tables are close to the expected ones.

    Minimises ``sum over cells of (count - expected)^2 / (expected + 1)``. In each round some rows in the sample and as
    many outside are drawn; the worst of the former are exchanged for the best of the latter while it pays.

    Parameters
    ----------
    values : ndarray of int32, shape (attributes, rows)
        The pool.
    chosen : ndarray of int64, shape (records,)
        Rows of the sample.
    expected : ndarray of int64, shape (cells,)
        Expected counts of the sample, in units of 2**-10.
    rounds : int

    Returns
    -------
    ndarray of int64, shape (records,)
    """
    inside = chosen.copy()
    outside = np.flatnonzero(np.bincount(chosen, minlength=values.shape[1]) == 0)
    if not len(inside) or not len(outside):
        return inside
    looked_at = min(max(len(inside) // 16, LOOKED_AT), 4 * LOOKED_AT)
    weight = (1 << (WEIGHT_BITS + CELL_BITS)) // (expected + (1 << CELL_BITS))
    excess = -expected
    for start in range(0, len(inside), PIECE):
        cells = index.of_rows(values[:, inside[start : start + PIECE]])
        excess += np.bincount(cells.ravel(), minlength=index.cells) << CELL_BITS
    for r in range(rounds):
        most = max(looked_at // 16 * (rounds - r) // rounds, 8)
        a = noise.integers(f"{name}/inside/{r}", looked_at, high=len(inside))
        b = noise.integers(f"{name}/outside/{r}", looked_at, high=len(outside))
        a, b = np.unique(a), np.unique(b)
        cells_a, cells_b = index.of_rows(values[:, inside[a]]), index.of_rows(values[:, outside[b]])
        cost_a, cost_b = _costs(excess, weight, cells_a, cells_b)
        worst, best = np.argsort(-cost_a, kind="stable")[:most], np.argsort(cost_b, kind="stable")[:most]
        pairs = min(len(worst), len(best))
        pays = cost_a[worst[:pairs]] > cost_b[best[:pairs]]
        worst, best = worst[:pairs][pays], best[:pairs][pays]
        if not len(worst):
            continue
        np.add.at(excess, cells_b[:, best].ravel(), 1 << CELL_BITS)
        np.subtract.at(excess, cells_a[:, worst].ravel(), 1 << CELL_BITS)
        leaving, entering = inside[a[worst]], outside[b[best]]
        inside[a[worst]], outside[b[best]] = entering, leaving
    return inside


def _costs(
    excess: Counts, weight: Counts, leaving: NDArray[np.int32], entering: NDArray[np.int32]
) -> tuple[Counts, Counts]:
    """What the objective loses by each row that leaves, and gains by each that enters, but for a common factor."""
    if len(excess) < 2 * leaving.size:
        gradient = (2 * excess * weight) >> CELL_BITS
        return (gradient - weight).take(leaving).sum(0), (gradient + weight).take(entering).sum(0)
    found = []
    for cells, sign in ((leaving, -1), (entering, 1)):  # of many cells only those of the rows
        own = weight.take(cells)
        found.append((((2 * excess.take(cells) * own) >> CELL_BITS) + sign * own).sum(0))
    return found[0], found[1]
