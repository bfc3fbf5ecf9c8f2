"""Reading the records of a partition as encoded batches, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.csv
from numpy.typing import NDArray

from dpdist.data.encode import TableEncoder
from dpdist.data.files import open_parquet, wanted_columns
from dpdist.data.keyed_ids import ids_of
from dpdist.data.lines import lines_of_range, records_of_lines
from dpdist.data.report import RowReport
from dpdist.data.sizes import BATCH_ROWS
from dpdist.data.texts import readable, texts_of
from dpdist.errors import UnreadableFile
from dpdist.storage.files import is_local, open_file, storage_errors, unless_damaged

if TYPE_CHECKING:
    from dpdist.data.table import Slice, Table
    from dpdist.privacy.arrays import Codes

_BYTES_PER_ROW = 32  # of CSV, for blocks of about as many rows as a batch
_PREBUFFERED_BYTES = 1 << 26
_STREAM_BUFFER = 1 << 22


@dataclass(frozen=True, eq=False, repr=False)
class EncodedBatch:
    """Consecutive rows of a file, encoded."""

    file: int  # file, first_row: address of the first row
    first_row: int
    codes: Codes  # unsigned int (float64 if continuous), shape (rows,), in schema order
    keep: NDArray[np.bool_] | None  # rows that no policy drops; None for all
    report: RowReport  # counts of defects
    beside: pa.Array | None = None  # ids of the units, or weights, if any: they stay in the task that reads them
    copies: NDArray[np.int64] | None = None  # how often each record counts, 0 for those not kept; None for once


def encoded_batches(table: Table, partition: int, *, batch_rows: int = BATCH_ROWS) -> Iterator[EncodedBatch]:
    """Read, check and encode the rows of a partition of a located table. Memory grows with `batch_rows`, about the rows
    of a batch; results do not depend on it. Raises UnreadableFile: a file is damaged, changed since the table was
    opened, or has lines that are no records; DataNotFound: a file is gone or access is denied.
    """
    is_csv = table.format == "csv"
    strip = is_csv and table.source.csv.strip
    encoder = TableEncoder(table.schema, strip=strip, empty_is_missing=is_csv)
    for file, row, batch in _read_batches(table, partition, batch_rows):
        encoded = encoder.encode(batch)
        beside = ids_of(batch, table.source.beside, strip=strip, empty_is_missing=is_csv)
        yield EncodedBatch(file, row, encoded.codes, encoded.keep, encoded.report, beside)


def text_batches(table: Table, partition: int, names: Sequence[str]) -> Iterator[list[pa.Array]]:
    """The values of some columns of a partition of a located table as texts (`dpdist.data.texts`); errors as for
    `encoded_batches`.
    """
    strip = table.format == "csv" and table.source.csv.strip
    for _, _, batch in _read_batches(table, partition, BATCH_ROWS):
        yield texts_of(batch, names, strip=strip)


def _read_batches(table: Table, partition: int, batch_rows: int) -> Iterator[tuple[int, int, pa.RecordBatch]]:
    """Consecutive rows of a partition as they are read, with the number of their file and of the first row in it."""
    if not table.is_located:
        raise ValueError("the rows of a CSV table are located first: see dpdist.families.base.graph.locate")
    read = _csv_batches if table.format == "csv" else _parquet_batches
    for piece in table.partitions[partition]:
        row, stop = piece.first_row or 0, (piece.first_row or 0) + (piece.rows or 0)
        path = table.files[piece.file].found.path
        with storage_errors(path):
            for batch in read(table, piece, batch_rows):
                yield piece.file, row, batch
                row += batch.num_rows
        if row != stop:
            raise UnreadableFile(
                f"{path} has changed since the table was opened: start again on files that stay as they are"
            )


def count_records(table: Table, partition: int) -> list[int]:
    """Count the records of each slice of a partition of a CSV table (a scan for line feeds; nothing is parsed)."""
    counts = []
    for piece in table.partitions[partition]:
        path = table.files[piece.file].found.path
        with storage_errors(path):
            counts.append(sum(block.count(b"\n") for block in _csv_records(table, piece, BATCH_ROWS)))
    return counts


def _parquet_batches(table: Table, piece: Slice, batch_rows: int) -> Iterator[pa.RecordBatch]:
    """Rows ``[start, stop)`` of a Parquet file, only the schema's columns."""
    file = table.files[piece.file]
    groups = [g for g, (a, b) in enumerate(pairwise(file.boundaries)) if a < piece.stop and b > piece.start]
    small = file.group_bytes * len(groups) <= _PREBUFFERED_BYTES
    options = {"pre_buffer": small and not is_local(file.found.path), "buffer_size": _STREAM_BUFFER}
    with open_parquet(file.found, table.source, read_dictionary=file.texts, **options) as reader:
        if reader.metadata.num_rows != file.boundaries[-1] or tuple(reader.schema_arrow.names) != file.columns:
            return  # another file than the one that was opened: the caller notices the missing rows
        skip, left = piece.start - file.boundaries[groups[0]], piece.stop - piece.start
        batches = reader.iter_batches(
            batch_rows,
            row_groups=groups,
            columns=list(wanted_columns(table.schema, table.source.beside)),
            use_threads=False,
        )
        message = f"{file.found.path} is a damaged Parquet file: write or copy it again"
        while left and (batch := unless_damaged(lambda: next(batches, None), message)) is not None:
            rows = batch.slice(skip, left)
            skip, left = max(0, skip - batch.num_rows), left - rows.num_rows
            if rows.num_rows:
                yield readable(rows)


def _csv_batches(table: Table, piece: Slice, batch_rows: int) -> Iterator[pa.RecordBatch]:
    """The records of a stretch of a CSV file; all columns are texts, but for numbers and ids in dictionaries."""
    file, options = table.files[piece.file], table.source.csv
    names = list(wanted_columns(table.schema, table.source.beside))
    parse = pa.csv.ParseOptions(delimiter=options.delimiter, newlines_in_values=False)
    texts = dict.fromkeys(names, pa.dictionary(pa.int32(), pa.string())) | dict.fromkeys(
        (*table.schema.continuous, *names[len(table.schema.names) :]), pa.string()
    )
    convert = pa.csv.ConvertOptions(include_columns=names, column_types=texts, strings_can_be_null=False)
    message = (
        f"{file.found.path} has a record that is not UTF-8 text with {len(file.columns)} fields separated by "
        f"{options.delimiter!r}: check data.csv, or repair the file"
    )
    for records in _csv_records(table, piece, batch_rows):
        read = pa.csv.ReadOptions(use_threads=False, column_names=list(file.columns), block_size=len(records))
        source = pa.BufferReader(records)
        rows = unless_damaged(partial(pa.csv.read_csv, source, read, parse, convert), message)
        if rows.num_rows != records.count(b"\n"):
            raise UnreadableFile(message)
        yield from rows.to_batches()


def _csv_records(table: Table, piece: Slice, batch_rows: int) -> Iterator[bytes]:
    """Blocks of whole records of a stretch of a CSV file."""
    file, source = table.files[piece.file], table.source
    path, packed = file.found.path, file.compression is not None
    aligned = packed or piece.start == file.boundaries[0]
    message = f"{path} is a damaged {file.compression or 'CSV'} file: write or copy it again"
    with open_file(path, source.storage_options, compression=file.compression) as raw:

        def read(size: int) -> bytes:
            return unless_damaged(lambda: raw.read(size), message)

        if packed:
            read(piece.start)
        else:
            raw.seek(piece.start - (not aligned))
        for lines in lines_of_range(
            read,
            start=piece.start,
            stop=None if packed else piece.stop,
            aligned=aligned,
            block_bytes=batch_rows * _BYTES_PER_ROW,
            path=path,
        ):
            if records := records_of_lines(lines, comment=source.csv.comment, path=path):
                yield records
