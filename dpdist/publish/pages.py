"""What the pages of a Parquet file are when they are decompressed, before a reader takes memory for it.

A page of some kilobytes may hold gigabytes, and the sizes in the footer may be others than those in front of the pages,
by which readers take memory. So the headers of all pages are read: structs of Thrift's compact protocol
(https://github.com/apache/parquet-format).
"""

from __future__ import annotations

import pyarrow.parquet as pq

from dpdist.limits import GROUP_BYTES, GROUP_TEXT_BYTES, HEADER_BYTES, PAGES

_UNCOMPRESSED, _COMPRESSED = 2, 3  # numbers of fields of a page header
_BOOL, _DOUBLE, _BINARY, _LISTS, _STRUCT = (1, 2), 7, 8, (9, 10), 12
_DEPTH = 8
_LONGEST = 64  # values of a list: the format has none in a page's header


def refuse_expanding(content: bytes, file: pq.ParquetFile) -> None:
    """Refuse a file in memory with a row group that is too large. Raises ValueError: it is, or is no Parquet file."""
    pages, left, view = 0, HEADER_BYTES, memoryview(content)
    for place in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(place)
        every = texts = 0
        for column in map(group.column, range(group.num_columns)):
            at = column.data_page_offset
            if column.has_dictionary_page and 0 < column.dictionary_page_offset < at:
                at = column.dictionary_page_offset
            end = at + column.total_compressed_size
            if not 0 <= at <= end <= len(content):
                raise ValueError("pages outside of the file")
            while at < end:
                size, stored, header = _page(view[at : at + left])
                at, left = at + header + stored, left - header
                every, pages = every + size, pages + 1
                texts += size if column.physical_type.endswith("BYTE_ARRAY") else 0
                if every > GROUP_BYTES or texts > GROUP_TEXT_BYTES or pages > PAGES:
                    raise ValueError("a row group is too large when it is decompressed, or has too many pages")


def _page(content: memoryview) -> tuple[int, int, int]:
    """The size of the first page when decompressed, that of what is stored of it, and that of its header."""
    try:
        sizes, header = _struct(content, 0, 0)
    except IndexError:
        raise ValueError("a page's header ends early, or is too long") from None
    size, stored = sizes.get(_UNCOMPRESSED, -1), sizes.get(_COMPRESSED, -1)
    if size < 0 or stored < 0:
        raise ValueError("a page has no size")
    return size, stored, header


def _struct(content: memoryview, at: int, depth: int) -> tuple[dict[int, int], int]:
    """The integers of a struct by the numbers of their fields, and where it ends."""
    found: dict[int, int] = {}
    field = 0
    while head := content[at]:
        at += 1
        if head >> 4:
            field += head >> 4
        else:
            field, at = _integer(content, at)
        kind = head & 15
        if kind in _BOOL:  # a field holds them in its head
            continue
        value, at = _value(content, at, kind, depth)
        found[field] = value
    return found, at + 1


def _value(content: memoryview, at: int, kind: int, depth: int) -> tuple[int, int]:
    """A value, if it is an integer, and where it ends."""
    if depth > _DEPTH or at > len(content):  # a list may say that it has any number of values
        raise ValueError("a page's header is nested too deeply, or ends early")
    if kind in (*_BOOL, 3):
        return content[at], at + 1
    if kind in (4, 5, 6):
        return _integer(content, at)
    if kind == _DOUBLE:
        return 0, at + 8
    if kind == _BINARY:
        size, at = _varint(content, at)
        return 0, at + size
    if kind in _LISTS:
        size, inner = content[at] >> 4, content[at] & 15
        size, at = (size, at + 1) if size < 15 else _varint(content, at + 1)
        if size > _LONGEST:
            raise ValueError("a page's header holds what none has")
        for _ in range(size):
            _, at = _value(content, at, inner, depth + 1)
        return 0, at
    if kind == _STRUCT:
        return 0, _struct(content, at, depth + 1)[1]
    raise ValueError("a page's header holds what none has")


def _integer(content: memoryview, at: int) -> tuple[int, int]:
    number, at = _varint(content, at)
    return number >> 1 ^ -(number & 1), at


def _varint(content: memoryview, at: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 70, 7):
        byte = content[at]
        number, at = number | (byte & 127) << shift, at + 1
        if byte < 128:
            return number, at
    raise ValueError("an integer without end")
