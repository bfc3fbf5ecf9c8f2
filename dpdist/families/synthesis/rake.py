"""Raking: weights of a pool of model records, fitted to noisy tables of all pairs.

The pairs are covered by a few *blocks* of attributes (`dpdist.data.count.covering_blocks`). A row of the pool costs one
look-up a block: the block's table of weights is fitted to the targets of all its pairs, and the rows are
multiplied by the table's change. The logarithms of all changes of a block add up to one table of integers, from
which any machine computes the same weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, pairwise
from math import isqrt, prod

import numpy as np
from numpy.typing import NDArray

from dpdist.data.count import configuration_index, covering_blocks
from dpdist.families.synthesis.inference import marginal
from dpdist.families.synthesis.portable import inner, log2
from dpdist.families.synthesis.portable import power as to_power
from dpdist.privacy.arrays import Counts, Floats

LOG_BITS = 20
"""Logarithms to base 2 are integers in units of 2**-20."""


def shrink(noisy: Floats, model: Floats, sigma: float) -> Floats:
    """James-Stein estimate of counts, from noisy counts towards a model's, in blocks of cells by falling model count.

    Where the cells of a block differ from the model by more than the noise explains, the noisy counts are kept;
    elsewhere the model's. Blocks have 16, 32, 64, ... cells. The result is not negative.
    """
    order = np.argsort(-model, kind="stable")
    edges = [0]
    while edges[-1] < len(order):
        edges.append(edges[-1] + (16 << (len(edges) - 1)))
    estimate = model.copy()
    for start, end in pairwise(edges):
        cells = order[start:end]
        change = noisy[cells] - model[cells]
        evidence = max(inner(change, change), 1e-9)
        estimate[cells] += max(0.0, 1 - max(len(cells) - 2, 1) * sigma**2 / evidence) * change
    return np.maximum(estimate, 0)


@dataclass(frozen=True, eq=False)
class Adjustment:
    """Factors on the weights of rows, one table a block.

    Attributes
    ----------
    blocks : tuple of tuple of int
        Attributes of each block.
    logs : tuple of ndarray of int32
        Logarithm to base 2 of the factor of each combination of a block's values, in units of 2**-20.
    """

    blocks: tuple[tuple[int, ...], ...]
    logs: tuple[NDArray[np.int32], ...]

    def weights(self, columns: Sequence[NDArray[np.integer]], cardinalities: Sequence[int]) -> Counts:
        """Integer weight of each row, at least 0 and at most 2**40; the same on any machine."""
        total = np.zeros(len(columns[0]), np.int64)
        for block, logs in zip(self.blocks, self.logs, strict=True):
            index = configuration_index([columns[i] for i in block], [cardinalities[i] for i in block])
            total += logs.take(index)
        return power_of_two(total)


def power_of_two(logs: Counts) -> Counts:
    """``2**(30 + logs / 2**20)`` in integer arithmetic, with `logs` clipped to [-30, 10].

    The fraction's two halves of 10 bits are looked up in tables of exact roots of 2.
    """
    low, high = _powers(20), _powers(10)
    clipped = np.clip(logs, -30 << LOG_BITS, 10 << LOG_BITS)
    whole = clipped >> LOG_BITS
    fraction = clipped & ((1 << LOG_BITS) - 1)
    product = high[fraction >> 10] * low[fraction & 1023] >> 30  # 2**30 times a number in [1, 2)
    powers: Counts = np.where(whole >= 0, product << np.maximum(whole, 0), product >> np.maximum(-whole, 0))
    return powers


@lru_cache(maxsize=2)
def _powers(bits: int) -> Counts:
    """``floor(2**30 * 2**(i / 2**bits))`` for i below 1024."""
    precision = 100
    roots = []  # 2**(1/2), 2**(1/4), ..., as integers in units of 2**-100
    root = 2 << precision
    for _ in range(bits):
        root = isqrt(root << precision)
        roots.append(root)
    table = []
    for i in range(1024):
        value = 1 << precision
        for place in range(10):
            if i >> place & 1:
                value = value * roots[bits - 1 - place] >> precision
        table.append(value >> (precision - 30))
    return np.array(table, np.int64)


def rake(
    columns: Sequence[NDArray[np.integer]],
    cardinalities: Sequence[int],
    targets: dict[tuple[int, ...], Floats],
    *,
    sweeps: int,
    start: Adjustment | None = None,
) -> tuple[Adjustment, Counts]:
    """Fit the weights of a pool to targets of tables of one, two and three attributes.

    Parameters
    ----------
    columns : sequence of ndarray
        The pool.
    targets : dict
        Shares, summing to 1: (i,), (i, j) and (i, j, k), i < j < k, shape of the domain.
    sweeps : int
        Passes over the blocks. The steps are damped more and more, as the targets contradict each other by their noise.
    start : Adjustment, optional
        Weights of an earlier fit, to blocks that come first again.

    Returns
    -------
    Adjustment
    ndarray of int64
        Shares of the weighted pool in the cells of all pairs (i, j), one after another, in units of 2**-40.
    """
    rows = len(columns[0])
    blocks = covering_blocks(tuple(cardinalities))
    blocks += tuple(t for t in targets if len(t) == 3 and not any(set(t) <= set(block) for block in blocks))
    shapes = [tuple(cardinalities[i] for i in block) for block in blocks]
    keys = [
        configuration_index([columns[i] for i in block], shape).astype(np.int32)
        for block, shape in zip(blocks, shapes, strict=True)
    ]
    logs = [np.zeros(prod(shape)) for shape in shapes]
    weights = np.ones(rows)
    if start is not None:
        for b, log in enumerate(start.logs):
            logs[b] += log.reshape(-1) / (1 << LOG_BITS)
        weights = start.weights(columns, cardinalities) / float(1 << 30)
    power, factors = 1.0, np.empty(rows)
    for _ in range(sweeps):
        for b, (block, shape) in enumerate(zip(blocks, shapes, strict=True)):
            table = np.bincount(keys[b], weights=weights, minlength=prod(shape)).reshape(shape) / rows
            change = block_change(table, block, targets, power).ravel()
            change /= float((table.ravel() * change).sum())
            weights *= change.take(keys[b], mode="clip", out=factors)  # without a new array each time
            logs[b] += log2(change)
        power = max(0.35, 0.85 * power)
    shares: dict[tuple[int, ...], Floats] = {}
    for key, block, shape in zip(keys, blocks, shapes, strict=True):
        table = np.bincount(key, weights=weights, minlength=prod(shape)).reshape(shape) / rows
        for places in combinations(range(len(block)), 2):
            shares[tuple(block[k] for k in places)] = marginal(table, places)
    flat = np.concatenate([shares[pair].ravel() for pair in combinations(range(len(columns)), 2)])
    return Adjustment(blocks, tuple(_integers(log) for log in logs)), np.rint(flat * 2.0**40).astype(np.int64)


def _integers(log: Floats) -> NDArray[np.int32]:
    return np.rint(np.clip(log, -1000, 1000) * (1 << LOG_BITS)).astype(np.int32)


def block_change(table: Floats, block: tuple[int, ...], targets: dict[tuple[int, ...], Floats], power: float) -> Floats:
    """Factors that take a block's table towards the targets of its triples, then of its pairs, then of its attributes.

    Sums over a triple's noisy cells have more noise than the tables of its pairs, which therefore come later.
    """
    change = np.ones_like(table)
    places: list[tuple[int, ...]] = [*combinations(range(len(block)), 2)]
    triples = combinations(range(len(block)), 3)
    scopes: list[tuple[int, ...]] = [place for place in triples if tuple(block[k] for k in place) in targets]
    scopes += places + [(k,) for k in range(len(block))]
    for place in scopes:
        target = targets.get(tuple(block[k] for k in place))
        if target is None:
            continue
        found = marginal(table, place)
        ratio = np.divide(target, found, out=np.ones_like(target), where=found > 0)
        factor = to_power(np.clip(ratio, 0.1, 10), power)
        factor = factor.reshape([size if k in place else 1 for k, size in enumerate(table.shape)])
        table = table * factor
        change *= factor
    return change
