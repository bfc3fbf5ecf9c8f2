"""Tables that are no files: in memory as Arrow, or in partitions that a cluster holds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpdist.cluster.executor import Deferred, Executor, TaskProgress
from dpdist.data.encode import encoded_batches
from dpdist.data.files import check_arrow, wanted_columns
from dpdist.data.records import BATCH_ROWS, EncodedBatch, HeldRecords, Partitions, even_parts
from dpdist.data.source import ExtraColumns
from dpdist.data.table import PARTITION_ROWS
from dpdist.data.texts import decoded, is_text, readable, texts_of
from dpdist.errors import ColumnMismatch, EmptyTable, ReleaseConflict, SpecError
from dpdist.spec.schema import Schema

if TYPE_CHECKING:
    from hashlib import _Hash as Hash


@dataclass(frozen=True, eq=False, repr=False)
class ArrowRecords(Partitions):
    """Rows of an Arrow table, read as one file would be."""

    schema: Schema
    table: pa.Table  # the columns of the schema
    partitions: Sequence[tuple[int, int]]  # first row and the row after the last of each partition, in `table`
    fingerprint: str
    first_row: int = 0  # number of the first row of `table` in the whole input
    beside: str | None = None  # column of the ids of the units, or of weights

    @property
    def rows(self) -> int:
        """Number of rows; confidential."""
        return int(self.table.num_rows)

    def batches(self, partition: int, *, batch_rows: int = BATCH_ROWS) -> Iterator[EncodedBatch]:
        """The encoded rows of a partition, at most `batch_rows` at a time."""
        return encoded_batches(self._read(partition, batch_rows), self.schema, self.beside)

    def texts(self, partition: int, names: Sequence[str]) -> Iterator[list[pa.Array]]:
        """The values of some columns of a partition as texts (`dpdist.data.texts`)."""
        for _, _, batch in self._read(partition, BATCH_ROWS):
            yield texts_of(batch, names)

    def _read(self, partition: int, batch_rows: int) -> Iterator[tuple[int, int, pa.RecordBatch]]:
        """Consecutive rows of a partition, with the number of the first; all are of one file."""
        start, stop = self.partitions[partition]
        row = self.first_row + start
        for batch in self.table.slice(start, stop - start).to_batches(max_chunksize=batch_rows):
            yield 0, row, readable(batch)
            row += batch.num_rows

    def on(self, executor: Executor, *, progress: TaskProgress | None = None) -> HeldRecords:
        """The records where tasks of an executor find them: each partition goes to one worker."""
        parts = []
        for start, stop in self.partitions:
            own = {"table": self.table.slice(start, stop - start), "first_row": self.first_row + start}
            parts.append(replace(self, partitions=((0, stop - start),), **own))
        return HeldRecords(self.schema, executor.hold(parts), self.rows, self.fingerprint)


@dataclass(frozen=True, eq=False, repr=False)
class TableInMemory:
    """An input that is an Arrow table."""

    table: pa.Table
    what: str  # what the table was given as, for messages
    extra_columns: ExtraColumns = "refuse"
    source: None = None

    @property
    def fingerprint(self) -> str:
        """See `digest_of`; found anew, as the memory may be another's."""
        return digest_of(self.table)

    def open(
        self, schema: Schema, *, partitions: int | None = None, checked: bool = False, beside: str | None = None
    ) -> ArrowRecords:
        """The records, cut into partitions of about the same size."""
        extra = "ignore" if checked else self.extra_columns
        check_arrow(self.what, self.table.schema, schema, extra=extra, beside=beside)
        rows = self.table.num_rows
        if partitions is not None and partitions < 1:
            raise SpecError("cluster.partitions must be 1 or more")
        cuts = even_parts(rows, min(partitions or max(1, round(rows / PARTITION_ROWS)), max(rows, 1)))
        columns = self.table.select(list(wanted_columns(schema, beside)))
        return ArrowRecords(schema, columns, cuts, self.fingerprint, beside=beside)


@dataclass(frozen=True, eq=False, repr=False)
class PartitionedTable:
    """An input whose partitions are results of tasks; they stay where they are computed."""

    parts: Sequence[Deferred]  # each a table that `to_arrow` takes
    to_arrow: Callable[[object], pa.Table]  # makes an Arrow table of a partition
    executor: Executor  # where the partitions are
    what: str  # what the table was given as, for messages
    extra_columns: ExtraColumns = "refuse"
    source: None = None

    @cached_property
    def _found(self) -> list[tuple[str, int, pa.Schema]]:
        """Digest, number of rows and Arrow types of each partition, found where it is."""
        task = self.executor.tasks("identify")
        return self.executor.compute([task("digest", _identified, part, self.to_arrow) for part in self.parts])

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the digests of the partitions, in order."""
        return hashlib.sha256(" ".join(digest for digest, _, _ in self._found).encode()).hexdigest()

    def open(
        self, schema: Schema, *, partitions: int | None = None, checked: bool = False, beside: str | None = None
    ) -> HeldRecords:
        """The records, in the partitions that they have."""
        if partitions is not None:
            raise SpecError(f"cluster.partitions: {self.what} has its own partitions; leave the setting out")
        found = self._found
        for _, _, types in found:
            check_arrow(self.what, types, schema, extra="ignore" if checked else self.extra_columns, beside=beside)
        if not found:
            raise EmptyTable(f"{self.what} has no partitions")
        firsts = [0, *accumulate(rows for _, rows, _ in found)]
        task = self.executor.tasks("rows")
        how = task.constant("how", (schema, self.to_arrow, beside, self.what))
        digests = [digest for digest, _, _ in found]
        held = [
            task("part", _records, how, part, digest, row)
            for part, digest, row in zip(self.parts, digests, firsts[:-1], strict=True)
        ]
        return HeldRecords(schema, held, firsts[-1], self.fingerprint)


def _identified(part: object, to_arrow: Callable[[object], pa.Table]) -> tuple[str, int, pa.Schema]:
    table = to_arrow(part)
    return digest_of(table), table.num_rows, table.schema


def _records(
    how: tuple[Schema, Callable[[object], pa.Table], str | None, str], part: object, digest: str, first_row: int
) -> ArrowRecords:
    """The records of a partition, which may have been computed anew: as it was identified, or an error."""
    schema, to_arrow, beside, what = how
    table = to_arrow(part)
    if digest_of(table) != digest:
        raise ReleaseConflict(
            f"{what} changed while it was read, so nothing is published: give one whose partitions are the same "
            "whenever they are computed, such as frame.persist(), and start a new attempt. The charge stays spent"
        )
    table = table.select(list(wanted_columns(schema, beside)))
    return ArrowRecords(schema, table, ((0, table.num_rows),), "", first_row, beside)


def digest_of(table: pa.Table) -> str:
    """SHA-256 of a table: columns by name, each with its values in order, whatever the chunks and the encodings.

    Integers count by value, whatever their width, and so do texts in dictionaries. Raises ColumnMismatch: a column
    holds lists or other values inside values.
    """
    whole = hashlib.sha256(f"{table.num_rows}".encode())
    for name, column in sorted(zip(table.column_names, table.columns, strict=True), key=lambda pair: pair[0]):
        parts = [hashlib.sha256() for _ in range(3)]
        kinds = {_update(parts, chunk, name) for chunk in column.chunks}
        whole.update(json.dumps([name, sorted(kinds), *(part.hexdigest() for part in parts)]).encode())
    return whole.hexdigest()


def is_digestible(kind: pa.DataType) -> bool:
    """Whether a column of this type has a digest: it holds single values, in a dictionary or not."""
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    is_a = pa.types
    single = (is_a.is_null, is_a.is_decimal, is_a.is_floating, is_a.is_boolean, is_a.is_temporal, is_a.is_integer)
    return is_text(value) or (any(fits(value) for fits in single) and not is_a.is_interval(value))


def _update(parts: Sequence[Hash], chunk: pa.Array, name: str) -> str:
    """Add a chunk of a column to its digests (absence, values, lengths of texts); return the kind of its values."""
    if not is_digestible(chunk.type):
        raise ColumnMismatch(f"the column {name!r} holds values of type {chunk.type}: leave it out of the table")
    absent, values, lengths = parts
    chunk = decoded(chunk)
    absent.update(chunk.is_null().cast(pa.uint8()).to_numpy())
    kind, label = chunk.type, "integer"
    if pa.types.is_null(kind):
        return "null"
    if pa.types.is_decimal(kind):
        chunk, kind = chunk.cast(pa.string()), pa.string()
    if is_text(kind):
        texts = chunk.cast(pa.large_string()).fill_null("")
        lengths.update(pc.binary_length(texts).to_numpy())
        if len(texts):
            ends = np.frombuffer(texts.buffers()[1], np.int64)[texts.offset : texts.offset + len(texts) + 1]
            values.update(memoryview(texts.buffers()[2] or b"")[ends[0] : ends[-1]])
        return "text"
    if pa.types.is_floating(kind):
        label, chunk = "number", chunk.cast(pa.float64())
    elif pa.types.is_boolean(kind):
        label, chunk = "boolean", chunk.cast(pa.int64())
    elif pa.types.is_temporal(kind):
        label, chunk = str(kind), chunk.cast(pa.int32() if kind.bit_width == 32 else pa.int64())
    numbers = chunk.fill_null(0).to_numpy(zero_copy_only=False)
    values.update((numbers if label == "number" else numbers.astype(np.int64)).tobytes())
    return label
