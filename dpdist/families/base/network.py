"""A Bayesian network over integer codes, with probabilities that are exact multiples of 2^-64.

The conditional distribution of every attribute is a row of integer thresholds. A value is drawn by comparing
a 64-bit word with them, so the probability of each value is known exactly, and that exact probability is the
one used everywhere: in the draws, in the privacy test and in the accounting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import prod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpdist.families.base.thresholds import draw
from dpdist.storage.stored import Stored

_LOG_UNIT = 64 * np.log(2.0)


def strides(counts: Sequence[int]) -> tuple[int, ...]:
    """Place values of a mixed-radix index whose first digit is the most significant."""
    return tuple(prod(counts[j + 1 :]) for j in range(len(counts)))


@dataclass(frozen=True, eq=False)
class Network(Stored):
    """A Bayesian network over coded attributes (PD section 3.2, eq. 4-6).

    Raises ValueError where the parts do not form a network: wrong lengths, shapes or dtypes, a cycle, an order that is
    not topological, decreasing thresholds.
    """

    FILE: ClassVar[str] = "network.bin"

    cardinalities: tuple[int, ...]  # number of codes of each attribute
    bucket_maps: tuple[NDArray[np.uint32], ...]  # uint32: code to bucket code, the values a parent is seen through
    bucket_counts: tuple[int, ...]  # number of buckets of each attribute
    parents: tuple[tuple[int, ...], ...]  # parents of each attribute, ascending
    order: tuple[int, ...]  # sigma: a topological order of the attributes, parents first
    # uint64[configurations, cardinality - 1]: row c of attribute i holds ``T_v = floor(2^64 · CDF(v))`` given parent
    # configuration c. Value v has probability exactly ``(T_v - T_{v-1}) / 2^64``, with T_{-1} = 0 and T_last = 2^64
    thresholds: tuple[NDArray[np.uint64], ...]

    def __post_init__(self) -> None:
        count = len(self.cardinalities)
        parts = (self.bucket_maps, self.bucket_counts, self.parents, self.order, self.thresholds)
        if count == 0 or any(len(part) != count for part in parts):
            raise ValueError("every part of a network has one entry per attribute, at least one")
        check_order(self.parents, self.order)
        for i in range(count):
            cardinality, buckets, table = self.cardinalities[i], self.bucket_maps[i], self.thresholds[i]
            if buckets.shape != (cardinality,) or buckets.dtype.kind not in "iu" or buckets.min() < 0:
                raise ValueError(f"attribute {i}: the bucket map has one bucket code per code")
            if int(buckets.max()) >= self.bucket_counts[i]:
                raise ValueError(f"attribute {i}: a bucket code is not below the number of buckets")
            if table.dtype != np.uint64 or table.shape != (self.configurations(i), cardinality - 1):
                raise ValueError(f"attribute {i}: thresholds are uint64 of shape (configurations, codes - 1)")
            if (table[:, 1:] < table[:, :-1]).any():
                raise ValueError(f"attribute {i}: thresholds decrease within a row")
        for name in ("bucket_maps", "thresholds"):
            frozen = tuple(_read_only(array) for array in getattr(self, name))
            object.__setattr__(self, name, frozen)

    def __len__(self) -> int:
        return len(self.cardinalities)

    def configurations(self, i: int) -> int:
        """Number of joint parent configurations of attribute i."""
        return prod(self.bucket_counts[p] for p in self.parents[i])

    def configuration(self, i: int, codes: Sequence[NDArray[Any]]) -> NDArray[np.int64]:
        """Parent configuration of attribute i in each of n records, int64[n]: mixed radix over the bucket codes of the
        parents, ascending, the first most significant. Of `codes`, in schema order, only those of the parents are read.
        """
        tables = self._places[i]
        if not tables:
            return np.zeros(len(codes[0]), np.int64)
        (first, table), *rest = zip(self.parents[i], tables, strict=True)
        index: NDArray[np.int64] = table[codes[first]]
        for parent, table in rest:
            index += table[codes[parent]]
        return index

    def draw(
        self, i: int, configuration: NDArray[np.int64], words: NDArray[np.uint64]
    ) -> NDArray[np.unsignedinteger[Any]]:
        """Values of attribute i given parent configurations, int64[n], by uniform words, uint64[n]: the smallest
        unsigned dtype.
        """
        return draw(self.thresholds[i], configuration, words)

    def log_probability(self, i: int, configuration: NDArray[np.int64], values: NDArray[Any]) -> NDArray[np.float64]:
        """Natural logarithm of the exact probability of values of attribute i given parent configurations, float64[n]:
        ``ln((T_v - T_{v-1}) / 2^64)``; minus infinity for a value that is never drawn.
        """
        at = configuration * self.cardinalities[i] + values
        result: NDArray[np.float64] = self._log_tables[i].reshape(-1).take(at)
        return result

    @cached_property
    def _places(self) -> tuple[tuple[NDArray[np.int64], ...], ...]:
        """For each attribute and parent: code of the parent -> its share of the configuration index."""
        places = []
        for parents in self.parents:
            radix = strides([self.bucket_counts[p] for p in parents])
            places.append(tuple(self.bucket_maps[p].astype(np.int64) * s for p, s in zip(parents, radix, strict=True)))
        return tuple(places)

    @cached_property
    def _log_tables(self) -> tuple[NDArray[np.float64], ...]:
        """For each attribute: ln of the exact probabilities, shape (configurations, cardinality)."""
        result = []
        for table in self.thresholds:
            width = np.diff(table, axis=1, prepend=np.uint64(0), append=np.uint64(0)).astype(np.uint64)
            log = np.full(width.shape, -np.inf)
            np.log(width.astype(np.float64), out=log, where=width > 0)
            log -= _LOG_UNIT
            log[width[:, -1] == 0, -1] = 0.0  # 2^64 wrapped to zero: the last value is certain
            result.append(log)
        return tuple(result)


def check_order(parents: Sequence[Sequence[int]], order: Sequence[int]) -> None:
    """Check that `order` lists every attribute once, each after its parents (so that there is no cycle). Raises
    ValueError: it does not, or a parent list is not strictly ascending.
    """
    count = len(parents)
    if sorted(order) != list(range(count)):
        raise ValueError("the order lists every attribute exactly once")
    place = {attribute: at for at, attribute in enumerate(order)}
    for i, ps in enumerate(parents):
        if any(p not in place for p in ps) or any(a >= b for a, b in pairwise(ps)):
            raise ValueError(f"attribute {i}: parents are attribute indexes in ascending order")
        if any(place[p] >= place[i] for p in ps):
            raise ValueError(f"attribute {i}: a parent does not come before it, or is in a cycle")


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    result = np.ascontiguousarray(array)
    if result is array or result.base is not None:
        result = result.copy()
    result.setflags(write=False)
    return result
