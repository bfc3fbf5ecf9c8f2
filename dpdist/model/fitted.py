"""The fitted model as integers, all that records are drawn from.

After fitting, no floating-point number decides anything: conditional probabilities are cumulative integers in
units of 2**-40, and factors on the weights of a pool's rows are integer logarithms, so that any machine draws the same
records from the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from math import isqrt

import numpy as np
from numpy.typing import NDArray

from dpdist.data.count import marginal, packed_index
from dpdist.model.coding import Coding
from dpdist.model.descent import FactorModel
from dpdist.model.junction import JunctionTree, Set
from dpdist.privacy.arrays import Counts, Floats
from dpdist.privacy.portable import log2

LOG_BITS = 20  # logarithms to base 2 are integers in units of 2**-20
LIMITS = (1e-290, 1e290)  # of a factor


@dataclass(frozen=True, eq=False)
class Adjustment:
    """Factors on the weights of rows, one table a block."""

    blocks: tuple[tuple[int, ...], ...]  # attributes of each block, beyond the table's those of groups of values
    # logarithm to base 2 of the factor of each combination of a block's values, in units of 2**-20
    logs: tuple[NDArray[np.int32], ...]
    groups: tuple[Counts, ...] = ()  # the group of each value of each attribute, where blocks have copies on groups

    def weights(self, columns: Sequence[NDArray[np.integer]], cardinalities: Sequence[int]) -> Counts:
        """Integer weight of each row, at least 0 and at most 2**40; the same on any machine."""
        total = np.zeros(len(columns[0]), np.int64)
        columns, cardinalities = with_groups(columns, cardinalities, self.groups)
        for block, logs in zip(self.blocks, self.logs, strict=True):
            total += logs.take(packed_index([columns[i] for i in block], [cardinalities[i] for i in block]))
        return power_of_two(total)


def with_groups(
    columns: Sequence[NDArray[np.integer]], cardinalities: Sequence[int], groups: Sequence[Counts]
) -> tuple[list[NDArray[np.integer]], tuple[int, ...]]:
    """Columns and their copies on groups of values, and their numbers of values."""
    sizes = [int(group.max()) + 1 for group in groups]
    copies = [
        group.astype(np.min_scalar_type(size - 1))[column]
        for group, size, column in zip(groups, sizes, columns, strict=False)
    ]
    return [*columns, *copies], (*cardinalities, *sizes)


def power_of_two(logs: Counts) -> Counts:
    """``2**(30 + logs / 2**20)`` in integers, `logs` clipped to [-30, 10], by two tables of roots of 2."""
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


def integer_logs(factors: Floats) -> NDArray[np.int32]:
    """Logarithms of factors as an adjustment has them."""
    return np.rint(log2(np.clip(factors, *LIMITS)) * (1 << LOG_BITS)).astype(np.int32)


UNIT_BITS = 40
UNIT = 1 << UNIT_BITS

# shape (configurations of the parents, values): cumulative probabilities; the last of each row is `UNIT`
Cumulative = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Step:
    """One attribute drawn given others."""

    attribute: int
    parents: Set  # drawn before
    cumulative: Cumulative


@dataclass(frozen=True, eq=False)
class Fitted:
    """What records are drawn from."""

    cardinalities: tuple[int, ...]  # of the model's attributes
    steps: tuple[Step, ...]  # in the order of drawing
    fine: tuple[int, ...]  # the model attribute that stands for each of the table's
    values: tuple[NDArray[np.int64], ...]  # of the table's attributes: the value of each code, -1 of merged values
    rare: tuple[NDArray[np.int64], ...]  # for each of the table's attributes, the merged values
    rare_cumulative: tuple[Cumulative, ...]  # their cumulative probabilities, one row; empty where nothing was merged
    # shares of all pairs' cells, in units of 2**-40, as `PairIndex` orders them; empty where records are not balanced
    expected: NDArray[np.int64]
    adjustment: Adjustment | None = None  # of the weights of drawn rows, where all pairs were measured
    # pool_parts, pool_rows: parts of the pool that records are taken from, with an adjustment, and rows of each
    pool_parts: int = 1
    pool_rows: int = 0
    public: tuple[NDArray[np.unsignedinteger], ...] = ()  # the rows of the pool, where they are of a public table

    def equals(self, other: Fitted) -> bool:
        """Whether all arrays of both are the same."""
        ours, theirs = self.arrays(), other.arrays()
        return ours.keys() == theirs.keys() and all(np.array_equal(ours[name], theirs[name]) for name in ours)

    @property
    def domain(self) -> tuple[int, ...]:
        """Number of values of each of the table's attributes."""
        return tuple(
            int(np.count_nonzero(values >= 0)) + len(rare) for values, rare in zip(self.values, self.rare, strict=True)
        )

    def coded(self, i: int) -> tuple[NDArray[np.int64], Floats]:
        """The code of each value of one of the table's attributes, and the value's share of its code."""
        values, rare = self.values[i], self.rare[i]
        size = int(np.count_nonzero(values >= 0)) + len(rare)
        codes, within = np.zeros(size, np.int64), np.ones(size)
        plain = np.flatnonzero(values >= 0)
        codes[values[plain]] = plain
        if len(rare):
            codes[rare] = int(np.flatnonzero(values < 0)[0])
            within[rare] = np.diff(self.rare_cumulative[i][0], prepend=0) / UNIT
        return codes, within

    def holds(self, attributes: Set) -> bool:
        """Whether some of the model's attributes are together in one of the steps."""
        return any(set(attributes) <= {step.attribute, *step.parents} for step in self.steps)

    def conditionals(self) -> dict[Set, Floats]:
        """The conditional probabilities of the steps as tables, by their attributes (ascending)."""
        cards, found = self.cardinalities, {}
        for step in self.steps:
            order = [*step.parents, step.attribute]
            table = np.diff(step.cumulative, axis=1, prepend=0) / UNIT
            table = table.reshape([cards[a] for a in order])
            found[tuple(sorted(order))] = np.transpose(table, [order.index(a) for a in sorted(order)])
        return found

    def arrays(self) -> dict[str, NDArray[np.signedinteger]]:
        """The model as named arrays of integers."""
        arrays: dict[str, NDArray[np.signedinteger]] = {
            "cardinalities": np.array(self.cardinalities, np.int64),
            "fine": np.array(self.fine, np.int64),
            "expected": self.expected,
            "attributes": np.array([step.attribute for step in self.steps], np.int64),
        }
        for i, step in enumerate(self.steps):
            arrays[f"parents{i}"] = np.array(step.parents, np.int64)
            arrays[f"cumulative{i}"] = step.cumulative
        for i in range(len(self.fine)):
            arrays[f"values{i}"], arrays[f"rare{i}"] = self.values[i], self.rare[i]
            arrays[f"weights{i}"] = self.rare_cumulative[i]
        if self.adjustment is not None:
            arrays["pool"] = np.array([self.pool_parts, self.pool_rows, len(self.adjustment.blocks)], np.int64)
            for i, (block, logs) in enumerate(zip(self.adjustment.blocks, self.adjustment.logs, strict=True)):
                arrays[f"block{i}"], arrays[f"logs{i}"] = np.array(block, np.int64), logs
            arrays |= {f"groups{i}": groups for i, groups in enumerate(self.adjustment.groups)}
        for i, column in enumerate(self.public):
            arrays[f"public{i}"] = column.astype(np.int32 if column.dtype.itemsize > 1 else np.int16)
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[np.signedinteger]]) -> Fitted:
        """The model that `arrays` wrote."""
        fine = tuple(arrays["fine"].tolist())
        steps = tuple(
            Step(a, tuple(arrays[f"parents{i}"].tolist()), arrays[f"cumulative{i}"])
            for i, a in enumerate(arrays["attributes"].tolist())
        )
        m = range(len(fine))
        parts, rows, number = arrays["pool"].tolist() if "pool" in arrays else (1, 0, 0)
        blocks = tuple(tuple(arrays[f"block{i}"].tolist()) for i in range(number))
        logs = tuple(arrays[f"logs{i}"] for i in range(number))
        groups = tuple(arrays[f"groups{i}"] for i in m if f"groups{i}" in arrays)
        public = tuple(arrays[f"public{i}"] for i in m if f"public{i}" in arrays)
        return cls(
            tuple(arrays["cardinalities"].tolist()),
            steps,
            fine,
            tuple(arrays[f"values{i}"] for i in m),
            tuple(arrays[f"rare{i}"] for i in m),
            tuple(arrays[f"weights{i}"] for i in m),
            arrays["expected"],
            Adjustment(blocks, logs, groups) if number else None,
            parts,
            rows,
            tuple(column.astype(np.min_scalar_type(int(column.max(initial=0)))) for column in public),
        )


def cumulative_of(weights: Floats) -> Cumulative:
    """Cumulative integers of rows of weights, each rounded to a unit; rows without weight take the mean row."""
    sums = weights.sum(1, keepdims=True)
    rows = np.where(sums > 0, weights, weights.sum(0))
    partial = np.cumsum(rows, axis=1)
    cumulative: Cumulative = np.rint(partial / partial[:, -1:] * UNIT).astype(np.int64)
    return cumulative


def steps_of(tree: JunctionTree, beliefs: Sequence[Floats]) -> tuple[Step, ...]:
    """The conditionals of the beliefs of a junction tree along its drawing order."""
    steps = []
    for j, parents, a in tree.drawing_order():
        clique = tree.cliques[j]
        both = tuple(sorted((*parents, a)))
        table = marginal(beliefs[j], [clique.index(b) for b in both])
        rows = np.moveaxis(table, both.index(a), -1).reshape(-1, tree.cardinalities[a])
        steps.append(Step(a, parents, cumulative_of(rows)))
    return tuple(steps)


def fitted_of(model: FactorModel, coding: Coding, pairs: Mapping[tuple[int, int], Floats] | None) -> Fitted:
    """The model's conditionals along its drawing order, as integers; with marginals of all `pairs` for balancing."""
    steps = steps_of(model.tree, model.beliefs)
    values, rare, weights = [], [], []
    for m in coding.merging:
        of_code = np.full(m.cardinality, -1, np.int64)
        plain = np.setdiff1d(np.arange(len(m.codes)), m.rare)
        of_code[m.codes[plain]] = plain
        values.append(of_code)
        rare.append(m.rare)
        weights.append(cumulative_of(m.weights[None]) if len(m.rare) else np.zeros((0, 0), np.int64))
    expected = _expected(pairs, coding) if pairs is not None else np.zeros(0, np.int64)
    return Fitted(coding.cardinalities, steps, coding.fine, tuple(values), tuple(rare), tuple(weights), expected)


def _expected(pairs: Mapping[tuple[int, int], Floats], coding: Coding) -> NDArray[np.int64]:
    """Shares of all pairs of values: merged values share their code's cells by their weights."""
    within = []
    for m in coding.merging:
        share = np.ones(len(m.codes))
        share[m.rare] = m.weights / m.weights.sum() if len(m.rare) else 1
        within.append(share)
    pieces = []
    for i, j in combinations(range(len(coding.fine)), 2):
        a, b = coding.fine[i], coding.fine[j]
        table = pairs[a, b] if a < b else pairs[b, a].T
        spread = table[np.ix_(coding.merging[i].codes, coding.merging[j].codes)]
        pieces.append((spread * within[i][:, None] * within[j]).ravel())
    return units_of(np.concatenate(pieces)) if pieces else np.zeros(0, np.int64)


def units_of(shares: Floats) -> NDArray[np.int64]:
    """Shares in units. The share of a cell that has all records may be above 1 by an error of floats: it is 1."""
    return np.clip(np.rint(shares * UNIT), 0, UNIT).astype(np.int64)
