"""Records as an evaluation sees them: attributes as a few codes; samples; keys that say which records agree on what.

A table is a list of columns in schema order: small unsigned integers, or float64 for a `number` without bins. Numbers
are cut into bins of equal width over their public bounds, and domains of more than `LARGEST` codes into runs of
consecutive codes. All of it is read off the public schema; none of it off the data.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from math import comb
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpdist.data.count import MAX_PAIR_CELLS
from dpdist.privacy.arrays import Codes, Counts, Floats
from dpdist.spec.attribute import Attribute
from dpdist.spec.groups import Category, DatedKind
from dpdist.spec.schema import Schema

LARGEST = 256  # codes of an attribute that is compared as it is
NUMBER_BINS = 20  # bins of a number, and about the number of runs of a domain that is too large


@dataclass(frozen=True, eq=False)
class Axis:
    """One attribute as it is looked at."""

    name: str
    labels: tuple[str, ...]  # what each code stands for
    ordered: bool  # whether neighbouring codes are near each other
    missing: int | None = None  # the code of missing values
    runs: NDArray[Any] | None = None  # for each code of the schema the code here; None where they are the same
    edges: NDArray[np.float64] | None = None  # inner edges of the bins of a number
    ends: NDArray[np.float64] | None = None  # where bins of numbers, days or moments begin, and the last one ends
    dated: DatedKind | None = None  # whether they are days or moments

    @property
    def size(self) -> int:
        """Number of codes."""
        return len(self.labels)

    def codes(self, column: np.ndarray) -> np.ndarray:
        """The codes here of a column of codes of the schema, or of numbers."""
        if self.edges is not None:
            return np.searchsorted(self.edges, column, side="right").astype(np.min_scalar_type(self.size - 1))
        return column if self.runs is None else self.runs.take(column)


@dataclass(frozen=True, eq=False)
class View:
    """All attributes as they are looked at."""

    axes: tuple[Axis, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the attributes."""
        return tuple(axis.name for axis in self.axes)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of codes of each attribute."""
        return tuple(axis.size for axis in self.axes)

    def codes(self, columns: Sequence[np.ndarray]) -> Codes:
        """The codes here of the columns of a table, in schema order."""
        return [axis.codes(column) for axis, column in zip(self.axes, columns, strict=True)]


def view_of(schema: Schema) -> View:
    """How the attributes of a schema are looked at; in fewer codes while there are too many pairwise cells."""
    largest = LARGEST
    while True:
        view = View(tuple(_axis(attribute, largest) for attribute in schema.attributes))
        total = sum(view.sizes)
        if (total * total - sum(size * size for size in view.sizes)) // 2 + total <= MAX_PAIR_CELLS or largest <= 2:
            return view
        largest //= 2


def _axis(attribute: Attribute, largest: int) -> Axis:
    if attribute.is_continuous:
        low, high = attribute.bounds or (0.0, 1.0)
        edges = np.linspace(low, high, min(NUMBER_BINS, largest) + 1)
        texts = tuple(f"{a:.6g}..{b:.6g}" for a, b in pairwise(edges.tolist()))
        return Axis(attribute.name, texts, True, edges=edges[1:-1], ends=edges)
    labels = code_labels(attribute)
    ordered = attribute.kind != "categorical" or attribute.cardinality == 2
    ends = None
    if attribute.bounds is not None:
        ends = np.append(attribute.bin_edges, attribute.bounds[1] + attribute.is_whole).astype(np.float64)
    if attribute.cardinality <= largest:
        return Axis(attribute.name, labels, ordered, attribute.missing_code, ends=ends, dated=attribute.dated)
    declared = attribute.cardinality - (attribute.missing_code is not None)
    width = -(-declared // min(NUMBER_BINS, largest))
    runs = np.arange(attribute.cardinality) // width
    ranges = (labels[s : min(s + width, declared)] for s in range(0, declared, width))
    texts = tuple(" to ".join(dict.fromkeys((own[0], own[-1]))) for own in ranges)
    if attribute.missing_code is not None:
        runs[-1] = len(texts)
        texts = (*texts, labels[-1])
    missing = None if attribute.missing_code is None else len(texts) - 1
    runs = runs.astype(np.min_scalar_type(len(texts) - 1))
    ends = None if ends is None else np.append(ends[:-1:width], ends[-1])
    return Axis(attribute.name, texts, ordered, missing, runs=runs, ends=ends, dated=attribute.dated)


def code_labels(attribute: Attribute) -> tuple[str, ...]:
    """What each code of an attribute stands for."""
    if attribute.labels is not None:
        names = list(attribute.labels)
    elif attribute.values is not None:
        names = list(map(str, attribute.values))
    else:
        pairs = zip(*(ends.tolist() for ends in attribute.bin_ends(shown=True)), strict=True)
        form = attribute.shown if attribute.dated else "{:.10g}".format
        names = [form(low) if low >= high else f"{form(low)}..{form(high)}" for low, high in pairs]
    if isinstance(attribute.missing, Category):
        names.append(attribute.missing.category)
    return tuple(names)


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
