"""Sums of many draws from distributions on 0, 1, ..., by Fourier transforms."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dpdist.privacy.arrays import Floats

TRUNCATION = 1e-15
"""Mass that a sum of draws leaves out on either side, and folds into the rest."""


def sum_of_draws(parts: Sequence[tuple[Floats, int]]) -> tuple[int, Floats]:
    """The sum of so many draws from each distribution on 0, 1, ...: its least value that is kept, and the masses.

    By one Fourier transform of each distribution and one of their product. What is left out is folded into the rest.
    """
    windows = [_window(mass, count) for mass, count in parts]
    low, high = (sum(ends) for ends in zip(*windows, strict=True))
    size = _fast_size(max(high - low + 1, *(len(mass) for mass, _ in parts)))
    product: NDArray[np.complex128] | float = 1.0
    for mass, count in parts:
        one_value = len(mass) == 1
        product = product * (float(mass[0]) ** count if one_value else _raised(np.fft.rfft(mass, size), count))
    if isinstance(product, float):
        return low, np.array([product])
    return low, np.roll(np.fft.irfft(product, size), -(low % size))[: high - low + 1]


def _window(mass: Floats, count: int) -> tuple[int, int]:
    """Ends of the sum of `count` draws, each left behind with probability `TRUNCATION` at most."""
    most = count * (len(mass) - 1)
    if count == 1 or not most:
        return 0, most
    places = np.arange(len(mass), dtype=np.float64)
    places -= mass @ places
    mean = -count * float(places[0])
    low, high = mean - _deviation(mass, -places, count), mean + _deviation(mass, places, count)
    return max(math.floor(low), 0), min(math.ceil(high), most)


def _deviation(mass: Floats, values: Floats, count: int) -> float:
    """The sum of `count` draws of values of mean 0 is above this with probability `TRUNCATION` at most.

    By Bernstein's inequality or by Chernoff's, whichever is nearer.
    """
    mass, values = mass[mass > 0], values[mass > 0]
    variance, logarithm = count * float(mass @ values**2), math.log(1 / TRUNCATION)
    linear = logarithm * float(values.max()) / 3
    found = linear + math.sqrt(linear**2 + 2 * variance * logarithm)
    middle = math.sqrt(2 * logarithm / variance) if variance > 0 else 0.0
    for tilt in (middle / 4, middle / 2, middle) if middle else ():
        with np.errstate(over="ignore", under="ignore"):
            moment = float(mass @ np.exp(tilt * values))
        found = min(found, (count * math.log(moment) + logarithm) / tilt)
    return found * (1 + 2.0**-30)


def _raised(values: NDArray[np.complex128], power: int) -> NDArray[np.complex128]:
    """Powers by repeated squaring."""
    found = values if power & 1 else np.ones_like(values)
    while power := power >> 1:
        values = values * values
        found = found * values if power & 1 else found
    return found


def _fast_size(least: int) -> int:
    """A length of at least so much for which Fourier transforms are fast: a power of 2 times a small odd number."""
    return min(k << max(math.ceil(math.log2(least / k)), 0) for k in (1, 3, 5, 9, 15))
