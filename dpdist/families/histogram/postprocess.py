"""What may be done to noisy counts for free: non-negative integers and consistency.

All of it is a function of noisy counts and public numbers, so it costs no privacy.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpdist.families.base.calibration import project
from dpdist.privacy.arrays import Floats


def largest_remainder(values: ArrayLike, *, total: int) -> NDArray[np.int64]:
    """Integers nearest to shares of a total, which they have exactly: int64 of the same shape.

    The cells with the largest remainders (the first of equal ones) are rounded up.
    """
    weights = np.asarray(values, np.float64)
    weights = weights / (weights.max(initial=0.0) or 1.0)  # the largest is 1: no overflow
    mass = weights.sum()
    exact = weights / mass * total if mass > 0 else np.full(weights.shape, total / max(weights.size, 1))
    result: NDArray[np.int64] = np.floor(exact).astype(np.int64)
    missing = total - int(result.sum())
    if missing:  # rounding of the scaled values can leave one too many, too
        order = np.argsort((result - exact).ravel(), kind="stable")
        result.ravel()[order[:missing] if missing > 0 else order[missing:]] += np.sign(missing)
    return result


def non_negative_integers(noisy: ArrayLike, *, total: int | None = None) -> NDArray[np.int64]:
    """`project`, then round to integers of the same total (by default the table's own, rounded).

    Examples
    --------
    >>> non_negative_integers([12, -3, 1, 0]).tolist()
    [10, 0, 0, 0]
    """
    table = np.asarray(noisy)
    total = max(round(float(table.sum())), 0) if total is None else total
    return largest_remainder(project(table, total=total), total=total)


def fit_hierarchy(
    levels: Sequence[ArrayLike], *, parents: Sequence[ArrayLike], variances: Sequence[float]
) -> tuple[list[Floats], list[Floats]]:
    """Least-squares counts of a hierarchy in which children sum to their parent, and their variances; counts may be
    negative.

    Going up, a node's own noisy count and the sum of its children's estimates are averaged by inverse variance; going
    down, the difference of a parent's estimate and its children's sum is spread over them by variance (Hay et al. 2010,
    for any tree and any noise).

    `levels` go from the finest to the coarsest; `parents` gives for each level but the last the place of each node's
    parent in the next one.
    """
    counts = [np.asarray(level, np.float64) for level in levels]
    links = [np.asarray(link, np.intp) for link in parents]
    estimates, spreads = [counts[0]], [np.full(counts[0].shape, float(variances[0]))]
    for own, link, variance in zip(counts[1:], links, variances[1:], strict=True):
        children = np.bincount(link, estimates[-1], own.size)
        spread = np.bincount(link, spreads[-1], own.size)
        estimates.append((own * spread + children * variance) / (spread + variance))
        spreads.append(spread * variance / (spread + variance))
    for level in range(len(links) - 1, -1, -1):
        link, size = links[level], counts[level + 1].size
        missing = estimates[level + 1] - np.bincount(link, estimates[level], size)
        total = np.bincount(link, spreads[level], size)
        share = spreads[level] / total[link]
        estimates[level] = estimates[level] + missing[link] * share
        # the parent's own count and the rest of the tree move the sum of its children from variance total to spreads
        spreads[level] = spreads[level] - share**2 * (total - spreads[level + 1])[link]
    return estimates, spreads
