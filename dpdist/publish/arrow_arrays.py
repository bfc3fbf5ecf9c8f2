"""Arrow arrays from NumPy arrays and from texts.

`pyarrow.array` does the same, and imports pandas first: a quarter of a second in each process that writes a part.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


def numbers(values: NDArray[Any], *, missing: NDArray[np.bool_] | None = None) -> pa.Array:
    """An array of the type of `values` (integers or floating point), null where `missing` is true."""
    held = np.ascontiguousarray(values)
    valid = None if missing is None else pa.py_buffer(np.packbits(~missing, bitorder="little"))
    return pa.Array.from_buffers(pa.from_numpy_dtype(held.dtype), len(held), [valid, pa.py_buffer(held)])


def texts(values: Sequence[str]) -> pa.Array:
    """An array of strings."""
    encoded = [value.encode() for value in values]
    ends = np.cumsum([0, *map(len, encoded)]).astype(np.int32)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.string(), len(encoded), buffers)


def lists(values: Sequence[NDArray[Any]]) -> pa.Array:
    """An array of lists of integers."""
    ends = np.cumsum([0, *map(len, values)]).astype(np.int32)
    whole = np.concatenate([np.zeros(0, np.int64), *(np.asarray(value, np.int64) for value in values)])
    return pa.ListArray.from_arrays(numbers(ends), numbers(whole))
