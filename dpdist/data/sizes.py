"""Sizes that plans and readers share; this module imports nothing but the standard library."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import accumulate

BATCH_ROWS = 1 << 17
"""Rows of a batch; of CSV, as many bytes as about so many rows have."""

MOST_TEXT_BYTES = 200
"""Longest text (UTF-8) that a discovery looks at."""


def slices(sizes: Iterable[int], rows: int) -> list[list[tuple[int, int, int]]]:
    """Cut a sequence of arrays of these sizes into runs of `rows` rows, the last one shorter.

    Returns for each run the arrays that it takes rows from: their number, the first of these rows, the row after the
    last.
    """
    ends = list(accumulate(sizes, initial=0))
    runs = []
    for start in range(0, ends[-1], rows):
        stop = min(start + rows, ends[-1])
        places = range(bisect_right(ends, start) - 1, bisect_left(ends, stop))
        cuts = [(i, max(start - ends[i], 0), min(stop, ends[i + 1]) - ends[i]) for i in places]
        runs.append([cut for cut in cuts if cut[1] < cut[2]])
    return runs
