"""Factors on the weights of a pool's rows as integers, from which any machine computes the same weights.

A row costs one look-up a block of attributes. The logarithms of all changes of a block add up to one table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import isqrt

import numpy as np
from numpy.typing import NDArray

from dpdist.data.count import packed_index
from dpdist.privacy.arrays import Counts, Floats
from dpdist.privacy.portable import log2

LOG_BITS = 20
"""Logarithms to base 2 are integers in units of 2**-20."""

LIMITS = (1e-290, 1e290)
"""Of a factor."""


@dataclass(frozen=True, eq=False)
class Adjustment:
    """Factors on the weights of rows, one table a block.

    Attributes
    ----------
    blocks : tuple of tuple of int
        Attributes of each block.
    logs : tuple of ndarray of int32
        Logarithm to base 2 of the factor of each combination of a block's values, in units of 2**-20.
    """

    blocks: tuple[tuple[int, ...], ...]
    logs: tuple[NDArray[np.int32], ...]

    def weights(self, columns: Sequence[NDArray[np.integer]], cardinalities: Sequence[int]) -> Counts:
        """Integer weight of each row, at least 0 and at most 2**40; the same on any machine."""
        total = np.zeros(len(columns[0]), np.int64)
        for block, logs in zip(self.blocks, self.logs, strict=True):
            total += logs.take(packed_index([columns[i] for i in block], [cardinalities[i] for i in block]))
        return power_of_two(total)


def power_of_two(logs: Counts) -> Counts:
    """``2**(30 + logs / 2**20)`` in integer arithmetic, with `logs` clipped to [-30, 10].

    The fraction's two halves of 10 bits are looked up in tables of exact roots of 2.
    """
    low, high = _powers(20), _powers(10)
    clipped = np.clip(logs, -30 << LOG_BITS, 10 << LOG_BITS)
    whole = clipped >> LOG_BITS
    fraction = clipped & ((1 << LOG_BITS) - 1)
    product = high[fraction >> 10] * low[fraction & 1023] >> 30  # 2**30 times a number in [1, 2)
    powers: Counts = np.where(whole >= 0, product << np.maximum(whole, 0), product >> np.maximum(-whole, 0))
    return powers


@lru_cache(maxsize=2)
def _powers(bits: int) -> Counts:
    """``floor(2**30 * 2**(i / 2**bits))`` for i below 1024."""
    precision = 100
    roots = []  # 2**(1/2), 2**(1/4), ..., as integers in units of 2**-100
    root = 2 << precision
    for _ in range(bits):
        root = isqrt(root << precision)
        roots.append(root)
    table = []
    for i in range(1024):
        value = 1 << precision
        for place in range(10):
            if i >> place & 1:
                value = value * roots[bits - 1 - place] >> precision
        table.append(value >> (precision - 30))
    return np.array(table, np.int64)


def integer_logs(factors: Floats) -> NDArray[np.int32]:
    """Logarithms of factors as an adjustment has them."""
    return np.rint(log2(np.clip(factors, *LIMITS)) * (1 << LOG_BITS)).astype(np.int32)
