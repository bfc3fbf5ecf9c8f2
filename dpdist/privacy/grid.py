"""The grid on which a real-valued statistic and its noise live.

The step is a power of two, so that multiples of it, and sums of them, are exact in float64: the sum of a
statistic and its noise is again a multiple, and its low bits say nothing.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike, NDArray

LARGEST_SCALE = 2.0**45
"""The largest scale or deviation, in integers or grid steps: statistic plus noise stays exact in float64."""


def grid_below(step: float) -> float:
    """Return the largest power of two that is not above `step`, which is in units of the statistic: say 2**-30 of the
    sensitivity for a few statistics, 2**-10 of the deviation of the noise for many. Raises ValueError: `step` is not
    from 2**-900 to 2**900.
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
    """
    grid = power_of_two(grid)
    steps = np.asarray(values, dtype=np.float64) / grid
    if not np.all(np.abs(steps) < 2.0**52):
        raise ValueError(
            f"values to round to a grid of {grid} must be finite and below 2**52 steps; "
            "clip them or take a coarser grid"
        )
    return np.rint(steps) * grid
