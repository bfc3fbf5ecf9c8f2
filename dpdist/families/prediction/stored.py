"""Arrays as the bytes of a file."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray


def pack(arrays: Iterable[NDArray[Any]]) -> bytes:
    """Arrays as an uncompressed NumPy archive, in order."""
    buffer = io.BytesIO()
    np.savez(buffer, *arrays, allow_pickle=False)
    return buffer.getvalue()


def unpack(content: bytes) -> list[NDArray[Any]]:
    """The arrays that `pack` wrote."""
    with np.load(io.BytesIO(content), allow_pickle=False) as stored:
        return [stored[f"arr_{i}"] for i in range(len(stored.files))]
