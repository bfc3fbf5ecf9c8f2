"""Integers to classes: by a table over a narrow range or over a whole 8- or 16-bit type, else by a binary search."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdist.data.report import ABOVE, BELOW, MISSING, UNKNOWN
from dpdist.errors import ColumnMismatch
from dpdist.spec.schema import Attribute

LIMIT = 1 << 62
"""Integers of a domain lie within -2^62 and 2^62."""

_MAX_TABLE = 1 << 20
_INTEGER = re.compile(r"[+-]?[0-9]{1,400}(?:\.0*)?", re.ASCII)


class IntegerDomain:
    """The integers an attribute admits, and the class of any integer: its code, or ``size + defect``.

    `starts`, ascending int64, are the lower edges of the intervals, or the values and their aliases if `exact`; `codes`
    the code of each; `ends` the smallest and the largest integer of the domain; `missing` the integers that mean
    missing (where `exact`, no value and no alias); `size` the number of codes. `is_declared` says whether all values
    are integers; else some aliases are.
    """

    def __init__(
        self,
        starts: NDArray[np.int64],
        codes: np.ndarray,
        ends: tuple[int, int],
        *,
        exact: bool,
        missing: list[int],
        size: int,
    ) -> None:
        self._codes, self._starts, self._ends = codes, starts, ends
        self._exact, self._missing, self._size = exact, missing, size
        self._tables: dict[np.dtype[Any], np.ndarray] = {}
        self.is_declared = ends[0] >= -LIMIT
        known = [int(starts[0]), int(starts[-1]), *ends, *missing]
        self._low, self._high = min(known) - 1, max(known) + 1

    @property
    def end_codes(self) -> tuple[int, int]:
        """Codes of the smallest and the largest integer."""
        first, last = self._codes.take(np.searchsorted(self._starts, self._ends, side="right") - 1).tolist()
        return first, last

    @classmethod
    def of(cls, attribute: Attribute, dtype: np.dtype[Any]) -> IntegerDomain | None:
        """The integers of an attribute; None if its values are texts that are no integers, nor are their aliases."""
        read = [parse_integer(text) for text in attribute.missing_values]
        missing = [number for number in read if number is not None and abs(number) <= LIMIT]
        if attribute.bounds is not None:
            starts = attribute.bin_edges
            codes = np.arange(len(starts)).astype(dtype)
            ends = (int(starts[0]), int(attribute.bounds[1]))
            return cls(starts, codes, ends, exact=False, missing=missing, size=attribute.cardinality)
        values = {str(value): code for code, value in enumerate(attribute.values or ())}
        aliases = _integers({text: values[str(value)] for text, value in attribute.aliases.items()})
        whole = _integers(values)
        if len(whole) < len(values) and not aliases:
            return None
        known = aliases | whole
        starts = np.array(sorted(known), np.int64)
        return cls(
            starts,
            np.array([known[number] for number in starts.tolist()]).astype(dtype),
            (min(known), max(known)) if len(whole) == len(values) else (-LIMIT - 1, LIMIT + 1),
            exact=True,
            missing=[number for number in missing if number not in known],
            size=attribute.cardinality,
        )

    def classes(self, values: np.ndarray) -> np.ndarray:
        """Class of each integer, a new array."""
        if values.dtype.itemsize <= 2:
            unsigned = np.dtype(f"u{values.dtype.itemsize}")
            return self._table(values.dtype).take(values.view(unsigned))
        if values.dtype == np.uint64:
            values = np.minimum(values, np.uint64(2 * LIMIT - 1))  # the largest int64, outside every domain
        values = values.astype(np.int64, copy=False)
        if self._high - self._low >= _MAX_TABLE:
            return self._search(values)
        index = np.clip(values, self._low, self._high)
        index -= self._low
        found: np.ndarray = self._narrow.take(index)
        return found

    @cached_property
    def _narrow(self) -> np.ndarray:
        """Classes of the integers from one below the domain to one above it."""
        return self._search(np.arange(self._low, self._high + 1, dtype=np.int64))

    def _table(self, dtype: np.dtype[Any]) -> np.ndarray:
        """Classes of all integers of an 8- or 16-bit type, indexed by their bits read as unsigned."""
        if dtype not in self._tables:
            everything = np.arange(1 << (8 * dtype.itemsize)).astype(f"u{dtype.itemsize}").view(dtype)
            self._tables[dtype] = self._search(everything.astype(np.int64))
        return self._tables[dtype]

    def _search(self, values: NDArray[np.int64]) -> np.ndarray:
        place = np.searchsorted(self._starts, values, side="right") - 1
        classes = self._codes.take(place, mode="clip")
        known: Any = np.bool_(False)
        if self._exact:
            known = self._starts.take(place, mode="clip") == values
            classes[~known] = self._size + UNKNOWN
        classes[(values < self._ends[0]) & ~known] = self._size + BELOW
        classes[(values > self._ends[1]) & ~known] = self._size + ABOVE
        if self._missing:
            classes[np.isin(values, self._missing)] = self._size + MISSING
        return classes


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
