"""The order of rows by keys.

NumPy sorts integers of 16 bits by radix, and longer ones by comparisons, whose time differs by a factor of five between
processors. So keys are sorted by digits of 16 bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdist.privacy.arrays import Unsigned

DIGIT_BITS = 16


def stable_order(*keys: Unsigned) -> NDArray[np.int64]:
    """The order of the rows by one key after another, the first most significant; equal rows keep theirs. `*keys`
    (ndarray of unsigned integers, shape (rows,)): the smallest type that holds a key has the fewest digits. Returns
    ndarray of int64, shape (rows,). Raises TypeError: a key is not of unsigned integers.
    """
    digits: list[NDArray[Any]] = []
    for key in reversed(keys):
        if key.dtype.kind != "u":
            raise TypeError(f"keys are unsigned integers, got {key.dtype}")
        if key.itemsize * 8 <= DIGIT_BITS:
            digits.append(key)
        else:  # least significant digits first
            words = np.ascontiguousarray(key, key.dtype.newbyteorder("<"))
            digits += list(words.view("<u2").reshape(len(key), key.itemsize // 2).T)
    return np.lexsort(digits).astype(np.int64, copy=False)
