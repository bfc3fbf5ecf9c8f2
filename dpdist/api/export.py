"""Released records as files of Stata, SPSS, R or CSV, with the labels of the schema.

In all of them a missing category is what the format has for a missing value, and no level or label.

R's serialization [1]_, version 2 in its binary form, compressed by gzip: each item is a word of flags, its contents and
its attributes, a list of pairs.

.. [1] https://cran.r-project.org/doc/manuals/r-release/R-ints.html#Serialization-Formats
"""

from __future__ import annotations

import gzip
import os
import re
import struct
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpdist.api.released import Release
from dpdist.errors import SpecError
from dpdist.publish.parts import write_csv
from dpdist.spec.attribute import Attribute
from dpdist.spec.groups import Category

if TYPE_CHECKING:
    from pandas import DataFrame

FORMATS = ("csv", "dta", "sav", "rds")

_SYMBOL, _PAIRS, _CHARS, _LOGICAL, _INTEGER, _REAL, _TEXTS, _LIST, _END = 1, 2, 9, 10, 13, 14, 16, 19, 254
_OBJECT, _ATTRIBUTES, _TAG, _UTF8 = 1 << 8, 1 << 9, 1 << 10, 1 << 15
_NONE = -(2**31)  # what R takes for a missing integer
_MISSING = np.array([0x7FF00000000007A2], ">u8").tobytes()  # and for a missing number
_VERSION = struct.pack(">iii", 2, 0x040200, 0x020300)  # of the format, of R, of the oldest R that reads it

Attributes = Mapping[str, "list[str] | tuple[int, ...]"]
"""Texts or integers by name."""

_TOLD = ("label", "units", "description")  # attributes of R's columns


def export(release: Release, to: str, path: str | os.PathLike[str] | None = None) -> Path:
    """Write a release as one file: ``dpdist export``. Columns and values have their labels; categories are numbered.

    A missing category is a missing value. Descriptions of columns end their labels in Stata, and are notes in SPSS.

    Parameters
    ----------
    release : Release
    to : {"csv", "dta", "sav", "rds"}
        A comma-separated file, a file of Stata 15, one of SPSS, or one of R, whose factors have the labels as levels.
    path : path, optional
        By default the name of the release, in the working folder.

    Raises
    ------
    SpecError
        The format is another one, its package is not installed, or the file exists or cannot be written.
    """
    if to not in FORMATS:
        raise SpecError(f"export: expected one of {', '.join(FORMATS)}, got {to!r}")
    target = Path(path or f"{release.name}.{to}")
    if target.exists():
        raise SpecError(f"export: {target} exists already: name another file")
    attributes = {attribute.name: attribute for attribute in release.schema.attributes}
    if to == "csv":
        return _write(target, partial(write_csv, _labelled(release), target))
    if to == "rds":
        told = {
            name: {key: text for key, text in zip(_TOLD, (a.label, a.unit, a.description), strict=True) if text}
            for name, a in attributes.items()
        }
        return _write(target, partial(write_rds, target, _labelled(release), told))
    try:
        import pyreadstat  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        raise SpecError(f"export: {to} needs pyreadstat: pip install 'dpdist[readers]'") from None
    frame, values = _numbered(release)
    asked = [attributes.get(name) for name in frame.columns]
    labels = [_label(name, own) for own, name in zip(asked, frame.columns, strict=True)]
    notes = [own.description if own and own.description else "" for own in asked]
    names = _names(list(frame.columns))
    frame.columns = names
    known = {name: meanings for name, meanings in zip(names, values, strict=True) if meanings}
    given: dict[str, Any] = {"variable_value_labels": known}
    title = (release.schema.about and release.schema.about.title) or release.name
    if to == "dta":  # which has no notes that can be written
        texts = [f"{label}: {note}" if note else label for label, note in zip(labels, notes, strict=True)]
        given |= {"file_label": title[:80], "version": 15, "column_labels": [_cut(text, 80) for text in texts]}
        return _write(target, partial(pyreadstat.write_dta, frame, os.fspath(target), **given))
    ordered = {name for name, own in zip(names, asked, strict=True) if own and own.kind == "ordinal"}
    measures = {name: "ordinal" if name in ordered else "nominal" if name in known else "scale" for name in names}
    whole = {name: "F12.0" for name in names if frame[name].dtype.kind in "iu"}
    given |= {"file_label": title[:64], "variable_measure": measures, "variable_format": whole}
    given["column_labels"] = [_cut(label, 80) for label in labels]
    given["note"] = [line for name, note in zip(names, notes, strict=True) if note for line in _lines(name, note)]
    return _write(target, partial(pyreadstat.write_sav, frame, os.fspath(target), **given))


def _label(name: str, own: Attribute | None) -> str:
    """What a column is called, with its unit."""
    label = (own and own.label) or name
    return f"{label} ({own.unit})" if own and own.unit else label


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"


def _lines(name: str, note: str) -> list[str]:
    """A note of a file of SPSS, whose lines have 80 bytes."""
    return wrap(f"{name}: {note}", 80 if note.isascii() else 20)


def _labelled(release: Release) -> pa.Table:
    """The records with labels, and nulls where values are missing."""
    table, plain = release.to_arrow(labels=True), release.to_arrow()
    for place, own in enumerate(release.schema.attributes if release.manifest.counted == "records" else ()):
        values = table.column(place).combine_chunks()
        if isinstance(own.missing, Category) and pa.types.is_dictionary(values.type):
            codes, texts = values.indices, values.dictionary.to_pylist()
            missing, absent = own.missing.category, plain.column(place).is_null()
            if pa.types.is_dictionary(plain.column(place).type):
                absent = pc.equal(plain.column(place).cast(pa.string()), missing)
            kept = [text for text in texts if text != missing or text in (own.labels or ())]
            codes = pc.if_else(absent.combine_chunks(), None, codes)
            values = pa.DictionaryArray.from_arrays(codes, pa.array(kept, pa.string()), ordered=values.type.ordered)
            table = table.set_column(place, table.column_names[place], values)
    return table


def _write(target: Path, write: Callable[[], None]) -> Path:
    """Write a file and return its path."""
    try:
        write()
    except OSError as error:
        raise SpecError(f"export: {target} cannot be written: {error.strerror or error}") from None
    return target


def _numbered(release: Release) -> tuple[DataFrame, list[dict[int, str]]]:
    """The records with a number in place of each category, and what the numbers of each column mean.

    Declared integers stay as they are; texts are numbered from 1, in their declared order.
    """
    import pandas as pd

    frame, shown = release.to_pandas(), release.to_pandas(labels=True)
    attributes = {attribute.name: attribute for attribute in release.schema.attributes}
    meanings: list[dict[int, str]] = []
    for name in frame.columns:
        column, own = frame[name], attributes.get(name)
        if own and own.dated == "date" and column.dtype.kind == "M":  # pyreadstat takes other types for moments
            column = frame[name] = column.dt.date.where(column.notna(), None)
        if not isinstance(column.dtype, pd.CategoricalDtype):
            meanings.append({})
            continue
        if own and isinstance(own.missing, Category) and own.missing.category in column.cat.categories:
            column = column.cat.remove_categories([own.missing.category])
        categories = list(column.cat.categories)
        whole = all(isinstance(value, int) or hasattr(value, "dtype") for value in categories)
        codes = [int(value) for value in categories] if whole else list(range(1, len(categories) + 1))
        texts = list(shown[name].cat.categories) if isinstance(shown[name].dtype, pd.CategoricalDtype) else categories
        meanings.append(dict(zip(codes, map(str, texts), strict=False)))
        frame[name] = column.cat.codes.map(dict(enumerate(codes))).astype("Int64")
    return frame, meanings


def _names(names: list[str]) -> list[str]:
    """Names that Stata and SPSS take: letters, digits and underscores, 32 at most, each once."""
    made: list[str] = []
    for name in names:
        plain = re.sub(r"\W", "_", name, flags=re.ASCII)[:32]
        plain = plain if re.match(r"[A-Za-z]", plain) else f"v{plain}"[:32]
        number, found = 2, plain
        while found.lower() in (one.lower() for one in made):
            found, number = f"{plain[:28]}_{number}", number + 1
        made.append(found)
    return made


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
