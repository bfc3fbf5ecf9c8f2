"""Candidates from a pool of model records: what a candidate does not keep is that of a record that agrees with it.

The model (`dpdist.model`) is learned from the split P alone in one Gaussian account. A candidate keeps a prefix of its
seed, in the order of the attributes, and takes all other values from a row of the pool that has the same prefix, drawn
by weight; where no row has it, from any row. So every seed with this prefix gives the candidate with one probability,
and no other seed can give it: the privacy test counts them as for a network with one number of resampled attributes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpdist.data.count import PairCounts, pair_cells
from dpdist.errors import SpecError
from dpdist.families.base.calibration import GaussianPlan
from dpdist.families.base.network import strides
from dpdist.families.deniability.deniability import CandidateRecords, SeedSynthesis
from dpdist.model.choices import Choices, choose, without_triples
from dpdist.model.forecast import pair_deviation, refuse_undrawable
from dpdist.privacy.arrays import Codes, Counts
from dpdist.privacy.event import Event
from dpdist.privacy.noise import Noise
from dpdist.spec.schema import Schema
from dpdist.storage.stored import Stored

ROWS_EACH = 16  # rows of the pool for each combination of kept values, at least
_HALF = np.uint64(32)


@dataclass(frozen=True, kw_only=True)
class PoolPlan:
    """The noise of the model's tables and picks, fixed before a record is read."""

    choices: Choices
    # of the noise in a cell of all pairs, or where all pairs of a tree are measured, and nothing else
    standard_deviation: float
    cells_at_most: int  # of the model, its counts and its pool, in words of 8 bytes
    event: Event

    def to_json(self) -> dict[str, Any]:
        """The plan as a JSON object of public parameters."""
        names = ("mu", "rounds", "per_round", "cells", "rake", "pool_rows")
        choices = {name: getattr(self.choices, name) for name in names}
        return choices | {"standard_deviation": self.standard_deviation, "event": self.event.to_json()}

    def explain(self) -> str:
        """The plan in one line."""
        choices = self.choices
        of_tree = f"a tree of pair tables and up to {choices.rounds * choices.per_round} more"
        pairs = "tables of all pairs, to which it is raked" if choices.rake else of_tree
        return (
            f"a pool of {choices.pool_rows:,} records of a junction tree, from {pairs}, in "
            f"one Gaussian account of mu {choices.mu:.4g}"
        )


def pool_plan(schema: Schema, *, records: int, kept: int, epsilon: float, delta: float) -> PoolPlan:
    """Plan a pool for this many expected `records` of the split P and `kept` combinations of values. Raises
    AccountingError: the budget is not valid; SpecError: there are too many combinations.
    """
    cards = schema.cardinalities
    whole = GaussianPlan.of(epsilon=epsilon, delta=delta, label="all noisy tables, distances and picks")
    choices = choose(cards, records=max(records, 1), mu=whole.part(1))
    choices = replace(without_triples(choices), balance=0)
    refuse_undrawable(choices, cards)
    if kept * ROWS_EACH > choices.pool_rows:
        raise SpecError(
            f"model.structure: a pool has {choices.pool_rows:,} rows, at least {ROWS_EACH} for each combination of "
            f"kept values, and there are {kept:,} combinations: keep fewer attributes (synthesis.omega), declare an "
            "order that begins with small ones (model.order), or use model.structure=learned"
        )
    return PoolPlan(
        choices=choices,
        standard_deviation=pair_deviation(choices, len(cards))
        if choices.rake
        else whole.sigma * math.sqrt(max(len(cards) - 1, 1) / (choices.tree + choices.pairs or 1)),
        cells_at_most=choices.cells + pair_cells(cards) + choices.pool_rows * (len(cards) // 2 + 1),
        event=whole.event,
    )


@dataclass(frozen=True, eq=False, repr=False)
class RecordPool(Stored):
    """Records of a model, sorted by the values of the kept attributes; safe to store and to read back."""

    FILE: ClassVar[str] = "pool.npz"

    cardinalities: tuple[int, ...]
    order: tuple[int, ...]  # all attributes, the kept ones first
    kept: int  # number of kept attributes
    columns: tuple[NDArray[np.uint32], ...]  # one array for each attribute, in schema order
    starts: NDArray[np.int64]  # first row of each combination of kept values, and the number of rows
    cumulative: NDArray[np.int64]  # 0, and the sums of the weights up to each row; below 2**62

    @classmethod
    def of(
        cls, rows: Codes, weights: Counts, cardinalities: tuple[int, ...], order: Sequence[int], kept: int
    ) -> RecordPool:
        """A pool of weighted rows."""
        first = tuple(order[:kept])
        sizes = [cardinalities[i] for i in first]
        keys = _keys([rows[i] for i in first], sizes)
        sorting = np.argsort(keys, kind="stable")
        starts = np.searchsorted(keys[sorting], np.arange(math.prod(sizes) + 1))
        return cls(
            cardinalities,
            tuple(order),
            kept,
            tuple(column[sorting].astype(np.uint32) for column in rows),
            starts.astype(np.int64),
            np.concatenate([[0], np.cumsum(weights[sorting])]),
        )

    def draw(self, prefix: Codes, words: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Rows that agree with prefixes, by weight, or any where none weighs; a function of prefix and word alone."""
        keys = _keys(prefix, [self.cardinalities[i] for i in self.order[: self.kept]])
        low, high = (self.cumulative[self.starts[keys + side]] for side in (0, 1))
        nothing = high <= low
        low, high = np.where(nothing, 0, low), np.where(nothing, self.cumulative[-1], high)
        weight, fraction = (high - low).astype(np.uint64), words >> _HALF
        # floor(weight * fraction / 2**32), whose products fit 64 bits
        offset = (weight >> _HALF) * fraction + ((weight & np.uint64(0xFFFFFFFF)) * fraction >> _HALF)
        rows = np.searchsorted(self.cumulative, low + offset.astype(np.int64), side="right") - 1
        found: NDArray[np.int64] = np.minimum(rows, len(self.cumulative) - 2)
        return found


def _keys(columns: Sequence[NDArray[Any]], sizes: Sequence[int]) -> NDArray[np.int64]:
    """Mixed-radix code of some columns."""
    keys = np.zeros(len(columns[0]), np.int64)
    for column, stride in zip(columns, strides(sizes), strict=True):
        keys += column.astype(np.int64) * stride
    return keys


def learn_pool(counts: PairCounts, plan: PoolPlan, *, order: Sequence[int], kept: int, noise: Noise) -> RecordPool:
    """Measure, fit and draw the pool from the counts of the split P; candidates keep `kept` of the `order`."""
    from dpdist.model.account import GaussianAccount
    from dpdist.model.draw import draw_part
    from dpdist.model.learn import learn

    account = GaussianAccount(plan.choices.mu, noise)
    fitted = learn(counts, account, choices=plan.choices, drawing=noise).fitted
    rows = draw_part(fitted, noise, "pool/0", plan.choices.pool_rows)
    adjustment = fitted.adjustment
    weights = np.ones(len(rows[0]), np.int64) if adjustment is None else adjustment.weights(rows, fitted.domain)
    return RecordPool.of(rows, weights, counts.cardinalities, order, kept)


@dataclass(frozen=True, eq=False, repr=False)
class PoolSynthesizer(SeedSynthesis):
    """Seed-based synthesis from a pool."""

    pool: RecordPool

    def __post_init__(self) -> None:
        self._keeps(self.pool.order, self.pool.cardinalities, (self.pool.kept,))

    def propose(self, noise: Noise, prefix: Sequence[NDArray[Any]], start: int, stop: int) -> CandidateRecords:
        """Candidates `start` to `stop` - 1, made from their seeds' prefixes."""
        count, pool = stop - start, self.pool
        rows = pool.draw(list(prefix), noise.words("candidates/row", count, start=start))
        codes: Codes = [
            column[rows].astype(np.min_scalar_type(size - 1))
            for column, size in zip(pool.columns, pool.cardinalities, strict=True)
        ]
        for i, values in zip(pool.order, prefix, strict=False):
            codes[i] = np.ascontiguousarray(values)
        return CandidateRecords(codes, np.zeros(count, np.uint8))
