"""Structure learning: the parents of each attribute, from noisy pairwise statistics of the split T.

`structure_plan` fixes the noise and its charge before a record is read, `measure_structure` turns all pairwise counts
into a few noisy statistics, and `learn_structure` chooses the parents from them, which is post-processing. The scores
are ``cfs`` (PD section 3.3), from entropies, and ``total-variation`` (the parents that lower the expected error of the
two-way marginals): the distance of each pair of bucketised attributes from independence, whose sensitivity 3/n is some
``log2(n)/3`` times smaller than an entropy's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import prod
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np

from dpdist.data.count import PairCounts
from dpdist.errors import SpecError
from dpdist.families.base.calibration import grid_noise
from dpdist.families.deniability import search
from dpdist.privacy.accountant import choose_noise
from dpdist.privacy.arrays import grid_below, round_to_grid
from dpdist.privacy.event import Event
from dpdist.privacy.noise import Noise
from dpdist.privacy.sensitivity import bounds
from dpdist.spec.schema import Schema
from dpdist.storage.stored import Stored

Score: TypeAlias = Literal["cfs", "total-variation"]
Order: TypeAlias = Literal["learned", "small-first"] | tuple[str, ...]
# largest number of cells of all count tables together (32 MiB of int64); an attribute's table has an equal share
MAX_CELLS = 1 << 22
RECORDS_PER_CELL = 2  # ``cfs`` keeps this many standard deviations of noise in an average cell
# share of a pair's mutual information taken to be lost when a parent is seen through buckets; measured on census tables
# (0.05 to 0.2 serve alike)
BUCKET_LOSS = 0.1
# share of a pair's mutual information taken to be lost where the child's mean alone depends on the parent; measured on
# census tables, as accurate as 0.5
REGRESSION_LOSS = 0.3
_FLOAT_ERROR = 2.0**-40  # most that double precision moves an entropy below 64 bits; charged
_FINEST_GRID = 2.0**-46  # entropies below 64 bits are less than 2^52 steps


@dataclass(frozen=True, kw_only=True)
class StructurePlan:
    """The noisy statistics of structure learning, fixed before a record is read."""

    score: Score
    minimum_records: int  # checked public lower bound of the number of records in T
    statistics: int  # K, how many
    sensitivity: float  # most that one record changes each (bits for entropies), rounded upwards; exact for entropies
    published_sensitivity: float  # the bound in the literature: PD equation 9, or Zhang et al. 2017 for total variation
    noise: Literal["laplace", "gaussian"]
    scale: float  # scale, standard_deviation: of the noise, in the unit of the statistic
    standard_deviation: float
    grid: float  # statistics and noise are multiples of it
    event: Event  # the charge

    def to_json(self) -> dict[str, Any]:
        """The plan as a JSON object of public parameters."""
        return asdict(self) | {"event": self.event.to_json()}

    def explain(self) -> str:
        """The plan in one line."""
        what, unit = ("pair distances", "") if self.score == "total-variation" else ("entropies", " bits")
        return (
            f"{self.score}: {self.statistics} {what}, {self.noise.capitalize()} noise of standard deviation "
            f"{self.standard_deviation:.3g}{unit} (sensitivity {self.sensitivity:.3g}, published bound "
            f"{self.published_sensitivity:.3g})"
        )


def structure_plan(
    schema: Schema, *, minimum_records: int, epsilon: float, delta: float, score: Score = "cfs"
) -> StructurePlan:
    """Plan the noisy statistics of structure learning within the budget of the stage (add/remove). `minimum_records` is
    a public lower bound of the number of records in T; check it with a noisy count before use. Raises SpecError: the
    schema has one attribute; AccountingError: the budget or the number of records is not valid.
    """
    if len(schema.attributes) < 2:
        raise SpecError("model.structure: one attribute has no structure to learn; set it to `independent`")
    if score == "total-variation":
        count = math.comb(len(schema.attributes), 2)
        exact, published = (
            search.total_variation_sensitivity(minimum_records),
            3 / minimum_records + 2 / minimum_records**2,
        )
    else:
        count = len(search.entropy_columns(schema))
        both = bounds(records=minimum_records, order=1, adjacency="add/remove")
        exact, published = both.sensitivity, both.published_bound
    grid = max(grid_below(exact * 2.0**-30), _FINEST_GRID)
    choice = choose_noise(
        count=count, sensitivity=exact + 2 * _FLOAT_ERROR, epsilon=epsilon, delta=delta, grid=grid, label="structure"
    )
    return StructurePlan(
        score=score,
        minimum_records=minimum_records,
        statistics=count,
        sensitivity=exact,
        published_sensitivity=published,
        noise=choice.kind,
        scale=choice.scale,
        standard_deviation=choice.standard_deviation,
        grid=grid,
        event=choice.event,
    )


@dataclass(frozen=True, kw_only=True)
class StructureStatistics(Stored):
    """The released noisy statistics: safe to store and to read back."""

    FILE: ClassVar[str] = "structure-statistics.json"

    score: Score  # as in the plan
    # entropies in bits in the order of `entropy_columns`, or distances in the order of the pairs
    values: tuple[float, ...]


def measure_structure(counts: PairCounts, schema: Schema, *, plan: StructurePlan, noise: Noise) -> StructureStatistics:
    """The noisy statistics of T, from all its single and pairwise counts. The number of records must have passed its
    check. Streams ``structure/entropies`` and ``structure/total-variation``.
    """
    if plan.score == "total-variation":
        name, exact = "structure/total-variation", search.pair_distances(counts, schema)
    else:
        name, exact = "structure/entropies", search.entropies(counts, schema)
    values = round_to_grid(exact, grid=plan.grid)
    values = values + grid_noise(noise, name, len(values), mechanism=plan.noise, scale=plan.scale, grid=plan.grid)
    return StructureStatistics(score=plan.score, values=tuple(values.tolist()))


@dataclass(frozen=True, kw_only=True)
class Structure:
    """The parents of every attribute and the order of the attributes."""

    cardinalities: tuple[int, ...]  # cardinalities, bucket_counts: values and buckets of each attribute
    bucket_counts: tuple[int, ...]
    parents: tuple[tuple[int, ...], ...]  # parents of each attribute, ascending
    order: tuple[int, ...]  # sigma: every attribute after its parents
    regressed: tuple[int, ...] = ()  # attributes whose conditional is a regression on their parents

    @property
    def counted(self) -> tuple[tuple[int, ...], ...]:
        """Parents in the count table of each attribute; that of a regressed attribute has none."""
        return tuple(() if i in self.regressed else chosen for i, chosen in enumerate(self.parents))

    @property
    def configurations(self) -> tuple[int, ...]:
        """Number of rows of each attribute's count table: joint configurations of the parents in it."""
        return tuple(prod(self.bucket_counts[p] for p in chosen) for chosen in self.counted)

    @property
    def cells(self) -> tuple[int, ...]:
        """Number of cells of each attribute's count table."""
        return tuple(a * b for a, b in zip(self.configurations, self.cardinalities, strict=True))

    @property
    def sums(self) -> tuple[int, ...]:
        """Number of sums of scores of each attribute, one for each bucket of its parents; 0 if it is not regressed."""
        return tuple(
            sum(self.bucket_counts[p] for p in chosen) if i in self.regressed else 0
            for i, chosen in enumerate(self.parents)
        )


def independent_structure(schema: Schema, *, order: Order = "small-first") -> Structure:
    """No parents: the baseline of independent marginals."""
    return _structure(schema, [[] for _ in schema.attributes], order)


def learn_structure(
    statistics: StructureStatistics,
    schema: Schema,
    *,
    records: float,
    table_noise: float,
    order: Order = "small-first",
    regressed: tuple[int, ...] = (),
) -> Structure:
    """Choose parents and order from the noisy statistics; costs no privacy.

    `records` is about how many records the count tables will hold: public or released, never the true number.
    `table_noise` is the deviation of the noise in one of their cells. `order` says where the parents leave a choice
    (schema order, or small domains first), or names all attributes: an attribute's parents are then chosen among those
    before it. The conditionals of the `regressed` attributes will be regressions, whose noise does not grow with the
    joint configurations.
    """
    sizes, buckets = schema.cardinalities, schema.bucket_counts
    places = _places(schema, order)
    largest = cells = MAX_CELLS // len(sizes)
    if statistics.score == "cfs":
        cells = min(cells, int(records / (RECORDS_PER_CELL * max(table_noise, 1e-9))))

    def admissible(i: int, chosen: Sequence[int]) -> bool:
        configurations, most = prod(buckets[p] for p in chosen), largest if i in regressed else cells
        if isinstance(order, tuple) and any(places[p] > places[i] for p in chosen):
            return False
        return configurations * sizes[i] <= most

    if statistics.score == "cfs":
        turns = sorted(range(len(sizes)), key=lambda i: (sizes[i], i))
        child, between = search.symmetrical_uncertainty(statistics.values, schema)
        return _structure(
            schema, search.cfs_parents(child, between, sequence=turns, admissible=admissible), order, regressed
        )
    dependence = np.pi * np.clip(search.pair_matrix(statistics.values, len(sizes)), 0.0, 1.0) ** 2
    loss = [BUCKET_LOSS if b < c else 0.0 for b, c in zip(buckets, sizes, strict=True)]
    seen = dependence * (1 - np.array(loss))
    seen[list(regressed)] *= 1 - REGRESSION_LOSS
    parents = search.dependence_parents(
        dependence,
        seen,
        cardinalities=sizes,
        bucket_counts=buckets,
        relative_noise=table_noise / max(records, 1.0),
        admissible=admissible,
        regressed=regressed,
    )
    return _structure(schema, parents, order, regressed)


def _structure(
    schema: Schema, parents: Sequence[Sequence[int]], order: Order, regressed: tuple[int, ...] = ()
) -> Structure:
    return Structure(
        cardinalities=schema.cardinalities,
        bucket_counts=schema.bucket_counts,
        parents=tuple(tuple(sorted(chosen)) for chosen in parents),
        order=search.topological_order(parents, _places(schema, order)),
        regressed=regressed,
    )


def _places(schema: Schema, order: Order) -> Sequence[int]:
    """What decides which of two attributes comes first."""
    if order == "small-first":
        return schema.cardinalities
    if order == "learned":
        return range(len(schema.attributes))
    return [order.index(name) for name in schema.names]
