"""A table of files: its columns, the partitions that tasks read, and reading them in bounded memory.

All files laid end to end are one sequence of rows (Parquet) or bytes (CSV). A partition is a stretch of that
sequence, so any number of partitions works, across files and inside row groups; cuts move to a nearby row-group
boundary where there is one, so that few row groups are decoded twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, pairwise
from math import ceil

import numpy as np
import pyarrow as pa
import pyarrow.csv

from dpdist.cluster.executor import Executor, InProcess, TaskProgress
from dpdist.data.encode import encoded_batches
from dpdist.data.files import (
    TableFile,
    inspect_csv,
    inspect_parquet,
    line_bytes,
    lines_of_range,
    open_csv,
    open_parquet,
    records_of_lines,
    wanted_columns,
    with_folders,
)
from dpdist.data.numbers import with_plain_numbers
from dpdist.data.records import BATCH_ROWS, EncodedBatch, Partitions
from dpdist.data.source import Format, TableSource, find_files, fingerprint_of, format_of
from dpdist.data.texts import readable, texts_of
from dpdist.errors import SpecError, UnreadableFile
from dpdist.spec.schema import Schema
from dpdist.storage.files import is_local, storage_errors, unless_damaged

PARTITION_ROWS = 1 << 20
"""Rows of a partition unless a number of partitions is asked for."""

_SMALLEST_PART = 4  # pieces that a partition is cut into at most where slots would have nothing to do
_EVEN = 4  # partitions of a slot from which on all slots end at about the same time
_INSPECTIONS_AT_ONCE = 16
_BYTES_PER_VALUE = 4  # of a CSV file, about
_BYTES_PER_ROW = 32  # of CSV, for blocks of about as many rows as a batch
_PREBUFFERED_BYTES = 1 << 26
_STREAM_BUFFER = 1 << 22

Stretch = tuple[int, int, int]
"""Number of a file, and where in it: the first row and the one after the last (Parquet), or bytes, owning the lines
that start there (CSV). A compressed CSV file is never cut: it is read from its first record's offset to its end."""


@dataclass(frozen=True)
class Slice:
    """A stretch of one file, whose rows are numbered."""

    file: int
    start: int
    stop: int
    first_row: int = field(repr=False)  # number of its first record in the file
    rows: int = field(repr=False)


@dataclass(frozen=True)
class TableFiles:
    """The files of a table, whose columns are those of its schema; no record was read."""

    source: TableSource
    schema: Schema
    format: Format
    files: tuple[TableFile, ...]  # in the order of their paths; the position is the file's number in a record's address
    number: int | None = None  # of partitions, as the spec sets it
    partition_rows: int = PARTITION_ROWS  # of a partition, where the spec sets no number

    @classmethod
    def of(
        cls, source: TableSource, schema: Schema, *, partitions: int | None = None, partition_rows: int = PARTITION_ROWS
    ) -> TableFiles:
        """Find the files and check their columns; see `open_table`."""
        if partitions is not None and partitions < 1:
            raise SpecError("cluster.partitions must be 1 or more")
        found = find_files(source)
        kind = format_of(source, found)
        inspect = inspect_parquet if kind == "parquet" else inspect_csv
        with ThreadPoolExecutor(_INSPECTIONS_AT_ONCE) as pool:
            files = tuple(pool.map(lambda file: inspect(file, source, schema), found))
        return cls(source, schema, kind, files, partitions, partition_rows)

    @property
    def length(self) -> int:
        """Rows (Parquet) or bytes (CSV) of all files."""
        return sum(file.length for file in self.files)

    @property
    def cells(self) -> int:
        """About how many values there are, from the files' metadata."""
        return (
            self.length * len(self.schema.attributes) if self.format == "parquet" else self.length // _BYTES_PER_VALUE
        )

    @property
    def fingerprint(self) -> str:
        """The source's fingerprint when the files were found."""
        return fingerprint_of(tuple(file.found for file in self.files))

    def on(self, executor: Executor, *, progress: TaskProgress | None = None) -> Table:
        """The table, in partitions for the slots of an executor, whose tasks count the lines of CSV files. Raises
        UnreadableFile: a CSV file is damaged, or has lines that cannot be cut.
        """
        parts = layout(self.files, self._partitions(executor.slots), rows=self.format == "parquet")
        if self.format == "parquet":
            return Table(self, tuple(tuple(Slice(*s, s[1], s[2] - s[1]) for s in part) for part in parts))
        task = executor.tasks("locate")
        shared = task.constant("files", self)
        counts = executor.compute([task("scan", count_records, shared, part) for part in parts], progress=progress)
        seen, partitions = [0] * len(self.files), list[tuple[Slice, ...]]()
        for part, numbers in zip(parts, counts, strict=True):
            partitions.append(())
            for stretch, rows in zip(part, numbers, strict=True):
                partitions[-1] += (Slice(*stretch, seen[stretch[0]], rows),)
                seen[stretch[0]] += rows
        return Table(self, tuple(partitions))

    def _partitions(self, slots: int) -> int | None:
        """Number of partitions; None for one per file.

        Where slots would have fewer than `_EVEN`, each has as many; none becomes smaller than the length of a partition
        over `_SMALLEST_PART`.
        """
        if self.number is not None or any(file.compression for file in self.files) or not self.length:
            return self.number
        unit = self.partition_rows
        if self.format == "csv":
            unit *= line_bytes(next(file for file in self.files if file.length), self.source)
        number = max(1, round(self.length / unit))
        even = min(ceil(number / slots) * slots, ceil(_SMALLEST_PART * self.length / unit))
        return number if number >= _EVEN * slots else max(number, even)


@dataclass(frozen=True, repr=False)
class Table(Partitions):
    """A table of files that tasks read by partition."""

    files: TableFiles
    # in the order of the rows; ``repr`` hides them, since the number of records is private
    partitions: tuple[tuple[Slice, ...], ...]

    def __repr__(self) -> str:
        return f"Table({self.files.format}, files={len(self.files.files)}, partitions={len(self.partitions)})"

    @property
    def schema(self) -> Schema:
        """The attributes of the records."""
        return self.files.schema

    @property
    def rows(self) -> int:
        """Number of rows in the files, before any policy; confidential."""
        return sum(piece.rows for partition in self.partitions for piece in partition)

    @property
    def fingerprint(self) -> str:
        """See `TableFiles.fingerprint`."""
        return self.files.fingerprint

    def batches(self, partition: int, *, batch_rows: int = BATCH_ROWS) -> Iterator[EncodedBatch]:
        """Read, check and encode the rows of a partition, about `batch_rows` at a time. Raises UnreadableFile: a
        file is damaged, changed since the table was opened, or has lines that are no records; DataNotFound: a file is
        gone or access is denied.
        """
        rows, source, is_csv = self._read(partition, batch_rows), self.files.source, self.files.format == "csv"
        return encoded_batches(rows, self.schema, source.beside, strip=self._strip, empty_is_missing=is_csv)

    def texts(self, partition: int, names: Sequence[str]) -> Iterator[list[pa.Array]]:
        """The values of some columns of a partition as texts (`dpdist.data.texts`); errors as for `batches`."""
        for _, _, batch in self._read(partition, BATCH_ROWS):
            yield texts_of(batch, names, strip=self._strip)

    @property
    def _strip(self) -> bool:
        return self.files.format == "csv" and self.files.source.csv.strip

    def _read(self, partition: int, batch_rows: int) -> Iterator[tuple[int, int, pa.RecordBatch]]:
        """Consecutive rows of a partition as they are read, with the numbers of their file and of the first."""
        read = _csv_batches if self.files.format == "csv" else _parquet_batches
        for piece in self.partitions[partition]:
            row, path = piece.first_row, self.files.files[piece.file].found.shown
            with storage_errors(path):
                for batch in read(self.files, (piece.file, piece.start, piece.stop), batch_rows):
                    yield piece.file, row, batch
                    row += batch.num_rows
            if row != piece.first_row + piece.rows:
                raise UnreadableFile(
                    f"{path} has changed since the table was opened: start again on files that stay as they are"
                )


def open_table(
    source: TableSource,
    schema: Schema,
    *,
    partitions: int | None = None,
    partition_rows: int = PARTITION_ROWS,
    executor: Executor | None = None,
) -> Table:
    """Find the files of a table, check their columns, lay out the partitions and number the rows, with an executor (by
    default in this process). A release takes two steps (`TableFiles`), because it is charged before a record is read.

    `partitions` is their number (fewer if there are fewer rows); by default each has about `partition_rows` rows (CSV:
    estimated from the first lines). Raises DataNotFound: see `dpdist.data.source.find_files`; UnreadableFile: a file is
    damaged or not of its format; EmptyTable: a Parquet file, or a CSV file with a header, has no bytes (files without
    rows are a table of no records); ColumnMismatch: a column is missing, not in the schema, given twice or of a type
    that cannot hold the attribute; SpecError: the format or the number of partitions makes no sense.
    """
    files = TableFiles.of(source, schema, partitions=partitions, partition_rows=partition_rows)
    return files.on(executor or InProcess())


def layout(files: tuple[TableFile, ...], partitions: int | None, *, rows: bool) -> list[list[Stretch]]:
    """Cut all files laid end to end into stretches of about the same length (None: one per file)."""
    offsets = [0, *accumulate(file.length for file in files)]
    if not offsets[-1]:
        return [[]]
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
                    pieces.append((number, file.boundaries[0], file.boundaries[-1]))
                continue
            start, stop = (file.boundaries[0] + min(max(x - offset, 0), file.length) for x in (low, high))
            if start < stop:
                pieces.append((number, start, stop))
        if pieces:
            result.append(pieces)
    return result


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


def count_records(files: TableFiles, stretches: Sequence[Stretch]) -> list[int]:
    """Count the records of stretches of CSV files (a scan for line feeds; nothing is parsed)."""
    counts = []
    for stretch in stretches:
        with storage_errors(files.files[stretch[0]].found.shown):
            counts.append(sum(block.count(b"\n") for block in _csv_records(files, stretch, BATCH_ROWS)))
    return counts


def _parquet_batches(files: TableFiles, stretch: Stretch, batch_rows: int) -> Iterator[pa.RecordBatch]:
    """Rows ``[start, stop)`` of a Parquet file, only the schema's columns."""
    file, start, stop = files.files[stretch[0]], *stretch[1:]
    groups = [g for g, (a, b) in enumerate(pairwise(file.boundaries)) if a < stop and b > start]
    small = file.group_bytes * len(groups) <= _PREBUFFERED_BYTES
    options = {"pre_buffer": small and not is_local(file.found.path), "buffer_size": _STREAM_BUFFER}
    with open_parquet(file.found, files.source, read_dictionary=file.texts, **options) as reader:
        if reader.metadata.num_rows != file.boundaries[-1] or tuple(reader.schema_arrow.names) != file.columns:
            return  # another file than the one that was opened: the caller notices the missing rows
        skip, left = start - file.boundaries[groups[0]], stop - start
        names = wanted_columns(files.schema, files.source.beside)
        columns = [name for name in names if name in file.columns]
        batches = reader.iter_batches(batch_rows, row_groups=groups, columns=columns, use_threads=False)
        message = f"{file.found.shown} is a damaged Parquet file: write or copy it again"
        while left and (batch := unless_damaged(lambda: next(batches, None), message)) is not None:
            rows = batch.slice(skip, left)
            skip, left = max(0, skip - batch.num_rows), left - rows.num_rows
            if rows.num_rows:
                yield with_folders(readable(rows), file, names)


def _csv_batches(files: TableFiles, stretch: Stretch, batch_rows: int) -> Iterator[pa.RecordBatch]:
    """The records of a stretch of a CSV file; all columns are texts, but for numbers and ids in dictionaries."""
    file, delimiter, schema = files.files[stretch[0]], files.source.csv.delimiter, files.schema
    encoding = files.source.csv.of_bytes
    wanted = wanted_columns(schema, files.source.beside)
    names = [name for name in wanted if name in file.columns]
    parse = pa.csv.ParseOptions(delimiter=delimiter, newlines_in_values=False)
    texts = dict.fromkeys(names, pa.dictionary(pa.int32(), pa.string()))
    texts |= dict.fromkeys({*schema.continuous, *wanted[len(schema.names) :]} & set(names), pa.string())
    convert = pa.csv.ConvertOptions(include_columns=names, column_types=texts, strings_can_be_null=False)
    message = (
        f"{file.found.shown} has a record that is not {encoding.upper()} text with {len(file.columns)} fields "
        f"separated by {delimiter!r}: check data.csv, or repair the file"
    )
    for records in _csv_records(files, stretch, batch_rows):
        if encoding != "utf-8":
            records = records.decode(encoding, "replace").encode()  # what is no text is out of every domain
        read = pa.csv.ReadOptions(use_threads=False, column_names=list(file.columns), block_size=len(records))
        rows = unless_damaged(partial(pa.csv.read_csv, pa.BufferReader(records), read, parse, convert), message)
        if rows.num_rows != records.count(b"\n"):
            raise UnreadableFile(message)
        for batch in rows.to_batches():
            yield with_folders(with_plain_numbers(batch, schema, files.source.csv), file, wanted)


def _csv_records(files: TableFiles, stretch: Stretch, batch_rows: int) -> Iterator[bytes]:
    """Blocks of whole records of a stretch of a CSV file."""
    (number, start, stop), source = stretch, files.source
    file = files.files[number]
    path, packed = file.found.shown, file.compression is not None
    aligned = packed or start == file.boundaries[0]
    message = f"{path} is a damaged {file.compression or 'CSV'} file: write or copy it again"
    with open_csv(file.found, source) as raw:

        def read(size: int) -> bytes:
            return unless_damaged(lambda: raw.read(size), message)

        if packed:
            read(start)
        else:
            raw.seek(start - (not aligned))
        block, end = batch_rows * _BYTES_PER_ROW, None if packed else stop
        for lines in lines_of_range(read, start=start, stop=end, aligned=aligned, block_bytes=block, path=path):
            if records := records_of_lines(lines, options=source.csv, path=path):
                yield records
