"""Arrow columns to numbers, by a schema's bounds, bins and policies: float64 values, or the codes of public bins."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dpdist.data.report import ABOVE, BELOW, DEFECTS, MISSING, MISTYPED
from dpdist.errors import ColumnMismatch
from dpdist.spec.schema import Attribute, Category

_NUMBER = (
    r"^[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|(?i:inf(?:inity)?)|(?i:nan)(?:\([0-9A-Za-z_]*\))?)$"
)
"""The texts that Arrow casts to a float."""


class NumberEncoder:
    """Encodes arrays of one attribute of kind ``number``; `strip` and `empty_is_missing` as for `TableEncoder`.

    A null, a NaN, and a text or number under ``missing_values`` are missing; infinite values lie outside every domain.
    The last bin includes the upper bound.
    """

    def __init__(self, attribute: Attribute, *, strip: bool = False, empty_is_missing: bool = False) -> None:
        if attribute.kind != "number" or attribute.bounds is None:
            raise ValueError(f"attribute {attribute.name!r} is not a number")
        self._attribute = attribute
        self._strip = strip
        self._low, self._high = map(float, attribute.bounds)
        texts = [text.strip() if strip else text for text in attribute.missing_values]
        self._missing_texts = pa.array([*texts, *([""] if empty_is_missing else [])], pa.large_string())
        numbers = [float(text) for text in texts if _is_number(text)]
        self._missing_numbers = np.array([number for number in numbers if not math.isnan(number)])

    def encode(self, array: pa.Array) -> tuple[np.ndarray, NDArray[np.bool_] | None, NDArray[np.int64]]:
        """Encode an array of texts or numbers, or a dictionary of them. Returns codes : ndarray, shape (rows,), dtype
        of the attribute: codes of the bins; without bins the values, float64. The first of the domain (the lower bound)
        where a row is refused or dropped; dropped : ndarray of bool, shape (rows,), or None: rows that a policy drops;
        counts : ndarray of int64, shape (5,): a row of `RowReport.counts`. Raises ColumnMismatch: the array's type
        holds no numbers.
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
        """The values, NaN where there is none, and the places of texts that are no numbers."""
        kind = array.type
        if pa.types.is_dictionary(kind):
            return self._numbers_of_dictionary(array)
        if pa.types.is_null(kind):
            return np.full(len(array), np.nan), None
        if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
            return self._numbers_of_texts(array.cast(pa.large_string()))
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
            raise wrong_type(self._attribute, kind)
        return _to_numpy(array.cast(pa.float64(), safe=False)), None

    def _numbers_of_dictionary(self, array: pa.DictionaryArray) -> tuple[NDArray[np.float64], NDArray[np.bool_] | None]:
        values, mistyped = self._numbers(array.dictionary)
        values = np.append(values, np.nan)  # of a null index
        indices = array.indices.cast(pa.int64()).fill_null(len(values) - 1).to_numpy()
        return values.take(indices), None if mistyped is None else np.append(mistyped, False).take(indices)

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


def wrong_type(attribute: Attribute, found: pa.DataType) -> ColumnMismatch:
    """The error of an Arrow type that cannot hold an attribute, without the names inside it: they may be values."""
    kind = found.value_type if pa.types.is_dictionary(found) else found
    article = "a" if attribute.kind in ("categorical", "number") else "an"
    to_what = "convert it to days (dates) or texts" if pa.types.is_timestamp(kind) else "convert it"
    return ColumnMismatch(
        f"column {attribute.name!r} has the type {str(kind).partition('<')[0]}, which cannot hold {article} "
        f"{attribute.kind} attribute: {to_what}, or correct the schema"
    )


def _is_number(text: str) -> bool:
    try:
        pa.array([text]).cast(pa.float64())
    except pa.ArrowInvalid:
        return False
    return True


def _to_numpy(array: pa.Array) -> NDArray[np.float64]:
    """Values of a float64 array, NaN for null."""
    values: NDArray[np.float64] = (array.fill_null(math.nan) if array.null_count else array).to_numpy()
    return values
