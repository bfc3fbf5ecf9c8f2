"""Arrays: their types, the order of rows by keys, records in pieces, and the grid of real statistics and their noise.

The step of the grid is a power of two, so that multiples of it, and sums of them, are exact in float64: the sum of a
statistic and its noise is again a multiple, and its low bits say nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats: TypeAlias = NDArray[np.float64]
"""Real numbers."""

AnyFloats: TypeAlias = NDArray[np.floating[Any]]
"""Real numbers of any precision."""

Counts: TypeAlias = NDArray[np.int64]
"""Numbers of records, and other integers that are summed."""

Unsigned: TypeAlias = NDArray[np.unsignedinteger[Any]]
"""Codes of one attribute, and other integers of any length that are ordered or grouped by."""

Codes: TypeAlias = list[NDArray[Any]]
"""Records by column: the code of each attribute's value, unsigned integers (float64 where it is continuous)."""

DIGIT_BITS = 16


def stable_order(*keys: Unsigned) -> NDArray[np.int64]:
    """The order of the rows by one key after another, the first most significant; equal rows keep theirs.
    Raises TypeError: a key is not of unsigned integers.

    Parameters
    ----------
    *keys : ndarray of unsigned integers, shape (rows,)
        The smallest type that holds a key has the fewest digits.
    """
    if any(key.dtype.kind != "u" for key in keys):
        raise TypeError(f"keys are unsigned integers, got {[str(key.dtype) for key in keys]}")
    rows = np.arange(len(keys[0]), dtype=np.uint64)
    widths = [int(key.max(initial=0)).bit_length() for key in (*keys, rows)]
    if sum(widths) <= rows.itemsize * 8:  # one sort of words, which end in the row: faster than a pass a digit
        words = np.zeros_like(rows)
        for key, width in zip((*keys, rows), widths, strict=True):
            words <<= np.uint64(width)
            words |= key
        words.sort()
        words &= np.uint64((1 << widths[-1]) - 1)
        return words.view(np.int64)
    digits: list[NDArray[Any]] = []
    for key in reversed(keys):
        if key.itemsize * 8 <= DIGIT_BITS:
            digits.append(key)
        else:  # least significant digits first
            words = np.ascontiguousarray(key, key.dtype.newbyteorder("<"))
            digits += list(words.view("<u2").reshape(len(key), key.itemsize // 2).T)
    return np.lexsort(digits).astype(np.int64, copy=False)


LARGEST_SCALE = 2.0**45
"""The largest scale or deviation, in integers or grid steps: statistic plus noise stays exact in float64."""


def grid_below(step: float) -> float:
    """Return the largest power of two that is not above `step`.
    Raises ValueError: `step` is not finite, not positive or out of range.

    Parameters
    ----------
    step : float
        In units of the statistic, from 2**-900 to 2**900: say 2**-30 of the sensitivity for a few statistics,
        2**-10 of the deviation of the noise for many.
    """
    if not 2.0**-900 <= step <= 2.0**900:
        raise ValueError(f"step must be a finite number from 2**-900 to 2**900, got {step}")
    return math.ldexp(1.0, math.frexp(step)[1] - 1)


def power_of_two(grid: float) -> float:
    """Return `grid` as a float. Raises ValueError: `grid` is not a power of two from 2**-900 to 2**900."""
    if not (2.0**-900 <= grid <= 2.0**900 and grid_below(grid) == grid):
        raise ValueError(
            f"grid must be a power of two from 2**-900 to 2**900, got {grid}; "
            "grid_below(step) gives the largest one up to a step"
        )
    return float(grid)


@lru_cache(maxsize=256)  # most draws are at one of a few scales
def steps_of(setting: str, value: float | Fraction, grid: float = 1.0) -> Fraction:
    """Return the exact scale in steps of the grid.
    Raises ValueError: the scale is not finite, not positive or above `LARGEST_SCALE` steps.
    """
    try:
        exact = Fraction(value) if isinstance(value, (int, Fraction)) else Fraction(float(value))
    except (ValueError, OverflowError):  # NaN, infinity
        exact = Fraction(0)
    if exact <= 0:
        raise ValueError(f"{setting} must be a finite number above 0, got {value}")
    steps = exact / Fraction(power_of_two(grid))
    if steps > LARGEST_SCALE:
        raise ValueError(f"{setting} must be at most 2**45 grid steps, got {value} on a grid of {grid}")
    return steps


def round_to_grid(values: ArrayLike, *, grid: float) -> NDArray[np.float64]:
    """Return the multiples of `grid` nearest to `values`, exactly.

    Two values that differ by D differ by at most ``D + grid`` after rounding: the sensitivity grows by that.
    Raises ValueError: `grid` is not a power of two, or a value is not finite or not below ``2**52 * grid`` in size.

    Parameters
    ----------
    grid : float
        A power of two.
    """
    grid = power_of_two(grid)
    steps = np.asarray(values, dtype=np.float64) / grid
    if not np.all(np.abs(steps) < 2.0**52):
        raise ValueError(
            f"values to round to a grid of {grid} must be finite and below 2**52 steps; "
            "clip them or take a coarser grid"
        )
    return np.rint(steps) * grid


def joined(pieces: Iterable[Codes]) -> Codes:
    """Records one after another."""
    return [np.concatenate(columns) for columns in zip(*pieces, strict=True)]


def spans_of(blocks: Sequence[Codes], spans: Sequence[tuple[int, int]]) -> Codes:
    """The records of a span of each block, one after another."""
    return joined([column[a:b] for column in block] for block, (a, b) in zip(blocks, spans, strict=True))


WEIGHT = 1 << 10
"""What a value counts that is the only one of its record."""


def weight_of(values: int) -> int:
    """What each of this many values of a record counts: their squares sum to at most that of `WEIGHT`."""
    return math.isqrt(WEIGHT**2 // values)
