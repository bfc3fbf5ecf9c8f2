"""Bins of about equal counts, cut from noisy counts of a grid: post-processing.

The levels of a tree of counts are made to agree by least squares [1]_, isotonic regression makes the cumulative counts
grow, and cuts divide them evenly. A code that holds more than a bin should is a bin of its own, so that heaps (zeros,
round numbers) do not blur their neighbours.

References
----------
.. [1] Hay, Rastogi, Miklau, Suciu, *Boosting the accuracy of differentially private histograms through consistency*,
   2010.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dpdist.families.histogram.postprocess import fit_hierarchy
from dpdist.privacy.arrays import Counts, Floats

FAN_OUT = 16
"""Nodes of a level in a node of the next: few levels share the noise, and few nodes make up a range."""

Bins = NDArray[np.int64]
"""The first code of each bin, ascending from 0."""


def level_sizes(codes: int) -> tuple[int, ...]:
    """Nodes of each level over so many codes, from the codes up; the last has at most `FAN_OUT`.

    >>> level_sizes(1_000)
    (1000, 63, 4)
    """
    sizes = [codes]
    while sizes[-1] > FAN_OUT:
        sizes.append(-(-sizes[-1] // FAN_OUT))
    return tuple(sizes)


def fitted_masses(levels: Sequence[Counts], *, deviations: Sequence[float]) -> Floats:
    """Non-negative counts of the codes that fit noisy counts of all levels.

    Least squares over the levels, then the nearest cumulative counts that grow: what is negative is set off against
    the neighbours, so that many empty codes do not add up to a bin.
    """
    from scipy.optimize import isotonic_regression

    parents = [np.arange(level.size) // FAN_OUT for level in levels[:-1]]
    fitted, _ = fit_hierarchy(levels, parents=parents, variances=[max(sd, 1e-9) ** 2 for sd in deviations])
    growing = isotonic_regression(np.cumsum(fitted[0])).x
    return np.diff(np.maximum(growing, 0.0), prepend=0.0)


def even_bins(masses: Floats, count: int) -> Bins:
    """First codes of exactly so many bins of about equal mass, at most as many as codes.

    The heaviest codes are bins of their own while one holds more than an even share of what is left. Cuts at quantiles
    divide the rest. Where cuts coincide, the heaviest bins of several codes (of equal ones the widest) are halved.

    >>> even_bins(np.array([9.0, 0, 1, 1, 1, 1]), 3).tolist()
    [0, 1, 4]
    """
    order = np.argsort(-masses, kind="stable")[: (count - 1) // 2]
    left = masses.sum() - np.cumsum(masses[order]) + masses[order]  # of each heavy code and all lighter ones
    light = np.flatnonzero(masses[order] * (count - 2 * np.arange(order.size)) <= left)
    alone = order[: int(light[0]) if light.size else order.size]
    rest = masses.copy()
    rest[alone] = 0.0
    room = count - 1 - 2 * alone.size
    ends = np.append(0.0, np.cumsum(rest))
    goals = ends[-1] * np.arange(1, room + 1) / (room + 1)
    above = np.clip(np.searchsorted(ends, goals), 1, masses.size)
    nearest = above - (goals - ends[above - 1] < ends[above] - goals)
    cuts = {0, *alone.tolist(), *(alone + 1).tolist(), *nearest.tolist()} - {masses.size}
    return _halved(masses, sorted(cuts), count)


def _halved(masses: Floats, starts: list[int], count: int) -> Bins:
    """So many bins: the heaviest of several codes is cut where its halves are most even, again and again."""
    ends = np.append(0.0, np.cumsum(masses))

    def entry(start: int, stop: int) -> tuple[float, int, int, int]:
        return -float(ends[stop] - ends[start]), start - stop, start, stop

    wide = [entry(a, b) for a, b in pairwise([*starts, masses.size]) if b - a > 1]
    heapq.heapify(wide)
    firsts = set(starts)
    while len(firsts) < count:
        _, _, start, stop = heapq.heappop(wide)
        inner = np.abs(2 * ends[start + 1 : stop] - ends[start] - ends[stop])
        even = np.flatnonzero(inner == inner.min())
        cut = start + 1 + int(even[even.size // 2])
        firsts.add(cut)
        for a, b in ((start, cut), (cut, stop)):
            if b - a > 1:
                heapq.heappush(wide, entry(a, b))
    return np.array(sorted(firsts), np.int64)
