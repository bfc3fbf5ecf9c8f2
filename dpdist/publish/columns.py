"""How the codes of attributes are written: the columns of released records."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dpdist.publish.part_format import PartFormat
from dpdist.publish.tilts import UNIT
from dpdist.spec.attribute import Attribute
from dpdist.spec.groups import Category, Every
from dpdist.spec.schema import Schema

DICTIONARY_BYTES = 1 << 20
"""Bytes of a dictionary of texts in a Parquet file, at most."""


def numbers(values: NDArray[Any], *, missing: NDArray[np.bool_] | None = None) -> pa.Array:
    """An Arrow array of the type of `values` (integers or floating point), null where `missing` is true.

    `pyarrow.array` does the same, and imports pandas first: a quarter of a second in each process that writes a part.
    """
    held = np.ascontiguousarray(values)
    valid = None if missing is None else pa.py_buffer(np.packbits(~missing, bitorder="little"))
    return pa.Array.from_buffers(pa.from_numpy_dtype(held.dtype), len(held), [valid, pa.py_buffer(held)])


def texts(values: Sequence[str]) -> pa.Array:
    """An array of strings."""
    encoded = [value.encode() for value in values]
    ends = np.cumsum([0, *map(len, encoded)]).astype(np.int32)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.string(), len(encoded), buffers)


def lists(values: Sequence[NDArray[Any]]) -> pa.Array:
    """An array of lists of integers."""
    ends = np.cumsum([0, *map(len, values)]).astype(np.int32)
    whole = np.concatenate([np.zeros(0, np.int64), *(np.asarray(value, np.int64) for value in values)])
    return pa.ListArray.from_arrays(numbers(ends), numbers(whole))


@dataclass(frozen=True, eq=False)
class Column:
    """How the codes of one attribute are written. At most one of the tables is set; with none, codes stay codes."""

    field: pa.Field  # name and type; nullable only where a missing category is written as null
    cardinality: int = 0
    texts: tuple[str, ...] | None = None  # text of each code
    # integer of each code, or the lowest one of its bin; of booleans and days see `written`
    integers: NDArray[np.int64] | None = None
    widths: NDArray[np.uint64] | None = None  # number of integers in the bin of each code, where one is drawn
    # ends of the bins of a number, in which one is drawn; of a continuous number its bounds
    edges: NDArray[np.float64] | None = None
    step: float | None = None  # what numbers that are drawn are multiples of
    tilts: NDArray[np.float64] | None = None  # of each code, where numbers are not drawn uniformly (`tilts`)
    missing: int | None = None  # the code that is written as null

    @property
    def is_drawn(self) -> bool:
        """Whether `decode` needs words."""
        return self.widths is not None or (self.edges is not None and self.cardinality > 0)

    def decode(self, codes: NDArray[Any], words: NDArray[np.uint64] | None = None) -> pa.Array:
        """The Arrow array of `codes`; `words`, uint64 and uniform, place a binned integer or number in its bin. Raises
        ValueError: a code or number is outside the domain, or words are needed.
        """
        if not self.cardinality:
            continuous = numbers(codes.astype(np.float64, copy=False))
            if not self.admits(continuous):
                raise ValueError(f"attribute {self.field.name!r}: a number is outside the domain")
            return continuous
        if codes.size and codes.max() >= self.cardinality:
            raise ValueError(f"attribute {self.field.name!r}: a code is outside the domain")
        if self.is_drawn and words is None:
            raise ValueError(f"attribute {self.field.name!r}: bins need noise to draw from")
        if self.texts is not None:
            distinct = list(dict.fromkeys(self.texts))
            index = np.array([distinct.index(text) for text in self.texts], np.int32)
            ordered = self.field.type.ordered
            return pa.DictionaryArray.from_arrays(numbers(index[codes]), texts(distinct), ordered=ordered)
        mask = None if self.missing is None else codes == self.missing
        if self.edges is not None and words is not None:
            bins = np.minimum(codes, len(self.edges) - 2)  # the missing category is masked
            low, high = self.edges[bins], self.edges[bins + 1]
            if self.step is not None:
                return numbers(self._multiples(bins, words), missing=mask)
            drawn = low + (high - low) * self._shares(bins, words)
            return numbers(np.where(drawn < high, drawn, low), missing=mask)  # the sum may round up to the next bin
        if self.integers is None:
            return numbers(codes).cast(self.field.type)
        integers = self.integers[codes]
        if self.widths is None:
            return self.written(integers, missing=mask)
        if words is not None:
            integers += self._within(codes, self.widths[codes], words).astype(np.int64)
        return self.written(integers, missing=mask)

    def written(self, integers: NDArray[Any], *, missing: NDArray[np.bool_] | None = None) -> pa.Array:
        """Integers as the values of the column, which may be booleans, days since 1970 or seconds since it began."""
        values, kind = numbers(integers, missing=missing), self.field.type
        if pa.types.is_timestamp(kind):
            values = values.cast(pa.timestamp("s"))
        return values.cast(pa.int32()).cast(kind) if pa.types.is_date(kind) else values.cast(kind)

    def as_integers(self, values: pa.Array) -> pa.Array:
        """The values of the column as integers: `written`, the other way round."""
        if pa.types.is_timestamp(values.type):
            values = values.cast(pa.timestamp("s"), safe=False)
        return (values.cast(pa.int32()) if pa.types.is_date(values.type) else values).cast(pa.int64())

    def _shares(self, bins: NDArray[Any], words: NDArray[np.uint64]) -> NDArray[np.float64]:
        """The share of its bin's width at which each number lies."""
        shares = (words >> np.uint64(11)) * 2.0**-53
        if self.tilts is not None:
            shares /= self.tilts[bins] - (self.tilts[bins] - 1) * shares
        return np.asarray(shares)

    def _within(self, bins: NDArray[Any], many: NDArray[np.uint64], words: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """A whole number below `many` for each word: without tilts uniform to within many * 2^-64."""
        if self.tilts is None:
            return words % many
        return np.asarray(np.minimum((self._shares(bins, words) * many).astype(np.uint64), many - np.uint64(1)))

    def _multiples(self, bins: NDArray[Any], words: NDArray[np.uint64]) -> NDArray[np.float64]:
        """A multiple of the step in each bin, uniform to within their number times 2^-64; the lower end of a bin that
        has none. A step such as 0.01 divides whole numbers, which gives the floats that people write.
        """
        step, edges = self.step or 1.0, self.edges if self.edges is not None else np.zeros(1)
        parts = round(1 / step)

        def multiple(number: NDArray[np.float64]) -> NDArray[np.float64]:
            return number / parts if parts and math.isclose(parts * step, 1) else number * step

        ends = np.ceil(edges / step)
        ends += multiple(ends) < edges
        ends -= multiple(ends - 1) >= edges  # the least multiple that is not below each edge
        ends[-1] += multiple(ends[-1:])[0] == edges[-1]  # the upper bound is in the last bin
        many = np.maximum(np.diff(ends), 0).astype(np.uint64)[bins]
        drawn = multiple(ends[bins] + self._within(bins, np.maximum(many, np.uint64(1)), words).astype(np.float64))
        return np.where(many > 0, drawn, edges[bins])

    def admits(self, values: pa.Array | pa.ChunkedArray) -> bool:
        """Whether every value could have come from a code."""
        if values.type != self.field.type or (values.null_count and not self.field.nullable):
            return False
        if self.edges is not None:  # bins lie side by side
            ends = pc.min_max(values, min_count=0)
            low, high = ends["min"].as_py(), ends["max"].as_py()
            whole = not pc.any(pc.is_nan(values), min_count=0).as_py()
            return low is None or (whole and bool(self.edges[0] <= low) and bool(high <= self.edges[-1]))
        distinct = values.unique().drop_null()
        if self.texts is not None:
            known = texts(self.texts)
        elif self.integers is None:
            return not len(distinct) or pc.max(distinct).as_py() < self.cardinality
        elif self.widths is None:
            known = self.written(self.integers)
        else:  # bins lie side by side
            ends = pc.min_max(self.as_integers(distinct)).as_py()
            last = int(self.integers[-1]) + int(self.widths[-1]) - 1
            return not len(distinct) or (int(self.integers[0]) <= ends["min"] and ends["max"] <= last)
        if pa.types.is_dictionary(distinct.type):
            distinct = distinct.cast(pa.string())
        return bool(pc.all(pc.is_in(distinct, known), min_count=0).as_py())


def columns(schema: Schema, form: PartFormat) -> tuple[Column, ...]:
    """The columns of a release of records, in order of the schema."""
    made = (_column(attribute, form) for attribute in schema.attributes)
    return tuple(
        replace(column, field=column.field.with_metadata(_described(column, attribute)))
        for column, attribute in zip(made, schema.attributes, strict=True)
    )


def _described(column: Column, attribute: Attribute) -> dict[str, str] | None:
    """What a Parquet file says of a column: label, unit, description, the labels of its values, and for Polars their
    order (the values of an ``Enum``).
    """
    told = {name: getattr(attribute, name) for name in ("label", "unit", "description")}
    if attribute.labels is not None and attribute.values is not None and column.texts != attribute.labels:
        told["labels"] = json.dumps(dict(zip(map(str, attribute.values), attribute.labels, strict=True)))
    if column.texts is not None and column.field.type.ordered:
        shown = [*dict.fromkeys(column.texts)]
        told["_PL_ENUM_VALUES2"] = "".join(f"{len(text.encode())};{text}" for text in shown)
    return {name: text for name, text in told.items() if text} or None


def _column(attribute: Attribute, form: PartFormat) -> Column:
    name = attribute.name
    if attribute.is_continuous:
        return Column(pa.field(name, pa.float64(), nullable=False), edges=np.array(attribute.bounds, np.float64))
    size = attribute.cardinality
    if form.values == "codes":
        return Column(pa.field(name, pa.from_numpy_dtype(attribute.dtype), nullable=False), size)
    texts = _texts(attribute, form)
    if texts is not None:
        extra = (attribute.missing.category,) if isinstance(attribute.missing, Category) else ()
        shown = (*texts, *extra)
        # a longer dictionary is not written whole, and its order would be that of the records
        ordered = attribute.kind != "categorical" and sum(len(text.encode()) + 4 for text in shown) < DICTIONARY_BYTES
        field = pa.field(name, pa.dictionary(pa.int32(), pa.string(), ordered=ordered), nullable=False)
        return Column(field, size, texts=shown)
    if attribute.kind == "number":
        lows, highs = attribute.bin_ends()
        edges = np.append(lows, highs[-1:])
        field = pa.field(name, pa.float64(), nullable=attribute.missing_code is not None)
        step = attribute.step if isinstance(attribute.step, float) else None
        return Column(
            field, size, edges=edges, step=step, tilts=_tilts(attribute, form), missing=attribute.missing_code
        )
    kind = _type_of(attribute)
    if attribute.values is None:
        integers = attribute.bin_edges
    elif pa.types.is_date(kind):
        integers = np.array(attribute.values, "datetime64[D]").astype(np.int64)
    else:
        integers = np.array(
            [value == "true" if pa.types.is_boolean(kind) else value for value in attribute.values], np.int64
        )
    widths = None
    if attribute.is_binned and not isinstance(attribute.step, Every):
        lows, highs = attribute.bin_ends()
        widths = (highs - lows + 1).astype(np.uint64)
    if attribute.missing_code is not None:  # an entry for its code, which is written as null
        integers = np.append(integers, integers[-1:])
        widths = None if widths is None else np.append(widths, widths[-1:])
    field = pa.field(name, kind, nullable=attribute.missing_code is not None)
    tilts = None if widths is None else _tilts(attribute, form)
    return Column(field, size, integers=integers, widths=widths, tilts=tilts, missing=attribute.missing_code)


def _tilts(attribute: Attribute, form: PartFormat) -> NDArray[np.float64] | None:
    """The tilt of each code; 1 of the missing category."""
    found = form.tilts.get(attribute.name)
    return None if found is None else np.append(found, [UNIT] * (attribute.cardinality - len(found))) / UNIT


def _type_of(attribute: Attribute) -> pa.DataType:
    """The type of the values: integers of bins and codes; booleans and days where each text is one."""
    if attribute.dated is not None:
        return pa.date32() if attribute.dated == "date" else pa.timestamp("us")
    values = attribute.values or (0,)
    if isinstance(values[0], int):
        return pa.int64()
    if set(values) == {"true", "false"}:
        return pa.bool_()
    return pa.date32() if all(map(_is_day, map(str, values))) else pa.string()


def _is_day(text: str) -> bool:
    """Whether a text is a day as dates are written."""
    if re.fullmatch(r"\d{4}-\d\d-\d\d", text) is None:
        return False
    try:
        return bool(date.fromisoformat(text))
    except ValueError:
        return False


def _texts(attribute: Attribute, form: PartFormat) -> tuple[str, ...] | None:
    """The text of each declared value or bin, or None where integers, booleans or days are written."""
    as_label = form.values == "labels" or (attribute.is_binned and form.bins == "label")
    if as_label and attribute.labels is not None:
        return attribute.labels
    if attribute.values is not None:
        return tuple(map(str, attribute.values)) if pa.types.is_string(_type_of(attribute)) else None
    if attribute.is_binned and form.bins == "label":
        pairs = zip(*(map(attribute.shown, ends.tolist()) for ends in attribute.bin_ends(shown=True)), strict=True)
        return tuple(f"{low}..{high}" if low < high else f"{low}" for low, high in pairs)
    return None
