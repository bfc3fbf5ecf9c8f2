"""Which rows a mixture takes: uniform sets without replacement, keyed.

A mixture's rows are the first l distinct numbers of a keyed stream of uniform numbers on [0, N): a uniform set of l out
of N. Numbers drawn twice are drawn again from further streams, so that mixture t is a pure function of (key, t, N),
whatever block it is made in. Where l exceeds N/2 the rows left out are drawn instead.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpdist.errors import DataError
from dpdist.privacy.noise import Noise

Indices = NDArray[np.int64]


def sample_rows(noise: Noise, name: str, start: int, stop: int, *, size: int, order: int) -> Indices:
    """The rows of mixtures `start` to `stop` - 1, int64[stop - start, order]: uniform sets of `order` of `size` rows,
    ascending and distinct within each mixture; streams at the address `name`.

    `size`, the rows of the class, is confidential. Total variation from uniform: below ``order * size * 2**-128`` a
    mixture. Raises DataError: the class has fewer rows than a mixture.
    """
    if not 1 <= order <= size:
        raise DataError("a class has fewer records than a mixture takes; lower the order or leave the class out")
    if 2 * order <= size:
        return _distinct(noise, name, start, stop, size=size, order=order)
    taken = np.ones((stop - start, size), bool)
    if order < size:
        left_out = _distinct(noise, name, start, stop, size=size, order=size - order)
        np.put_along_axis(taken, left_out, False, axis=1)
    return np.nonzero(taken)[1].reshape(stop - start, order)


def _distinct(noise: Noise, name: str, start: int, stop: int, *, size: int, order: int) -> Indices:
    """The first `order` distinct numbers of each mixture's stream, sorted."""
    count = stop - start
    drawn = noise.integers(name, count * order, high=size, start=start * order).reshape(count, order)
    drawn.sort(axis=1)
    again, width = 0, 1 + order * order // size  # about twice the repeats of a mixture
    open_ = np.flatnonzero((drawn[:, 1:] == drawn[:, :-1]).any(axis=1))
    while len(open_):
        again += 1
        fresh = noise.integers(f"{name}/again/{again}", count * width, high=size, start=start * width)
        rows = drawn[open_]
        repeated = np.zeros(rows.shape, bool)
        np.equal(rows[:, 1:], rows[:, :-1], out=repeated[:, 1:])
        place = np.cumsum(repeated, axis=1) - 1  # the k-th repeat takes the k-th fresh number
        mixture, column = np.nonzero(repeated & (place < width))
        rows[mixture, column] = fresh.reshape(count, width)[open_[mixture], place[mixture, column]]
        rows.sort(axis=1)
        drawn[open_] = rows
        open_ = open_[(rows[:, 1:] == rows[:, :-1]).any(axis=1)]
    return drawn
