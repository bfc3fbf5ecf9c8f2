"""What is publicly expected of a table, and of a release before it reads a record: pass rates and two-way errors.

A reference is **Zipf**, independent attributes whose i-th most frequent value has a share proportional to 1/i, or a
**public table** of the same schema, such as last year's. Neither comes from the table that is released. Real attributes
depend on each other, which puts more records in fewer combinations than independence does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdist.data.report import check
from dpdist.data.source import TableSource
from dpdist.data.table import open_table
from dpdist.errors import EmptyTable
from dpdist.families.deniability.search import NOISE_SHARE
from dpdist.families.deniability.spec import PlausibleDeniabilitySpec, Shares
from dpdist.families.deniability.splits import plan_model
from dpdist.privacy.arrays import Codes, Floats, joined
from dpdist.privacy.deniability import pass_probability
from dpdist.spec.schema import Schema
from dpdist.spec.validation import change

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
        """Total variation distance between released and true: of each attribute, float64[m], and of each pair, in
        order. A combination is released in proportion to its share times its pass probability.
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
        """The frequencies in the first four million rows or so of a public table. Raises DataError: as `open_table`."""
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
        codes = joined(found)
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


def stage_epsilon(shares: Shares, epsilon: float) -> float:
    """What each stage may cost on its records for the whole to cost epsilon, about: ``min(epsilon / sqrt(sum q^2), ln(1
    + (e^epsilon - 1)/max q))`` for shares q, which are 1 where each stage uses all records.
    """
    square = math.sqrt(math.fsum(float(q) ** 2 for q in shares))
    return min(epsilon / square, math.log1p(math.expm1(epsilon) / float(max(shares))))


@dataclass(frozen=True, kw_only=True)
class SeedsChoice:
    """Parameters of the seeds' stage."""

    kept: int  # attributes that candidates keep of their seeds
    k: int  # k, epsilon0, minimum_pass_rate: as in the spec
    epsilon0: float
    minimum_pass_rate: float
    check_epsilon: float  # epsilon of each check
    checked: int  # candidates among which the pass rate is checked; 0 where it needs no check


class Expectations:
    """What is expected of the releases of a spec with other parameters, at the epsilon `target` of the whole release;
    `budget` holds the settings of the budget by dotted path.
    """

    def __init__(
        self, spec: PlausibleDeniabilitySpec, reference: Reference, *, target: float, budget: Mapping[str, Any]
    ) -> None:
        self.spec, self.reference, self.target, self.budget = spec, reference, target, budget
        self.order = reference.order
        self.seen: dict[int, Combinations | None] = {}

    def combinations(self, kept: int) -> Combinations | None:
        """Combinations of values of the kept attributes; None where they are too many to list."""
        if kept not in self.seen:
            self.seen[kept] = self.reference.combinations(self.order[:kept])
        return self.seen[kept]

    def cells(self, kept: int) -> int:
        """Number of combinations of codes of the kept attributes."""
        return math.prod(self.spec.table.cardinalities[i] for i in self.order[:kept])

    def pass_rate(self, seeds: SeedsChoice, share: Fraction) -> float:
        """Share of the candidates that pass, where this share of the records are seeds."""
        found = self.combinations(seeds.kept)
        count = self.spec.data.minimum_records * float(share)
        return 0.0 if found is None else found.pass_rate(seeds=count, k=seeds.k, epsilon0=seeds.epsilon0)

    @cached_property
    def _noise(self) -> tuple[float, float]:
        """Noise in a cell of the count tables, and in a structure statistic, at a stage epsilon of 1 on one record. The
        first is inverse to epsilon, the second to epsilon and to the records of T, nearly.
        """
        model = plan_model(change(self.spec, {"privacy.model.epsilon": self.target, **self.budget}), 1.0)
        cell = model.parameters.standard_deviation * self.target
        if model.structure is None:
            return cell, 0.0
        records = self.spec.data.minimum_records * float(self.spec.split.shares.structure)
        return cell, model.structure.standard_deviation * self.target * records

    def error(self, seeds: SeedsChoice | None, shares: Shares, stage: float | None) -> float:
        """`expected_error` of a release; `stage` is what each stage costs on its own split (None for about)."""
        if stage is None:
            stage = stage_epsilon(shares, self.target)
        cell, statistic = self._noise
        n = self.spec.data.minimum_records
        missed = statistic / (stage * n * float(shares[0])) if shares[0] else 0.0
        if self.spec.model.score != "total-variation":
            missed = math.sqrt(math.log(2) * missed / math.pi)
        found = None if seeds is None else self.combinations(seeds.kept)
        bias = None
        if seeds is not None and found is not None:
            bias = found.bias(seeds=n * float(shares[2]), k=seeds.k, epsilon0=seeds.epsilon0)
        return expected_error(
            self.reference,
            self.order,
            cell_noise=cell / stage / (n * float(shares[1])),
            missed=missed,
            parameter_records=n * float(shares[1]),
            seed_records=n * float(shares[2]),
            bias=bias,
        )


def expected_error(
    reference: Reference,
    order: tuple[int, ...],
    *,
    cell_noise: float,
    missed: float,
    parameter_records: float,
    seed_records: float,
    bias: tuple[Floats, Floats] | None,
) -> float:
    """Mean total variation distance expected between the two-way marginals of released records and population.

    Of two kept attributes (the first of `order`): the bias of the privacy test and the sampling of the seeds. Of any
    other pair: the bias of the one that is kept, the sampling of P, the noise of a count table of the pair (the earlier
    attribute in buckets), and the dependence that the noise of the structure hides. `cell_noise` is the deviation of
    the noise in a cell of the count tables as a share of the records in P, `missed` the distance from independence that
    the structure's noise hides, `bias` the `Combinations.bias` of the kept attributes, None where none is kept.
    """
    m = len(order)
    kept = 0 if bias is None else len(bias[0])
    roots = np.array([np.sqrt(reference.marginals[i]).sum() for i in order])
    sizes = np.array([reference.schema.cardinalities[i] for i in order], float)
    buckets = np.array([reference.schema.bucket_counts[i] for i in order], float)
    first, second = np.triu_indices(m, 1)
    sampling = NOISE_SHARE * roots[first] * roots[second]
    error = sampling / math.sqrt(parameter_records) + missed + NOISE_SHARE * cell_noise * buckets[first] * sizes[second]
    if bias is not None:
        single = np.zeros(m)
        single[:kept] = bias[0]
        error += np.maximum(single[first], single[second])
        both = second < kept
        error[both] = bias[1] + sampling[both] / math.sqrt(seed_records)
    return float(np.minimum(error, 1.0).mean())
