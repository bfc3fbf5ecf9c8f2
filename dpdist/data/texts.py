"""Texts of columns: those that are no UTF-8, and how often each stands, for releases that find out which there are.

Arrow does not check the bytes of texts when it reads Parquet files or takes tables. `readable` does so for each batch:
a text that is no UTF-8 becomes `NO_TEXT`, which no schema can declare, so it is out of domain, no number and no id.

Of counted values, one that is null or an empty text is missing, and one that is longer than `MOST_TEXT_BYTES` or no
UTF-8 is passed over. The memory of counts grows with the number of different values, and not with that of the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dpdist.data.records import MOST_TEXT_BYTES
from dpdist.privacy.arrays import weight_of

VALUES = pa.schema([("value", pa.large_string()), ("count", pa.int64())])
"""Different values of a column, each with the number of its rows."""

NO_TEXT = "\0no UTF-8"
"""What a text becomes that is no UTF-8."""

_COMPACTED_ROWS = 1 << 18
_PASSED_OVER = ""


def is_text(kind: pa.DataType) -> bool:
    """Whether an Arrow type is a text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def readable(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch whose texts are all UTF-8: `NO_TEXT` stands for those that were not."""
    for place, column in enumerate(batch.columns):
        found = _readable(column)
        if found is not column:
            batch = batch.set_column(place, batch.field(place).with_type(found.type), found)
    return batch


def _readable(array: pa.Array) -> pa.Array:
    """Replace texts that are not UTF-8 by `NO_TEXT`; return the array itself where all are UTF-8."""
    if pa.types.is_dictionary(array.type):
        values = _readable(array.dictionary)
        return array if values is array.dictionary else pa.DictionaryArray.from_arrays(array.indices, values)
    if not is_text(array.type):
        return array
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:  # it would name the place of the record: nothing of it goes on
        pass
    else:
        return array
    texts: list[str | None] = []
    for value in array.cast(pa.large_string()).cast(pa.large_binary()).to_pylist():
        try:
            texts.append(None if value is None else value.decode())
        except UnicodeDecodeError:
            texts.append(NO_TEXT)
    return pa.array(texts, pa.large_string())


def texts_of(batch: pa.RecordBatch, names: Sequence[str], *, strip: bool = False) -> list[pa.Array]:
    """Columns of a batch as texts: null where a value is missing, empty where it is passed over."""
    return [_texts(batch.column(name), strip=strip) for name in names]


def decoded(array: pa.Array) -> pa.Array:
    """An array without a dictionary; `dictionary_decode` knows no views, in which Polars has its categories."""
    if not pa.types.is_dictionary(array.type):
        return array
    values = array.dictionary
    return (values.cast(pa.large_string()) if pa.types.is_string_view(values.type) else values).take(array.indices)


def _texts(array: pa.Array, *, strip: bool) -> pa.Array:
    texts = decoded(array).cast(pa.large_string())
    if strip:
        texts = pc.utf8_trim_whitespace(texts)
    lengths = pc.binary_length(texts)
    passed_over = pc.or_(pc.greater(lengths, MOST_TEXT_BYTES), pc.equal(texts, NO_TEXT))
    shown = pc.if_else(passed_over, pa.scalar(_PASSED_OVER, pa.large_string()), texts)
    return pc.if_else(pc.equal(lengths, 0), pa.scalar(None, pa.large_string()), shown)


def count_values(batches: Iterable[Sequence[pa.Array]], columns: int) -> tuple[list[pa.Table], NDArray[np.int64]]:
    """How often each text stands in each of some columns (`VALUES` tables, in no order), and how many are missing.

    Each row of a column is counted once at most.
    """
    missing = np.zeros(columns, np.int64)
    pending: list[list[pa.Table]] = [[VALUES.empty_table()] for _ in range(columns)]
    for arrays in batches:
        for place, array in enumerate(arrays):
            missing[place] += array.null_count
            counts = array.drop_null().value_counts()
            _append(pending[place], pa.Table.from_arrays(counts.flatten(), schema=VALUES))
    tables = [added(tables) for tables in pending]
    return [table.filter(pc.not_equal(table["value"], _PASSED_OVER)) for table in tables], missing


def weigh_values(batches: Iterable[Sequence[pa.Array]], known: Sequence[Sequence[str]]) -> list[pa.Table]:
    """The sums of weights with which each text stands in each column, but for those that are known of the column.

    The weights of a row's texts are `weight_of` their number, so a row changes all sums by `WEIGHT` at most in L2.
    """
    weights = np.array([0, *(weight_of(number) for number in range(1, len(known) + 1))], np.int64)
    found = [[VALUES.empty_table()] for _ in known]
    passed_over = [pa.array([_PASSED_OVER, *values], pa.large_string()) for values in known]
    for arrays in batches:
        others = [
            pc.and_(pc.is_valid(array), pc.invert(pc.is_in(array, values))).to_numpy(zero_copy_only=False)
            for array, values in zip(arrays, passed_over, strict=True)
        ]
        of_row = weights[np.sum(others, axis=0)]
        for tables, array, kept in zip(found, arrays, others, strict=True):
            texts = array.filter(pa.array(kept)).dictionary_encode()
            sums = np.zeros(len(texts.dictionary), np.int64)
            np.add.at(sums, texts.indices.to_numpy(), of_row[kept])
            _append(tables, pa.Table.from_arrays([texts.dictionary, pa.array(sums)], schema=VALUES))
    return [added(tables) for tables in found]


def _append(tables: list[pa.Table], more: pa.Table) -> None:
    """Append a table; all are added up where the later ones have more rows than the first."""
    tables.append(more)
    whole, *later = (table.num_rows for table in tables)
    if sum(later) > max(_COMPACTED_ROWS, whole):
        tables[:] = [added(tables)]


def added(tables: Sequence[pa.Table]) -> pa.Table:
    """The counts of several `VALUES` tables, added by value."""
    whole = pa.concat_tables(tables).combine_chunks()
    if not whole.num_rows:
        return VALUES.empty_table()
    found = whole["value"].combine_chunks().dictionary_encode()  # a fifth of the time of `group_by`
    places, counts = found.indices.to_numpy(), whole["count"].to_numpy()
    totals = np.zeros(len(found.dictionary), np.int64)
    np.add.at(totals, places, counts)
    return pa.Table.from_arrays([found.dictionary, pa.array(totals)], schema=VALUES)


def bucket_of(values: pa.ChunkedArray, buckets: int) -> NDArray[np.int64]:
    """One of this many buckets for each value, by a public hash: the same for equal values, wherever they stand."""
    return np.array([crc32(text.encode()) % buckets for text in values.to_pylist()], np.int64)
