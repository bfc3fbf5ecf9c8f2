"""Raking: weights of a pool of model records, fitted to noisy tables of one, two and three attributes.

The tables lie in blocks of attributes (`dpdist.families.synthesis.weighted`). Block by block, the table of the weights
is fitted to all targets in it, and the rows are multiplied by the table's change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, pairwise

import numpy as np

from dpdist.data.count import marginal
from dpdist.families.synthesis.pieces import Threads
from dpdist.families.synthesis.weighted import WeightedRows
from dpdist.privacy.arrays import Floats
from dpdist.privacy.portable import inner

DAMPING = (0.8, 0.6, 0.4)
"""Powers of the last passes' steps."""

Aim = tuple[tuple[int, ...], Floats, tuple[int, ...]]
"""Places of some attributes in a block, the target of their table, and the shape that it is broadcast with."""


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


def rake(
    rows: WeightedRows, targets: dict[tuple[int, ...], Floats], *, sweeps: int, damping: Sequence[float] = DAMPING
) -> None:
    """Fit the weights of rows to targets of tables of one, two and three attributes.

    Parameters
    ----------
    rows : WeightedRows
        Their weights change; they may come from an earlier fit.
    targets : dict
        Shares, summing to 1: (i,), (i, j) and (i, j, k), i < j < k, shape of the domain. Each lies in a block.
    sweeps : int
        Passes over the blocks, at least 0.
    damping : sequence of float
        The part of a step that each of the last passes goes; the first of them where there are fewer passes. The
        targets contradict each other by their noise, and whole steps end at those of the last blocks. None where
        another fit follows.
    """
    powers = [*[1.0] * (sweeps - len(damping)), *damping][:sweeps]
    inside = [targets_in(block, targets) for block in rows.blocks]
    with Threads(rows.pieces) as threads:
        for power in powers:
            for b, aims in enumerate(inside):
                table = rows.table(b, threads)
                change = block_change(table, aims, power)
                change /= float((table.ravel() * change.ravel()).sum())
                rows.multiply(b, change)


def targets_in(block: tuple[int, ...], targets: Mapping[tuple[int, ...], Floats]) -> list[Aim]:
    """The targets within a block: those of its triples, then of its pairs, then of its attributes.

    Sums over a triple's noisy cells have more noise than the tables of its pairs, which therefore come later.
    """
    found = []
    for size in (3, 2, 1):
        for places in combinations(range(len(block)), size):
            target = targets.get(tuple(block[k] for k in places))
            if target is not None:
                shape = [1] * len(block)
                for place, cells in zip(places, target.shape, strict=True):
                    shape[place] = cells
                found.append((places, target, tuple(shape)))
    return found


def block_change(table: Floats, aims: Sequence[Aim], power: float) -> Floats:
    """Factors that take a block's table towards the targets in it, one after another.

    A step goes a part of the way: the ratio to the power of that part, by its Pade approximant of order 1.
    """
    before, table = table, table.copy()
    for places, target, shape in aims:
        found = marginal(table, places)
        ratio = np.divide(target, found, out=np.ones_like(target), where=found > 0)
        np.minimum(np.maximum(ratio, 0.1, out=ratio), 10, out=ratio)
        if power < 1:
            ratio = ((1 + power) * ratio + (1 - power)) / ((1 - power) * ratio + (1 + power))
        table *= ratio.reshape(shape)
    return np.divide(table, before, out=np.ones_like(table), where=before > 0)
