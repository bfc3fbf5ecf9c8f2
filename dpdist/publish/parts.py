"""From codes to Parquet: what a reader of a release finds in its columns.

The parts of a release are Parquet files of equal numbers of rows under ``data/<attempt>/``. Nothing is moved at commit:
they are part of a release once its manifest names them. The bytes of a part depend on its rows and on the version of
pyarrow only, so that a resumed run writes the same file again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from dpdist.errors import OutputUnwritable
from dpdist.privacy.noise import Noise
from dpdist.publish.store import Store
from dpdist.schema import Attribute, Category, Schema

Codes = Sequence[NDArray[np.unsignedinteger[Any]]]

ROW_GROUP = 1 << 17
"""Rows in a Parquet row group."""

MAX_PART_BYTES = 1 << 30
"""Largest part. A reader holds one part at a time, so this bounds its memory."""

PART_NAME = r"^data/[0-9a-zA-Z]{1,8}/part-[0-9]{5,}\.parquet$"
"""What the name of a part looks like, as a regular expression."""


class PartFormat(BaseModel):
    """How codes are written."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    values: Literal["values", "labels", "codes"] = Field(
        default="values", description="The declared values, their labels where there are any, or integer codes."
    )
    bins: Literal["uniform", "label"] = Field(
        default="uniform",
        description="A binned integer as an integer drawn uniformly in its bin, or as the bin's text.",
    )


class PartRecord(BaseModel):
    """One part, as the manifest lists it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=PART_NAME, description="Name of the file, from the manifest's folder.")
    rows: int = Field(ge=0, description="Number of records.")
    bytes: int = Field(ge=0, le=MAX_PART_BYTES, description="Size of the file.")
    sha256: str = Field(pattern="^[0-9a-f]{64}$", description="SHA-256 of the file, in hexadecimal.")


@dataclass(frozen=True, eq=False)
class Column:
    """What becomes of the codes of one attribute. One of the three tables is set; none means that codes stay.

    Attributes
    ----------
    field : pyarrow.Field
        Name and type; nullable only where a missing category is written as null.
    texts : tuple of str, optional
        Text of each code.
    integers : int64 (cardinality,), optional
        Integer of each code, or the lowest one of its bin.
    widths : uint64 (cardinality,), optional
        Number of integers in the bin of each code, where one is drawn.
    missing : int, optional
        The code that is written as null.
    """

    field: pa.Field
    cardinality: int
    texts: tuple[str, ...] | None = None
    integers: NDArray[np.int64] | None = None
    widths: NDArray[np.uint64] | None = None
    missing: int | None = None

    def decode(self, codes: NDArray[Any], words: NDArray[np.uint64] | None = None) -> pa.Array:
        """The Arrow array of `codes`; `words`, uint64 and uniform, place a binned integer in its bin.

        Raises
        ------
        ValueError
            A code is outside the domain, or words are needed.
        """
        if codes.size and codes.max() >= self.cardinality:
            raise ValueError(f"attribute {self.field.name!r}: a code is outside the domain")
        if self.texts is not None:
            distinct = list(dict.fromkeys(self.texts))
            index = np.array([distinct.index(text) for text in self.texts], np.int32)
            return pa.DictionaryArray.from_arrays(pa.array(index[codes]), pa.array(distinct, pa.string()))
        if self.integers is None:
            return pa.array(codes, self.field.type)
        numbers = self.integers[codes]
        if self.widths is not None:
            if words is None:
                raise ValueError(f"attribute {self.field.name!r}: bins need noise to draw from")
            numbers += (words % self.widths[codes]).astype(np.int64)  # uniform to within width * 2^-64
        return pa.array(numbers, mask=None if self.missing is None else codes == self.missing)

    def admits(self, values: pa.Array | pa.ChunkedArray) -> bool:
        """Whether every value could have come from a code."""
        if values.type != self.field.type or (values.null_count and not self.field.nullable):
            return False
        distinct = values.unique().drop_null()
        if self.texts is not None:
            known = pa.array(self.texts, pa.string())
        elif self.integers is None:
            return not len(distinct) or pc.max(distinct).as_py() < self.cardinality
        elif self.widths is None:
            known = pa.array(self.integers)
        else:  # bins lie side by side
            ends = pc.min_max(distinct).as_py()
            last = int(self.integers[-1]) + int(self.widths[-1]) - 1
            return not len(distinct) or (int(self.integers[0]) <= ends["min"] and ends["max"] <= last)
        if pa.types.is_dictionary(distinct.type):
            distinct = distinct.cast(pa.string())
        return bool(pc.all(pc.is_in(distinct, known), min_count=0).as_py())


def columns(schema: Schema, form: PartFormat) -> tuple[Column, ...]:
    """The columns of a release, in order of the schema."""
    return tuple(_column(attribute, form) for attribute in schema.attributes)


def arrow_schema(schema: Schema, form: PartFormat) -> pa.Schema:
    """The Arrow schema of a release: int64, dictionary-encoded text, or unsigned codes."""
    return pa.schema([column.field for column in columns(schema, form)])


def decode(schema: Schema, codes: Codes, *, form: PartFormat, noise: Noise | None = None, start: int = 0) -> pa.Table:
    """Turn codes into the values of a release.

    A code becomes its declared value, its label or stays as it is (`PartFormat.values`). The missing category becomes
    null in columns of integers, its text in columns of text. A binned integer becomes ``lowest..highest`` or an integer
    drawn uniformly in the bin: post-processing, from word ``start + row`` of the stream ``decode/<attribute index>``.

    Parameters
    ----------
    codes : sequence of unsigned arrays
        One per attribute, all of the same length.
    form : PartFormat
    noise : Noise, optional
        Needed if bins are drawn from.
    start : int
        Index of the first record in the release.

    Returns
    -------
    pyarrow.Table
        Of schema ``arrow_schema(schema, form)``.

    Raises
    ------
    ValueError
        The codes do not fit the schema, or noise is missing.
    """
    if len(codes) != len(schema.attributes) or len({len(array) for array in codes}) != 1:
        raise ValueError(f"expected {len(schema.attributes)} arrays of codes of the same length, one per attribute")
    released, arrays = columns(schema, form), []
    for index, (column, array) in enumerate(zip(released, codes, strict=True)):
        words = None
        if column.widths is not None and noise is not None:
            words = noise.words(f"decode/{index}", len(array), start=start)
        arrays.append(column.decode(array, words))
    return pa.Table.from_arrays(arrays, schema=pa.schema([column.field for column in released]))


def part_name(attempt: str, index: int) -> str:
    """Name of part number `index` of an attempt, from the release's folder."""
    return f"data/{attempt[:8]}/part-{index:05d}.parquet"


def parquet_bytes(table: pa.Table) -> bytes:
    """The Parquet file of a table, the same for any chunks: zstd, dictionaries, no metadata, no time of writing."""
    whole = table.replace_schema_metadata(None).unify_dictionaries().combine_chunks()
    sink = pa.BufferOutputStream()
    pq.write_table(
        whole,
        sink,
        version="2.6",
        data_page_version="1.0",
        compression="zstd",
        compression_level=3,
        use_dictionary=True,
        write_statistics=True,
        row_group_size=ROW_GROUP,
        store_schema=False,
    )
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def write_part(store: Store, name: str, table: pa.Table) -> PartRecord:
    """Write one part and say what was written.

    Parameters
    ----------
    name : str
        As made by `part_name`.

    Raises
    ------
    OutputUnwritable
        The place cannot be written, or the part exceeds `MAX_PART_BYTES`.
    OutOfDisk
        No space is left.
    StorageUnavailable
        The storage does not answer.
    """
    content = parquet_bytes(table)
    if len(content) > MAX_PART_BYTES:
        raise OutputUnwritable(f"part {name} exceeds {MAX_PART_BYTES} bytes: lower output.rows_per_part")
    digest = hashlib.sha256(content).hexdigest()
    record = PartRecord(name=name, rows=table.num_rows, bytes=len(content), sha256=digest)
    store.write_bytes(name, content)
    return record


def _column(attribute: Attribute, form: PartFormat) -> Column:
    size, name = attribute.cardinality, attribute.name
    if form.values == "codes":
        return Column(pa.field(name, pa.from_numpy_dtype(attribute.dtype), nullable=False), size)
    texts = _texts(attribute, form)
    if texts is not None:
        extra = (attribute.missing.category,) if isinstance(attribute.missing, Category) else ()
        field = pa.field(name, pa.dictionary(pa.int32(), pa.string()), nullable=False)
        return Column(field, size, texts=(*texts, *extra))
    integers = attribute.bin_edges if attribute.values is None else np.array(attribute.values, np.int64)
    widths = None
    if attribute.is_binned:
        lows, highs = _intervals(attribute)
        widths = (highs - lows + 1).astype(np.uint64)
    if attribute.missing_code is not None:  # an entry for its code, which is written as null
        integers = np.append(integers, integers[-1:])
        widths = None if widths is None else np.append(widths, widths[-1:])
    field = pa.field(name, pa.int64(), nullable=attribute.missing_code is not None)
    return Column(field, size, integers=integers, widths=widths, missing=attribute.missing_code)


def _texts(attribute: Attribute, form: PartFormat) -> tuple[str, ...] | None:
    """The text of each declared value or bin, or None where integers are written."""
    as_label = form.values == "labels" or (attribute.is_binned and form.bins == "label")
    if as_label and attribute.labels is not None:
        return attribute.labels
    if attribute.values is not None:
        return None if isinstance(attribute.values[0], int) else tuple(map(str, attribute.values))
    if attribute.is_binned and form.bins == "label":
        pairs = zip(*(ends.tolist() for ends in _intervals(attribute)), strict=True)
        return tuple(f"{low}..{high}" if low < high else f"{low}" for low, high in pairs)
    return None


def _intervals(attribute: Attribute) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Lowest and highest integer of each bin."""
    lows = attribute.bin_edges
    highest = attribute.bounds[1] if attribute.bounds else int(lows[-1])
    return lows, np.append(lows[1:] - 1, np.int64(highest))
