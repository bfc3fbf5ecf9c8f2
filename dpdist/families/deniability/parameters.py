"""Parameter learning: a noisy count table per attribute given its parents, from the split P.

One record is in one cell of each of the m tables. `parameter_plan` fixes the kind of noise, its total and its charge
before a record is read; how the total is divided among the tables is decided when the structure is known
(`ParameterPlan.scales`): larger tables get a larger share. A regressed attribute has the share of one table, too, for
the counts of its codes and the sums of its scores in the buckets of its parents.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import partial
from math import prod
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpdist.data.count import CHUNK_ROWS, configuration_index
from dpdist.data.operators import Operator
from dpdist.families.base.calibration import GaussianPlan, Mechanism, add_noise
from dpdist.families.deniability.regression import SUMS_SHARE, scores
from dpdist.families.deniability.structure import MAX_CELLS, Structure
from dpdist.privacy.accountant import calibrate_discrete_laplace, laplace_deviation
from dpdist.privacy.arrays import Codes, Counts
from dpdist.privacy.calibrate import ABOVE, round_up
from dpdist.privacy.event import Event
from dpdist.privacy.events import ApproximateDP
from dpdist.privacy.noise import Noise
from dpdist.spec.schema import Schema
from dpdist.storage.stored import Stored


def tables_operator(structure: Structure, schema: Schema) -> Operator:
    """The count tables of a structure, as one pass over P; the summary is that of `count_tables`."""
    maps = tuple(attribute.bucket_map for attribute in schema.attributes)
    return Operator(
        name="tables",
        chunk=partial(count_tables, structure=structure, bucket_maps=maps),
        combine=operator.add,
        update=partial(add_to_tables, structure=structure, bucket_maps=maps),
    )


def count_tables(codes: Codes, *, structure: Structure, bucket_maps: Sequence[NDArray[np.uint32]]) -> Counts:
    """Count every attribute given its bucketised parents, in one vector, so that partitions add up.

    Returns int64[sum of cells and sums]: the tables one after another, each in C order, and then the sums of the scores
    of each regressed attribute in the buckets of its parents; see `split_tables` and `split_sums`. `bucket_maps` gives
    the bucket of each code, for each attribute.
    """
    counts = np.zeros(sum(structure.cells) + sum(structure.sums), np.int64)
    return add_to_tables(counts, codes, structure=structure, bucket_maps=bucket_maps)


def add_to_tables(
    counts: Counts, codes: Codes, *, structure: Structure, bucket_maps: Sequence[NDArray[np.uint32]]
) -> Counts:
    """`count_tables` of more records, added in place to `counts` and returned: no table is made per batch."""
    tables = np.split(counts, np.cumsum(structure.cells))
    sums = split_sums(counts, structure)
    for start in range(0, len(codes[0]), CHUNK_ROWS):  # chunks stay in the cache
        chunk = [column[start : start + CHUNK_ROWS] for column in codes]
        buckets = {p: np.take(bucket_maps[p], chunk[p]) for chosen in structure.parents for p in chosen}
        for i, chosen in enumerate(structure.counted):
            index = np.zeros(len(chunk[i]), np.int64)
            if chosen:
                index = configuration_index([buckets[p] for p in chosen], [structure.bucket_counts[p] for p in chosen])
            index *= structure.cardinalities[i]
            index += chunk[i]
            np.add.at(tables[i], index, 1)
        for i in structure.regressed:
            score = np.take(scores(structure.cardinalities[i]), chunk[i])
            ends = np.cumsum([structure.bucket_counts[p] for p in structure.parents[i]])
            for p, part in zip(structure.parents[i], np.split(sums[i], ends), strict=False):
                np.add.at(part, buckets[p], score)
    return counts


def split_tables(vector: NDArray[Any], structure: Structure) -> tuple[NDArray[Any], ...]:
    """The tables of `count_tables`, each of shape (configurations, cardinality)."""
    pieces = np.split(vector, np.cumsum(structure.cells))
    return tuple(piece.reshape(-1, size) for piece, size in zip(pieces[:-1], structure.cardinalities, strict=True))


def split_sums(vector: NDArray[Any], structure: Structure) -> tuple[NDArray[Any], ...]:
    """The sums of `count_tables` of each attribute: for each parent, for each bucket; none without a regression."""
    return tuple(np.split(vector[sum(structure.cells) :], np.cumsum(structure.sums)[:-1]))


Kind: TypeAlias = Literal["laplace", "gaussian", "none"]

# a table's share of the budget grows with this power of its cells; measured, flat around the optimum
_ALLOCATION = {"laplace": 1 / 3, "gaussian": 2 / 5}


@dataclass(frozen=True, kw_only=True)
class ParameterPlan:
    """The noise on the count tables, fixed before a record is read."""

    tables: int  # m, one per attribute; L1 sensitivity m, L2 sensitivity sqrt(m)
    noise: Mechanism
    # what all tables share. Laplace: ``sum 1 / scale_i <= total``, pure differential privacy by adding up. Gaussian:
    # ``sum 1 / sigma_i^2 <= total^2``. Either holds for shares chosen from released results
    total: float
    standard_deviation: float  # of the noise in a cell when all tables have equal shares
    cells_at_most: int  # largest number of cells of all tables
    event: Event  # the charge, for any division of the total

    def scales(self, cells: Sequence[int]) -> tuple[float, ...]:
        """Laplace scale or Gaussian deviation of each table."""
        weights = np.array(cells, np.float64) ** _ALLOCATION[self.noise]
        shares = weights / weights.sum()
        rates = self.total * (shares if self.noise == "laplace" else np.sqrt(shares))
        scales = tuple(round_up(1 / rate * ABOVE, bits=20) for rate in rates.tolist())
        power = 1 if self.noise == "laplace" else 2
        spent = sum((1 / Fraction(scale) ** power for scale in scales), Fraction(0))
        if not spent <= Fraction(self.total) ** power:
            raise ArithmeticError("the noise scales exceed the planned total")
        return scales

    def regression_scales(self, scale: float, *, parents: int, reach: int) -> tuple[float, float]:
        """Scales of the counts of a regressed attribute and of its sums, which together cost what a table with this
        `scale` does: a record moves one count by 1, and one sum of each of the parents by `reach` at most.
        """
        power = 1 if self.noise == "laplace" else 2
        times = (1 / (1 - SUMS_SHARE), parents / SUMS_SHARE)
        many, few = times if power == 1 else map(math.sqrt, times)
        counts, sums = scale * many * ABOVE, scale * reach * few * ABOVE
        spent = 1 / Fraction(counts) ** power + parents * (reach / Fraction(sums)) ** power
        if not spent <= 1 / Fraction(scale) ** power:
            raise ArithmeticError("the noise scales of a regression exceed the share of its table")
        return counts, sums

    def to_json(self) -> dict[str, Any]:
        """The plan as a JSON object of public parameters."""
        return asdict(self) | {"event": self.event.to_json()}

    def explain(self) -> str:
        """The plan in one line."""
        return (
            f"{self.tables} count tables, discrete {self.noise.capitalize()} noise of standard deviation "
            f"{self.standard_deviation:.3g} in every cell (divided by table size once the structure is known)"
        )


def parameter_plan(schema: Schema, *, epsilon: float, delta: float, regressed: bool = False) -> ParameterPlan:
    """Plan the noise on the count tables within the budget of the stage (add/remove): Laplace or Gaussian, whichever
    deviates less at equal shares; where attributes are `regressed` Gaussian, since a record moves a sum of each of
    several parents. Raises AccountingError: the budget is not valid.
    """
    m = len(schema.attributes)
    scale = calibrate_discrete_laplace(epsilon=epsilon, delta=0.0, count=m)
    noise: Mechanism = "laplace"
    total, deviation = epsilon, laplace_deviation(scale)
    event: Event = ApproximateDP(epsilon=epsilon, label="parameters")
    if delta:
        gaussian = GaussianPlan.of(epsilon=epsilon, delta=delta, label="parameters")
        sigma = gaussian.sigma
        if regressed or math.sqrt(m * sigma**2 + 1 / 12) < deviation:
            noise, total, deviation = "gaussian", 1 / sigma, math.sqrt(m * sigma**2 + 1 / 12)
            event = gaussian.event
    every = prod(schema.bucket_counts)
    sizes = zip(schema.cardinalities, schema.bucket_counts, strict=True)
    cells = (min(max(MAX_CELLS // m, size), size * (every // buckets)) for size, buckets in sizes)
    return ParameterPlan(
        tables=m, noise=noise, total=total, standard_deviation=deviation, cells_at_most=sum(cells), event=event
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class NoisyTables(Stored):
    """The released noisy counts: safe to store and to read back."""

    FILE: ClassVar[str] = "parameter-tables.npz"
    COMPRESSED: ClassVar[bool] = True

    noise: Kind
    scales: tuple[float, ...]  # Laplace scale or Gaussian deviation of each table; 0 without noise
    tables: tuple[Counts, ...]  # tuple of ndarray of int64, shape (configurations, cardinality)
    sums: tuple[Counts, ...] = ()  # of each attribute, as `split_sums`; none without regression
    sum_scales: tuple[float, ...] = ()  # as `scales`, of the sums

    @property
    def variances(self) -> tuple[float, ...]:
        """Variance of the noise in a cell of each table."""
        return tuple(map(self._variance, self.scales))

    @property
    def sum_variances(self) -> tuple[float, ...]:
        """Variance of the noise in a sum of each attribute."""
        return tuple(map(self._variance, self.sum_scales))

    def _variance(self, scale: float) -> float:
        if scale == 0:
            return 0.0
        return laplace_deviation(scale) ** 2 if self.noise == "laplace" else scale**2 + 1 / 12


def measure_tables(counts: Counts, structure: Structure, *, plan: ParameterPlan, noise: Noise) -> NoisyTables:
    """Add discrete noise to every cell of the counts of P (`count_tables`), empty cells included, and to every sum;
    streams ``parameters/table/<attribute index>`` and ``parameters/regression/<attribute index>``.
    """

    def noisy(values: Counts, kind: str, i: int, scale: float) -> Counts:
        return add_noise(values, mechanism=plan.noise, scale=scale, noise=noise, name=f"parameters/{kind}/{i}")

    scales = list(plan.scales([a + b for a, b in zip(structure.cells, structure.sums, strict=True)]))
    sums, sum_scales = list(split_sums(counts, structure)), [0.0] * len(scales)
    for i in np.flatnonzero(structure.sums).tolist():
        parents, reach = len(structure.parents[i]), structure.cardinalities[i] - 1
        scales[i], sum_scales[i] = plan.regression_scales(scales[i], parents=parents, reach=reach)
        sums[i] = noisy(sums[i], "regression", i, sum_scales[i])
    tables = [noisy(table, "table", i, scales[i]) for i, table in enumerate(split_tables(counts, structure))]
    return NoisyTables(
        noise=plan.noise, scales=tuple(scales), tables=tuple(tables), sums=tuple(sums), sum_scales=tuple(sum_scales)
    )


def exact_tables(counts: Counts, structure: Structure) -> NoisyTables:
    """The counts without noise, **which is not private**: for the benchmarks' noiseless model."""
    tables, sums = (tuple(a.copy() for a in part(counts, structure)) for part in (split_tables, split_sums))
    exact = (0.0,) * len(tables)
    return NoisyTables(noise="none", scales=exact, tables=tables, sums=sums, sum_scales=exact)
