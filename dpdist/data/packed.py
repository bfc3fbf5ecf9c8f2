"""Records packed row by row: the hash of the unit's id, then the codes, in a fixed number of bytes.

A row of 32 bytes is moved in one step, where a column at a time would be gathered from as many places as there are
attributes. Rows are padded to 32 bytes, longer ones to a multiple of 16.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from dpdist.privacy.arrays import Codes
    from dpdist.privacy.keyed_hash import Hashes
    from dpdist.spec.schema import Schema

PackedRows: TypeAlias = NDArray[np.uint64]
"""Packed records, uint64[records, words]; the first two words are the hash of the unit's id."""

_HASH = 16  # bytes
_WIDTH = 32
_PACKED = 1 << 12  # rows packed at a time, in the cache of a processor


@dataclass(frozen=True)
class RowFormat:
    """How the records of a schema are packed."""

    kinds: tuple[np.dtype[Any], ...]  # of the codes of each attribute

    @classmethod
    def of(cls, schema: Schema) -> RowFormat:
        """That of a schema."""
        return cls(tuple(attribute.dtype for attribute in schema.attributes))

    @cached_property
    def _fields(self) -> np.dtype[np.void]:
        offsets = np.cumsum([_HASH, *(kind.itemsize for kind in self.kinds)]).tolist()
        width = _WIDTH if offsets[-1] <= _WIDTH else -(-offsets[-1] // 16) * 16
        names = [str(place) for place in range(len(self.kinds))]
        return np.dtype({"names": names, "formats": list(self.kinds), "offsets": offsets[:-1], "itemsize": width})

    @property
    def width(self) -> int:
        """Bytes of a row."""
        return self._fields.itemsize

    def pack(self, units: Hashes, codes: Sequence[NDArray[Any]]) -> PackedRows:
        """Rows, from the hashes of the units' ids and the codes."""
        rows = np.zeros((len(units), self.width // 8), np.uint64)
        for start in range(0, len(units), _PACKED):
            part = slice(start, start + _PACKED)
            rows[part, :2] = units[part]
            fields = rows[part].view(self._fields)[:, 0]
            for place, column in enumerate(codes):
                fields[str(place)] = column[part]
        return rows

    def codes(self, rows: PackedRows) -> Codes:
        """The codes."""
        fields = rows.view(self._fields)[:, 0]
        return [np.ascontiguousarray(fields[str(place)]) for place in range(len(self.kinds))]

    def values(self, rows: PackedRows) -> NDArray[np.uint8]:
        """The bytes of the codes of each row, uint8[rows, bytes]."""
        return rows.view(np.uint8)[:, _HASH : _HASH + sum(kind.itemsize for kind in self.kinds)]


def taken(rows: PackedRows, order: NDArray[np.intp]) -> PackedRows:
    """Some of the rows, in an order."""
    whole = rows.view(f"V{8 * rows.shape[1]}")[:, 0].take(order)
    return whole.view(np.uint64).reshape(-1, rows.shape[1])
