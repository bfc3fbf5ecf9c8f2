"""The aliases of array types, each once, and the order of rows by keys."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

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
    """The order of the rows by one key after another, the first most significant; equal rows keep theirs. The smallest
    type that holds a key has the fewest digits. Raises TypeError: a key is not of unsigned integers.
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
