"""Counts with noise in every cell, as families release them."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from dpdist.errors import SpecError
from dpdist.privacy import accountant
from dpdist.privacy.arrays import Counts, Floats
from dpdist.privacy.noise import Noise

Mechanism = Literal["laplace", "gaussian"]
"""Discrete Laplace noise, or Gaussian noise that is rounded."""


def deviation(mechanism: Mechanism, scale: float) -> float:
    """Standard deviation of one draw of noise on integers: discrete Laplace noise of this scale, or Gaussian noise of
    this deviation before rounding.
    """
    if mechanism == "gaussian":
        return math.sqrt(scale * scale + 1 / 12)
    return accountant.laplace_deviation(scale)


def add_noise(table: Counts, *, mechanism: Mechanism, scale: float, noise: Noise, name: str) -> Counts:
    """The table with noise in every cell, empty ones included: int64 of the same shape, may be negative. `mechanism`
    and `scale` are as of `deviation`; cell i in C order takes draw i of the stream `name`.
    """
    if mechanism == "gaussian":
        draws = noise.gaussian_integers(name, table.size, sigma=scale)
    else:
        draws = noise.discrete_laplace(name, table.size, scale=scale)
    return np.asarray(table + draws.reshape(table.shape))


def project(noisy: ArrayLike, *, total: float | None = None) -> Floats:
    """Nearest non-negative table with the given total (least squares over all cells), float64 of the same shape.

    The solution lowers or raises all cells by one number and cuts at zero. Cutting alone would add the positive noise
    of all empty cells to the total. `total` is public, or itself noisy; by default the table's own, or zero if that is
    negative. Raises SpecError: it is negative or not finite.
    """
    table = np.asarray(noisy, np.float64)
    total = max(float(table.sum()), 0.0) if total is None else float(total)
    if not 0 <= total < np.inf:
        raise SpecError("the total of a histogram must be finite and not negative")
    if total == 0 or table.size == 0:
        return np.zeros_like(table)
    falling = np.sort(table, axis=None)[::-1]
    levels = (np.cumsum(falling) - total) / np.arange(1, table.size + 1)
    kept = np.flatnonzero(falling > levels)  # never empty, as falling[0] > levels[0]
    result: Floats = np.maximum(table - levels[kept[-1]], 0.0)
    return result
