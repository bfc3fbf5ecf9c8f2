"""The tables of one, two and three attributes that are compared, counted in one pass."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import combinations
from math import comb, prod

import numpy as np

from dpdist.data.count import (
    MAX_PAIR_CELLS,
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

TRIPLES = 300
"""Triples of attributes that are compared at most."""

MOST_TRIPLE_CELLS = 1 << 23
"""Cells of all compared triples at most (64 MiB)."""

BLOCK_CELLS = 1 << 16
"""Cells of a block of attributes that holds several triples, at most (512 KiB)."""

Attributes = tuple[int, ...]


def triples_of(cardinalities: Sequence[int]) -> tuple[Attributes, ...]:
    """The triples of attributes that are compared: all of them, or `TRIPLES` that a hash chooses. Public.

    Of many attributes, those come first that share a block of the pairs (`dpdist.data.count.covering_blocks`), because
    the pass over the pairs counts them too. The blocks depend on the domains alone.
    """
    return _triples_of(tuple(cardinalities))


@lru_cache(maxsize=64)
def _triples_of(cardinalities: tuple[int, ...]) -> tuple[Attributes, ...]:
    m = len(cardinalities)
    if comb(m, 3) <= TRIPLES:
        drawn: list[Attributes] = list(combinations(range(m), 3))
    else:
        drawn, number = sorted(_in_blocks(cardinalities), key=_hash)[:TRIPLES], 0
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


@lru_cache(maxsize=64)
def _in_blocks(cardinalities: tuple[int, ...]) -> frozenset[Attributes]:
    """Triples within the blocks of the pairs; none where there are too many blocks to be counted together."""
    if cells_of_pairs(cardinalities) > MAX_PAIR_CELLS or block_cells(cardinalities) > WIDE_CELLS:
        return frozenset()
    return frozenset(triple for block in covering_blocks(cardinalities) for triple in combinations(block, 3))


def _hash(triple: Attributes) -> bytes:
    return hashlib.sha256(b"triple %d %d %d" % triple).digest()


@dataclass(frozen=True, eq=False, repr=False)
class Tables:
    """The tables of one, two and three attributes that are compared; of the private table they are confidential.

    Attributes
    ----------
    pairs : PairCounts
        With the one-way tables.
    triples : ndarray of int64
        Those of `triples_of`, one after another.
    """

    pairs: PairCounts
    triples: Counts

    def __repr__(self) -> str:
        return "Tables(<counts hidden>)"

    def of(self, order: int) -> list[Counts]:
        """All tables of so many attributes, flat."""
        cards = self.pairs.cardinalities
        if order == 1:
            return [self.pairs.single(i) for i in range(len(cards))]
        if order == 2:
            return [self.pairs.pair(i, j).ravel() for i, j in combinations(range(len(cards)), 2)]
        ends = np.cumsum([prod(cards[i] for i in triple) for triple in triples_of(cards)])
        return np.split(self.triples, ends[:-1]) if len(ends) else []

    def __add__(self, other: Tables) -> Tables:
        """The tables of the disjoint union."""
        return Tables(self.pairs + other.pairs, self.triples + other.triples)

    @classmethod
    def counted(cls, codes: Codes, cardinalities: Sequence[int]) -> Tables:
        """The tables of records."""
        operator = tables_operator(cardinalities)
        summary = operator.chunk(codes)
        for last in (operator.compact, operator.finish):
            summary = last(summary) if last else summary
        found: Tables = summary
        return found


def tables_operator(cardinalities: Sequence[int]) -> Operator:
    """All tables that are compared, in one pass: `Tables`.

    Where blocks of attributes hold all pairs and triples, a record is added to the blocks
    (`dpdist.data.count.cover`): of 11 census attributes to 46 instead of 176 tables, of 24 to 33 instead of 333.
    """
    sizes = tuple(cardinalities)
    if not _shares_blocks(sizes):
        both = together([pair_counts_operator(sizes), table_counts_operator(sizes, triples_of(sizes))])
        return replace(both, finish=_of_summaries)
    operator = table_counts_operator(sizes, _blocks(sizes))
    if _has_all_triples(sizes):
        # these blocks take hardly more room than their marginals, which one task makes for the whole table
        return replace(operator, finish=partial(_of_blocks, cardinalities=sizes))
    return replace(operator, compact=partial(_of_blocks, cardinalities=sizes))


def increments(cardinalities: Sequence[int]) -> int:
    """Tables that the pass of `tables_operator` adds a record to."""
    sizes = tuple(cardinalities)
    return len(_blocks(sizes)) if _shares_blocks(sizes) else len(covering_blocks(sizes)) + len(triples_of(sizes))


def _has_all_triples(sizes: tuple[int, ...]) -> bool:
    return len(triples_of(sizes)) == comb(len(sizes), 3)


def _shares_blocks(sizes: tuple[int, ...]) -> bool:
    if not triples_of(sizes) or not (_has_all_triples(sizes) or _in_blocks(sizes)):
        return False
    return sum(prod(sizes[i] for i in block) for block in _blocks(sizes)) <= WIDE_CELLS


@lru_cache(maxsize=64)
def _blocks(cardinalities: tuple[int, ...]) -> tuple[Attributes, ...]:
    """Blocks that hold all pairs, and the triples that are compared."""
    triples = triples_of(cardinalities)
    if _has_all_triples(cardinalities):
        return cover(triples, cardinalities, BLOCK_CELLS)
    others = tuple(triple for triple in triples if triple not in _in_blocks(cardinalities))
    return (*covering_blocks(cardinalities), *cover(others, cardinalities, BLOCK_CELLS))


def _of_blocks(counts: Counts, cardinalities: tuple[int, ...]) -> Tables:
    blocks, wanted = _blocks(cardinalities), triples_of(cardinalities)
    tables = split_tables(counts, cardinalities, blocks)
    left, found = set(wanted), {}
    for table, block in zip(tables, blocks, strict=True):
        for triple in left.intersection(combinations(block, 3)):
            found[triple] = sum_to(table, block, triple).ravel()
        left.difference_update(combinations(block, 3))
    return Tables(marginals(tables, cardinalities, blocks), np.concatenate([found[triple] for triple in wanted]))


def _of_summaries(summaries: tuple[PairCounts, Counts]) -> Tables:
    return Tables(*summaries)
