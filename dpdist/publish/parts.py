"""From codes and statistics to Parquet: what a reader of a release finds in its columns.

The parts of a release are Parquet files of equal numbers of rows under ``data/<attempt>/``. Nothing is moved at commit:
they are part of a release once its manifest names them. The bytes of a part depend on its rows and on the version of
pyarrow only, so that a resumed run writes the same file again.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dpdist.errors import OutputUnwritable
from dpdist.limits import MODEL_VALUES, PART_BYTES
from dpdist.privacy.arrays import Codes
from dpdist.privacy.noise import Noise
from dpdist.publish.columns import DICTIONARY_BYTES, Column, columns
from dpdist.publish.pages import refuse_expanding
from dpdist.publish.part_format import PartFormat, PartRecord
from dpdist.spec.schema import Schema
from dpdist.storage.store import Store

ROW_GROUP = 1 << 17
"""Rows in a Parquet row group."""

UNREADABLE = (pa.ArrowException, OSError, KeyError, ValueError)
"""What reading the Parquet file of somebody else may raise."""

_TEXT = pa.dictionary(pa.int32(), pa.string())

STATISTICS = pa.schema(
    [
        pa.field("statistic", _TEXT, nullable=False),
        pa.field("of", _TEXT, nullable=False),
        pa.field("cell", _TEXT, nullable=False),
        pa.field("noisy", pa.float64(), nullable=False),
        pa.field("value", pa.float64(), nullable=False),
        pa.field("standard_error", pa.float64()),
    ]
)
"""``statistic``: count, entropy of an order, or mean. ``of``: the columns. ``cell``: a value, values of several columns
joined by a bar between blanks (a bar or backslash of a value has a backslash before it), or a time. ``noisy``: as
drawn, which carries the guarantee. ``value``: fitted to it (non-negative, consistent). ``standard_error``: of a fitted
count, before negative ones were set to zero; null where none is known."""


@dataclass(frozen=True, eq=False)
class StatisticColumn:
    """A column of a table of statistics."""

    field: pa.Field  # name and type
    non_negative: bool = False  # whether the release promises that no number is negative

    def admits(self, values: pa.Array | pa.ChunkedArray) -> bool:
        """Whether the values are of the type, present where they must be, finite and, where promised, not negative."""
        if values.type != self.field.type or (values.null_count and not self.field.nullable):
            return False
        if not pa.types.is_floating(values.type):
            return True
        if not pc.all(pc.is_finite(values), min_count=0).as_py():
            return False
        return not self.non_negative or bool(pc.all(pc.greater_equal(values, 0.0), min_count=0).as_py())


def released_columns(schema: Schema, form: PartFormat) -> tuple[Column | StatisticColumn, ...]:
    """The columns of a release, whatever its layout: each has a ``field`` and ``admits`` values."""
    if form.layout == "statistics":
        return tuple(StatisticColumn(field, form.non_negative and field.name == "value") for field in STATISTICS)
    return columns(schema, form)


def arrow_schema(schema: Schema, form: PartFormat) -> pa.Schema:
    """The Arrow schema of a release: int64, float64, dictionary-encoded text or unsigned codes, or the statistics."""
    return pa.schema([column.field for column in released_columns(schema, form)])


Moved = Callable[[Codes, int, NDArray[np.uint64]], NDArray[np.uint64]]
"""Words by which an attribute's numbers are drawn in their bins, from the codes, its index and independent words."""


def decode(
    schema: Schema,
    codes: Codes,
    *,
    form: PartFormat,
    noise: Noise | None = None,
    start: int = 0,
    moved: Moved | None = None,
) -> pa.Table:
    """Turn codes into the values of a release.

    A code becomes its declared value, its label or stays as it is (`PartFormat.values`). The missing category becomes
    null in columns of integers or numbers, its text in columns of text. A binned integer or number becomes
    ``lowest..highest`` or one drawn in the bin: post-processing, from word ``start + row`` of the stream
    ``decode/<attribute index>``. Continuous numbers stay as they are.

    The schema of the table is ``arrow_schema(schema, form)``. Raises ValueError: the codes do not fit the schema, or
    noise is missing.

    Parameters
    ----------
    codes : sequence of unsigned arrays
        One per attribute, all of the same length; float64 where the attribute is continuous.
    noise : Noise, optional
        Needed if bins are drawn from.
    start : int
        Index of the first record in the release.
    moved : Moved, optional
        Moves the words of each attribute.
    """
    if len(codes) != len(schema.attributes) or len({len(array) for array in codes}) != 1:
        raise ValueError(f"expected {len(schema.attributes)} arrays of codes of the same length, one per attribute")
    released, arrays = columns(schema, form), []
    for index, (column, array) in enumerate(zip(released, codes, strict=True)):
        words = None
        if column.is_drawn and noise is not None:
            words = noise.words(f"decode/{index}", len(array), start=start)
            words = words if moved is None else moved(codes, index, words)
        arrays.append(column.decode(array, words))
    return pa.Table.from_arrays(arrays, schema=pa.schema([column.field for column in released]))


def write_csv(table: pa.Table, path: str | os.PathLike[str]) -> None:
    """Write records to a file; nulls are empty fields. Raises OSError: it cannot be written."""
    from pyarrow import csv

    plain = [c.cast(pa.string()) if pa.types.is_dictionary(c.type) else c for c in table.columns]
    csv.write_csv(pa.table(plain, names=table.column_names), os.fspath(path))


def part_name(attempt: str, index: int) -> str:
    """Name of part number `index` of an attempt, from the release's folder."""
    return f"data/{attempt[:8]}/part-{index:05d}.parquet"


def parquet_bytes(table: pa.Table) -> bytes:
    """The Parquet file of a table, the same for any chunks: zstd, dictionaries, no time of writing.

    The metadata of the columns and the order of their categories are kept, in the schema of Arrow that it carries.
    Lists hold large integers that hardly repeat, mostly ascending: differences take half the time of a dictionary.
    """
    whole = table.replace_schema_metadata(None).unify_dictionaries().combine_chunks()
    sink, lists = pa.BufferOutputStream(), {f.name for f in whole.schema if pa.types.is_list(f.type)}
    pq.write_table(
        whole,
        sink,
        version="2.6",
        data_page_version="1.0",
        compression="zstd",
        compression_level=3,
        use_dictionary=[name for name in whole.column_names if name not in lists],
        column_encoding={f"{name}.list.element": "DELTA_BINARY_PACKED" for name in lists},
        write_statistics=True,
        row_group_size=ROW_GROUP,
        dictionary_pagesize_limit=DICTIONARY_BYTES,
    )
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def write_part(store: Store, name: str, table: pa.Table) -> PartRecord:
    """Write one part and return its record for the manifest.
    Raises OutputUnwritable: the place cannot be written, or the part exceeds `PART_BYTES`, or what readers decompress;
    OutOfDisk: no space is left; StorageUnavailable: the storage does not answer.

    Parameters
    ----------
    name : str
        As made by `part_name`.
    """
    content = parquet_bytes(table)
    if len(content) > PART_BYTES:
        raise OutputUnwritable(f"part {name} exceeds {PART_BYTES} bytes: lower output.rows_per_part")
    try:
        refuse_expanding(content, pq.ParquetFile(pa.BufferReader(content)))
    except ValueError as error:
        raise OutputUnwritable(f"part {name}: {error}: lower output.rows_per_part, or shorten texts") from None
    digest = hashlib.sha256(content).hexdigest()
    record = PartRecord(name=name, rows=table.num_rows, bytes=len(content), sha256=digest)
    store.write_bytes(name, content)
    return record


def read_parquet(
    content: bytes, texts: Sequence[str] = (), *, columns: list[str] | None = None, most: int = MODEL_VALUES
) -> pa.Table:
    """The table of a Parquet file in memory, or some of its columns; those named in `texts` are read as dictionaries.

    Raises ValueError, before any value is read: a column has more than `most` rows or `MODEL_VALUES` values, or is
    neither of numbers nor of lists of them nor in `texts`; or as `refuse_expanding`.

    No thread takes part: after `pyarrow.parquet.read_table` a thread of Arrow may free `content` while Python exits,
    which aborts the process.
    """
    file = pq.ParquetFile(pa.BufferReader(content), read_dictionary=list(texts))
    groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
    for place in range(file.metadata.num_columns):
        if not sum(group.column(place).num_values for group in groups) <= MODEL_VALUES:
            raise ValueError(f"a column has more than {MODEL_VALUES} values")
    if not file.metadata.num_rows <= most:
        raise ValueError(f"there are more than {most} rows")
    if not all(_is_narrow(field.type) for field in file.schema_arrow):
        raise ValueError("a column is not of numbers, nor a dictionary of texts")
    refuse_expanding(content, file)
    return file.read(columns=columns, use_threads=False)


def _is_narrow(kind: pa.DataType) -> bool:
    """Whether a value takes eight bytes at most; of a dictionary, the place of one."""
    value = kind.value_type if pa.types.is_list(kind) else kind
    return any(fits(value) for fits in (pa.types.is_integer, pa.types.is_floating, pa.types.is_dictionary))
