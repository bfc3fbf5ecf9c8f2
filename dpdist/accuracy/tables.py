"""The tables of one, two and three attributes that are compared, counted in one pass."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import combinations
from math import comb, prod

import numpy as np

from dpdist.data.count import WIDE_CELLS, PairCounts, cover, covering_blocks, marginals, split_tables, sum_to
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

    @classmethod
    def counted(cls, codes: Codes, cardinalities: Sequence[int]) -> Tables:
        """The tables of records."""
        operator = tables_operator(cardinalities)
        summary = operator.chunk(codes)
        for last in (operator.compact, operator.finish):
            summary = last(summary) if last else summary
        return cls(*summary)


def tables_operator(cardinalities: Sequence[int]) -> Operator:
    """All tables that are compared, in one pass: the attributes of `Tables`.

    Where all triples are compared, they and the pairs share blocks (`dpdist.data.count.cover`): a row of 11 census
    attributes costs 46 increments instead of 176.
    """
    sizes = tuple(cardinalities)
    if not _shares_blocks(sizes):
        return together([pair_counts_operator(sizes), table_counts_operator(sizes, triples_of(sizes))])
    # Blocks take hardly more room than their marginals, which one task makes for the whole table.
    return replace(table_counts_operator(sizes, _blocks(sizes)), finish=partial(_of_blocks, cardinalities=sizes))


def increments(cardinalities: Sequence[int]) -> int:
    """Tables that the pass of `tables_operator` adds a record to."""
    sizes = tuple(cardinalities)
    return len(_blocks(sizes)) if _shares_blocks(sizes) else len(covering_blocks(sizes)) + len(triples_of(sizes))


def _shares_blocks(sizes: tuple[int, ...]) -> bool:
    triples, cells = triples_of(sizes), sum(prod(sizes[i] for i in block) for block in _blocks(sizes))
    return 0 < len(triples) == comb(len(sizes), 3) and cells <= WIDE_CELLS


@lru_cache(maxsize=64)
def _blocks(cardinalities: tuple[int, ...]) -> tuple[Attributes, ...]:
    return cover(triples_of(cardinalities), cardinalities, BLOCK_CELLS)


def _of_blocks(counts: Counts, cardinalities: tuple[int, ...]) -> tuple[PairCounts, Counts]:
    blocks, triples = _blocks(cardinalities), triples_of(cardinalities)
    tables = split_tables(counts, cardinalities, blocks)
    found: dict[Attributes, Counts] = {}
    for table, block in zip(tables, blocks, strict=True):
        for triple in combinations(block, 3):
            if triple not in found:
                found[triple] = sum_to(table, block, triple).ravel()
    return marginals(tables, cardinalities, blocks), np.concatenate([found[triple] for triple in triples])
