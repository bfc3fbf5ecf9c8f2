"""Mixtures: means of rows drawn without replacement within a class, with Gaussian noise (DP-CDA, Algorithm 1).

**Rows live on a grid.** Each row is clipped to norm c and rounded to multiples of a power of two, h <= c / 2**12, and
stays within norm c: sums of rows are exact in float32 and in any order, and one row moves a sum by at most 2c. Noise is
the multiple of h nearest to a Gaussian draw: as the sum is on the grid, that is post-processing of the continuous
Gaussian mechanism, whose accounting applies, and rounding adds nothing to the sensitivity.


**Sampling.** A mixture's rows are the first l distinct numbers of a keyed stream of uniform numbers on [0, N): a
uniform set of l out of N. Numbers drawn twice are drawn again from further streams, so that mixture t is a pure
function of (key, t, N), whatever block it is made in. Where l exceeds N/2 the rows left out are drawn instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpdist.errors import DataError, SpecError
from dpdist.privacy.arrays import Floats, grid_below, round_to_grid
from dpdist.privacy.noise import Noise

Rows = NDArray[np.float32]

LARGEST_ORDER = 1 << 11  # rows in a mixture, at most: sums then stay below 2**24 grid steps and are exact in float32
_GRID_STEPS = 1 << 12  # grid steps in the clipping norm, at least
_GATHERED_BYTES = 1 << 19  # rows gathered at a time
_SAMPLED = 1 << 19  # rows sampled at a time
_CLIPPED = 1 << 20  # values clipped at a time
_SQUARED = 1 << 12  # values of a row squared at a time


def row_grid(clip: float) -> float:
    """The grid of rows clipped to norm `clip`: the largest power of two up to ``clip / 2**12``."""
    return grid_below(clip / _GRID_STEPS)


def clip_rows(rows: ArrayLike, *, clip: float) -> Rows:
    """Rows clipped to an L2 norm `clip`, exactly, and rounded to the grid, float32[n, d].

    A row is only scaled if its rounded values exceed the norm. Raises DataError: a value is not finite.
    """
    values = np.asarray(rows)
    clipped = np.empty(values.shape, np.float32)
    block = max(1, _CLIPPED // max(values.shape[1], 1))
    for begin in range(0, len(values), block):
        clipped[begin : begin + block] = _clip(values[begin : begin + block].astype(np.float64), clip, row_grid(clip))
    return clipped


def _clip(rows: NDArray[np.float64], clip: float, grid: float) -> NDArray[np.float64]:
    if not np.isfinite(rows).all():
        raise DataError("rows to mix hold values that are not finite; correct the scaling or the data")
    with np.errstate(over="ignore"):  # then the row becomes 0
        lengths = np.sqrt(_squares(rows))
    rows *= (clip / np.maximum(lengths, clip))[:, None]
    rounded = round_to_grid(rows, grid=grid)
    outside = np.flatnonzero(_squares(rounded) > clip**2 * (1 - 2.0**-50))
    if len(outside):
        inner = clip - grid * np.sqrt(rows.shape[1]) / 2 * (1 + 2.0**-30)  # a value moves by half a step at most
        shrink = inner / np.maximum(np.sqrt(_squares(rows[outside])), inner)
        rounded[outside] = round_to_grid(rows[outside] * shrink[:, None], grid=grid)
    return rounded


def _squares(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Squared norms. Of wide rows piece by piece: einsum would round one alone otherwise than in company."""
    pieces = (rows[:, at : at + _SQUARED] for at in range(0, rows.shape[1], _SQUARED))
    return np.asarray(np.sum([np.einsum("ij,ij->i", piece, piece) for piece in pieces], axis=0))


def sum_rows(rows: Rows, indices: Indices) -> Rows:
    """Sum of the rows (float32[n, d], from `clip_rows`) of each mixture (int64[t, l]), exact: float32[t, d]."""
    count, order = indices.shape
    width = rows.shape[1]
    sums = np.empty((count, width), np.float32)
    block = max(1, _GATHERED_BYTES // (order * width * 4))
    buffer = np.empty((block * order, width), np.float32)
    ones = np.ones((1, order), np.float32)
    for begin in range(0, count, block):
        taken = indices[begin : begin + block]
        gathered = buffer[: taken.size]
        rows.take(taken.reshape(-1), axis=0, out=gathered, mode="clip")  # no index is out of range
        np.matmul(ones, gathered.reshape(-1, order, width), out=sums[begin : begin + block, None, :])
    return sums


def sum_rows_of_shard(rows: Rows, indices: Indices, *, first: int) -> Rows:
    """Sum of those rows of each mixture (int64[t, l]) that lie in a shard, which begins at row `first`; exact."""
    from scipy.sparse import csr_array

    inside = (indices >= first) & (indices < first + len(rows))
    ends = np.concatenate([[0], np.cumsum(np.count_nonzero(inside, axis=1))])
    taken = indices[inside] - first
    picks = csr_array((np.ones(len(taken), np.float32), taken, ends), shape=(len(indices), len(rows)))
    return np.asarray(picks @ rows)


@dataclass(frozen=True, kw_only=True)
class Mixer:
    """How the mixtures of one class are made. Raises SpecError: a number is out of range."""

    order: int  # rows in a mixture, l
    clip: float  # largest norm of a row, c
    sigma: float  # deviation of the noise in each coordinate of a mixture, before rounding
    name: str  # address of the class's noise, such as ``"mixing/3"``

    def __post_init__(self) -> None:
        if not 1 <= self.order <= LARGEST_ORDER:
            raise SpecError(f"the order of a mixture must be from 1 to {LARGEST_ORDER}, got {self.order}")
        if not (self.clip > 0 and self.sigma > 0 and np.isfinite([self.clip, self.sigma]).all()):
            raise SpecError("the clipping norm and the noise of a mixture must be finite and above 0")

    @property
    def grid(self) -> float:
        """Grid of rows, sums and noise."""
        return row_grid(self.clip)

    def sample(self, noise: Noise, start: int, stop: int, *, size: int) -> Indices:
        """Rows of mixtures `start` to `stop` - 1 of a class of `size` rows; see `sample_rows`."""
        return sample_rows(noise, f"{self.name}/rows", start, stop, size=size, order=self.order)

    def sums(self, noise: Noise, rows: Rows, start: int, stop: int, *, first: int = 0, size: int | None = None) -> Rows:
        """Exact sums of the rows of mixtures `start` to `stop` - 1, as far as they lie in one shard of the class.

        The shard holds rows from `first` of the `size` rows of the class (confidential; default: all of them). Raises
        DataError: the class has fewer rows than a mixture.
        """
        size = len(rows) if size is None else size
        sums = np.empty((stop - start, rows.shape[1]), np.float32)
        for a, b in self.blocks(start, stop, width=rows.shape[1]):
            indices = self.sample(noise, a, b, size=size)
            whole = len(rows) == size
            sums[a - start : b - start] = (
                sum_rows(rows, indices) if whole else sum_rows_of_shard(rows, indices, first=first)
            )
        return sums

    def noisy_sums(self, noise: Noise, sums: Rows, start: int) -> Floats:
        """Sums of mixtures `start` and following with their noise, exact multiples of the grid; what clients send."""
        sigma, first = self.sigma * self.order, start * sums.shape[1]
        drawn = noise.grid_gaussian(f"{self.name}/noise", sums.size, sigma=sigma, grid=self.grid, start=first)
        drawn += sums.reshape(-1)
        return drawn.reshape(sums.shape)

    def finish(self, noise: Noise, sums: Rows, start: int) -> Rows:
        """Mixtures from `start` on, float32[t, d]: the sums over all shards with noise, and their mean."""
        mixtures = np.empty_like(sums)
        for a, b in self.blocks(0, len(sums), width=sums.shape[1]):
            mixtures[a:b] = self.noisy_sums(noise, sums[a:b], start + a) / self.order
        return mixtures

    def mixtures(self, noise: Noise, rows: Rows, start: int, stop: int) -> Rows:
        """Mixtures `start` to `stop` - 1, float32[t, d], from all rows. Raises DataError: fewer rows than a mixture."""
        return self.finish(noise, self.sums(noise, rows, start, stop), start)

    def blocks(self, start: int, stop: int, *, width: int) -> Iterator[tuple[int, int]]:
        """Blocks of mixtures that are worth making at a time; the mixtures do not depend on them."""
        block = max(1, _SAMPLED // max(self.order, width))
        for begin in range(start, stop, block):
            yield begin, min(begin + block, stop)


Indices = NDArray[np.int64]


def sample_rows(noise: Noise, name: str, start: int, stop: int, *, size: int, order: int) -> Indices:
    """The rows of mixtures `start` to `stop` - 1, int64[stop - start, order]: uniform sets, ascending and distinct.

    Total variation from uniform: below ``order * size * 2**-128`` a mixture. Raises DataError: too few rows.
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


# How many mixtures a task makes: a few tasks for each slot, of bounded memory; no release depends on it.

BLOCK_BYTES = 1 << 26  # mixtures of a task, at most
SHARD_BYTES = 1 << 28  # vectors of a class that a task holds at a time
_LEAST_BLOCK = 1 << 13
_PIECE = 1 << 12


def piece_of(width: int) -> int:
    """Mixtures whose products are summed at a time, by public numbers alone; blocks hold whole pieces."""
    return max(1, min(_PIECE, BLOCK_BYTES // (4 * width)))


def block_of(records: int, *, width: int, slots: int) -> int:
    """Mixtures of a task: a few tasks for each slot, if they are worth it."""
    piece = piece_of(width)
    wanted = max(_LEAST_BLOCK, math.ceil(records / (4 * slots)))
    return piece * max(1, min(math.ceil(wanted / piece), BLOCK_BYTES // (4 * width * piece)))
