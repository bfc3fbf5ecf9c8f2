"""A Bayesian network over integer codes, with probabilities that are exact multiples of 2^-64.

The conditional distribution of every attribute is a row of integer thresholds. A value is drawn by comparing
a 64-bit word with them, so the probability of each value is known exactly, and that exact probability is the
one used everywhere: in the draws, in the privacy test and in the accounting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpdist.storage.stored import Stored

_LOG_UNIT = 64 * np.log(2.0)


def strides(counts: Sequence[int]) -> tuple[int, ...]:
    """Place values of a mixed-radix index whose first digit is the most significant."""
    return tuple(prod(counts[j + 1 :]) for j in range(len(counts)))


@dataclass(frozen=True, eq=False)
class Network(Stored):
    """A Bayesian network over coded attributes (PD section 3.2, eq. 4-6)."""

    FILE: ClassVar[str] = "network.bin"

    cardinalities: tuple[int, ...]  # number of codes of each attribute
    bucket_maps: tuple[NDArray[np.uint32], ...]  # uint32: code to bucket code, the values a parent is seen through
    bucket_counts: tuple[int, ...]  # number of buckets of each attribute
    parents: tuple[tuple[int, ...], ...]  # parents of each attribute, ascending
    order: tuple[int, ...]  # sigma: a topological order of the attributes, parents first
    # uint64[configurations, cardinality - 1]: row c of attribute i holds ``T_v = floor(2^64 · CDF(v))`` given parent
    # configuration c. Value v has probability exactly ``(T_v - T_{v-1}) / 2^64``, with T_{-1} = 0 and T_last = 2^64
    thresholds: tuple[NDArray[np.uint64], ...]

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


_BLOCK = 1 << 14

WEIGHT_BITS = 48  # integer weights of one distribution sum to at most 2^48, so that 64-bit arithmetic is exact


def thresholds_from_weights(weights: ArrayLike) -> NDArray[np.uint64]:
    """Thresholds of the distributions proportional to rows of weights: uint64[rows, values - 1], non-decreasing along
    rows.

    Weights are non-negative and finite, each row with a positive sum (at most 2^48 for integers), else ValueError.
    Integer weights k give ``T_v = floor(2^64 · (k_0 + ... + k_v) / (k_0 + ... + k_last))`` exactly. Floating-point
    weights are first scaled, row by row, by the power of two that lets the sum fill 48 bits, and rounded half to even;
    a positive weight stays at least one. Both steps are the same on any machine and preserve the support, save that a
    row whose last weights are zero leaves 2^-64 to the last value (2^64 is not a 64-bit threshold).
    """
    table = np.asarray(weights)
    if table.ndim != 2 or table.shape[1] == 0 or table.dtype.kind not in "iuf":
        raise ValueError("weights form a table of numbers: a row per distribution, a column per value")
    if not np.isfinite(table).all() or (table < 0).any() or not (table > 0).any(axis=1).all():
        raise ValueError("weights are finite and non-negative, with a positive sum in each row")
    integers = _integer_weights(table) if table.dtype.kind == "f" else table.astype(np.uint64)
    cumulative = np.cumsum(integers, axis=1, dtype=np.uint64)
    if max(integers.max(initial=0), cumulative[:, -1].max(initial=0)) > 1 << WEIGHT_BITS:
        raise ValueError(f"integer weights sum to at most 2^{WEIGHT_BITS} in each row")
    total = cumulative[:, -1:]
    remainder = cumulative[:, :-1].copy()
    full = remainder == total  # CDF 1 before the last value: the threshold 2^64 becomes 2^64 - 1
    remainder[full] = 0
    result: NDArray[np.uint64] = np.zeros_like(remainder)
    shift = np.uint64(64 - WEIGHT_BITS)
    for _ in range(64 // int(shift)):  # long division, `shift` bits of the quotient at a time
        quotient, remainder = np.divmod(remainder << shift, total)
        result = (result << shift) | quotient
    result[full] = np.iinfo(np.uint64).max
    return result


def _integer_weights(table: NDArray[Any]) -> NDArray[np.uint64]:
    """Rows of floating-point weights as integers whose sums are at most 2^48."""
    table = table.astype(np.float64)
    bits = WEIGHT_BITS - int(table.shape[1] - 1).bit_length()
    _, exponent = np.frexp(table.max(axis=1, keepdims=True))
    scaled = np.rint(np.ldexp(table, bits - exponent))
    result: NDArray[np.uint64] = np.maximum(scaled, table > 0).astype(np.uint64)
    return result


def draw(
    thresholds: NDArray[np.uint64], row: NDArray[np.int64], words: NDArray[np.uint64]
) -> NDArray[np.unsignedinteger[Any]]:
    """Values drawn from given rows (int64[n]) of thresholds by uniform words (uint64[n]): the number of thresholds in
    the row that are at most the word, in the smallest unsigned dtype.
    """
    width = thresholds.shape[1]
    values = np.zeros(len(words), np.min_scalar_type(width))
    if width == 0:
        return values
    flat = thresholds.reshape(-1)
    for start in range(0, len(words), _BLOCK):  # blocks stay in the cache
        word = words[start : start + _BLOCK]
        first = row[start : start + _BLOCK] * width
        at = first.copy()
        length = width
        while length:  # all draws halve together: log2(values) steps
            half = (length + 1) // 2
            below = flat[half - 1 :].take(at) <= word
            at += half * below if half > 1 else below
            length -= half
        values[start : start + _BLOCK] = at - first
    return values
