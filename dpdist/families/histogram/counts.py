"""Many histograms and cross-tabulations in one pass over the codes.

Queries share *blocks*: sets of attributes whose joint domain stays in the cache. A row costs one increment per block,
and each query's table is a marginal of its block's table. Counts are exact int64.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from math import prod

import numpy as np
from numpy.typing import NDArray

from dpdist.data.count import BLOCK_CELLS, CHUNK_ROWS, coarsen, configuration_index
from dpdist.data.operators import Operator
from dpdist.errors import SpecError
from dpdist.privacy.arrays import Codes, Counts

MAX_CELLS = 1 << 26  # largest number of cells of all blocks of a release together (512 MiB of int64)
_WORD = 8  # bytes of a count
_LARGE = 1 << 21  # cells; larger summaries are added two at a time


@dataclass(frozen=True)
class Query:
    """One histogram: joint counts."""

    attributes: tuple[int, ...]  # by their place in the schema; the axes of the table in this order
    coarse: bool = False  # count the attributes' buckets instead of their codes


@dataclass(frozen=True)
class CountPlan:
    """What a pass over the table counts. Raises SpecError: there are too many cells."""

    queries: tuple[Query, ...]  # at least one
    cardinalities: tuple[int, ...]  # number of codes of each attribute
    bucket_maps: tuple[tuple[int, ...], ...] = ()  # bucket of each code of each attribute; empty if no query is coarse
    names: tuple[str, ...] = ()  # names of the attributes, for messages

    def __post_init__(self) -> None:
        if self.cells > MAX_CELLS:
            worst = max(self.blocks, key=self._block_cells)
            names = ", ".join(repr(self.names[i]) if self.names else str(i) for i in worst)
            raise SpecError(
                f"the histograms need {self.cells:,} cells, more than the limit of {MAX_CELLS:,}; the largest has "
                f"{self._block_cells(worst):,} (columns {names}): leave out a column, or "
                "declare fewer `bins`"
            )

    @property
    def blocks(self) -> tuple[tuple[int, ...], ...]:
        """Sets of attributes counted jointly, each ascending."""
        return _cover(tuple(query.attributes for query in self.queries), self.cardinalities)

    @property
    def cells(self) -> int:
        """Number of cells of all blocks: the length of what one partition returns."""
        return sum(map(self._block_cells, self.blocks))

    @property
    def task_bytes(self) -> int:
        """Memory of the largest task: counting a chunk of rows, adding two partitions, or summing blocks to tables."""
        words = 2 * CHUNK_ROWS, self.cells, sum(self.table_cells) + max(self.table_cells)
        return _WORD * (self.cells + max(words))

    def shape(self, query: Query) -> tuple[int, ...]:
        """Shape of the table of a query."""
        if not query.coarse:
            return tuple(self.cardinalities[i] for i in query.attributes)
        return tuple(max(self.bucket_maps[i]) + 1 for i in query.attributes)

    @property
    def table_cells(self) -> tuple[int, ...]:
        """Number of cells of the table of each query."""
        return tuple(prod(self.shape(query)) for query in self.queries)

    def _block_cells(self, block: tuple[int, ...]) -> int:
        return prod(self.cardinalities[i] for i in block)


def block_counts(codes: Codes, plan: CountPlan) -> Counts:
    """Count the blocks of a plan over some rows: int64[plan.cells], the tables of the blocks one after another."""
    blocks, sizes = plan.blocks, plan.cardinalities
    total = np.zeros(plan.cells, np.int64)
    tables, stop = [], 0
    for block in blocks:
        start, stop = stop, stop + prod(sizes[i] for i in block)
        tables.append(total[start:stop])
    for start in range(0, len(codes[0]), CHUNK_ROWS):
        for block, table in zip(blocks, tables, strict=True):
            chunk = [codes[i][start : start + CHUNK_ROWS] for i in block]
            np.add.at(table, configuration_index(chunk, [sizes[i] for i in block]), 1)
    return total


def tables_of_blocks(blocks: Counts, plan: CountPlan) -> list[Counts]:
    """The table of each query, int64 of shape ``plan.shape(query)``: marginals of the summed blocks (a linear map)."""
    parts: dict[tuple[int, ...], Counts] = {}
    stop = 0
    for block in plan.blocks:
        shape = tuple(plan.cardinalities[i] for i in block)
        start, stop = stop, stop + prod(shape)
        parts[block] = blocks[start:stop].reshape(shape)
    tables = []
    for query in plan.queries:
        block = min((b for b in parts if set(query.attributes) <= set(b)), key=plan._block_cells)
        table = parts[block].sum(axis=tuple(axis for axis, i in enumerate(block) if i not in query.attributes))
        kept = sorted(query.attributes)
        table = table.transpose([kept.index(i) for i in query.attributes])
        if query.coarse:
            for axis, size in enumerate(plan.shape(query)):
                bucket_map = np.array(plan.bucket_maps[query.attributes[axis]])
                table = coarsen(table, bucket_map, buckets=size, axis=axis)
        tables.append(np.ascontiguousarray(table))
    return tables


def histograms(codes: Codes, plan: CountPlan) -> list[Counts]:
    """Count all queries over some rows: `block_counts`, then `tables_of_blocks`.

    Examples
    --------
    >>> plan = CountPlan((Query((0,)), Query((1, 0))), cardinalities=(2, 3))
    >>> [table.tolist() for table in histograms([np.array([0, 1, 1]), np.array([2, 0, 0])], plan)]
    [[1, 2], [[0, 2], [0, 0], [1, 0]]]
    """
    return tables_of_blocks(block_counts(codes, plan), plan)


def histogram_operator(plan: CountPlan) -> Operator:
    """All tables of a plan; the summary is the list of them."""
    return Operator(
        name="histograms",
        chunk=partial(block_counts, plan=plan),
        combine=operator.add,
        finish=partial(tables_of_blocks, plan=plan),
        fan_in=8 if plan.cells <= _LARGE else 2,
    )


def parent_cells(plan: CountPlan, fine: int, coarse: int) -> NDArray[np.intp]:
    """The cell of the second query that each of the first adds to. Raises SpecError: it is no sum of them."""
    child, parent = plan.queries[fine], plan.queries[coarse]
    if not set(parent.attributes) <= set(child.attributes) or (child.coarse and not parent.coarse):
        raise SpecError(f"counts.hierarchies: histogram {coarse} is no sum of cells of histogram {fine}")
    codes = np.indices(plan.shape(child)).reshape(len(child.attributes), -1)
    index = np.zeros(codes.shape[1], np.intp)
    for attribute, size in zip(parent.attributes, plan.shape(parent), strict=True):
        own = codes[child.attributes.index(attribute)]
        if parent.coarse and not child.coarse:
            own = np.array(plan.bucket_maps[attribute])[own]
        index = index * size + own
    return index


def fewest_cells(plan: CountPlan, chain: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """(number of the query, fewest cells of the finest in one of its cells), from fine to coarse."""
    places = np.arange(plan.table_cells[chain[0]])
    out = [(chain[0], 1)]
    for fine, coarse in pairwise(chain):
        places = parent_cells(plan, fine, coarse)[places]
        fewest = int(np.bincount(places, minlength=plan.table_cells[coarse]).min())
        out.append((coarse, max(fewest, 1)))  # every bin has the assumed probability, also one without finer cells
    return tuple(out)


@lru_cache(maxsize=64)
def _cover(queries: tuple[tuple[int, ...], ...], cardinalities: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Greedy and deterministic: largest queries first, each into the block that grows least and stays in the cache."""

    def cells(attributes: frozenset[int]) -> int:
        return prod(cardinalities[i] for i in attributes)

    blocks: list[frozenset[int]] = []
    wanted = sorted({frozenset(q) for q in queries}, key=lambda q: (-cells(q), sorted(q)))
    for query in wanted:
        if any(query <= block for block in blocks):
            continue
        joined = [(cells(block | query) / cells(block), at) for at, block in enumerate(blocks)]
        fitting = [(growth, at) for growth, at in joined if growth * cells(blocks[at]) <= BLOCK_CELLS]
        if fitting:
            at = min(fitting)[1]
            blocks[at] |= query
        else:
            blocks.append(query)
    return tuple(tuple(sorted(block)) for block in blocks)
