"""Integers to classes, and numbers to public bins or float64 values, by a schema's bounds, bins and policies."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dpdist.data.report import ABOVE, BELOW, DEFECTS, MISSING, MISTYPED, UNKNOWN
from dpdist.data.texts import NO_TEXT, is_text
from dpdist.errors import ColumnMismatch
from dpdist.spec.attribute import Attribute
from dpdist.spec.data import CsvSpec
from dpdist.spec.groups import Category, number_of
from dpdist.spec.schema import Schema

LIMIT = 1 << 62
"""Integers of a domain lie within -2^62 and 2^62."""

_MAX_TABLE = 1 << 20
_INTEGER = re.compile(r"[+-]?[0-9]{1,400}(?:\.0*)?", re.ASCII)

_NUMBER = (
    r"^[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|(?i:inf(?:inity)?)|(?i:nan)(?:\([0-9A-Za-z_]*\))?)$"
)
"""The texts that Arrow casts to a float."""


@dataclass(frozen=True, eq=False)
class IntegerDomain:
    """The integers an attribute admits, and the class of any integer: its code, or ``size + defect``."""

    starts: NDArray[np.int64]  # ascending: lower edges of the intervals, or the values and their aliases if `exact`
    codes: np.ndarray  # the code of each
    ends: tuple[int, int]  # smallest and largest integer of the domain
    exact: bool
    missing: list[int]  # integers that mean missing; where `exact`, no value and no alias
    size: int  # number of codes
    tables: dict[np.dtype[Any], np.ndarray] = field(default_factory=dict)  # classes of all integers of small types

    @cached_property
    def _range(self) -> tuple[int, int]:
        """One below and one above all integers that are distinguished."""
        known = [int(self.starts[0]), int(self.starts[-1]), *self.ends, *self.missing]
        return min(known) - 1, max(known) + 1

    @property
    def end_codes(self) -> tuple[int, int]:
        """Codes of the smallest and the largest integer."""
        first, last = self.codes.take(np.searchsorted(self.starts, self.ends, side="right") - 1).tolist()
        return first, last

    @classmethod
    def of(cls, attribute: Attribute, dtype: np.dtype[Any]) -> IntegerDomain | None:
        """The integers of an attribute; None if its values are texts that are no integers, nor are their aliases."""
        read = [_integer_of(text, attribute) for text in attribute.missing_values]
        missing = [number for number in read if number is not None and abs(number) <= LIMIT]
        size = attribute.cardinality
        if attribute.bounds is not None:
            starts = attribute.bin_edges
            ends = (int(starts[0]), int(attribute.bounds[1]))
            return cls(starts, np.arange(len(starts)).astype(dtype), ends, False, missing, size)
        values = {str(value): code for code, value in enumerate(attribute.values or ())}
        aliases = _integers({text: values[str(value)] for text, value in attribute.aliases.items()})
        whole = _integers(values)
        if len(whole) < len(values) and not aliases:
            return None
        known = aliases | whole
        starts = np.array(sorted(known), np.int64)
        codes = np.array([known[number] for number in starts.tolist()]).astype(dtype)
        ends = (min(known), max(known)) if len(whole) == len(values) else (-LIMIT - 1, LIMIT + 1)
        return cls(starts, codes, ends, True, [number for number in missing if number not in known], size)

    def classes(self, values: np.ndarray) -> np.ndarray:
        """Class of each integer, a new array."""
        if values.dtype.itemsize <= 2:
            unsigned = np.dtype(f"u{values.dtype.itemsize}")
            if values.dtype not in self.tables:  # indexed by the bits read as unsigned
                everything = np.arange(1 << (8 * unsigned.itemsize)).astype(unsigned).view(values.dtype)
                self.tables[values.dtype] = self._search(everything.astype(np.int64))
            return self.tables[values.dtype].take(values.view(unsigned))
        if values.dtype == np.uint64:
            values = np.minimum(values, np.uint64(2 * LIMIT - 1))  # the largest int64, outside every domain
        values = values.astype(np.int64, copy=False)
        low, high = self._range
        if high - low >= _MAX_TABLE:
            return self._search(values)
        index = np.clip(values, low, high)
        index -= low
        found: np.ndarray = self._narrow.take(index)
        return found

    @cached_property
    def _narrow(self) -> np.ndarray:
        """Classes of the integers from one below the domain to one above it."""
        low, high = self._range
        return self._search(np.arange(low, high + 1, dtype=np.int64))

    def _search(self, values: NDArray[np.int64]) -> np.ndarray:
        place = np.searchsorted(self.starts, values, side="right") - 1
        classes = self.codes.take(place, mode="clip")
        known: Any = np.bool_(False)
        if self.exact:
            known = self.starts.take(place, mode="clip") == values
            classes[~known] = self.size + UNKNOWN
        classes[(values < self.ends[0]) & ~known] = self.size + BELOW
        classes[(values > self.ends[1]) & ~known] = self.size + ABOVE
        if self.missing:
            classes[np.isin(values, self.missing)] = self.size + MISSING
        return classes


def _integer_of(text: str, attribute: Attribute) -> int | None:
    """The integer that a text means in an attribute; None where it means none."""
    if attribute.dated is None:
        return parse_integer(text)
    try:
        return number_of(text, attribute.dated)
    except ValueError:
        return None


def _integers(codes: Mapping[str, int]) -> dict[int, int]:
    """The codes of texts that are integers in their shortest form."""
    numbers = {text: parse_integer(text) for text in codes}
    return {n: codes[text] for text, n in numbers.items() if n is not None and abs(n) <= LIMIT and str(n) == text}


def parse_integer(text: str) -> int | None:
    """An integer written in decimal digits, possibly with a sign or an empty fraction (``17.0``); None for others."""
    return int(text.partition(".")[0]) if _INTEGER.fullmatch(text) else None


def refuse_padded(attribute: Attribute) -> None:
    """Refuse a column of integers where declared texts have leading zeros, which no integer has. Raises
    ColumnMismatch.
    """
    known = set(map(str, attribute.values or ())) | set(attribute.aliases)
    for text in (value for value in attribute.values or () if isinstance(value, str)):
        number = parse_integer(text) if text.lstrip("+-").startswith("0") and "." not in text else None
        if number is not None and str(number) not in known:
            raise ColumnMismatch(
                f"column {attribute.name!r}: the column holds integers, and {text!r} is declared, a text with leading "
                f"zeros: write {number}, not {text!r}, and no value in quotes"
            )


class NumberEncoder:
    """Encodes arrays of one attribute of kind ``number``; `strip` and `empty_is_missing` as for `TableEncoder`.

    A null, a NaN, and a text or number under ``missing_values`` are missing; infinite values lie outside every domain.
    The last bin includes the upper bound.
    """

    def __init__(self, attribute: Attribute, *, strip: bool = False, empty_is_missing: bool = False) -> None:
        self._attribute = attribute
        self._strip = strip
        self._low, self._high = map(float, attribute.bounds or ())
        texts = [text.strip() if strip else text for text in attribute.missing_values]
        self._missing_texts = pa.array([*texts, *([""] if empty_is_missing else [])], pa.large_string())
        numbers = pa.array([text for text in texts if re.fullmatch(_NUMBER, text)], pa.string())
        values = numbers.cast(pa.float64()).to_numpy(zero_copy_only=False)
        self._missing_numbers = values[~np.isnan(values)]

    def encode(self, array: pa.Array) -> tuple[np.ndarray, NDArray[np.bool_] | None, NDArray[np.int64]]:
        """As `dpdist.data.encode.ColumnEncoder.encode`: codes of the bins, or without bins the values, float64. A row
        that is refused or dropped has the first of the domain (the lower bound).
        """
        values, mistyped = self._numbers(array)
        counts = np.zeros(DEFECTS, np.int64)
        inside = (values >= self._low) & (values <= self._high)
        if self._missing_numbers.size:
            inside &= ~np.isin(values, self._missing_numbers)
        if inside.all():
            return self._coded(values), None, counts
        missing = np.isnan(values) | np.isin(values, self._missing_numbers)
        if mistyped is not None:
            missing &= ~mistyped
            counts[MISTYPED] = np.count_nonzero(mistyped)
        below = ~missing & (values < self._low)
        above = ~missing & (values > self._high)
        counts[[MISSING, BELOW, ABOVE]] = [np.count_nonzero(where) for where in (missing, below, above)]
        attribute = self._attribute
        filled = np.where(inside, values, self._low)
        if attribute.out_of_domain == "clip":
            filled[above] = self._high
        codes = self._coded(filled)
        dropped = np.zeros(len(values), bool)
        for where, policy in ((missing, attribute.missing), (below | above, attribute.out_of_domain)):
            if policy == "drop":
                dropped |= where
            elif isinstance(policy, Category):
                codes[where] = attribute.missing_code
        return codes, dropped if dropped.any() else None, counts

    def _coded(self, values: NDArray[np.float64]) -> np.ndarray:
        """The code of values within the bounds, or the values themselves."""
        if self._attribute.is_continuous:
            return values
        return (np.searchsorted(self._attribute.bin_edges, values, side="right") - 1).astype(self._attribute.dtype)

    def _numbers(self, array: pa.Array) -> tuple[NDArray[np.float64], NDArray[np.bool_] | None]:
        """The values, NaN where none exists, and the places of texts that are no numbers."""
        kind = array.type
        if pa.types.is_dictionary(kind):
            values, mistyped = self._numbers(array.dictionary)
            values = np.append(values, np.nan)  # of a null index
            indices = array.indices.cast(pa.int64()).fill_null(len(values) - 1).to_numpy()
            return values.take(indices), None if mistyped is None else np.append(mistyped, False).take(indices)
        if pa.types.is_null(kind):
            return np.full(len(array), np.nan), None
        if is_text(kind):
            return self._numbers_of_texts(array.cast(pa.large_string()))
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
            raise wrong_type(self._attribute, kind)
        return _to_numpy(array.cast(pa.float64(), safe=False)), None

    def _numbers_of_texts(self, texts: pa.Array) -> tuple[NDArray[np.float64], NDArray[np.bool_] | None]:
        if self._strip:
            texts = pc.utf8_trim_whitespace(texts)
        if len(self._missing_texts):
            texts = pc.if_else(pc.is_in(texts, self._missing_texts), pa.scalar(None, texts.type), texts)
        try:
            return _to_numpy(texts.cast(pa.float64())), None
        except pa.ArrowInvalid:  # it would name the value: nothing of it goes on
            good = pc.match_substring_regex(texts, _NUMBER)
        values = pc.if_else(good, texts, pa.scalar(None, texts.type)).cast(pa.float64())
        return _to_numpy(values), (~good.fill_null(True).to_numpy(zero_copy_only=False)).astype(bool)


def with_plain_numbers(batch: pa.RecordBatch, schema: Schema, layout: CsvSpec) -> pa.RecordBatch:
    """Texts of a CSV file with the numbers in them written as in Python: ``1.234,56`` as ``1234.56``.

    What means missing stays as it is. A text with other signs, such as ``1.5`` where the decimal sign is a comma, is no
    number.
    """
    if layout.thousands is None and layout.decimal == ".":
        return batch
    for attribute in schema.attributes:
        if attribute.kind in ("integer", "number") and attribute.name in batch.schema.names:
            place = batch.schema.get_field_index(attribute.name)
            column = _plain(batch.column(place), attribute, layout)
            batch = batch.set_column(place, batch.field(place).with_type(column.type), column)
    return batch


def _plain(array: pa.Array, attribute: Attribute, layout: CsvSpec) -> pa.Array:
    if pa.types.is_dictionary(array.type):
        return pa.DictionaryArray.from_arrays(array.indices, _plain(array.dictionary, attribute, layout))
    shown = pc.utf8_trim_whitespace(array) if layout.strip else array
    apart = re.escape(layout.thousands or "")
    whole = rf"(?:\d{{1,3}}(?:{apart}\d{{3}})+|\d+)" if apart else r"\d+"
    number = rf"^[+-]?(?:{whole}(?:{re.escape(layout.decimal)}\d*)?|{re.escape(layout.decimal)}\d+)(?:[eE][+-]?\d+)?$"
    plain = pc.replace_substring(shown, layout.thousands, "") if layout.thousands else shown
    plain = pc.replace_substring(plain, layout.decimal, ".")
    absent = [text.strip() if layout.strip else text for text in attribute.missing_values]
    means_missing = pc.is_in(shown, pa.array(absent, shown.type))
    has_digit = pc.match_substring_regex(shown, r"\d")
    other = pc.if_else(has_digit, pa.scalar(NO_TEXT, shown.type), shown)
    return pc.if_else(means_missing, shown, pc.if_else(pc.match_substring_regex(shown, number), plain, other))


def wrong_type(attribute: Attribute, found: pa.DataType) -> ColumnMismatch:
    """The error of an Arrow type that cannot hold an attribute, without the names inside it: they may be values."""
    kind = found.value_type if pa.types.is_dictionary(found) else found
    article = "a" if attribute.kind in ("categorical", "number") else "an"
    is_clock = pa.types.is_timestamp(kind) or pa.types.is_date(kind)
    to_what = "declare kind: datetime or date with its bounds, or convert it" if is_clock else "convert it"
    return ColumnMismatch(
        f"column {attribute.name!r} has the type {str(kind).partition('<')[0]}, which cannot hold {article} "
        f"{attribute.kind} attribute: {to_what}, or correct the schema"
    )


def _to_numpy(array: pa.Array) -> NDArray[np.float64]:
    """Values of a float64 array, NaN for null."""
    values: NDArray[np.float64] = (array.fill_null(math.nan) if array.null_count else array).to_numpy()
    return values
