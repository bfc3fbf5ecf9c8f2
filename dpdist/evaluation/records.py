"""Records as attacks see them: samples, coarse codes, and keys that say which records agree on which attributes.

A table is a list of columns in schema order: small unsigned integers, or float64 for a `number` without bins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpdist.privacy.arrays import Codes, Counts, Floats
from dpdist.spec.schema import Attribute, Schema

Keys: TypeAlias = NDArray[np.uint64]

CELLS = 32  # equal intervals into which a continuous number is cut where attacks count agreements
PAIRS = 60  # most pairs of attributes that are left out of the keys; with more attributes they are drawn at random


def size(columns: Codes) -> int:
    """Number of records."""
    return len(columns[0])


def take(columns: Codes, rows: NDArray[Any]) -> Codes:
    """Some of the records."""
    return [column[rows] for column in columns]


def drawn(columns: Codes, count: int, rng: np.random.Generator) -> Codes:
    """At most `count` of the records, drawn without replacement, in random order."""
    return take(columns, rng.permutation(size(columns))[:count])


def halves(columns: Codes, rng: np.random.Generator) -> tuple[Codes, Codes]:
    """The records in two random halves."""
    order = rng.permutation(size(columns))
    return take(columns, order[: len(order) // 2]), take(columns, order[len(order) // 2 :])


def stacked(*tables: Codes) -> Codes:
    """The records of several tables."""
    return [np.concatenate(columns) for columns in zip(*tables, strict=True)]


def is_ordered(attribute: Attribute) -> bool:
    """Whether distances between values mean something."""
    return attribute.kind != "categorical"


def is_continuous(column: NDArray[Any]) -> bool:
    """Whether a column holds numbers instead of codes."""
    return bool(np.issubdtype(column.dtype, np.floating))


def span(attribute: Attribute, column: NDArray[Any]) -> float:
    """Width of the domain, in the units of the column."""
    if is_continuous(column):
        low, high = attribute.bounds or (0.0, 1.0)
        return max(float(high) - float(low), np.finfo(float).tiny)
    return max(float(attribute.cardinality - 1), 1.0)


def coarse(columns: Codes, schema: Schema) -> Codes:
    """Codes for every column: continuous numbers are cut into `CELLS` equal intervals of their bounds."""
    result = []
    for column, attribute in zip(columns, schema.attributes, strict=True):
        if is_continuous(column):
            low = float((attribute.bounds or (0.0, 1.0))[0])
            cells = np.floor((column - low) * (CELLS / span(attribute, column)))
            column = np.clip(cells, 0, CELLS - 1).astype(np.uint8)
        result.append(column)
    return result


class Agreement:
    """Counts the records that agree with others on all attributes, on all but one, and on all but two.

    A record is the sum of random 64-bit words of its values (Zobrist hashing), so the key of a record with some
    attributes left out is a subtraction. Two records of n and m are taken for one with probability n·m / 2^64.
    """

    def __init__(self, attributes: int, *, seed: int) -> None:
        rng = np.random.default_rng([seed, 0x5EED])
        self._salts = rng.integers(0, 1 << 64, attributes, dtype=np.uint64)
        pairs = list(combinations(range(attributes), 2))
        chosen = rng.permutation(len(pairs))[:PAIRS] if len(pairs) > PAIRS else np.arange(len(pairs))
        self._pairs = [pairs[i] for i in sorted(chosen.tolist())]
        self.attributes = attributes

    def words(self, columns: Codes) -> list[Keys]:
        """The word of each value: one uint64 array for each column."""
        return [_mixed(_bits(column) ^ salt) for column, salt in zip(columns, self._salts, strict=True)]

    def keys(self, columns: Codes) -> Keys:
        """The key of each record, uint64."""
        return summed(self.words(columns))

    def exact(self, records: Codes, others: Codes) -> Counts:
        """How many of the others equal each record, int64."""
        return occurrences(self.keys(records), self.keys(others))

    def without(self, records: Codes, others: Codes) -> Counts:
        """How many of the others agree with each record but, perhaps, in attribute i: int64[attributes, records]."""
        ours, theirs = self.words(records), self.words(others)
        first, second = summed(ours), summed(theirs)
        return np.array([occurrences(first - a, second - b) for a, b in zip(ours, theirs, strict=True)])

    def profiles(self, records: Codes, others: Codes) -> tuple[Floats, Counts]:
        """How many of the others differ in no, one and two attributes, float64[3, records], and `without`. With more
        than `PAIRS` pairs the third row is an estimate.
        """
        m = self.attributes
        ours, theirs = self.words(records), self.words(others)
        first, second = summed(ours), summed(theirs)
        none = occurrences(first, second).astype(np.float64)
        singles = np.array([occurrences(first - a, second - b) for a, b in zip(ours, theirs, strict=True)])
        one = np.sum(singles, axis=0) - m * none
        two = np.zeros_like(none)
        for i, j in self._pairs:
            agreeing = occurrences(first - ours[i] - ours[j], second - theirs[i] - theirs[j])
            two += agreeing - singles[i] - singles[j] + none
        return np.array([none, one, two * (comb(m, 2) / max(len(self._pairs), 1))]), singles


def summed(words: list[Keys]) -> Keys:
    """The key of each record from the words of its values."""
    return np.asarray(np.sum(words, axis=0, dtype=np.uint64))


def occurrences(keys: Keys, among: Keys) -> Counts:
    """How often each key is among the others, int64."""
    ordered = np.sort(among)
    return np.searchsorted(ordered, keys, side="right") - np.searchsorted(ordered, keys, side="left")


def independent(columns: Codes, rng: np.random.Generator) -> Codes:
    """The same columns, each in an order of its own: records with the marginals and no dependence."""
    return [rng.permutation(column) for column in columns]


def column_names(schema: Schema, places: Sequence[int]) -> str:
    """Names of some attributes, for a sentence."""
    return ", ".join(schema.names[i] for i in places)


def _bits(column: NDArray[Any]) -> Keys:
    if is_continuous(column):
        return np.asarray(np.ascontiguousarray(column + 0.0, np.float64).view(np.uint64))  # -0.0 becomes 0.0
    return column.astype(np.uint64)


def _mixed(words: Keys) -> Keys:
    """A permutation of 64-bit words that looks random (the finaliser of splitmix64; Steele, Lea, Flood 2014)."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(words ^ (words >> np.uint64(31)))


BLOCK_CELLS = 1 << 19  # distances in a block: 2 MiB of float32 for each array at work, which stay in the cache


@dataclass(frozen=True)
class Gower:
    """Distances between the records of one schema."""

    schema: Schema

    def part(self, place: int, records: Codes, others: Codes) -> NDArray[np.float32]:
        """What one attribute adds to the distances, float32[records, others]."""
        attribute, ours, theirs = self.schema.attributes[place], records[place], others[place]
        if not is_ordered(attribute):
            return np.asarray(ours[:, None] != theirs[None, :], np.float32)
        scale = 1 / span(attribute, ours)
        low = float((attribute.bounds or (0.0, 1.0))[0]) if is_continuous(ours) else 0.0
        first, second = (((column - low) * scale).astype(np.float32) for column in (ours, theirs))
        result = first[:, None] - second[None, :]
        return np.asarray(np.abs(result, out=result))

    def total(self, records: Codes, others: Codes, places: Sequence[int] | None = None) -> NDArray[np.float32]:
        """The distances over some attributes (all by default), float32[records, others]."""
        places = range(len(records)) if places is None else places
        result = np.zeros((size(records), size(others)), np.float32)
        different = np.zeros(result.shape, np.uint8)
        several = len(places) < 256
        for place in places:
            if several and not is_ordered(self.schema.attributes[place]):
                different += records[place][:, None] != others[place][None, :]
            else:
                result += self.part(place, records, others)
        result += different
        return result

    def nearest(
        self, records: Codes, others: Codes, places: Sequence[int] | None = None
    ) -> tuple[NDArray[np.float32], Counts]:
        """The distance to the nearest of the others, float32[records], and its place, the first of several."""
        distances = np.empty(size(records), np.float32)
        where = np.empty(size(records), np.int64)
        for rows, block in blocks(records, size(others)):
            between = self.total(block, others, places)
            where[rows] = between.argmin(axis=1)
            distances[rows] = np.take_along_axis(between, where[rows][:, None], axis=1)[:, 0]
        return distances, where


def blocks(records: Codes, others: int, arrays: int = 1) -> Iterator[tuple[slice, Codes]]:
    """The records in blocks so small that `arrays` arrays of distances to the others stay within bounds."""
    step = max(1, BLOCK_CELLS // max(others * arrays, 1))
    for start in range(0, size(records), step):
        rows = slice(start, min(start + step, size(records)))
        yield rows, [column[rows] for column in records]
