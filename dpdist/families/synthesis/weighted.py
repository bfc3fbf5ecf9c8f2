"""Rows with weights that are products of factors, one for each block of attributes.

The pairs are covered by a few blocks (`dpdist.data.count.covering_blocks`): a row costs one look-up a block.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from itertools import combinations
from math import prod

import numpy as np
from numpy.typing import NDArray

from dpdist.data.count import BLOCK_CELLS, cover, covering_blocks, marginal, packed_index
from dpdist.families.synthesis.adjustment import LIMITS, Adjustment, integer_logs
from dpdist.families.synthesis.junction import Set
from dpdist.families.synthesis.pieces import Threads, slices
from dpdist.privacy.arrays import Floats


class WeightedRows:
    """Rows, their weights, and where each row stands in the tables of the blocks.

    A change of the weights waits until the next table is counted: the rows are read once for both.

    Parameters
    ----------
    columns : sequence of ndarray
    cardinalities : sequence of int

    Attributes
    ----------
    blocks : list of tuple of int
        They cover all pairs of attributes.
    """

    def __init__(self, columns: Sequence[NDArray[np.integer]], cardinalities: Sequence[int]) -> None:
        self.blocks: list[Set] = []
        self._columns, self._cardinalities = columns, tuple(cardinalities)
        self._slices, self._weights = slices(len(columns[0])), np.ones(len(columns[0]))
        self._keys: list[NDArray[np.integer]] = []
        self._factors: list[Floats] = []
        self._waiting: tuple[int, Floats] | None = None
        self._add(covering_blocks(self._cardinalities))

    @property
    def pieces(self) -> int:
        """Number of pieces of the rows."""
        return len(self._slices)

    def cover(self, scopes: Iterable[Set]) -> None:
        """Add blocks for sets of attributes that lie in none."""
        left = [s for s in scopes if not any(set(s) <= set(block) for block in self.blocks)]
        self._add(cover(tuple(left), self._cardinalities, BLOCK_CELLS))

    def _add(self, blocks: tuple[Set, ...]) -> None:
        with Threads(len(blocks)) as threads:
            self._keys += threads.map(self._keys_of, blocks)
        self.blocks += blocks
        self._factors += [np.ones(self._shape(block)) for block in blocks]

    def _shape(self, block: Set) -> tuple[int, ...]:
        return tuple(self._cardinalities[i] for i in block)

    def _keys_of(self, block: Set) -> NDArray[np.integer]:
        """The cell of each row in a block's table."""
        index = packed_index([self._columns[i] for i in block], self._shape(block))
        return index.astype(np.min_scalar_type(prod(self._shape(block)) - 1), copy=False)

    def table(self, b: int, threads: Threads) -> Floats:
        """The sum of the weights in each cell of a block, over the number of rows."""
        shape, waiting, self._waiting = self._factors[b].shape, self._waiting, None

        def count(rows: slice) -> Floats:
            weights = self._changed(rows, waiting)
            return np.asarray(np.bincount(self._keys[b][rows], weights=weights, minlength=prod(shape)), np.float64)

        total = reduce(np.add, threads.map(count, self._slices))
        return np.asarray(total.reshape(shape) / len(self._weights))

    def _changed(self, rows: slice, waiting: tuple[int, Floats] | None) -> Floats:
        """The weights of some rows after the change that waited."""
        weights = self._weights[rows]
        if waiting is not None:
            at, change = waiting
            weights *= change.take(self._keys[at][rows], mode="clip")
        return weights

    def multiply(self, b: int, change: Floats) -> None:
        """Multiply the weight of each row by a factor of its cell of a block."""
        self._changed(slice(None), self._waiting)
        self._waiting = b, change.ravel()
        self._factors[b] = np.clip(self._factors[b] * change, *LIMITS)

    def shares(self, scopes: Iterable[Set]) -> dict[Set, Floats]:
        """The share of the weights in each cell of the tables of some sets of attributes, of the shape of their domain.

        Sets of up to three attributes.
        """
        found: dict[Set, Floats] = {}
        left = set(scopes)

        def take(block: Set, table: Floats) -> None:
            inside = left.intersection(s for size in (1, 2, 3) for s in combinations(block, size))
            table /= table.sum()
            found.update({s: marginal(table, [block.index(i) for i in s]) for s in inside})
            left.difference_update(inside)

        with Threads(self.pieces) as threads:
            for b, block in enumerate(self.blocks):
                if any(len(s) < 3 or set(s) <= set(block) for s in left):
                    take(block, self.table(b, threads))
        others = cover(tuple(sorted(left)), self._cardinalities, BLOCK_CELLS)
        waiting, self._waiting = self._waiting, None
        self._changed(slice(None), waiting)
        with Threads(len(others)) as threads:
            for block, table in zip(others, threads.map(self._table_of, others), strict=True):
                take(block, table)
        return found

    def _table_of(self, block: Set) -> Floats:
        """The sum of the weights in each cell of a set of attributes that is no block."""
        size = prod(self._shape(block))
        found = np.bincount(self._keys_of(block), weights=self._weights, minlength=size).reshape(self._shape(block))
        return np.asarray(found, np.float64)

    def adjustment(self) -> Adjustment:
        """The factors as integers."""
        return Adjustment(tuple(self.blocks), tuple(integer_logs(factors.ravel()) for factors in self._factors))
