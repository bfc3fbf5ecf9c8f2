"""The files of a table: their columns and extent from footers and headers, and CSV as bytes, cut without reading it.

A range of bytes owns the lines that *start* in it. A record is a line that is neither blank nor a comment; records are
numbered from 0 in each file, and this number (not a byte offset, not a partition) is a record's address.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dpdist.data.encode import check_type
from dpdist.data.keyed_ids import check_type_beside
from dpdist.data.source import ExtraColumns, FoundFile, TableSource
from dpdist.data.texts import is_text
from dpdist.errors import ColumnMismatch, EmptyTable, UnreadableFile, WrongFormat
from dpdist.spec.data import CsvSpec
from dpdist.spec.schema import Schema
from dpdist.storage.files import compression_of, is_local, open_file, storage_errors, unless_damaged

MAX_LINE_BYTES = 1 << 26
"""Longest line accepted; beyond it the file has no line breaks that can be used."""

NO_HEADER = "if the files have no header, set data.csv.header to false and list data.csv.columns"

_BOM = b"\xef\xbb\xbf"

_OTHERS = {
    b"\xff\xfe": "UTF-16 text: set data.csv.encoding to utf-16",
    b"\xfe\xff": "UTF-16 text: set data.csv.encoding to utf-16",
    b"PAR1": "a Parquet file: set data.format to parquet",
    b"PK\x03\x04": "a ZIP archive, as spreadsheets are: write the table as CSV or Parquet",
    b"\xd0\xcf\x11\xe0": "a spreadsheet: write the table as CSV or Parquet",
    b"\x1f\x8b": "a gzip file: let its name end in .gz",
    b"\x28\xb5\x2f\xfd": "a Zstandard file: let its name end in .zst",
}
"""First bytes of files that are no CSV in UTF-8."""

_READ_BYTES = 1 << 16

_HEAD_BYTES = 1 << 20


@dataclass(frozen=True)
class TableFile:
    """A file of a table."""

    found: FoundFile  # path, size and stamp
    columns: tuple[str, ...]  # column names in the order of the file, without those that its folders give
    # Parquet: first row of each row group, then the number of rows. CSV: first byte of the records and end of the file
    # (compressed: start of the records plus the compressed size, a measure of its length only)
    boundaries: tuple[int, ...] = field(repr=False)
    compression: str | None = None  # compression of a CSV file, or utf-16, which then cannot be cut
    texts: tuple[str, ...] = ()  # Parquet: columns of texts, read as dictionaries
    group_bytes: int = 0  # Parquet: compressed size of the largest row group

    @property
    def length(self) -> int:
        """Extent in rows (Parquet) or bytes (CSV)."""
        return self.boundaries[-1] - self.boundaries[0]


def inspect_parquet(found: FoundFile, source: TableSource, schema: Schema) -> TableFile:
    """Read the footer of a Parquet file and check its columns and their types."""
    if not found.size:
        raise EmptyTable(f"{found.shown} is empty (0 bytes): write or copy it again")
    with storage_errors(found.shown), open_parquet(found, source) as file:
        types = file.schema_arrow
        groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
    group_bytes = max((sum(g.column(i).total_compressed_size for i in range(g.num_columns)) for g in groups), default=0)
    every = types
    for name in _given_by_folders(found, types.names):
        every = every.append(pa.field(name, pa.string()))
    check_arrow(found.shown, every, schema, extra=source.extra_columns, beside=source.beside)
    boundaries = (0, *accumulate(group.num_rows for group in groups))
    wanted = set(schema.names) - set(schema.continuous)
    texts = tuple(field.name for field in types if field.name in wanted and is_text(field.type))
    return TableFile(found, tuple(types.names), boundaries, texts=texts, group_bytes=group_bytes)


def open_parquet(found: FoundFile, source: TableSource, **options: object) -> pq.ParquetFile:
    """Open a Parquet file, reading its footer. Raises UnreadableFile: the file is truncated, damaged or not Parquet."""
    file = found.path if is_local(found.path) else open_file(found.path, source.storage_options, size=found.size)

    def message() -> str:
        with open_file(found.path, source.storage_options) as raw:
            is_parquet = raw.read(4) == b"PAR1"
        if is_parquet:
            return f"{found.shown} is a truncated or damaged Parquet file: write or copy it again"
        return f"{found.shown} is not a Parquet file: check data.path and data.format"

    return unless_damaged(lambda: pq.ParquetFile(file, **options), message)


def inspect_csv(found: FoundFile, source: TableSource, schema: Schema) -> TableFile:
    """Read the header of a CSV file and check its columns."""
    path, given, compression = found.shown, source.csv.columns, compression_of(found.path)
    if source.csv.of_bytes != source.csv.encoding:
        compression = source.csv.encoding
    head = _read_head(found, source, compression)
    for mark, what in _OTHERS.items():
        if head.startswith(mark):
            raise WrongFormat(f"{path} is not a CSV file, but {what}")
    names, start = first_record(head, source.csv, whole=len(head) < _HEAD_BYTES, path=path)
    columns = given if given is not None else names or ()
    if not head and source.csv.header:
        raise EmptyTable(f"{path} is empty (0 bytes), without a header: write or copy it again")
    if head:  # without headers a file of no bytes is a part without rows
        if names is not None and len(names) != len(columns):
            raise ColumnMismatch(f"{path}: the header has {len(names)} columns, csv.columns has {len(columns)}")
        if given is not None:
            every = (*columns, *_given_by_folders(found, columns))
            check_columns(path, every, schema, extra=source.extra_columns, beside=source.beside)
        else:
            _check_header(found, columns, source, schema)
    stop = found.size if compression is None else start + found.size * (len(head) > start)
    return TableFile(found, tuple(columns), (min(start, stop), stop), compression)


def open_csv(found: FoundFile, source: TableSource) -> IO[bytes]:
    """Open a CSV file, decompressed, and in UTF-8 where it is in UTF-16."""
    raw = open_file(found.path, source.storage_options, compression=compression_of(found.path))
    if source.csv.of_bytes == source.csv.encoding:
        return raw
    return io.BufferedReader(_Recoded(raw, source.csv.encoding), _READ_BYTES)


class _Recoded(io.RawIOBase):
    """A file of another encoding, read as UTF-8; what is no text in it is U+FFFD, which no schema declares."""

    def __init__(self, raw: IO[bytes], encoding: str) -> None:
        self._raw, self._decoder, self._left = raw, codecs.getincrementaldecoder(encoding)("replace"), b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._left and (data := self._raw.read(_READ_BYTES)):
            self._left = self._decoder.decode(data).encode()
        self._left = self._left or self._decoder.decode(b"", final=True).encode()
        found, self._left = self._left[: len(buffer)], self._left[len(buffer) :]
        buffer[: len(found)] = found
        return len(found)

    def close(self) -> None:
        self._raw.close()
        super().close()


def _read_head(found: FoundFile, source: TableSource, compression: str | None) -> bytes:
    """The first bytes of a CSV file."""
    message = f"{found.shown} is not a valid {compression or 'CSV'} file: write or copy it again"
    with storage_errors(found.shown), open_csv(found, source) as file:
        return unless_damaged(lambda: file.read(_HEAD_BYTES), message)


def line_bytes(file: TableFile, source: TableSource) -> int:
    """Length of a record of a CSV file, estimated from the first ones."""
    head = _read_head(file.found, source, file.compression)[file.boundaries[0] :]
    return max(1, round(len(head) / max(1, head.count(b"\n"))))


def _check_header(found: FoundFile, columns: Sequence[str], source: TableSource, schema: Schema) -> None:
    """As `check_columns`, without a name that was found: in a file without header these are a person's values."""
    advice = NO_HEADER
    if len(columns) == 1:
        advice = f"fields are taken to be separated by {source.csv.delimiter!r}, see data.csv.delimiter; {advice}"
    path, columns = found.shown, (*columns, *_given_by_folders(found, columns))
    wanted = wanted_columns(schema, source.beside)
    missing = [name for name in wanted if columns.count(name) != 1]
    if missing:
        raise ColumnMismatch(f"{path}: the header does not have {_listed(missing)} once each; {advice}")
    if len(columns) > len(wanted) and source.extra_columns == "refuse":
        raise ColumnMismatch(
            f"{path}: the header has columns that the schema does not name: describe each, or set data.extra_columns "
            f"to ignore; {advice}"
        )


def wanted_columns(schema: Schema, beside: str | None) -> tuple[str, ...]:
    """The columns that are read: those of the schema, then that of ids or weights, where there is one."""
    return schema.names if beside is None else (*schema.names, beside)


def _given_by_folders(found: FoundFile, columns: Sequence[str]) -> list[str]:
    """The columns that the folders of a file give, and the file does not have."""
    return [name for name, _ in found.folders if name not in columns]


def with_folders(batch: pa.RecordBatch, file: TableFile, names: Sequence[str]) -> pa.RecordBatch:
    """Rows of a file with the columns among `names` that its folders give, in the order of the names."""
    given = {name: value for name, value in file.found.folders if name in names and name not in batch.schema.names}
    if not given:
        return batch
    columns = [
        pa.repeat(pa.scalar(given[name], pa.string()), batch.num_rows).dictionary_encode()
        if name in given
        else batch.column(name)
        for name in names
    ]
    return pa.RecordBatch.from_arrays(columns, names=list(names))


def check_arrow(
    where: str, types: pa.Schema, schema: Schema, *, extra: ExtraColumns, beside: str | None = None
) -> None:
    """Refuse columns that a schema cannot describe: those `where` (the path of a file, or the kind of a frame), but for
    `extra` ones as said, and one of ids or weights `beside`. Raises ColumnMismatch.
    """
    check_columns(where, types.names, schema, extra=extra, beside=beside)
    if beside is not None:
        check_type_beside(where, beside, types.field(beside).type)
    problems = []
    for attribute in schema.attributes:
        try:
            check_type(attribute, types.field(attribute.name).type)
        except ColumnMismatch as error:
            problems.append(f"{where}: {error}")
    if problems:
        raise ColumnMismatch("\n".join(problems))


def check_columns(
    where: str, columns: Sequence[str], schema: Schema, *, extra: ExtraColumns, beside: str | None = None
) -> None:
    """Refuse columns that are not those of a schema, each once; as `check_arrow`."""
    wanted = wanted_columns(schema, beside)
    for name in wanted:
        if columns.count(name) != 1:
            problem = "appears more than once" if name in columns else "is missing"
            raise ColumnMismatch(f"{where}: the column {name!r} {problem}; it has {_listed(columns)}")
    unknown = [name for name in columns if name not in wanted]
    if unknown and extra == "refuse":
        raise ColumnMismatch(
            f"{where}: the schema does not name {_listed(unknown)}: describe each column, "
            "or set data.extra_columns to ignore"
        )


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:12]))
    return f"the column{'s' if len(names) > 1 else ''} {shown}" + (", ..." if len(names) > 12 else "")


def first_record(head: bytes, options: CsvSpec, *, whole: bool, path: str) -> tuple[tuple[str, ...] | None, int]:
    """Find the column names (None without a header line, empty if the file ends before it) and the first byte after
    them.

    `head` is the beginning of the file, or the `whole` of it. Raises UnreadableFile: it is not UTF-8 text or holds no
    complete header line.
    """
    position = len(_BOM) if head.startswith(_BOM) else 0

    def next_line() -> bytes | None:
        nonlocal position
        if position >= len(head) and whole:
            return None
        end = head.find(b"\n", position) + 1
        if not end and not whole:
            raise UnreadableFile(f"{path} is not a CSV file: its first {len(head) >> 10} KiB hold no complete header")
        line = head[position : end or None]
        position += len(line)
        return line

    for _ in range(options.skip_rows):
        next_line()
    if not options.header:
        return None, position
    mark = options.comment.encode(options.of_bytes) if options.comment else None
    while (line := next_line()) is not None:
        text = line.rstrip(b"\r\n")
        if text and not (mark and text.startswith(mark)):
            return _names(text, options, path), position
    return (), position


def _names(text: bytes, options: CsvSpec, path: str) -> tuple[str, ...]:
    """The column names of a header line."""
    try:
        if options.strip:
            text = _without_blanks_before_quotes(text, np.frombuffer(text, np.uint8), options.delimiter)
        names = next(csv.reader([text.decode(options.of_bytes)], delimiter=options.delimiter))
    except (UnicodeDecodeError, csv.Error):
        names = []
    if not names or b"\0" in text or text.count(b'"') % 2:
        raise UnreadableFile(
            f"the header of {path} is not a line of {options.encoding.upper()} text with column names: set "
            "data.csv.encoding, or repair the file"
        )
    names = [name.strip() for name in names] if options.strip else names
    return tuple(names)


def lines_of_range(
    read: Callable[[int], bytes], *, start: int, stop: int | None, aligned: bool, block_bytes: int, path: str
) -> Iterator[bytes]:
    """Yield the lines that start in ``[start, stop)`` as blocks of whole lines, each ending in a line feed.

    `read` returns up to this many of the next bytes of the file, ``b""`` at its end. It is positioned at `start` if
    `aligned` (a line starts there exactly), else at ``start - 1``; `block_bytes` are read at a time; no `stop` means
    the end of the file. Raises UnreadableFile: a line is longer than `MAX_LINE_BYTES`.
    """
    position, inside, rest = start - (not aligned), aligned, b""
    while (stop is None or position < stop) and (
        data := read(block_bytes if stop is None else min(block_bytes, stop - position))
    ):
        position += len(data)
        if not inside:
            cut = data.find(b"\n") + 1
            inside, data = cut > 0, data[cut or len(data) :]
        cut = data.rfind(b"\n") + 1
        if cut:
            yield rest + data[:cut]
            rest = data[cut:]
        else:
            rest += data
            _bounded(rest, path)
    ends = not rest
    while not ends and (data := read(min(block_bytes, 1 << 16))):  # the last line of the range ends beyond it
        cut = data.find(b"\n") + 1
        rest, ends = rest + data[: cut or None], cut > 0
        _bounded(rest, path)
    if rest:
        yield rest if ends else rest + b"\n"


def records_of_lines(lines: bytes, *, options: CsvSpec, path: str) -> bytes:
    """Remove blank and comment lines, and blanks before a quoted field where texts are stripped; refuse what cannot be
    cut at line feeds. Raises UnreadableFile: a quoted field spans lines (or a quote is not closed), or line breaks are
    not LF or CR LF.
    """
    mark = options.comment.encode(options.of_bytes) if options.comment else None
    special = lines.startswith(b"\n") or b"\n\n" in lines
    if b"\r" in lines:
        if lines.count(b"\r") != lines.count(b"\r\n"):
            raise UnreadableFile(
                f"{path} has carriage returns that do not end a line: rewrite it with LF or CR LF line breaks"
            )
        special = special or lines.startswith(b"\r") or b"\n\r" in lines
    if mark:
        special = special or lines.startswith(mark) or b"\n" + mark in lines
    if special:
        pattern = rb"^(?:%b[^\n]*|\r?)\n" % re.escape(mark) if mark else rb"^\r?\n"
        lines = re.sub(pattern, b"", lines, flags=re.MULTILINE)
    if b'"' in lines:
        text = np.frombuffer(lines, np.uint8)
        quotes_so_far = np.searchsorted(np.flatnonzero(text == ord('"')), np.flatnonzero(text == ord("\n")))
        if np.any(quotes_so_far % 2):
            raise UnreadableFile(
                f"{path}: a quoted field spans several lines or a quote is not closed; a table is cut at line breaks, "
                "so write the file without line breaks inside fields, or as Parquet"
            )
        if options.strip:
            lines = _without_blanks_before_quotes(lines, text, options.delimiter)
    return lines


def _without_blanks_before_quotes(lines: bytes, text: NDArray[np.uint8], delimiter: str) -> bytes:
    """Lines whose quoted fields begin with their quote; blanks before quotes inside quoted fields stay."""
    blank = b" \t".replace(delimiter.encode(), b"")
    blanks = re.compile(rb"(?:(?<=%b)|^)[%b]+(?=\")" % (re.escape(delimiter.encode()), blank), re.MULTILINE)
    if blanks.search(lines) is None:
        return lines
    quotes = np.flatnonzero(text == ord('"'))
    found = np.array([match.span() for match in blanks.finditer(lines)])
    outside = found[np.searchsorted(quotes, found[:, 0]) % 2 == 0]
    edges = np.zeros(len(text) + 1, np.int8)
    edges[outside[:, 0]] += 1
    edges[outside[:, 1]] -= 1
    return bytes(text[np.cumsum(edges[:-1], dtype=np.int8) == 0])


def _bounded(rest: bytes, path: str) -> None:
    if len(rest) > MAX_LINE_BYTES:
        raise UnreadableFile(f"{path} has a line longer than {MAX_LINE_BYTES >> 20} MiB: it is not a CSV file")
