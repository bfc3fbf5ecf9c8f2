"""Integer thresholds that turn a uniform 64-bit word into a value with exactly known probabilities."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

_BLOCK = 1 << 14

WEIGHT_BITS = 48
"""The integer weights of one distribution sum to at most 2^48, so that 64-bit arithmetic is exact."""


def thresholds_from_weights(weights: ArrayLike) -> NDArray[np.uint64]:
    """Thresholds of the distributions proportional to rows of weights: uint64[rows, values - 1], non-decreasing along
    rows.

    Weights are non-negative and finite, each row with a positive sum (at most 2^48 for integers), else ValueError.
    Integer weights k give ``T_v = floor(2^64 · (k_0 + ... + k_v) / (k_0 + ... + k_last))`` in exact integer arithmetic.
    Floating-point weights are first rounded to integers, row by row: each is multiplied by the power of two that lets
    the row's sum fill, and not exceed, 48 bits, and rounded half to even; a positive weight stays at least one. Both
    steps give the same result on any machine and preserve the support, save that a row whose last weights are zero
    leaves 2^-64 to the last value (2^64 is not a 64-bit threshold).
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
