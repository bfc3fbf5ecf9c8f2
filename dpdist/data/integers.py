"""Integers to classes: by a table over a narrow range or over a whole 8- or 16-bit type, else by a binary search."""

from __future__ import annotations

import re
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdist.data.report import ABOVE, BELOW, MISSING, UNKNOWN
from dpdist.schema.schema import Attribute

LIMIT = 1 << 62
"""Integers of a domain lie within -2^62 and 2^62."""

_MAX_TABLE = 1 << 20
_INTEGER = re.compile(r"[+-]?[0-9]{1,400}(?:\.0*)?", re.ASCII)


class IntegerDomain:
    """The integers an attribute admits, and the class of any integer: its code, or ``size + defect``.

    `starts`, ascending int64, are the lower edges of the intervals, or the values themselves if `exact`; `codes` the
    code of each; `last` the largest integer of the domain; `missing` the integers that mean missing (where `exact`, a
    declared value is not missing); `size` the number of codes.
    """

    def __init__(
        self,
        starts: NDArray[np.int64],
        codes: np.ndarray,
        last: int,
        *,
        exact: bool,
        missing: list[int],
        size: int,
    ) -> None:
        self.codes = codes
        self._starts, self._last, self._exact, self._missing, self._size = starts, last, exact, missing, size
        self._tables: dict[np.dtype[Any], np.ndarray] = {}
        self._low, self._high = min([int(starts[0]), *missing]) - 1, max([last, *missing]) + 1

    @classmethod
    def of(cls, attribute: Attribute, dtype: np.dtype[Any]) -> IntegerDomain | None:
        """The integers of an attribute; None if its values are texts that are no integers."""
        known = [parse_integer(text) for text in attribute.missing_values]
        missing = [number for number in known if number is not None and abs(number) <= LIMIT]
        if attribute.bounds is not None:
            starts = attribute.bin_edges
            codes = np.arange(len(starts)).astype(dtype)
            return cls(
                starts, codes, int(attribute.bounds[1]), exact=False, missing=missing, size=attribute.cardinality
            )
        numbers = [parse_integer(str(value)) for value in attribute.values or ()]
        whole = [number for number in numbers if number is not None and abs(number) <= LIMIT]
        if [*map(str, whole)] != [*map(str, attribute.values or ())]:
            return None
        values = np.array(whole, np.int64)
        order = np.argsort(values)
        return cls(
            values[order],
            order.astype(dtype),
            int(values.max()),
            exact=True,
            missing=[number for number in missing if number not in whole],
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
        classes = self.codes.take(place, mode="clip")
        if self._exact:
            classes[self._starts.take(place, mode="clip") != values] = self._size + UNKNOWN
        classes[values < self._starts[0]] = self._size + BELOW
        classes[values > self._last] = self._size + ABOVE
        if self._missing:
            classes[np.isin(values, self._missing)] = self._size + MISSING
        return classes


def parse_integer(text: str) -> int | None:
    """An integer written in decimal digits, possibly with a sign or an empty fraction (``17.0``); None for others."""
    return int(text.partition(".")[0]) if _INTEGER.fullmatch(text) else None
