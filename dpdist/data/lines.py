"""CSV as bytes: where records start, so that a file can be cut into byte ranges without reading it first.

A range owns the lines that *start* in it. A record is a line that is neither blank nor a comment; records are
numbered from 0 in each file, and this number (not a byte offset, not a partition) is a record's address.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator

import numpy as np

from dpdist.errors import ColumnMismatch, UnreadableFile, WrongFormat
from dpdist.spec.data import CsvSpec

MAX_LINE_BYTES = 1 << 26
"""Longest line accepted; beyond it the file has no line breaks that can be used."""

NO_HEADER = "if the files have no header, set data.csv.header to false and list data.csv.columns"

_BOM = b"\xef\xbb\xbf"

_OTHERS = {
    b"\xff\xfe": "UTF-16 text: write it in UTF-8",
    b"\xfe\xff": "UTF-16 text: write it in UTF-8",
    b"PAR1": "a Parquet file: set data.format to parquet",
    b"PK\x03\x04": "a ZIP archive, as spreadsheets are: write the table as CSV or Parquet",
    b"\xd0\xcf\x11\xe0": "a spreadsheet: write the table as CSV or Parquet",
    b"\x1f\x8b": "a gzip file: let its name end in .gz",
    b"\x28\xb5\x2f\xfd": "a Zstandard file: let its name end in .zst",
}
"""First bytes of files that are no CSV in UTF-8."""


def refuse_other_format(head: bytes, path: str) -> None:
    """Refuse a file that begins as one of another format. Raises WrongFormat."""
    for mark, what in _OTHERS.items():
        if head.startswith(mark):
            raise WrongFormat(f"{path} is not a CSV file, but {what}")


def first_record(head: bytes, options: CsvSpec, *, whole: bool, path: str) -> tuple[tuple[str, ...] | None, int]:
    """Find the column names (None without a header line, empty if the file ends before it) and the first byte after
    them.

    `head` is the beginning of the file, or the `whole` of it. Raises UnreadableFile: it is not UTF-8 text or holds no
    complete header line; ColumnMismatch: two columns have the same name.
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
    mark = options.comment.encode() if options.comment else None
    while (line := next_line()) is not None:
        text = line.rstrip(b"\r\n")
        if text and not (mark and text.startswith(mark)):
            return _names(text, options, path), position
    return (), position


def _names(text: bytes, options: CsvSpec, path: str) -> tuple[str, ...]:
    """The column names of a header line."""
    try:
        names = next(csv.reader([text.decode("utf-8")], delimiter=options.delimiter))
    except (UnicodeDecodeError, csv.Error):
        names = []
    if not names or b"\0" in text or text.count(b'"') % 2:
        raise UnreadableFile(f"the header of {path} is not a line of UTF-8 text with column names")
    names = [name.strip() for name in names] if options.strip else names
    if len(set(names)) < len(names):
        raise ColumnMismatch(f"{path}: a name appears more than once in the header; {NO_HEADER}")
    return tuple(names)


def lines_of_range(
    read: Callable[[int], bytes], *, start: int, stop: int | None, aligned: bool, block_bytes: int, path: str
) -> Iterator[bytes]:
    """Yield the lines that start in ``[start, stop)`` as blocks of whole lines, each ending in a line feed.

    `read` returns up to so many of the next bytes of the file, ``b""`` at its end. It is positioned at `start` if
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


def records_of_lines(lines: bytes, *, comment: str | None, path: str) -> bytes:
    """Remove blank and comment lines, and refuse what cannot be cut at line feeds. Raises UnreadableFile: a quoted
    field spans lines (or a quote is not closed), or line breaks are not LF or CR LF.
    """
    mark = comment.encode() if comment else None
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
    return lines


def _bounded(rest: bytes, path: str) -> None:
    if len(rest) > MAX_LINE_BYTES:
        raise UnreadableFile(f"{path} has a line longer than {MAX_LINE_BYTES >> 20} MiB: it is not a CSV file")
