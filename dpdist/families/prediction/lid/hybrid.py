"""Stage 1, the hybrid: each original row meets its own synthetic neighbour, and both are mixed.

``x* = alpha x + (1 - alpha) s``. The neighbour is the nearest *unused* one: the assignment with the least total squared
distance, or as published the greedy one, in which each row in turn takes the nearest that is left. Up to `MATCHED_ROWS`
rows are assigned together. Beyond, both sets are halved again and again at the median of the same column until blocks
are small, and each pair of blocks is assigned.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from dpdist.privacy.arrays import Floats
from dpdist.privacy.portable import squared_distances

MATCHED_ROWS = 2048
"""Most rows that are assigned exactly."""

BLOCK_ROWS = 256
"""Most rows of a block beyond that."""

Places = NDArray[np.int64]


def match_exactly(original: Floats, synthetic: Floats) -> Places:
    """The synthetic row of each original one (both float64[n, d]), int64[n]: the assignment with the least total
    squared distance. Original row i meets synthetic row ``places[i]``.
    """
    from scipy.optimize import linear_sum_assignment

    return np.asarray(linear_sum_assignment(squared_distances(original, synthetic))[1], np.int64)


def match_greedily(original: Floats, synthetic: Floats) -> Places:
    """As `match_exactly`, but each original row, in order, takes the nearest synthetic row that is left."""
    distances = squared_distances(original, synthetic)
    places = np.empty(len(original), np.int64)
    for row, distance in enumerate(distances):
        places[row] = np.argmin(distance)
        distances[row + 1 :, places[row]] = np.inf
    return places


ASSIGNMENTS: dict[str, Callable[[Floats, Floats], Places]] = {"nearest": match_exactly, "greedy": match_greedily}
"""Ways to assign the rows of a block."""


def match_blockwise(
    original: Floats, synthetic: Floats, *, method: str = "nearest", block_rows: int = BLOCK_ROWS
) -> Places:
    """An assignment within blocks of neighbours of at most `block_rows` rows."""
    places = np.empty(len(original), np.int64)
    pending = [(np.arange(len(original)), np.arange(len(synthetic)))]
    while pending:
        mine, theirs = pending.pop()
        if len(mine) <= block_rows:
            places[mine] = theirs[ASSIGNMENTS[method](original[mine], synthetic[theirs])]
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

    The method is one of `ASSIGNMENTS`, or ``independent``: whichever row stands at the same place, so that the
    synthetic row says nothing about the original one. Raises ValueError: the shapes differ, or the method is unknown.
    """
    if original.shape != synthetic.shape:
        raise ValueError("as many synthetic rows as original ones are matched, with the same columns")
    if method == "independent" or not original.shape[1]:
        return np.arange(len(original), dtype=np.int64)
    if method not in ASSIGNMENTS:
        raise ValueError(f"unknown way of matching {method!r}: {', '.join(ASSIGNMENTS)} or independent")
    if len(original) <= exact_rows:
        return ASSIGNMENTS[method](original, synthetic)
    return match_blockwise(original, synthetic, method=method, block_rows=block_rows)


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
