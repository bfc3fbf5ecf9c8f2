"""From the spec of a histogram release to its frozen plan: noise, guarantee, charge, memory. Touches no record."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar

from dpdist.data.records import BATCH_ROWS
from dpdist.errors import AccountingError, SpecError
from dpdist.families.base.calibration import Mechanism, deviation
from dpdist.families.base.plan import Needs, Plan, core_seconds
from dpdist.families.histogram.binning import BinningPlan, plan_binning
from dpdist.families.histogram.counts import CountPlan, Query, fewest_cells, parent_cells
from dpdist.families.histogram.curves import CurvePlan, plan_mean
from dpdist.families.histogram.entropy import EntropyPlan, check_of_records, plan_entropies
from dpdist.families.histogram.kernels import eigenbasis
from dpdist.families.histogram.measurement import (
    LeakagePlan,
    Measurement,
    for_clients,
    plan_leakage,
    plan_measurement,
    sampler_delta,
)
from dpdist.families.histogram.panel import Panel
from dpdist.families.histogram.spec import CHECK_SHARE, HistogramSpec
from dpdist.federated.messages import LEAST_SIGMA
from dpdist.federated.plan import SummedPlan
from dpdist.privacy.calibrate import ABOVE
from dpdist.privacy.checks import CountCheck
from dpdist.privacy.event import Event
from dpdist.privacy.events import ApproximateDP, Composed, Replacement
from dpdist.privacy.formatting import Fact, mebibytes
from dpdist.privacy.guarantee import DifferentialPrivacy, Guarantee
from dpdist.privacy.pieces import flat
from dpdist.publish.part_format import PartFormat
from dpdist.spec.release import parse_bytes

_STEPS = 9  # of the search for what composition leaves over
_VALUE_BYTES = 40  # of a value while it is read and encoded
_NUMBER_BYTES = 64  # of a continuous number


@dataclass(frozen=True, kw_only=True)
class HistogramPlan(Plan):
    """Everything a histogram release will do and cost, before it reads a record."""

    noise_name: ClassVar[str] = "Deviation of a count of the first histogram (of the mean of curves, in L2)"

    spec: HistogramSpec
    counts: CountPlan | None = None  # what one pass counts; None for curves
    binning: BinningPlan | None = None  # choice of adaptive bins
    measurement: Measurement | None = None  # noise of the histograms, unless it is calibrated to leakage
    leakage: LeakagePlan | None = None  # noise of histograms whose leakage is bounded
    entropies: EntropyPlan | None = None
    count: CountCheck | None = None  # the check of ``data.minimum_records`` that entropies need (add/remove)
    curves: CurvePlan | None = None
    panel: Panel | None = None  # what is measured of histograms by period, in the place of their counts

    @cached_property
    def event(self) -> Event:
        """The charge: of the leakage, of the curves, or of all stages together."""
        if self.leakage is not None:
            return self.leakage.event
        stages = (self.curves, self.count, self.binning, self.entropies, self.measurement)
        parts = tuple(part.event for part in stages if part is not None)
        event = parts[0] if len(parts) == 1 else Composed(parts)
        return Replacement(event) if self.spec.privacy.adjacency == "replacement" else event

    @property
    def kind(self) -> str:
        """Kind of guarantee, as the ledger's policies name it."""
        return "dp" if self.leakage is None else "pml"

    @cached_property
    def delta(self) -> float:
        """Delta at which the guarantee is stated: the spec's, or what the sampler loses."""
        parts = () if self.is_exact else flat([self.event])
        return self.spec.privacy.delta or math.fsum(part.delta for part in parts if isinstance(part, ApproximateDP))

    @property
    def is_exact(self) -> bool:
        """Whether exact counts are released, as was asked for by name."""
        return self.leakage is not None and self.leakage.scale is None

    @cached_property
    def epsilon(self) -> float:
        """Epsilon of the charge at `delta`; infinite for exact counts."""
        return math.inf if self.is_exact else super().epsilon

    @cached_property
    def guarantees(self) -> tuple[Guarantee, ...]:
        """What the release promises."""
        if self.leakage is not None:
            return (self.leakage.guarantee,)
        privacy = self.spec.privacy
        return (
            DifferentialPrivacy(
                epsilon=self.epsilon,
                delta=self.delta,
                right=self.right,
                adjacency=privacy.adjacency,
                covers="the whole release",
                **({"unit": "curve"} if self.curves and not self.spec.unit else self.spec.protected),
            ),
        )

    @cached_property
    def form(self) -> PartFormat:
        """A table of statistics."""
        return PartFormat(layout="statistics", non_negative=self.curves is None and self.spec.counts.non_negative)

    @property
    def cells(self) -> tuple[int, ...]:
        """Number of cells of each histogram that is released."""
        return () if self.counts is None else _released_cells(self.counts, self.binning)

    @property
    def noise(self) -> tuple[tuple[Mechanism, float | None], ...]:
        """(mechanism, scale) of each histogram; a scale of None is no noise."""
        if self.leakage is not None:
            return (("laplace", self.leakage.scale),) * self.leakage.histograms
        if self.measurement is None:
            return ()
        norm = 1.0 if self.panel is None else self.panel.norm * ABOVE
        return tuple((self.measurement.mechanism, scale * norm) for scale in self.measurement.scales)

    @property
    def deviations(self) -> tuple[float, ...]:
        """Standard deviation of the noise in each cell, for each histogram; of a panel in root mean square."""
        part = 1.0 if self.panel is None else self.panel.deviations[0] / self.panel.norm
        return tuple(0.0 if scale is None else part * deviation(kind, scale) for kind, scale in self.noise)

    def public_parameters(self) -> dict[str, Any]:
        """The public parameters, for the manifest."""
        spec = self.spec
        out = super().public_parameters() | {"adjacency": spec.privacy.adjacency}
        if self.counts is not None:
            rows = zip(spec.queries, self.cells, self.noise, self.deviations, strict=True)
            out["histograms"] = [
                {"columns": list(query.columns), "buckets": query.buckets, "cells": cells, "scale": scale}
                | {"mechanism": "none" if scale is None else kind, "deviation": sd}
                for query, cells, (kind, scale), sd in rows
            ]
        if self.measurement is not None:
            for entry, share in zip(out["histograms"], self.measurement.shares, strict=True):
                entry["share"] = str(share)
        if self.panel is not None:
            out["panel"] = {"strategy": list(map(list, self.panel.strategy)), "sensitivity": self.panel.norm}
        if self.binning is not None:
            out["bins"] = self.binning.public_parameters()
        if self.leakage is not None:
            out["leakage"] = self.leakage.guarantee.to_json()
        if self.entropies is not None:
            out["entropies"] = self.entropies.public_parameters([number for number, _ in spec.entropy_targets])
        if self.curves is not None:
            kernel = spec.curves.kernel.model_dump() if spec.curves else None
            out["curves"] = {"kernel": kernel} | self.curves.public_parameters()
        return out

    def needs(self) -> Needs:
        """Memory, tasks and time, from public sizes only."""
        numbers = len(self.spec.table.continuous)
        values = _NUMBER_BYTES * numbers + _VALUE_BYTES * (len(self.spec.table.attributes) - numbers)
        counts = self.counts
        sizes = (0,) if counts is None else counts.table_cells
        cells, counting = (0, 0) if counts is None else (counts.cells, counts.task_bytes)
        return self.bounding(
            Needs(
                partitions=self.partitions,
                tasks=self.partitions + math.ceil(self.partitions / 7) + 2,
                task_bytes=values * BATCH_ROWS + counting,
                driver_bytes=8 * (cells + 4 * sum(sizes) + 6 * max(sizes)),
                seconds=core_seconds(read=self.values),
            )
        )

    def charges(self) -> list[Fact]:
        """The charge, and the leakage of a release that bounds it."""
        (charge,) = super().charges()
        if self.leakage is None:
            return [charge]
        nats = self.leakage.guarantee.epsilon
        text = f"{charge.sentence}; where the data set has an account of leakage, {nats:.6g} nats instead"
        if self.is_exact:
            text = f"{nats:.6g} nats of an account of leakage only: exact counts are released, as asked for by name"
        return [replace(charge, sentence=text, numbers={**charge.numbers, "nats": nats})]

    def bounds(self) -> list[Fact]:
        """What the bound on the records of a unit costs; of a panel, what following units is worth."""
        if self.panel is None or self.measurement is None or self.spec.panel is None:
            return super().bounds()
        followed = f"units (column {self.spec.column_beside!r}) are followed"
        return [self.panel.fact(followed, changes=self.spec.panel.changes, scale=min(self.measurement.scales))]

    def noise_at(self, at_most: int) -> float:
        """The deviation of a count of the first histogram, or of the mean of curves."""
        made = plan(self.spec.with_bound(at_most))
        return made.deviations[0] if made.curves is None else made.curves.expected_error

    @property
    def adjacency(self) -> str:
        """What neighbouring tables differ by, in words."""
        return "replacement adjacency" if self.spec.privacy.adjacency == "replacement" else super().adjacency

    def errors(self) -> list[Fact]:
        """How far off counts are, or the mean of curves."""
        if self.curves is not None:
            error = self.curves.expected_error
            text = f"the mean is off by {error:.4g} at most in L2, for {self.curves.curves:,} curves or more"
            return [Fact("Error", text, {"error": error})]
        low, high = min(self.deviations), max(self.deviations)
        which = f"+-{low:.4g}" if low == high else f"+-{low:.4g} to {high:.4g}"
        exact = "none: exact counts are released, as asked for by name"
        text = f"about {which} a count, by histogram" if high else exact
        return [Fact("Error", text, {"least_deviation": low, "largest_deviation": high})]

    def details(self) -> list[Fact]:
        """The noise of each statistic."""
        spec, facts = self.spec, []
        if self.counts is not None:
            rows = zip(spec.queries, self.cells, self.noise, self.deviations, strict=True)
            for query, cells, (kind, scale), sd in rows:
                noisy = "no noise" if scale is None else f"{kind} noise, {sd:.4g} per cell"
                buckets = " (buckets)" if query.buckets else ""
                text = f"{' x '.join(query.columns)}{buckets}: {cells:,} cells, {noisy}"
                facts.append(Fact("Histogram", text, {"cells": cells, "deviation": sd}))
        if self.binning is not None:
            facts += self.binning.facts()
        if self.entropies is not None:
            facts += self.entropies.facts([number for number, _ in spec.entropy_targets])
        return facts if self.curves is None else [*facts, self.curves.fact()]


@dataclass(frozen=True, kw_only=True)
class FederatedHistogramPlan(SummedPlan, HistogramPlan):
    """A `HistogramPlan` whose tables are noisy sums over clients."""

    spec: HistogramSpec

    @property
    def mu(self) -> float:
        """All tables together are this many mu-GDP, for one record."""
        scales = self.measurement.scales if self.measurement is not None else ()
        return math.sqrt(math.fsum(1 / scale**2 for scale in scales))

    @property
    def deviations(self) -> tuple[float, ...]:
        """Standard deviation of the noise of all clients in each cell, for each histogram."""
        return tuple(self.spec.widening(len(self.spec.clients)) * own for own in super().deviations)


def plan(spec: HistogramSpec) -> HistogramPlan:
    """Plan a histogram release. Raises SpecError: settings contradict each other; AccountingError: no valid guarantee;
    GuaranteeRefused: no noise is needed, and that was not asked for by name.
    """
    made = _plan(spec)
    workers, needed = spec.cluster.memory_limit, made.needs().task_bytes
    if workers != "auto" and needed > parse_bytes(workers):
        raise SpecError(
            f"counting takes {mebibytes(needed)} in a worker, and cluster.memory_limit is {workers}: raise it, "
            "leave out a histogram with many cells, or declare fewer `bins`"
        )
    return made


def _plan(spec: HistogramSpec) -> HistogramPlan:
    privacy = spec.privacy
    dropping = spec.table.dropping
    exact = privacy.adjacency == "replacement" and (spec.entropies is not None or spec.curves is not None)
    if exact and dropping:
        raise SpecError(
            "privacy.adjacency: under replacement the number of records is public, and the policy `drop` of "
            f"{', '.join(map(repr, dropping))} would make it depend on private values: choose add/remove, or other "
            "policies, or leave such records out of the table before"
        )
    if (curves := spec.curves) is not None:
        mean = plan_mean(
            eigenbasis(curves.kernel, curves.grid, terms=curves.terms),
            penalty=curves.penalty,
            clip=curves.clip,
            curves=spec.data.minimum_records,
            budget=(privacy.epsilon, privacy.delta),
            adjacency=privacy.adjacency,
            unit=spec.records_of_a_unit,
        )
        return HistogramPlan(spec=spec, curves=mean)
    names, attributes = spec.table.names, spec.table.attributes
    queries = tuple(Query(tuple(map(names.index, query.columns)), coarse=query.buckets) for query in spec.queries)
    sizes = tuple(0 if a.is_continuous else a.cardinality for a in attributes)
    buckets = tuple(() if a.is_continuous else tuple(a.bucket_map.tolist()) for a in attributes)
    counts = CountPlan(queries, sizes, buckets, names)
    for fine, coarse in (pair for chain in spec.counts.hierarchies for pair in pairwise(chain)):
        parent_cells(counts, fine, coarse)
    if privacy.mechanism == "pml":
        leakage = plan_leakage(
            epsilon=privacy.epsilon,
            alpha=privacy.alpha or 0.0,
            bins=counts.table_cells,
            chains=[fewest_cells(counts, chain) for chain in spec.counts.hierarchies],
            accept_no_noise=privacy.accept_no_noise,
        )
        return HistogramPlan(spec=spec, counts=counts, leakage=leakage)
    return _filled(_plan_counts(spec, counts))


def _released_cells(counts: CountPlan, binning: BinningPlan | None) -> tuple[int, ...]:
    """Cells of each histogram, with its bins where they are chosen."""
    if binning is None:
        return counts.table_cells
    return tuple(math.prod(binning.shape(i, counts.shape(query))) for i, query in enumerate(counts.queries))


def _plan_counts(spec: HistogramSpec, counts: CountPlan) -> HistogramPlan:
    """Choice of bins, histograms and entropies, each within its share of epsilon and delta."""
    privacy, epsilon, total, unit = spec.privacy, spec.privacy.epsilon, Fraction(1), spec.records_of_a_unit
    entropies = check = None
    if spec.entropies is not None:
        records = spec.data.minimum_records
        share, spent = spec.entropies.share, Fraction(0)
        if privacy.adjacency == "add/remove":
            if not privacy.delta:
                raise AccountingError(
                    "entropies need a check of data.minimum_records, which may fail: set privacy.delta above 0"
                )
            spent = CHECK_SHARE
            check = check_of_records(records, epsilon * float(spent), privacy.delta * float(spent), unit)
            records = check.minimum
        entropies = plan_entropies(
            [order for _, order in spec.entropy_targets],
            records=records,
            epsilon=epsilon * float(share),
            delta=privacy.delta * float(share),
            adjacency=privacy.adjacency,
            mechanism=spec.entropies.mechanism,
            unit=unit,
        )
        total -= share + spent
    binning = plan_binning(spec)
    total -= Fraction(0) if binning is None else binning.share
    if total <= 0:
        raise AccountingError("entropies.share and adaptive bins leave nothing for the histograms: lower the share")
    stated = [query.share for query in spec.queries if query.share is not None]
    cells = _released_cells(counts, binning)
    mechanism = "auto" if privacy.mechanism == "pml" else privacy.mechanism
    of_others = sampler_delta(sum(cells) * max(len(spec.clients) - 1, 0))
    panel = None
    if spec.panel is not None:
        panel = Panel.of(counts.shape(counts.queries[0])[0], spec.panel.changes)
        if not panel.pays:
            raise SpecError(
                f"panel: with {len(panel.strategy)} periods and {spec.panel.changes} changes its noise is hardly less "
                "than independent noise: allow fewer changes, or release each period by itself"
            )
    measurement = plan_measurement(
        cells,
        mechanism=mechanism if spec.federated is None and panel is None else "gaussian",
        epsilon=epsilon * float(total),
        delta=privacy.delta * float(total) - of_others,
        adjacency=privacy.adjacency,
        shares=stated or spec.shares,
        unit=unit if panel is None else 1,
    )
    if spec.federated is not None:
        least = LEAST_SIGMA * math.sqrt(spec.honest)
        measurement = for_clients(measurement, sum(cells) * len(spec.clients), least=least)
        return FederatedHistogramPlan(spec=spec, counts=counts, measurement=measurement)
    parts: dict[str, Any] = {"binning": binning, "entropies": entropies, "count": check, "panel": panel}
    return HistogramPlan(spec=spec, counts=counts, measurement=measurement, **parts)


def _filled(whole: HistogramPlan) -> HistogramPlan:
    """Less noise where composition leaves something over: stages cost less together than one by one."""
    budget, binning, entropies, measurement = whole.spec.privacy, whole.binning, whole.entropies, whole.measurement
    if not budget.delta or measurement is None or (binning is None and entropies is None):
        return whole
    low, high = 1.0, 4.0
    for _ in range(_STEPS):
        factor = math.sqrt(low * high)
        less = replace(
            whole,
            binning=None if binning is None else binning.with_less_noise(factor),
            entropies=None if entropies is None else entropies.with_less_noise(factor),
            measurement=measurement.with_less_noise(factor),
        )
        if less.epsilon <= budget.epsilon:
            low, whole = factor, less
        else:
            high = factor
    return whole
