"""Stage results that are stored as archives of arrays."""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, Self

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


@dataclass(frozen=True, eq=False)
class Arrays:
    """A result whose fields are arrays."""

    def to_bytes(self) -> bytes:
        """The fields as an archive."""
        return pack(getattr(self, field.name) for field in fields(self))

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """The record from an archive."""
        return cls(*unpack(content))
