"""Stage 1, the hybrid: each original row meets its own synthetic neighbour, and both are mixed.

``x* = alpha x + (1 - alpha) s``. The neighbour is the nearest *unused* one: the assignment with the least total squared
distance, exact up to `MATCHED_ROWS` rows. Beyond, both sets are halved again and again at the median of the same column
until blocks are small, and each pair of blocks is assigned exactly.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

from dpdist.privacy.arrays import Floats

MATCHED_ROWS = 2048
"""Most rows that are assigned exactly."""

BLOCK_ROWS = 256
"""Most rows of a block beyond that."""

Places = NDArray[np.int64]


def match_exactly(original: Floats, synthetic: Floats) -> Places:
    """The synthetic row of each original one (both float64[n, d]), int64[n]: the assignment with the least total
    squared distance. Original row i meets synthetic row ``places[i]``.
    """
    return np.asarray(linear_sum_assignment(cdist(original, synthetic, "sqeuclidean"))[1], np.int64)


def match_blockwise(original: Floats, synthetic: Floats, *, block_rows: int = BLOCK_ROWS) -> Places:
    """As `match_exactly`, within blocks of neighbours of at most `block_rows` rows."""
    places = np.empty(len(original), np.int64)
    pending = [(np.arange(len(original)), np.arange(len(synthetic)))]
    while pending:
        mine, theirs = pending.pop()
        if len(mine) <= block_rows:
            places[mine] = theirs[match_exactly(original[mine], synthetic[theirs])]
            continue
        column = int(np.argmax(np.ptp(original[mine], axis=0)))
        mine = mine[np.argsort(original[mine, column], kind="stable")]
        theirs = theirs[np.argsort(synthetic[theirs, column], kind="stable")]
        half = len(mine) // 2
        pending += [(mine[:half], theirs[:half]), (mine[half:], theirs[half:])]
    return places


def match(
    original: Floats,
    synthetic: Floats,
    *,
    method: str = "nearest",
    exact_rows: int = MATCHED_ROWS,
    block_rows: int = BLOCK_ROWS,
) -> Places:
    """The synthetic row that each original row is mixed with; both float64[n, d], columns on scales that may be
    compared.

    The method is the nearest unused neighbour, or ``independent``: whichever row stands at the same place, so that the
    synthetic row says nothing about the original one. Raises ValueError: the shapes differ, or the method is unknown.
    """
    if original.shape != synthetic.shape:
        raise ValueError("as many synthetic rows as original ones are matched, with the same columns")
    if method == "independent" or not original.shape[1]:
        return np.arange(len(original), dtype=np.int64)
    if method != "nearest":
        raise ValueError(f"unknown way of matching {method!r}: nearest or independent")
    if len(original) <= exact_rows:
        return match_exactly(original, synthetic)
    return match_blockwise(original, synthetic, block_rows=block_rows)


def mix(original: Floats, synthetic: Floats, *, alpha: float, mixed: NDArray[np.bool_] | None = None) -> Floats:
    """``alpha * original + (1 - alpha) * synthetic``, row by row; both float64[n, d], row i the neighbour of row i.
    Columns that are not `mixed` (categories) stay synthetic, unless alpha is 1.
    """
    if not 0 <= alpha <= 1:
        raise ValueError("alpha is from 0 to 1")
    out = alpha * original + (1 - alpha) * synthetic
    if mixed is not None and alpha < 1:
        out[:, ~mixed] = synthetic[:, ~mixed]
    return np.asarray(out)
