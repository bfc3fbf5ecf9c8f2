"""How many seeds share a prefix with a candidate: exact, over all seeds, in O(log n).

Seeds with the same prefix, in sigma order, lie side by side in the sorted list of seed keys, so their number is a
difference of two ranks. The key of a seed is the mixed-radix code of its first L attributes in sigma order, where L is
the longest prefix that a candidate ever keeps. Where the code outgrows 63 bits, the prefix up to there is replaced by
its dense id: its place among the distinct prefixes of that length. A chain of such ids covers any number of attributes.

Distinct keys with their numbers of seeds (`SeedKeys`) are merged from any partitioning of the seeds to the same
sorted list. A `SeedIndex` answers for that list, or for one range of it where the list does not fit one worker:
the answers of the ranges add up to those of the whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from math import prod
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dpdist.data.operators import Operator
from dpdist.families.base.network import strides
from dpdist.privacy.arrays import Codes

HISTOGRAM_BINS = 1 << 16  # bins of the histogram of leading words that ranges are planned with
_LEADING_CODES = 1 << 62  # the codes of the leading group of attributes lie below
_GROUP_CODES = 1 << 31  # the codes of each later group lie below, so that id and code together fit 63 bits
_MOST_KEYS = (1 << 32) - 2
_DENSE_CODES = 1 << 20  # up to this many codes a prefix length is answered from a table over all of them
_NONE = np.iinfo(np.int64).max  # above every code


@dataclass(frozen=True)
class PrefixCode:
    """What the key of a seed is made of, and which prefix lengths are counted."""

    attributes: tuple[int, ...]  # the first L attributes in sigma order, at least one
    cardinalities: tuple[int, ...]  # number of codes of each of these
    lengths: tuple[int, ...]  # the prefix lengths that are counted, ascending; the last is L

    @cached_property
    def groups(self) -> tuple[range, ...]:
        """Positions of the attributes that share a word of the key."""
        starts, codes, limit = [0], 1, _LEADING_CODES
        for position, cardinality in enumerate(self.cardinalities):
            codes *= cardinality
            if codes > limit:
                starts.append(position)
                codes, limit = cardinality, _GROUP_CODES
        return tuple(range(a, b) for a, b in pairwise((*starts, len(self.attributes))))

    @cached_property
    def group_codes(self) -> tuple[int, ...]:
        """Number of codes of each group."""
        return tuple(prod(self.cardinalities[p] for p in group) for group in self.groups)

    @property
    def bin_width(self) -> int:
        """Leading words in one bin of the histogram that ranges are planned with."""
        return -(-self.group_codes[0] // HISTOGRAM_BINS)

    def words(self, codes: Codes) -> NDArray[np.int64]:
        """Keys of n records (attributes in schema order), int64[groups, n]: words, the most significant first."""
        words = np.zeros((len(self.groups), len(codes[0])), np.int64)
        for word, group in zip(words, self.groups, strict=True):
            for position in group:
                word *= self.cardinalities[position]
                word += codes[self.attributes[position]]
        return words

    def columns(self, words: NDArray[np.int64]) -> Codes:
        """The L attributes, in sigma order, that `words` were made from."""
        columns: Codes = []
        for word, group in zip(words, self.groups, strict=True):
            sizes = [self.cardinalities[p] for p in group]
            for stride, size in zip(strides(sizes), sizes, strict=True):
                columns.append((word // stride % size).astype(np.min_scalar_type(size - 1)))
        return columns

    def index_bytes(self, seeds: int) -> int:
        """Upper bound on the memory of the index of this many seeds, in bytes."""
        distinct = min(seeds, prod(self.cardinalities))
        values = sum(np.min_scalar_type(size - 1).itemsize for size in self.cardinalities)
        spaces = [prod(self.cardinalities[:length]) for length in self.lengths]
        tables = sum(8 * space if space <= _DENSE_CODES else 16 * distinct for space in spaces)
        return tables + distinct * (values + 8 + 8 * (len(self.groups) - 1))


@dataclass(frozen=True, eq=False, repr=False)
class SeedKeys:
    """The distinct keys of some seeds, ascending, and how many seeds have each."""

    words: NDArray[np.int64]  # ndarray of int64, shape (groups, distinct): keys in lexicographic order
    counts: NDArray[np.int64]  # ndarray of int64, shape (distinct,): seeds with each key, at least one

    def __sizeof__(self) -> int:
        return self.words.nbytes + self.counts.nbytes


def seed_keys(code: PrefixCode, codes: Codes) -> SeedKeys:
    """Keys of the seeds of one partition, given as records with all attributes in schema order."""
    words = code.words(codes)
    if len(words) == 1:
        keys, counts = np.unique(words[0], return_counts=True)
        return SeedKeys(keys[np.newaxis], counts.astype(np.int64))
    return _distinct(words, np.ones(words.shape[1], np.int64))


def merge_keys(parts: Iterable[SeedKeys]) -> SeedKeys:
    """Keys of the seeds of several partitions, at least one; the same in any order and grouping."""
    parts = list(parts)
    words = np.concatenate([part.words for part in parts], axis=1)
    return _distinct(words, np.concatenate([part.counts for part in parts]))


def keys_between(keys: SeedKeys, low: int, high: int) -> SeedKeys:
    """The keys whose leading word lies in [low, high)."""
    first, last = np.searchsorted(keys.words[0], [low, high])
    return SeedKeys(keys.words[:, first:last], keys.counts[first:last])


def key_histogram(code: PrefixCode, keys: SeedKeys) -> NDArray[np.int64]:
    """Seeds by the high part of their leading word, int64[HISTOGRAM_BINS]; partitions add up."""
    histogram = np.zeros(HISTOGRAM_BINS, np.int64)
    np.add.at(histogram, keys.words[0] // code.bin_width, keys.counts)
    return histogram


def key_ranges(code: PrefixCode, histogram: NDArray[np.int64], shards: int) -> tuple[tuple[int, int], ...]:
    """Ranges [low, high) of leading words that cover all and hold about as many seeds each (some may be empty)."""
    stops = np.cumsum(histogram)
    wanted = int(stops[-1]) * np.arange(1, shards) // shards
    cuts = (np.searchsorted(stops, wanted) + 1) * code.bin_width
    return tuple(pairwise((0, *cuts.tolist(), int(_NONE))))


class SeedIndex:
    """The sorted list of seed keys, or a range of it: look-ups by rank, counts by prefix. Raises ValueError: there are
    more distinct keys than an index holds.
    """

    def __init__(self, code: PrefixCode, keys: SeedKeys) -> None:
        if len(keys.counts) > _MOST_KEYS:
            raise ValueError(f"an index holds at most {_MOST_KEYS} distinct keys: use more shards")
        self.code = code
        columns = code.columns(keys.words)
        self._columns = [np.append(column, column.dtype.type(0)) for column in columns]
        self._stops = np.cumsum(keys.counts)
        self._ids = _dense_ids(code, keys.words)
        self._tables = []
        ranks = np.append(0, self._stops)
        for length, codes in zip(code.lengths, self._prefix_codes(columns), strict=True):
            starts = np.flatnonzero(_changes(codes[np.newaxis]))
            counts = np.diff(ranks[np.append(starts, len(codes))])
            self._tables.append(_CountTable.of(codes[starts], counts, prod(code.cardinalities[:length])))

    def __repr__(self) -> str:
        return f"SeedIndex({self.code!r})"

    def __sizeof__(self) -> int:
        tables = (array for table in self._tables for array in (table.counts, table.codes) if array is not None)
        return sum(array.nbytes for array in (*self._columns, *self._ids, self._stops, *tables))

    @property
    def size(self) -> int:
        """Number of seeds; private."""
        return int(self._stops[-1]) if len(self._stops) else 0

    @property
    def distinct(self) -> tuple[Codes, NDArray[np.int64]]:
        """The first L attributes, in sigma order, of the seeds that differ in them, and how many seeds have each."""
        return [column[:-1] for column in self._columns], np.diff(self._stops, prepend=0)

    def prefixes(self, ranks: NDArray[np.int64], *, offset: int = 0) -> Codes:
        """The first L attributes, in sigma order, of the seeds at given places (int64[n]) of the list of all seeds;
        zero where the seed is in another range, so that the ranges add up. `offset` is the number of seeds in the
        ranges before this one.
        """
        local = ranks - offset
        local[local < 0] = self.size
        keys = _search(self._stops, local, side="right")  # at the end: the zero after the last key
        return [column.take(keys) for column in self._columns]

    def counts(self, codes: Codes) -> NDArray[np.int64]:
        """Number of seeds that share each counted prefix of n records (all attributes in schema order), int64[lengths,
        n] by ascending length; the ranges add up. Only the first L attributes in sigma order are read.
        """
        prefix = [codes[i] for i in self.code.attributes]
        result = np.empty((len(self._tables), len(prefix[0])), np.int64)
        for row, table, keys in zip(result, self._tables, self._prefix_codes(prefix), strict=True):
            row[:] = table.counts_of(keys)
        return result

    def _prefix_codes(self, prefix: Sequence[NDArray[Any]]) -> Iterator[NDArray[np.int64]]:
        """Code of the prefix of each counted length, ascending; distinct prefixes have distinct codes."""
        boundaries = {group.start: ids for group, ids in zip(self.code.groups[1:], self._ids, strict=True)}
        codes = np.zeros(len(prefix[0]), np.int64)
        for position, cardinality in enumerate((*self.code.cardinalities, 0)):
            if position in boundaries:
                codes = _find(boundaries[position], codes)
            if position in self.code.lengths:
                yield codes
            if cardinality:
                codes = codes * cardinality
                codes += prefix[position]


@dataclass(frozen=True, eq=False, repr=False)
class _CountTable:
    """Number of seeds by prefix code: over all codes, or (with `codes`) over those that occur."""

    counts: NDArray[Any]
    codes: NDArray[np.int64] | None = None

    @classmethod
    def of(cls, codes: NDArray[np.int64], counts: NDArray[np.int64], space: int) -> _CountTable:
        counts = counts.astype(np.min_scalar_type(counts.max(initial=0)))
        if space > _DENSE_CODES:
            return cls(np.append(counts, counts.dtype.type(0)), np.append(codes, _NONE))
        dense = np.zeros(space, counts.dtype)
        dense[codes] = counts
        return cls(dense)

    def counts_of(self, codes: NDArray[np.int64]) -> NDArray[Any]:
        return self.counts.take(codes if self.codes is None else _find(self.codes, codes))


def _dense_ids(code: PrefixCode, words: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """For each group but the last: the distinct codes of the prefix that ends with it, and `_NONE`."""
    ids = []
    codes = words[0]
    for word, size in zip(words[1:], code.group_codes[1:], strict=True):
        new = _changes(codes[np.newaxis])
        ids.append(np.append(codes[new], _NONE))
        codes = (np.cumsum(new) - 1) * size + word
    return ids


def _distinct(words: NDArray[np.int64], counts: NDArray[np.int64]) -> SeedKeys:
    order = np.lexsort(words[::-1])
    words = words[:, order]
    starts = np.flatnonzero(_changes(words))
    return SeedKeys(words[:, starts], np.add.reduceat(counts[order], starts) if len(starts) else counts)


def _changes(words: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Where a column of sorted words, shape (groups, n), differs from the one before."""
    changes = np.ones(words.shape[1], bool)
    changes[1:] = (words[:, 1:] != words[:, :-1]).any(axis=0)
    return changes


def _find(table: NDArray[np.int64], codes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Places of codes in an ascending table that ends with `_NONE`; the last place for those not in it."""
    at = _search(table, codes)
    at[table.take(at) != codes] = len(table) - 1
    return at


def _search(
    table: NDArray[np.int64], values: NDArray[np.int64], side: Literal["left", "right"] = "left"
) -> NDArray[np.int64]:
    """`numpy.searchsorted`, asked in ascending order: neighbours in the table are neighbours in the cache."""
    order = np.argsort(values)
    at = np.empty(len(values), np.int64)
    at[order] = np.searchsorted(table, values[order], side=side)
    return at


def seed_operator(code: PrefixCode) -> Operator:
    """The index of all seeds, as one pass over S; the summary is a `SeedIndex`."""
    return Operator(name="keys", chunk=partial(seed_keys, code), combine=_merge_two, finish=partial(SeedIndex, code))


def _merge_two(a: SeedKeys, b: SeedKeys) -> SeedKeys:
    return merge_keys([a, b])
