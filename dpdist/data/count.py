"""Counting kernels: all single and pairwise counts in one pass, and counts given a parent configuration.

Pairs are not counted one by one. The attributes are covered by a few *blocks* (subsets whose joint domain stays
in the cache) so that each pair lies in at least one block; a row then costs one increment per block instead of
one per pair (11 census attributes: 11 increments instead of 55), and a pair's table is the marginal of its block's.
All counts are exact int64; adding summaries is associative, so any partitioning of the rows gives the same bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from math import prod
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpdist.errors import SpecError

if TYPE_CHECKING:
    from dpdist.privacy.arrays import Codes, Counts

MAX_PAIR_CELLS = 1 << 25  # of all single and pairwise tables together (256 MiB of int64)
BLOCK_CELLS = 1 << 15  # of a block's joint domain, unless a single pair exceeds it (256 KiB of int64)
WIDE_CELLS = 1 << 23  # of all blocks: where they are more, batches are marginalised one by one (64 MiB of int64)
CHUNK_ROWS = 1 << 17  # packed at a time, so that the packed indexes stay in the cache

Number = TypeVar("Number", np.float64, np.int64)

_SHORT = 16  # values of axes that are added up slice by slice, where there are at least `_MANY`
_MANY = 256
_SMALL = 2048  # cells of a table whose adjacent axes are summed at once


def cells_of_pairs(cardinalities: Sequence[int]) -> int:
    """Number of cells of all single and all pairwise tables, however many."""
    total = sum(cardinalities)
    return total + (total * total - sum(c * c for c in cardinalities)) // 2


def pair_cells(cardinalities: Sequence[int]) -> int:
    """Number of cells of all single and all pairwise tables over the attributes. Raises SpecError: the tables would not
    fit in a worker's memory (more than `MAX_PAIR_CELLS` cells).
    """
    cells = cells_of_pairs(cardinalities)
    if cells > MAX_PAIR_CELLS:
        largest = sorted(cardinalities, reverse=True)[:2]
        raise SpecError(
            f"all pairwise counts over these domains need {cells:,} cells, more than the limit of {MAX_PAIR_CELLS:,} "
            f"(the two largest domains have {' and '.join(f'{c:,}' for c in largest)} values): declare `bins` for "
            "large integer attributes or merge rare values"
        )
    return cells


@dataclass(frozen=True, eq=False, repr=False)
class PairCounts:
    """All single and pairwise counts of a set of records; confidential, so ``repr`` hides them. ``a + b`` is the counts
    of the disjoint union.
    """

    cardinalities: tuple[int, ...]  # number of codes of each attribute
    # int64[pair_cells(cardinalities)]: the single tables in order, then the tables of the pairs (0, 1), (0, 2), ...,
    # (1, 2), ... in C order
    cells: Counts

    def __repr__(self) -> str:
        return f"PairCounts(cardinalities={self.cardinalities}, <counts hidden>)"

    def __add__(self, other: PairCounts) -> PairCounts:
        return PairCounts(self.cardinalities, self.cells + other.cells)

    @property
    def total(self) -> int:
        """Number of records counted."""
        return int(self.single(0).sum())

    def single(self, i: int) -> Counts:
        """Counts of attribute `i`, shape (cardinalities[i],)."""
        start, stop = _layout(self.cardinalities)[(i,)]
        return self.cells[start:stop]

    def pair(self, i: int, j: int) -> Counts:
        """Joint counts of two different attributes, shape (cardinalities[i], cardinalities[j])."""
        if i > j:
            return self.pair(j, i).T
        start, stop = _layout(self.cardinalities)[i, j]
        return self.cells[start:stop].reshape(self.cardinalities[i], self.cardinalities[j])


def pair_counts(codes: Codes, cardinalities: Sequence[int]) -> PairCounts:
    """Count all single values and all pairs of values; each code is below its attribute's cardinality. Raises
    SpecError: too many cells; see `pair_cells`.
    """
    sizes = tuple(cardinalities)
    blocks = covering_blocks(sizes)
    return marginals((table_counts(codes, sizes, (block,)) for block in blocks), sizes, blocks)


def block_cells(cardinalities: tuple[int, ...]) -> int:
    """Number of cells of the tables of all covering blocks."""
    return sum(prod(cardinalities[i] for i in block) for block in covering_blocks(cardinalities))


def counts_of_blocks(counts: Counts, cardinalities: tuple[int, ...]) -> PairCounts:
    """Marginalise the `table_counts` of the covering blocks to all single and pairwise tables (a linear map)."""
    blocks = covering_blocks(cardinalities)
    return marginals(split_tables(counts, cardinalities, blocks), cardinalities, blocks)


def split_tables(counts: Counts, cardinalities: tuple[int, ...], sets: Sequence[tuple[int, ...]]) -> list[Counts]:
    """The tables of `table_counts`, each with the shape of its domain."""
    shapes = [tuple(cardinalities[i] for i in which) for which in sets]
    ends = np.cumsum([prod(shape) for shape in shapes])
    return [flat.reshape(shape) for flat, shape in zip(np.split(counts, ends[:-1]), shapes, strict=True)]


def marginals(
    tables: Iterable[Counts], cardinalities: tuple[int, ...], blocks: Sequence[tuple[int, ...]]
) -> PairCounts:
    """All single and pairwise tables, from those of blocks that cover all pairs."""
    layout = _layout(cardinalities)
    cells = np.empty(pair_cells(cardinalities), np.int64)
    done: set[tuple[int, ...]] = set()
    for block, flat in zip(blocks, tables, strict=True):
        table = flat.reshape([cardinalities[i] for i in block])
        for size in (1, 2):
            for axes in combinations(range(len(block)), size):
                key = tuple(block[axis] for axis in axes)
                if key not in done:
                    done.add(key)
                    begin, end = layout[key]
                    cells[begin:end] = sum_to(table, block, key).ravel()
    return PairCounts(cardinalities, cells)


def sum_to(table: Counts, block: tuple[int, ...], which: tuple[int, ...]) -> Counts:
    """The marginal of a block's table on some of its attributes, both ascending."""
    return marginal(table, [block.index(i) for i in which])


def table_counts(codes: Codes, cardinalities: tuple[int, ...], sets: Sequence[tuple[int, ...]]) -> Counts:
    """Count the joint tables of some sets of attributes, one after another in one int64 vector, each in C order."""
    counts = np.zeros(sum(prod(cardinalities[i] for i in which) for which in sets), np.int64)
    return add_table_counts(counts, codes, cardinalities, sets)


def add_table_counts(
    counts: Counts, codes: Codes, cardinalities: tuple[int, ...], sets: Sequence[tuple[int, ...]]
) -> Counts:
    """Add the records to the counts of `table_counts`, in place."""
    ends = np.cumsum([prod(cardinalities[i] for i in which) for which in sets])
    tables = np.split(counts, ends[:-1])
    used = sorted({i for which in sets for i in which})
    word = _word(max((cardinalities[i] for i in used), default=0))
    length = min(CHUNK_ROWS, len(codes[0]))
    # one array, which the process keeps: the memory of many is given back to the system and asked for after each batch
    room = np.empty(length * (16 + len(used) * word.itemsize), np.uint8)
    wide, packed = room[: 8 * length].view(np.int64), room[8 * length : 16 * length]
    columns = room[16 * length :].view(word).reshape(len(used), length)
    for start in range(0, len(codes[0]), CHUNK_ROWS):
        rows = slice(start, min(start + CHUNK_ROWS, len(codes[0])))
        chunk = {i: column[: rows.stop - rows.start] for i, column in zip(used, columns, strict=True)}
        for i, column in chunk.items():
            column[:] = codes[i][rows]
        index = wide[: rows.stop - rows.start]
        for which, table in zip(sets, tables, strict=False):
            index[:] = _pack(chunk, which, cardinalities, packed)
            if len(table) <= len(index):  # a table of the chunk and its addition cost less than single increments
                table += np.bincount(index, minlength=len(table))
            else:
                np.add.at(table, index, 1)
    return counts


@lru_cache(maxsize=64)
def covering_blocks(cardinalities: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Cover all pairs of attributes by few blocks of at most `BLOCK_CELLS` cells each (one pair may exceed that)."""
    pair_cells(cardinalities)
    m = len(cardinalities)
    return cover(tuple(combinations(range(m), 2)), cardinalities, BLOCK_CELLS) if m > 1 else ((0,),)


@lru_cache(maxsize=64)
def cover(sets: tuple[tuple[int, ...], ...], cardinalities: tuple[int, ...], cells: int) -> tuple[tuple[int, ...], ...]:
    """Cover sets of attributes by few blocks of at most this many cells each (one set may exceed that).

    Greedy and deterministic: start from the uncovered set with the most cells, then add the attribute that covers
    the most further sets while the block stays within the limit.
    """
    left, others = set(sets), sorted({len(which) - 1 for which in sets})
    blocks: list[tuple[int, ...]] = []
    for first in sorted(sets, key=lambda which: (-prod(cardinalities[i] for i in which), which)):
        if first not in left:
            continue
        block = list(first)
        while True:
            room = cells // prod(cardinalities[i] for i in block)
            gains = {
                i: sum(tuple(sorted((*rest, i))) in left for size in others for rest in combinations(block, size))
                for i, cardinality in enumerate(cardinalities)
                if i not in block and cardinality <= room
            }
            best = max(gains, key=lambda i: (gains[i], cardinalities[i], -i), default=-1)
            if best < 0 or gains[best] == 0:
                break
            block.append(best)
        block.sort()
        left -= {which for size in others for which in combinations(block, size + 1)}
        blocks.append(tuple(block))
    return tuple(blocks)


def configuration_index(columns: Sequence[np.ndarray], sizes: Sequence[int]) -> NDArray[np.int64]:
    """Mixed-radix index of the rows of several columns, the first column most significant; int64, shape (rows,)."""
    return packed_index(columns, sizes).astype(np.int64, copy=False)


def packed_index(columns: Sequence[np.ndarray], sizes: Sequence[int]) -> NDArray[np.integer]:
    """As `configuration_index`, in unsigned integers of 16 or 32 bits where the domain allows."""
    return _pack(columns, range(len(columns)), sizes)


def coarsen(counts: Counts, bucket_map: np.ndarray, *, buckets: int, axis: int) -> Counts:
    """Sum a table's cells onto the buckets of one of its axes."""
    shape = list(counts.shape)
    shape[axis] = buckets
    out = np.zeros(shape, counts.dtype)
    np.add.at(np.moveaxis(out, axis, 0), bucket_map, np.moveaxis(counts, axis, 0))
    return out


def _pack(
    columns: Sequence[np.ndarray] | Mapping[int, np.ndarray],
    which: Sequence[int],
    sizes: Sequence[int],
    room: NDArray[np.uint8] | None = None,
) -> NDArray[np.integer]:
    """Mixed-radix index of some columns in Horner's scheme; in `room`, of eight bytes a row, where that is given."""
    word, first = _word(prod(sizes[i] for i in which)), columns[which[0]]
    index = np.empty(len(first), word) if room is None else room[: word.itemsize * len(first)].view(word)
    index[:] = first
    for i in which[1:]:
        np.multiply(index, word.type(sizes[i]), out=index)
        np.add(index, columns[i], out=index, casting="unsafe")
    return index


def _word(cells: int) -> np.dtype[np.integer]:
    """The integers of an index of this many cells: of 16 or 32 bits where they suffice."""
    return np.dtype(np.uint16 if cells < 1 << 16 else np.uint32 if cells < 1 << 32 else np.int64)


@lru_cache(maxsize=64)
def _layout(cardinalities: tuple[int, ...]) -> dict[tuple[int, ...], tuple[int, int]]:
    """Where each single and each pair table stands in `PairCounts.cells`."""
    where, start = {}, 0
    m = range(len(cardinalities))
    for key in [*((i,) for i in m), *combinations(m, 2)]:
        stop = start + prod(cardinalities[i] for i in key)
        where[key] = (start, stop)
        start = stop
    return where


def marginal(table: NDArray[Number], keep: Sequence[int]) -> NDArray[Number]:
    """Sum a table (float64 or int64) over the axes that are not in `keep`, which ascends. The result has the shape of
    the axes that are kept; it is a view of `table` where all are.
    """
    shapes, kept = _sums(table.shape, tuple(keep))
    for shape in shapes:
        table = _sum(table.reshape(shape))
    return np.asarray(table).reshape(kept)


@lru_cache(maxsize=1 << 14)
def _sums(shape: tuple[int, ...], keep: tuple[int, ...]) -> tuple[list[tuple[int, int, int]], tuple[int, ...]]:
    """The sums of `marginal`, each over the middle one of three axes, and the shape of the result.

    The first axes go first: sums of long rows are cheap. Of adjacent axes before a short row the first goes by itself.
    """
    kept = tuple(shape[k] for k in keep)
    left = [(size, k in keep) for k, size in enumerate(shape)]
    sums: list[tuple[int, int, int]] = []
    while not all(stays for _, stays in left):
        first = next(k for k, (_, stays) in enumerate(left) if not stays)
        end = next((k for k in range(first, len(left)) if left[k][1]), len(left))
        row = prod(size for size, _ in left[end:])
        if end < len(left) and row < _MANY and prod(size for size, _ in left) > _SMALL:
            end, row = first + 1, prod(size for size, _ in left[first + 1 :])
        sums.append((prod(size for size, _ in left[:first]), prod(size for size, _ in left[first:end]), row))
        del left[first:end]
    return sums, kept


def _sum(table: NDArray[Number]) -> NDArray[Number]:
    """The sums over the middle axis; NumPy's are slow where there are many short ones."""
    outer, number, inner = table.shape
    if outer < _MANY or number > _SHORT or inner > _SHORT:
        return np.asarray(np.add.reduce(table, 1))
    total = table[:, 0].copy()
    for k in range(1, number):
        total += table[:, k]
    return total
