"""What is publicly expected of a table, for planning: how often values and combinations of values occur.

Two references. Without knowledge, **Zipf**: independent attributes whose i-th most frequent value has a share
proportional to 1/i. With a **public table** of the same schema, such as last year's, its own frequencies. Neither
comes from the table that is released.

Real attributes depend on each other, which puts more records in fewer combinations than independence does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdist.data.report import check
from dpdist.data.source import TableSource
from dpdist.data.table import open_table
from dpdist.errors import EmptyTable
from dpdist.privacy.arrays import Codes, Floats
from dpdist.privacy.deniability import pass_probability
from dpdist.spec.schema import Schema

_MOST_CELLS = 1 << 18
_MOST_ROWS = 1 << 22


@dataclass(frozen=True, eq=False)
class Combinations:
    """Combinations of values of some attributes and their shares."""

    values: tuple[NDArray[np.int64], ...]  # tuple of int64[n]: codes of each attribute
    shares: Floats  # float64[n]: they sum to one

    def passing(self, *, seeds: float, k: int, epsilon0: float) -> Floats:
        """Probability that a candidate with each of the combinations passes, one omega fixed (`seeds` in number)."""
        return pass_probability(np.maximum(seeds * self.shares, 1.0), k=k, epsilon0=epsilon0)

    def pass_rate(self, *, seeds: float, k: int, epsilon0: float) -> float:
        """Share of the candidates that pass."""
        return float(self.shares @ self.passing(seeds=seeds, k=k, epsilon0=epsilon0))

    def bias(self, *, seeds: float, k: int, epsilon0: float) -> tuple[Floats, Floats]:
        """Total variation distance between released and true: of each attribute, and of each pair of attributes.

        A combination is released with a probability proportional to its share times its pass probability.

        Returns float64[m], float64[m (m - 1) / 2]: pairs in lexicographic order.
        """
        weights = self.shares * self.passing(seeds=seeds, k=k, epsilon0=epsilon0)
        moved = weights / max(weights.sum(), 1e-300) - self.shares
        sizes = [int(column.max()) + 1 for column in self.values]

        def distance(index: NDArray[np.int64]) -> float:
            return 0.5 * float(np.abs(np.bincount(index, moved)).sum())

        single = [distance(column) for column in self.values]
        pairs = [
            distance(self.values[i] * sizes[j] + self.values[j]) for i, j in combinations(range(len(self.values)), 2)
        ]
        return np.array(single), np.array(pairs)


@dataclass(frozen=True, eq=False)
class Reference:
    """Public expectations of a table."""

    source: str  # where they come from, for people
    schema: Schema
    marginals: tuple[Floats, ...]  # tuple of float64[cardinality]: shares of the values of each attribute
    codes: Codes | None = None  # the public table; None for independent attributes

    @classmethod
    def zipf(cls, schema: Schema) -> Reference:
        """Independent attributes, shares proportional to 1, 1/2, 1/3 and so on."""
        weights = [1 / np.arange(1, size + 1) for size in schema.cardinalities]
        return cls("independent attributes with Zipf shares", schema, tuple(w / w.sum() for w in weights))

    @classmethod
    def table(cls, path: str | Path, schema: Schema, **source: Any) -> Reference:
        """The frequencies in the first rows (some four million) of a public table. Raises DataError: the table cannot
        be read, or does not follow the schema.
        """
        table = open_table(TableSource(paths=(str(path),), extra_columns="ignore", **source), schema)
        found: list[Codes] = []
        rows = 0
        for partition in range(len(table.partitions)):
            for batch in table.batches(partition):
                check(batch.report, schema)
                found.append(batch.codes if batch.keep is None else [column[batch.keep] for column in batch.codes])
                rows += len(found[-1][0])
            if rows >= _MOST_ROWS:
                break
        if not rows:
            raise EmptyTable(f"{path} has no rows that the policies of the schema keep")
        codes = [np.concatenate(columns) for columns in zip(*found, strict=True)]
        marginals = tuple(
            np.bincount(column, minlength=size) / rows for column, size in zip(codes, schema.cardinalities, strict=True)
        )
        return cls(f"the public table {path}", schema, marginals, codes)

    @property
    def order(self) -> tuple[int, ...]:
        """Attributes from the least to the largest entropy, which keeps the combinations of the first ones few."""
        entropy = [-float(p[p > 0] @ np.log(p[p > 0])) for p in self.marginals]
        return tuple(sorted(range(len(entropy)), key=lambda i: (round(entropy[i], 9), i)))

    def combinations(self, attributes: Sequence[int]) -> Combinations | None:
        """Combinations of values of these attributes; None where they are too many."""
        sizes = [self.schema.cardinalities[i] for i in attributes]
        if self.codes is None:
            if math.prod(sizes) > _MOST_CELLS:
                return None
            shares = np.ones(1)
            for i in attributes:
                shares = np.multiply.outer(shares, self.marginals[i]).ravel()
            keys = np.arange(len(shares))
        else:
            if math.prod(sizes) > 2**62:
                return None
            code = np.ravel_multi_index([self.codes[i].astype(np.int64) for i in attributes], sizes)
            keys, counts = np.unique(code, return_counts=True)
            shares = counts / counts.sum()
        return Combinations(tuple(np.unravel_index(keys, sizes)), shares)
