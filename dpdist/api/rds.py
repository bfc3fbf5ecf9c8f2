"""Records as a file of R: a data frame whose factors, dates and columns have their labels.

R's serialization [1]_, version 2 in its binary form, compressed by gzip: each item is a word of flags, its contents and
its attributes, a list of pairs.

.. [1] https://cran.r-project.org/doc/manuals/r-release/R-ints.html#Serialization-Formats
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa

_SYMBOL, _PAIRS, _CHARS, _LOGICAL, _INTEGER, _REAL, _TEXTS, _LIST, _END = 1, 2, 9, 10, 13, 14, 16, 19, 254
_OBJECT, _ATTRIBUTES, _TAG, _UTF8 = 1 << 8, 1 << 9, 1 << 10, 1 << 15
_NONE = -(2**31)  # what R takes for a missing integer
_MISSING = np.array([0x7FF00000000007A2], ">u8").tobytes()  # and for a missing number
_VERSION = struct.pack(">iii", 2, 0x040200, 0x020300)  # of the format, of R, of the oldest R that reads it

Attributes = Mapping[str, "list[str] | tuple[int, ...]"]
"""Texts or integers by name."""


def write_rds(path: Path, table: pa.Table, told: Mapping[str, Mapping[str, str]]) -> None:
    """Write a table as a data frame. `told` has texts of columns, such as ``label``. Raises OSError: it cannot."""
    with path.open("xb") as raw, gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=6, mtime=0) as file:
        out: BinaryIO = file  # type: ignore[assignment]
        out.write(b"X\n" + _VERSION)
        _words(out, _LIST | _OBJECT | _ATTRIBUTES, table.num_columns)
        for name in table.column_names:
            own = {key: [text] for key, text in told.get(name, {}).items()}
            _column(out, table.column(name).combine_chunks(), own)
        rows = (_NONE, -table.num_rows)  # the short form of row names 1, 2, ...
        _attributes(out, {"names": table.column_names, "class": ["data.frame"], "row.names": rows})


def _column(out: BinaryIO, values: pa.Array, told: Attributes) -> None:
    """A vector of R: a factor, dates, times, logical values, integers, numbers or texts."""
    kind = values.type
    if pa.types.is_dictionary(kind):
        codes = np.asarray(values.indices.cast(pa.int64()).fill_null(-1)) + 1
        codes = np.where(codes == 0, _NONE, codes)
        classes = ["ordered", "factor"] if kind.ordered else ["factor"]
        _vector(out, _INTEGER, codes.astype(">i4"), {"levels": values.dictionary.to_pylist(), "class": classes, **told})
    elif pa.types.is_date(kind):
        _numbers(out, values.cast(pa.date32()).cast(pa.int32()), 1.0, {"class": ["Date"], **told})
    elif pa.types.is_timestamp(kind):
        clock = {"class": ["POSIXct", "POSIXt"], "tzone": ["UTC"]}
        _numbers(out, values.cast(pa.timestamp("us", tz=kind.tz)).cast(pa.int64()), 1e-6, {**clock, **told})
    elif pa.types.is_boolean(kind):
        _vector(out, _LOGICAL, np.asarray(values.cast(pa.int32()).fill_null(_NONE), ">i4"), told)
    elif pa.types.is_integer(kind) and _fits(values):
        _vector(out, _INTEGER, np.asarray(values.cast(pa.int32()).fill_null(_NONE), ">i4"), told)
    elif pa.types.is_integer(kind) or pa.types.is_floating(kind):
        _numbers(out, values, 1.0, told)
    else:
        _words(out, _TEXTS | _flag(told), len(values))
        for text in values.cast(pa.string()).to_pylist():
            _chars(out, text)
        _attributes(out, told)


def _fits(values: pa.Array) -> bool:
    """Whether R's integers, which have 32 bits and a missing one, hold the values."""
    held = np.asarray(values.drop_null())
    return not len(held) or bool(np.abs(held, dtype=np.float64).max() < 2**31)


def _numbers(out: BinaryIO, values: pa.Array, unit: float, told: Attributes) -> None:
    numbers = (np.asarray(values.cast(pa.float64(), safe=False).fill_null(0.0)) * unit).astype(">f8")
    numbers[np.asarray(values.is_null())] = np.frombuffer(_MISSING, ">f8")[0]
    _vector(out, _REAL, numbers, told)


def _vector(out: BinaryIO, kind: int, numbers: np.ndarray, told: Attributes) -> None:
    _words(out, kind | _flag(told), len(numbers))
    out.write(numbers.tobytes())
    _attributes(out, told)


def _flag(told: Attributes) -> int:
    return (_ATTRIBUTES if told else 0) | (_OBJECT if "class" in told else 0)


def _attributes(out: BinaryIO, told: Attributes) -> None:
    """The pairs of names and vectors, where there are any."""
    for name, values in told.items():
        _words(out, _PAIRS | _TAG, _SYMBOL)
        _chars(out, name)
        if isinstance(values, tuple):
            _words(out, _INTEGER, len(values), *values)
        else:
            _words(out, _TEXTS, len(values))
            for text in values:
                _chars(out, text)
    if told:
        _words(out, _END)


def _chars(out: BinaryIO, text: str | None) -> None:
    content = b"" if text is None else text.encode()
    _words(out, _CHARS | _UTF8 * (text is not None), -1 if text is None else len(content))
    out.write(content)


def _words(out: BinaryIO, *words: int) -> None:
    out.write(struct.pack(f">{len(words)}i", *words))
