"""What a pass reads: records in partitions, from files (`dpdist.data.table.Table`) or from memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

import numpy as np

from dpdist.data.read import EncodedBatch
from dpdist.data.report import RowReport
from dpdist.data.sizes import BATCH_ROWS
from dpdist.spec.schema import Schema

if TYPE_CHECKING:
    from dpdist.privacy.arrays import Codes


class Records(Protocol):
    """Records in partitions, each an iterator of encoded batches."""

    @property
    def schema(self) -> Schema:
        """The attributes of the records."""

    @property
    def partitions(self) -> Sequence[object]:
        """One entry for each partition, in the order of the rows."""

    @property
    def rows(self) -> int | None:
        """Number of rows before any policy; confidential. None until `located`."""

    @property
    def is_located(self) -> bool:
        """Whether the row numbers of all partitions are known, as reading needs."""

    @property
    def fingerprint(self) -> str:
        """Identity of the input: attempts are bound to it."""

    def batches(self, partition: int, *, batch_rows: int = BATCH_ROWS) -> Iterator[EncodedBatch]:
        """The encoded rows of a partition."""

    def counted(self, partition: int) -> list[int]:
        """The number of records of each slice of a partition that is not located."""

    def located(self, counts: Sequence[Sequence[int]]) -> Records:
        """The same records with their row numbers."""


@dataclass(frozen=True, eq=False, repr=False)
class RecordsInMemory:
    """Records that are encoded already, as one file of rows."""

    schema: Schema
    codes: Codes  # a column for each attribute
    partitions: Sequence[tuple[int, int]]  # first row and the row after the last, of each partition

    @classmethod
    def of(cls, schema: Schema, codes: Codes, *, partitions: int = 1) -> RecordsInMemory:
        """Records cut into partitions of about the same size."""
        rows = len(codes[0])
        cuts = [rows * i // partitions for i in range(partitions + 1)]
        return cls(schema, codes, list(pairwise(cuts)))

    @property
    def rows(self) -> int:
        """Number of rows; confidential."""
        return len(self.codes[0])

    @property
    def is_located(self) -> bool:
        """Always."""
        return True

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the codes, column by column."""
        digest = hashlib.sha256()
        for column in self.codes:
            digest.update(f"{column.dtype} {len(column)} ".encode())
            digest.update(np.ascontiguousarray(column).tobytes())
        return digest.hexdigest()

    def batches(self, partition: int, *, batch_rows: int = BATCH_ROWS) -> Iterator[EncodedBatch]:
        """The rows of a partition, `batch_rows` at a time."""
        first, stop = self.partitions[partition]
        for start in range(first, stop, batch_rows):
            end = min(start + batch_rows, stop)
            columns = [column[start:end] for column in self.codes]
            yield EncodedBatch(0, start, columns, None, RowReport.empty(self.schema, end - start))

    def counted(self, partition: int) -> list[int]:
        """The number of rows of a partition."""
        first, stop = self.partitions[partition]
        return [stop - first]

    def located(self, counts: Sequence[Sequence[int]]) -> RecordsInMemory:
        """The records themselves."""
        return self
