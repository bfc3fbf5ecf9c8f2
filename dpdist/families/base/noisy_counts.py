"""Counts with noise in every cell, as families release them."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from dpdist.privacy import accountant
from dpdist.privacy.arrays import Counts
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
