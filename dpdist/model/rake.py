"""Raking: weights of a pool of model records, fitted to noisy tables of one, two and three attributes.

The tables lie in a few blocks of attributes that cover all pairs (`dpdist.data.count.covering_blocks`). Block by block,
the table of the weights is fitted to all targets in it, and the rows are multiplied by the table's change. Threads
share the rows in pieces that do not depend on their number, so that sums are the same on any machine.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import reduce
from itertools import combinations, pairwise
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdist.data.count import BLOCK_CELLS, cover, covering_blocks, marginal, packed_index
from dpdist.model.fitted import LIMITS, Adjustment, integer_logs, with_groups
from dpdist.model.junction import Set
from dpdist.privacy.arrays import Counts, Floats
from dpdist.privacy.portable import inner

PIECE = 1 << 18  # rows of a piece
MOST_THREADS = 8  # each works in memory of its own


@contextmanager
def threads(items: int) -> Iterator[Callable[..., Iterable[Any]]]:
    """A `map` that keeps the order of its items, at most this many, on as many threads as the process has cores for."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    number = min(items, cores, MOST_THREADS)
    if number < 2:
        yield map
        return
    pool = ThreadPoolExecutor(number, thread_name_prefix="dpdist-pieces")
    try:
        yield pool.map
    finally:
        pool.shutdown(cancel_futures=True)


class WeightedRows:
    """Rows, their weights, and where each row stands in the tables of blocks that cover all pairs. A change of the
    weights waits until the next table is counted: the rows are read once for both.
    """

    def __init__(self, columns: Sequence[NDArray[np.integer]], cardinalities: Sequence[int]) -> None:
        self.blocks: list[Set] = []
        self._columns, self._cardinalities, self._groups = list(columns), tuple(cardinalities), tuple[Counts, ...]()
        rows = len(columns[0])
        self.slices = [slice(start, start + PIECE) for start in range(0, rows, PIECE)]  # pieces of the rows
        self._weights = np.ones(rows)
        self._keys: list[NDArray[np.integer]] = []
        self._factors: list[Floats] = []
        self._waiting: tuple[int, Floats] | None = None
        self._add(covering_blocks(self._cardinalities))

    def merge(self, groups: tuple[Counts, ...]) -> None:
        """Add a copy of each attribute on groups of its values."""
        self._groups = groups
        self._columns, self._cardinalities = with_groups(self._columns, self._cardinalities, groups)

    def cover(self, scopes: Iterable[Set]) -> None:
        """Add blocks for sets of attributes that lie in none."""
        left = [s for s in scopes if not any(set(s) <= set(block) for block in self.blocks)]
        self._add(cover(tuple(left), self._cardinalities, BLOCK_CELLS))

    def _add(self, blocks: tuple[Set, ...]) -> None:
        with threads(len(blocks)) as each:
            self._keys += each(self._keys_of, blocks)
        self.blocks += blocks
        self._factors += [np.ones(self._shape(block)) for block in blocks]

    def _shape(self, block: Set) -> tuple[int, ...]:
        return tuple(self._cardinalities[i] for i in block)

    def _keys_of(self, block: Set) -> NDArray[np.integer]:
        """The cell of each row in a block's table."""
        index = packed_index([self._columns[i] for i in block], self._shape(block))
        return index.astype(np.min_scalar_type(prod(self._shape(block)) - 1), copy=False)

    def table(self, b: int, each: Callable[..., Iterable[Any]]) -> Floats:
        """The sum of the weights in each cell of a block, over the number of rows."""
        shape, waiting, self._waiting = self._factors[b].shape, self._waiting, None

        def count(rows: slice) -> Floats:
            weights = self._changed(rows, waiting)
            return np.asarray(np.bincount(self._keys[b][rows], weights=weights, minlength=prod(shape)), np.float64)

        total = reduce(np.add, each(count, self.slices))
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
        """The share of the weights in each cell of the tables of some sets of up to three attributes."""
        found: dict[Set, Floats] = {}
        left = set(scopes)

        def take(block: Set, table: Floats) -> None:
            inside = left.intersection(s for size in (1, 2, 3) for s in combinations(block, size))
            table /= table.sum()
            found.update({s: marginal(table, [block.index(i) for i in s]) for s in inside})
            left.difference_update(inside)

        with threads(len(self.slices)) as each:
            for b, block in enumerate(self.blocks):
                if any(len(s) < 3 or set(s) <= set(block) for s in left):
                    take(block, self.table(b, each))
        others = cover(tuple(sorted(left)), self._cardinalities, BLOCK_CELLS)
        waiting, self._waiting = self._waiting, None
        self._changed(slice(None), waiting)
        with threads(len(others)) as each:
            for block, table in zip(others, each(self._table_of, others), strict=True):
                take(block, table)
        return found

    def _table_of(self, block: Set) -> Floats:
        """The sum of the weights in each cell of a set of attributes that is no block."""
        size = prod(self._shape(block))
        found = np.bincount(self._keys_of(block), weights=self._weights, minlength=size).reshape(self._shape(block))
        return np.asarray(found, np.float64)

    def adjustment(self) -> Adjustment:
        """The factors as integers."""
        logs = tuple(integer_logs(factors.ravel()) for factors in self._factors)
        return Adjustment(tuple(self.blocks), logs, self._groups)


TINY = 2.0**-512  # shares below are none: a ratio to them would overflow
DAMPING = (0.8, 0.6, 0.4)  # powers of the last passes' steps

# places of some attributes in a block, the target of their table, and the shape that it is broadcast with
Aim = tuple[tuple[int, ...], Floats, tuple[int, ...]]


def shrink(noisy: Floats, model: Floats, sigma: float) -> Floats:
    """James-Stein estimate of counts, from noisy counts towards a model's, in blocks of cells by falling model count.
    Blocks have 16, 32, 64, ... cells. The result is not negative.
    """
    order = np.argsort(-model, kind="stable")
    edges = [0]
    while edges[-1] < len(order):
        edges.append(edges[-1] + (16 << (len(edges) - 1)))
    estimate = model.copy()
    for start, end in pairwise(edges):
        cells = order[start:end]
        change = noisy[cells] - model[cells]
        evidence = max(inner(change, change), 1e-9)
        estimate[cells] += max(0.0, 1 - max(len(cells) - 2, 1) * sigma**2 / evidence) * change
    return np.maximum(estimate, 0)


def rake(
    rows: WeightedRows, targets: dict[tuple[int, ...], Floats], *, sweeps: int, damping: Sequence[float] = DAMPING
) -> None:
    """Fit the weights of rows to targets of tables: shares of (i,), (i, j) and (i, j, k), i < j < k, that sum to 1.

    The last of the `sweeps` go the part of a step that `damping` says, as noisy targets contradict each other.
    """
    powers = [*[1.0] * (sweeps - len(damping)), *damping][:sweeps]
    inside = [targets_in(block, targets) for block in rows.blocks]
    with threads(len(rows.slices)) as each:
        for power in powers:
            for b, aims in enumerate(inside):
                table = rows.table(b, each)
                change = block_change(table, aims, power)
                change /= float((table.ravel() * change.ravel()).sum())
                rows.multiply(b, change)


def targets_in(block: tuple[int, ...], targets: Mapping[tuple[int, ...], Floats]) -> list[Aim]:
    """The targets within a block: those of its triples, then of its pairs, then of its attributes."""
    found = []
    for size in (3, 2, 1):
        for places in combinations(range(len(block)), size):
            target = targets.get(tuple(block[k] for k in places))
            if target is not None:
                shape = [1] * len(block)
                for place, cells in zip(places, target.shape, strict=True):
                    shape[place] = cells
                found.append((places, target, tuple(shape)))
    return found


def block_change(table: Floats, aims: Sequence[Aim], power: float) -> Floats:
    """Factors that take a block's table towards the targets in it, one after another, by a `power` of each step."""
    before, table = table, table.copy()
    for places, target, shape in aims:
        found = marginal(table, places)
        ratio = np.divide(target, found, out=np.ones_like(target), where=found > TINY)
        np.minimum(np.maximum(ratio, 0.1, out=ratio), 10, out=ratio)
        if power < 1:
            ratio = ((1 + power) * ratio + (1 - power)) / ((1 - power) * ratio + (1 + power))
        table *= ratio.reshape(shape)
    return np.divide(table, before, out=np.ones_like(table), where=before > 0)
