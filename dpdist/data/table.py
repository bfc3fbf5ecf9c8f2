"""A table as a plan: its files, its columns and the partitions that tasks read; no record is held or read here.

All files laid end to end are one sequence of rows (Parquet) or bytes (CSV). A partition is a stretch of that
sequence, so any number of partitions works, across files and inside row groups; cuts move to a nearby row-group
boundary where there is one, so that few row groups are decoded twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from math import ceil

import numpy as np
import pyarrow as pa

from dpdist.cluster.executor import Executor
from dpdist.data.files import TableFile, inspect_csv, inspect_parquet, line_bytes
from dpdist.data.read import EncodedBatch, count_records, encoded_batches, text_batches
from dpdist.data.sizes import BATCH_ROWS
from dpdist.data.source import Format, TableSource, find_files, fingerprint_of, format_of
from dpdist.errors import SpecError
from dpdist.spec.schema import Schema

PARTITION_ROWS = 1 << 20
"""Rows of a partition unless a number of partitions is asked for."""

_SMALLEST_PART = 4
"""A partition is cut into so many at most where slots would have nothing to do."""

_EVEN = 4
"""Slots that have so many partitions each, or more, end at about the same time."""

_INSPECTIONS_AT_ONCE = 16
_BYTES_PER_VALUE = 4  # of a CSV file, about


@dataclass(frozen=True)
class Slice:
    """A stretch of one file."""

    file: int  # number of the file
    # start, stop: rows (Parquet) or bytes (CSV, owning the lines that start in it). A compressed CSV file is never cut:
    # `start` is its first record's offset once decompressed, and reading goes on to its end
    start: int
    stop: int
    # first_row, rows: number of the first record in the file and of records; None for CSV until `Table.located`
    first_row: int | None = field(default=None, repr=False)
    rows: int | None = field(default=None, repr=False)


Partition = tuple[Slice, ...]


@dataclass(frozen=True, repr=False)
class Table:
    """A table that tasks can read by partition."""

    source: TableSource
    schema: Schema
    format: Format
    files: tuple[TableFile, ...]  # in the order of their paths; the position is the file's number in a record's address
    # in the order of the rows; ``repr`` hides them, since the number of records is private
    partitions: tuple[Partition, ...]
    # length of a partition by default, in rows (Parquet) or bytes (CSV); None where their number was asked for, or is
    # that of the files
    unit: int | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        return f"Table({self.format}, files={len(self.files)}, partitions={len(self.partitions)})"

    @property
    def is_located(self) -> bool:
        """Whether the row numbers of all partitions are known, as reading needs (CSV: after `located`)."""
        return all(piece.rows is not None for partition in self.partitions for piece in partition)

    @property
    def rows(self) -> int | None:
        """Number of rows in the files, before any policy; confidential. None for CSV until `located`."""
        if not self.is_located:
            return None
        return sum(piece.rows or 0 for partition in self.partitions for piece in partition)

    @property
    def cells(self) -> int:
        """About how many values there are, from the files' metadata."""
        length = sum(file.length for file in self.files)
        return length * len(self.schema.attributes) if self.format == "parquet" else length // _BYTES_PER_VALUE

    def on(self, executor: Executor) -> Table:
        """The table, whose files tasks read, with as many partitions for each slot where they are few.

        Where each slot has `_EVEN` or more, or their number was asked for, they stay as they are; none becomes smaller
        than its default length over `_SMALLEST_PART`.
        """
        if self.unit is None:
            return self
        total, slots, number = sum(file.length for file in self.files), executor.slots, len(self.partitions)
        even = min(ceil(number / slots) * slots, ceil(_SMALLEST_PART * total / self.unit))
        if number >= _EVEN * slots or even <= number:
            return self
        return replace(self, partitions=_layout(self.files, even, rows=self.format == "parquet"))

    @property
    def fingerprint(self) -> str:
        """The source's fingerprint when the table was opened."""
        return fingerprint_of(tuple(file.found for file in self.files))

    def batches(self, partition: int, *, batch_rows: int = BATCH_ROWS) -> Iterator[EncodedBatch]:
        """The encoded rows of a partition; see `dpdist.data.read.encoded_batches`."""
        return encoded_batches(self, partition, batch_rows=batch_rows)

    def texts(self, partition: int, names: Sequence[str]) -> Iterator[list[pa.Array]]:
        """The values of some columns as texts; see `dpdist.data.read.text_batches`."""
        return text_batches(self, partition, names)

    def counted(self, partition: int) -> list[int]:
        """The number of records of each slice of a CSV partition; see `dpdist.data.read.count_records`."""
        return count_records(self, partition)

    def located(self, counts: Sequence[Sequence[int]]) -> Table:
        """The table with row numbers, from the number of records of each slice of each partition."""
        seen = [0] * len(self.files)
        partitions = []
        for partition, numbers in zip(self.partitions, counts, strict=True):
            pieces = []
            for piece, rows in zip(partition, numbers, strict=True):
                pieces.append(replace(piece, first_row=seen[piece.file], rows=rows))
                seen[piece.file] += rows
            partitions.append(tuple(pieces))
        return replace(self, partitions=tuple(partitions))


def open_table(
    source: TableSource,
    schema: Schema,
    *,
    partitions: int | None = None,
    partition_rows: int = PARTITION_ROWS,
) -> Table:
    """Find the files of a table, check their columns and lay out the partitions; reads metadata and headers only.

    Parameters
    ----------
    source : TableSource
    schema : Schema
    partitions : int, optional
        Number of partitions (fewer if there are fewer rows); by default about `partition_rows` rows each.
    partition_rows : int
        Rows of a partition by default (CSV: estimated from the length of the first lines).

    Raises
    ------
    DataNotFound
        See `dpdist.data.source.find_files`.
    UnreadableFile
        A file is damaged or not of its format.
    EmptyTable
        A Parquet file, or a CSV file with a header, has no bytes. Files without rows are a table of no records.
    ColumnMismatch
        A column is missing, not in the schema, given twice or of a type that cannot hold the attribute.
    SpecError
        The format or the number of partitions makes no sense.
    """
    if partitions is not None and partitions < 1:
        raise SpecError("cluster.partitions must be 1 or more")
    found = find_files(source)
    kind = format_of(source, found)
    with ThreadPoolExecutor(_INSPECTIONS_AT_ONCE) as pool:
        inspect = inspect_parquet if kind == "parquet" else inspect_csv
        files = tuple(pool.map(lambda file: inspect(file, source, schema), found))
    total = sum(file.length for file in files)
    if not total:
        return Table(source, schema, kind, files, ((),))
    unit = None
    if partitions is None and not any(file.compression for file in files):
        unit = partition_rows
        if kind == "csv":
            unit *= line_bytes(next(file for file in files if file.length), source)
        partitions = max(1, round(total / unit))
    return Table(source, schema, kind, files, _layout(files, partitions, rows=kind == "parquet"), unit)


def _layout(files: tuple[TableFile, ...], partitions: int | None, *, rows: bool) -> tuple[Partition, ...]:
    """Cut all files laid end to end into stretches of about the same length (None: one per file)."""
    offsets = [0, *accumulate(file.length for file in files)]
    cuts = offsets if partitions is None else _even_cuts(files, offsets, partitions, rows=rows)
    result = []
    for low, high in pairwise(cuts):
        pieces = []
        first = int(np.searchsorted(offsets, low, side="right")) - 1
        for number in range(first, len(files)):
            file, offset = files[number], offsets[number]
            if offset >= high:
                break
            if file.compression is not None:
                if low <= offset and file.length:
                    pieces.append(Slice(number, *file.boundaries))
                continue
            start, stop = (file.boundaries[0] + min(max(x - offset, 0), file.length) for x in (low, high))
            if start < stop:
                pieces.append(Slice(number, start, stop, *((start, stop - start) if rows else ())))
        if pieces:
            result.append(tuple(pieces))
    return tuple(result)


def _even_cuts(files: tuple[TableFile, ...], offsets: list[int], partitions: int, *, rows: bool) -> list[int]:
    """Ends of the stretches; a cut moves to the nearest row-group boundary within half a partition."""
    total = offsets[-1]
    partitions = min(partitions, total)
    cuts = [total * k // partitions for k in range(partitions + 1)]
    if not rows:
        return cuts
    groups = np.unique([offset + row for offset, file in zip(offsets, files, strict=False) for row in file.boundaries])
    nearest = groups[np.searchsorted((groups[1:] + groups[:-1]) / 2, cuts)].tolist()
    return [g if 2 * partitions * abs(g - cut) < total else cut for g, cut in zip(nearest, cuts, strict=True)]
