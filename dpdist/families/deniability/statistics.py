"""What is counted in the splits P and S: the operators of the passes, and the count tables as arrays.

All pairs of attributes in T are counted by `dpdist.data.operators.pair_counts_operator`.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdist.data.count import CHUNK_ROWS, configuration_index
from dpdist.data.operators import Operator
from dpdist.families.deniability.prefixes import PrefixCode, SeedIndex, SeedKeys, merge_keys, seed_keys
from dpdist.families.deniability.regression import scores
from dpdist.families.deniability.structure import Structure
from dpdist.privacy.arrays import Codes, Counts
from dpdist.spec.schema import Schema


def tables_operator(structure: Structure, schema: Schema) -> Operator:
    """The count tables of a structure, as one pass over P; the summary is that of `count_tables`."""
    maps = tuple(attribute.bucket_map for attribute in schema.attributes)
    return Operator(
        name="tables",
        chunk=partial(count_tables, structure=structure, bucket_maps=maps),
        combine=operator.add,
        update=partial(add_to_tables, structure=structure, bucket_maps=maps),
    )


def seed_operator(code: PrefixCode) -> Operator:
    """The index of all seeds, as one pass over S; the summary is a `SeedIndex`."""
    return Operator(name="keys", chunk=partial(seed_keys, code), combine=_merge_two, finish=partial(SeedIndex, code))


def _merge_two(a: SeedKeys, b: SeedKeys) -> SeedKeys:
    return merge_keys([a, b])


def count_tables(codes: Codes, *, structure: Structure, bucket_maps: Sequence[NDArray[np.uint32]]) -> Counts:
    """Count every attribute given its bucketised parents, in one vector, so that partitions add up.

    Returns int64[sum of cells and sums]: the tables one after another, each in C order, and then the sums of the scores
    of each regressed attribute in the buckets of its parents; see `split_tables` and `split_sums`. `bucket_maps` gives
    the bucket of each code, for each attribute.
    """
    counts = np.zeros(sum(structure.cells) + sum(structure.sums), np.int64)
    return add_to_tables(counts, codes, structure=structure, bucket_maps=bucket_maps)


def add_to_tables(
    counts: Counts, codes: Codes, *, structure: Structure, bucket_maps: Sequence[NDArray[np.uint32]]
) -> Counts:
    """`count_tables` of more records, added in place to `counts` and returned: no table is made per batch."""
    tables = np.split(counts, np.cumsum(structure.cells))
    sums = split_sums(counts, structure)
    for start in range(0, len(codes[0]), CHUNK_ROWS):  # chunks stay in the cache
        chunk = [column[start : start + CHUNK_ROWS] for column in codes]
        buckets = {p: np.take(bucket_maps[p], chunk[p]) for chosen in structure.parents for p in chosen}
        for i, chosen in enumerate(structure.counted):
            index = np.zeros(len(chunk[i]), np.int64)
            if chosen:
                index = configuration_index([buckets[p] for p in chosen], [structure.bucket_counts[p] for p in chosen])
            index *= structure.cardinalities[i]
            index += chunk[i]
            np.add.at(tables[i], index, 1)
        for i in structure.regressed:
            score = np.take(scores(structure.cardinalities[i]), chunk[i])
            ends = np.cumsum([structure.bucket_counts[p] for p in structure.parents[i]])
            for p, part in zip(structure.parents[i], np.split(sums[i], ends), strict=False):
                np.add.at(part, buckets[p], score)
    return counts


def split_tables(vector: NDArray[Any], structure: Structure) -> tuple[NDArray[Any], ...]:
    """The tables of `count_tables`, each of shape (configurations, cardinality)."""
    pieces = np.split(vector, np.cumsum(structure.cells))
    return tuple(piece.reshape(-1, size) for piece, size in zip(pieces[:-1], structure.cardinalities, strict=True))


def split_sums(vector: NDArray[Any], structure: Structure) -> tuple[NDArray[Any], ...]:
    """The sums of `count_tables`, of each attribute: one parent after another, one for each bucket; none where the
    attribute is not regressed.
    """
    return tuple(np.split(vector[sum(structure.cells) :], np.cumsum(structure.sums)[:-1]))
