"""Integer tables that are sums over records, said without their cells: whoever holds records can compute its part.

Learning reads exact counts, or these: then its account asks for noisy sums (`GaussianAccount.ask`), and nothing that
runs here sees an exact table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from dpdist.accuracy.sketched import signed_sums
from dpdist.accuracy.tables import Attributes, Tables, triples_of
from dpdist.privacy.arrays import Counts


@dataclass(frozen=True, eq=False)
class Sum:
    """A table of one to three attributes: a record counts in one cell, perhaps negatively."""

    attributes: Attributes  # of the records
    maps: tuple[Counts, ...]  # of each attribute, the code of each value
    # of each cell the group whose cells are added, from 1, negative where it is subtracted; None where none are added
    groups: Counts | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of codes of each attribute, or of groups."""
        if self.groups is not None:
            return (int(np.abs(self.groups).max()),)
        return self._cells

    @property
    def _cells(self) -> tuple[int, ...]:
        return tuple(int(codes.max()) + 1 for codes in self.maps)

    @property
    def size(self) -> int:
        """The number of cells."""
        return prod(self.shape)

    def require(self, cardinalities: Sequence[int], triples: Sequence[Attributes]) -> None:
        """Refuse what is no such table of records of these domains. Raises ValueError."""
        known = self.attributes in triples if len(self.attributes) == 3 else len(set(self.attributes)) in (1, 2)
        if not known or not all(0 <= i < len(cardinalities) for i in self.attributes):
            raise ValueError("attributes that no table is of")
        for i, codes in zip(self.attributes, self.maps, strict=True):
            whole = codes.dtype == np.int64 and codes.shape == (cardinalities[i],)
            if not whole or not 0 <= codes.min() <= codes.max() < cardinalities[i]:
                raise ValueError("a map of other values than those of its attribute")
        if self.groups is not None:
            whole = self.groups.dtype == np.int64 and self.groups.shape == (prod(self._cells),)
            if not whole or not 1 <= np.abs(self.groups).min() <= np.abs(self.groups).max() <= self.groups.size + 1000:
                raise ValueError("groups of other cells than those of its table")

    def of(self, tables: Tables) -> Counts:
        """Compute the table of some records. Confidential if their tables are."""
        cards = tables.pairs.cardinalities
        if len(self.attributes) == 3:
            exact = tables.of(3)[triples_of(cards).index(self.attributes)]
        elif len(self.attributes) == 2:
            exact = tables.pairs.pair(*self.attributes).ravel()
        else:
            exact = tables.pairs.single(*self.attributes)
        # sums of integers below 2**53 are exact
        shape = self._cells
        summed = np.bincount(cells_of(self.maps, shape), weights=exact, minlength=prod(shape))
        if self.groups is not None:
            return signed_sums(summed, self.groups, self.size)
        return np.rint(summed).astype(np.int64).reshape(shape)


def cells_of(maps: Sequence[Counts], shape: Sequence[int]) -> Counts:
    """The number of the coded cell of each combination of values, flat in C order."""
    index = np.zeros((), np.int64)
    for codes, size in zip(maps, shape, strict=True):
        index = np.add.outer(index * size, codes)
    return index.ravel()


@dataclass(frozen=True, eq=False)
class AskedCounts:
    """What `PairCounts` has, as sums that are asked for."""

    cardinalities: tuple[int, ...]

    @cached_property
    def _values(self) -> tuple[Counts, ...]:
        return tuple(np.arange(size, dtype=np.int64) for size in self.cardinalities)

    def of(self, *attributes: int) -> Sum:
        """The table of some attributes."""
        return Sum(attributes, tuple(self._values[i] for i in attributes))

    def single(self, i: int) -> Sum:
        """The one-way table of an attribute."""
        return self.of(i)

    def pair(self, i: int, j: int) -> Sum:
        """The table of two attributes."""
        return self.of(i, j)
