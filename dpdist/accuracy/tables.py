"""The tables of one, two and three attributes that are compared, counted in one pass."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import combinations
from math import comb, prod
from typing import Any

import numpy as np

from dpdist.data.count import (
    WIDE_CELLS,
    PairCounts,
    block_cells,
    cells_of_pairs,
    cover,
    covering_blocks,
    marginals,
    split_tables,
    sum_to,
)
from dpdist.data.operators import Operator, pair_counts_operator, table_counts_operator, together
from dpdist.privacy.arrays import Codes, Counts

TRIPLES = 300  # triples of attributes that are compared at most
MOST_TRIPLE_CELLS = 1 << 23  # cells of all compared triples at most (64 MiB)
BLOCK_CELLS = 1 << 16  # cells of a block of attributes that holds several triples, at most (512 KiB)
MOST_SHARED_PAIRS = 2000  # of more pairs, finding blocks for them and the triples takes longer than they save
# most cells of a small set of attributes; most such sets; how many attributes, those of the fewest values, they are of
SET_CELLS, MOST_SETS, _SMALLEST = 256, 1500, 20
TRAVELLING_CELLS = 1 << 22  # blocks of more cells do not leave a partition (32 MiB)
_FEW = 4  # cells of blocks for each one of their marginals, from which on it is worth a partition's time to sum them up
Attributes = tuple[int, ...]


def triples_of(cardinalities: Sequence[int]) -> tuple[Attributes, ...]:
    """The triples of attributes that are compared: all of them, or `TRIPLES` that a hash chooses. Public."""
    m = len(cardinalities)
    if comb(m, 3) <= TRIPLES:
        drawn: list[Attributes] = list(combinations(range(m), 3))
    else:
        drawn, number = [], 0
        while len(drawn) < TRIPLES:
            word = hashlib.sha256(b"triple %d" % number).digest()
            triple = tuple(sorted({int.from_bytes(word[8 * k : 8 * k + 8], "big") % m for k in range(3)}))
            number += 1
            if len(triple) == 3 and triple not in drawn:
                drawn.append(triple)
    chosen, cells = [], 0
    for triple in drawn:
        size = prod(cardinalities[i] for i in triple)
        if cells + size <= MOST_TRIPLE_CELLS:
            chosen.append(triple)
            cells += size
    return tuple(sorted(chosen))


def halves_of(cardinalities: Sequence[int]) -> tuple[tuple[Attributes, ...], tuple[Attributes, ...]]:
    """The triples that a model may measure, and those whose errors are measured: all, or halves of `triples_of` where
    it leaves many out. Errors of these are like those of triples to which no model was fitted. Public.
    """
    triples = triples_of(cardinalities)
    return (triples, triples) if comb(len(cardinalities), 3) <= TRIPLES else (triples[1::2], triples[::2])


@lru_cache(maxsize=64)
def small_sets(cardinalities: tuple[int, ...]) -> tuple[Attributes, ...]:
    """Sets of three and of four attributes whose tables have few cells, those of the fewest first. Public."""
    few = sorted(range(len(cardinalities)), key=lambda i: (cardinalities[i], i))[:_SMALLEST]
    sets = [tuple(sorted(of)) for size in (3, 4) for of in combinations(few, size)]
    cells = {of: prod(cardinalities[i] for i in of) for of in sets}
    return tuple(sorted((of for of in sets if cells[of] <= SET_CELLS), key=lambda of: (cells[of], of))[:MOST_SETS])


@dataclass(frozen=True, eq=False, repr=False)
class Tables:
    """The tables of one, two and three attributes that are compared; of the private table they are confidential."""

    pairs: PairCounts  # with the one-way tables
    triples: Counts  # int64: those of `triples_of`, one after another
    blocks: Counts | None = None  # int64: those of blocks that hold all `small_sets`, where these are wanted

    def of(self, order: int) -> list[Counts]:
        """All tables of this many attributes, flat."""
        cards = self.pairs.cardinalities
        if order == 1:
            return [self.pairs.single(i) for i in range(len(cards))]
        if order == 2:
            return [self.pairs.pair(i, j).ravel() for i, j in combinations(range(len(cards)), 2)]
        ends = np.cumsum([prod(cards[i] for i in triple) for triple in triples_of(cards)])
        return np.split(self.triples, ends[:-1]) if len(ends) else []

    def compared(self, order: int) -> list[Counts]:
        """The tables of this many attributes whose errors are measured, flat."""
        if order < 3:
            return self.of(order)
        tables = dict(zip(triples_of(self.pairs.cardinalities), self.of(3), strict=True))
        return [tables[triple] for triple in halves_of(self.pairs.cardinalities)[1]]

    def small(self) -> dict[Attributes, Counts]:
        """The tables of `small_sets`, where they were counted."""
        if self.blocks is None:
            return {}
        cards, found = self.pairs.cardinalities, dict[Attributes, Counts]()
        blocks = _small_blocks(cards)
        for block, table in zip(blocks, split_tables(self.blocks, cards, blocks), strict=True):
            found |= {of: sum_to(table, block, of) for of in small_sets(cards) if set(of) <= set(block)}
        return {of: found[of] for of in small_sets(cards)}

    def __add__(self, other: Tables) -> Tables:
        """The tables of the disjoint union, without small sets."""
        return Tables(self.pairs + other.pairs, self.triples + other.triples)

    @classmethod
    def counted(cls, codes: Codes, cardinalities: Sequence[int], *, small: bool = False) -> Tables:
        """The tables of records."""
        operator = tables_operator(cardinalities, small=small)
        found: Tables = operator.finish(operator.compact(operator.chunk(codes)))
        return found


def tables_operator(cardinalities: Sequence[int], *, small: bool = False) -> Operator:
    """All tables that are compared, in one pass: `Tables`, with those of `small_sets` where these are wanted.

    Where blocks of attributes hold all pairs and triples, a record is added to the blocks (`dpdist.data.count.cover`).
    """
    sizes = tuple(cardinalities)
    if small:
        both = together([tables_operator(sizes), table_counts_operator(sizes, _small_blocks(sizes))])
        return replace(both, finish=partial(_with_small, both.finish))
    blocks = _blocks(sizes)
    if not blocks:
        both = together([pair_counts_operator(sizes), table_counts_operator(sizes, triples_of(sizes))])
        return replace(both, finish=_of_summaries)
    operator = table_counts_operator(sizes, blocks)
    whole = partial(_of_blocks, cardinalities=sizes, blocks=blocks)
    marginal_cells = cells_of_pairs(sizes) + sum(prod(sizes[i] for i in which) for which in triples_of(sizes))
    cells = sum(prod(sizes[i] for i in block) for block in blocks)
    if cells < _FEW * marginal_cells and cells <= TRAVELLING_CELLS:
        return replace(operator, finish=whole)  # the whole table is marginalised by one task
    return replace(operator, compact=whole, fan_in=pair_counts_operator(sizes).fan_in)


@lru_cache(maxsize=64)
def _blocks(cardinalities: tuple[int, ...]) -> tuple[Attributes, ...]:
    """Blocks that hold all pairs and compared triples; none where they are too large or too many to be of use."""
    triples, pairs = triples_of(cardinalities), tuple(combinations(range(len(cardinalities)), 2))
    if not triples or len(pairs) > MOST_SHARED_PAIRS or block_cells(cardinalities) > WIDE_CELLS:
        return ()
    sets, most = (*pairs, *triples), len(covering_blocks(cardinalities)) + len(triples)
    for cells in (BLOCK_CELLS, BLOCK_CELLS // 2, BLOCK_CELLS // 4):
        blocks = cover(sets, cardinalities, cells)
        if len(blocks) < most and sum(prod(cardinalities[i] for i in block) for block in blocks) <= WIDE_CELLS:
            return blocks
    return ()


def _of_blocks(counts: Counts, cardinalities: tuple[int, ...], blocks: tuple[Attributes, ...]) -> Tables:
    wanted = triples_of(cardinalities)
    tables = split_tables(counts, cardinalities, blocks)
    left = set(wanted)
    found: dict[Attributes, Counts] = {}
    for table, block in zip(tables, blocks, strict=True):
        inside = left.intersection(combinations(block, 3))
        found |= {triple: sum_to(table, block, triple).ravel() for triple in inside}
        left -= inside
    return Tables(marginals(tables, cardinalities, blocks), np.concatenate([found[triple] for triple in wanted]))


def _small_blocks(cardinalities: tuple[int, ...]) -> tuple[Attributes, ...]:
    return cover(small_sets(cardinalities), cardinalities, BLOCK_CELLS)


def _with_small(finish: Callable[[Any], tuple[Tables, Counts]], summaries: Any) -> Tables:
    tables, blocks = finish(summaries)
    return replace(tables, blocks=blocks)


def _of_summaries(summaries: tuple[PairCounts, Counts]) -> Tables:
    return Tables(*summaries)
