"""Sums of a table over some of its axes, of real or whole numbers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Number = TypeVar("Number", np.float64, np.int64)

_SHORT = 16
"""Axes of so many values at most are added up slice by slice, where there are many of them."""

_MANY = 256

_SMALL = 2048
"""Cells of a table whose adjacent axes are summed at once."""


def marginal(table: NDArray[Number], keep: Sequence[int]) -> NDArray[Number]:
    """Sum a table over the axes that are not in `keep`.

    Parameters
    ----------
    table : ndarray of float64 or int64
    keep : sequence of int
        Ascending.

    Returns
    -------
    ndarray of the same type, of the shape of the axes that are kept
        A view of `table` where all are kept.
    """
    shapes, kept = _sums(table.shape, tuple(keep))
    for shape in shapes:
        table = _sum(table.reshape(shape))
    return np.asarray(table).reshape(kept)


@lru_cache(maxsize=1 << 14)
def _sums(shape: tuple[int, ...], keep: tuple[int, ...]) -> tuple[list[tuple[int, int, int]], tuple[int, ...]]:
    """The sums of `marginal`, each over the middle one of three axes, and the shape of the result.

    The first axes go first: sums of long rows are cheap. Of adjacent axes before a short row the first goes by itself.
    """
    kept = tuple(shape[k] for k in keep)
    left = [(size, k in keep) for k, size in enumerate(shape)]
    sums: list[tuple[int, int, int]] = []
    while not all(stays for _, stays in left):
        first = next(k for k, (_, stays) in enumerate(left) if not stays)
        end = next((k for k in range(first, len(left)) if left[k][1]), len(left))
        row = prod(size for size, _ in left[end:])
        if end < len(left) and row < _MANY and prod(size for size, _ in left) > _SMALL:
            end, row = first + 1, prod(size for size, _ in left[first + 1 :])
        sums.append((prod(size for size, _ in left[:first]), prod(size for size, _ in left[first:end]), row))
        del left[first:end]
    return sums, kept


def _sum(table: NDArray[Number]) -> NDArray[Number]:
    """The sums over the middle axis; NumPy's are slow where there are many short ones."""
    outer, number, inner = table.shape
    if outer < _MANY or number > _SHORT or inner > _SHORT:
        return np.asarray(np.add.reduce(table, 1))
    total = table[:, 0].copy()
    for k in range(1, number):
        total += table[:, k]
    return total
