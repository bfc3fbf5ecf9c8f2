"""Many histograms and cross-tabulations in one pass over the codes.

Queries share *blocks*: sets of attributes whose joint domain stays in the cache. A row costs one increment per block,
and each query's table is a marginal of its block's table. Counts are exact int64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from math import prod

import numpy as np
from numpy.typing import NDArray

from dpdist.data.count import BLOCK_CELLS, CHUNK_ROWS, coarsen, cover, split_tables, sum_to, table_counts
from dpdist.data.operators import Operator, table_counts_operator
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
        sets = {tuple(sorted(query.attributes)) for query in self.queries}
        return cover(tuple(sorted(sets)), self.cardinalities, BLOCK_CELLS)

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


def tables_of_blocks(blocks: Counts, plan: CountPlan) -> list[Counts]:
    """The table of each query, int64 of shape ``plan.shape(query)``: marginals of the summed blocks (a linear map)."""
    parts = dict(zip(plan.blocks, split_tables(blocks, plan.cardinalities, plan.blocks), strict=True))
    tables = []
    for query in plan.queries:
        block = min((b for b in parts if set(query.attributes) <= set(b)), key=plan._block_cells)
        kept = sorted(query.attributes)
        table = sum_to(parts[block], block, tuple(kept)).transpose([kept.index(i) for i in query.attributes])
        if query.coarse:
            for axis, size in enumerate(plan.shape(query)):
                bucket_map = np.array(plan.bucket_maps[query.attributes[axis]])
                table = coarsen(table, bucket_map, buckets=size, axis=axis)
        tables.append(np.array(table, order="C"))
    return tables


def histograms(codes: Codes, plan: CountPlan) -> list[Counts]:
    """Count all queries over some rows.

    Examples
    --------
    >>> plan = CountPlan((Query((0,)), Query((1, 0))), cardinalities=(2, 3))
    >>> [table.tolist() for table in histograms([np.array([0, 1, 1]), np.array([2, 0, 0])], plan)]
    [[1, 2], [[0, 2], [0, 0], [1, 0]]]
    """
    return tables_of_blocks(table_counts(codes, plan.cardinalities, plan.blocks), plan)


def histogram_operator(plan: CountPlan) -> Operator:
    """All tables of a plan; the summary is the list of them."""
    fan_in, finish = 8 if plan.cells <= _LARGE else 2, partial(tables_of_blocks, plan=plan)
    counted = table_counts_operator(plan.cardinalities, plan.blocks)
    return replace(counted, name="histograms", finish=finish, fan_in=fan_in)


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
