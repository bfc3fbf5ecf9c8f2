"""Where a range of numbers begins and ends, by the noisy counts of its bins and the harm that may be expected.

Records outside of a range are cut to its ends; into its empty parts records of the bin beside them are spread. Where
counts are too weak to tell which it is, the range stays wide: it loses less than a narrow one.
"""

from __future__ import annotations

import math

import numpy as np

from dpdist.privacy.arrays import Counts, Floats

_EMPTY = 1.5  # deviations of records that a bin must seem to have, so that a range goes on to it
_SEEN = 3.0  # deviations of the records of a run, less those, from which on they are not noise
_CUT = 1.0  # harm of a record that is cut, in records that are spread
_FARTHEST = -30.0  # deviations below 0 from which on densities are no more than zeros


def range_of(counts: Floats) -> tuple[int, int] | None:
    """The first and the last bin of a range, by counts in deviations of their noise: that of the run of bins with the
    most records, and beyond it of others. None where no run has enough.
    """
    first, last, most = _run(counts)
    if most < _SEEN:
        return None
    while first and (below := _run(counts[:first]))[2] >= _SEEN:
        first = below[0]
    while last + 1 < len(counts) and (above := _run(counts[last + 1 :]))[2] >= _SEEN:
        last += 1 + above[1]
    return first, last


def _run(counts: Floats) -> tuple[int, int, float]:
    """The run of bins with the most records, less `_EMPTY` for each bin: its first, its last and that number."""
    first, last, best = 0, 0, -math.inf
    begin, total = 0, 0.0
    for i, gain in enumerate((counts - _EMPTY).tolist()):
        if total <= 0:
            begin, total = i, 0.0
        total += gain
        if total > best:
            first, last, best = begin, i, total
    return first, last, best


def expected_count(count: float, deviation: float) -> float:
    """What a noisy count stands for, as no count is negative and most ends of a range are empty: the mean, if before
    the noise large counts have exponentially small chances, with a mean of one deviation.
    """
    far = max(count / deviation - 1, _FARTHEST)
    density = math.exp(-far * far / 2) / math.sqrt(2 * math.pi)
    return deviation * (far + density / (math.erfc(-far / math.sqrt(2)) / 2))


def cells_to_cut(counts: Counts, widths: Floats, *, deviation: float, least: float) -> int:
    """How many cells to cut from an end of a range with the least harm. `counts` are noisy, from that end inwards; the
    bin that remains at the end has at `least` so many records.
    """
    sums, ends = np.append(0, np.cumsum(counts)), np.append(0, np.cumsum(widths))
    best, harm = 0, 0.0
    for cut in range(1, len(counts)):
        lost = expected_count(float(sums[cut]), deviation * math.sqrt(cut))
        reached = np.flatnonzero(sums[cut + 1 :] - sums[cut] >= least)
        end = ends[cut + 1 + int(reached[0])] if len(reached) else ends[-1]
        spread = least * float(ends[cut] / end) - lost
        if _CUT * lost - spread < harm:
            best, harm = cut, _CUT * lost - spread
    return best
