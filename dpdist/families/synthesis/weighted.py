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

from dpdist.data.count import configuration_index, covering_blocks
from dpdist.families.synthesis.adjustment import Adjustment, integer_logs
from dpdist.families.synthesis.inference import marginal
from dpdist.families.synthesis.pieces import Threads, slices
from dpdist.privacy.arrays import Floats

Scope = tuple[int, ...]


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
        self.blocks: list[Scope] = []
        self._columns, self._cardinalities = columns, tuple(cardinalities)
        self._slices, self._weights = slices(len(columns[0])), np.ones(len(columns[0]))
        self._keys: list[NDArray[np.integer]] = []
        self._factors: list[Floats] = []
        self._waiting: tuple[int, Floats] | None = None
        self._add(list(covering_blocks(self._cardinalities)))

    @property
    def pieces(self) -> int:
        """Number of pieces of the rows."""
        return len(self._slices)

    def cover(self, scopes: Iterable[Scope]) -> None:
        """Add a block for each set of attributes that lies in none."""
        self._add([scope for scope in scopes if self._home(scope) is None])

    def _home(self, scope: Scope) -> int | None:
        return next((b for b, block in enumerate(self.blocks) if set(scope) <= set(block)), None)

    def _add(self, blocks: list[Scope]) -> None:
        def keys(block: Scope) -> NDArray[np.integer]:
            sizes = [self._cardinalities[i] for i in block]
            index = configuration_index([self._columns[i] for i in block], sizes)
            return index.astype(np.min_scalar_type(prod(sizes) - 1))

        with Threads(len(blocks)) as threads:
            self._keys += threads.map(keys, blocks)
        self.blocks += blocks
        self._factors += [np.ones([self._cardinalities[i] for i in block]) for block in blocks]

    def table(self, b: int, threads: Threads) -> Floats:
        """The sum of the weights in each cell of a block, over the number of rows."""
        shape, waiting, self._waiting = self._factors[b].shape, self._waiting, None

        def count(rows: slice) -> Floats:
            weights = self._weights[rows]
            if waiting is not None:
                at, change = waiting
                weights *= change.take(self._keys[at][rows], mode="clip")
            return np.asarray(np.bincount(self._keys[b][rows], weights=weights, minlength=prod(shape)), np.float64)

        total = reduce(np.add, threads.map(count, self._slices))
        return np.asarray(total.reshape(shape) / len(self._weights))

    def multiply(self, b: int, change: Floats) -> None:
        """Multiply the weight of each row by a factor of its cell of a block."""
        self._waiting = b, change.ravel()
        self._factors[b] *= change

    def shares(self, scopes: Iterable[Scope]) -> dict[Scope, Floats]:
        """The share of the weights in each cell of the tables of some sets of attributes, of the shape of their domain.

        Sets that lie in no block are counted by themselves.
        """
        found: dict[Scope, Floats] = {}
        left = set(scopes)
        with Threads(self.pieces) as threads:
            for b, block in enumerate(self.blocks):
                inside = left.intersection(s for size in (1, 2, 3) for s in combinations(block, size))
                if not inside:
                    continue
                table = self.table(b, threads)
                table /= table.sum()
                found |= {scope: marginal(table, [block.index(i) for i in scope]) for scope in inside}
                left -= inside
        for scope in sorted(left):
            sizes = [self._cardinalities[i] for i in scope]
            index = configuration_index([self._columns[i] for i in scope], sizes)
            counts = np.bincount(index, weights=self._weights, minlength=prod(sizes)).reshape(sizes)
            found[scope] = counts / counts.sum()
        return found

    def adjustment(self) -> Adjustment:
        """The factors as integers."""
        return Adjustment(tuple(self.blocks), tuple(integer_logs(factors.ravel()) for factors in self._factors))
