"""The stages of a histogram release: count in one pass and draw the noise, then fit and write."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpdist.data.operators import Operator
from dpdist.errors import CheckFailed, SpecError, VerificationFailed
from dpdist.families.base.attempt import Attempt, write_tables
from dpdist.families.base.calibration import add_noise, confirm
from dpdist.families.base.family import Stage, Truth
from dpdist.families.base.passes import Passes
from dpdist.families.histogram import results
from dpdist.families.histogram.binning import Bins, Chosen, choose
from dpdist.families.histogram.counts import CountPlan, histogram_operator
from dpdist.families.histogram.curves import curve_operator, release_mean, value_unit
from dpdist.families.histogram.entropy import release_entropies, renyi
from dpdist.families.histogram.plan import HistogramPlan
from dpdist.families.histogram.spec import HistogramQuerySpec, HistogramSpec
from dpdist.federated.session import ClientAttempt
from dpdist.federated.sums import SummingSession
from dpdist.federated.together import Together
from dpdist.model.sums import Sum
from dpdist.privacy.arrays import Counts
from dpdist.privacy.calibrate import ABOVE
from dpdist.storage.stored import Stored

HistogramAttempt = Attempt[HistogramSpec, HistogramPlan]


@dataclass(frozen=True, eq=False)
class NoisyStatistics(Stored):
    """The noisy statistics of an attempt: drawn once, stored, read back."""

    FILE: ClassVar[str] = "statistics.npz"

    # ``table_0`` ..., ``bins_0_0`` ... (histogram, axis), ``entropies``; or ``values``, ``coefficients`` and ``curves``
    arrays: dict[str, NDArray[Any]]


def stages(plan: HistogramPlan) -> Sequence[Stage[HistogramSpec, HistogramPlan]]:
    """The stages of a histogram release, in order."""
    return (Stage("measure", measure if plan.spec.federated is None else measure_together), Stage("write", write))


def measure(attempt: HistogramAttempt) -> NoisyStatistics:
    """Count (or sum the curves) in one pass, draw the noise and store the noisy statistics. Raises DataError: a policy
    is broken; CheckFailed: a declared number was not confirmed; ResourceError: the attempt can be resumed.
    """

    def draw() -> NoisyStatistics:
        passes = Passes(attempt)
        summary = passes.run(operator_of(attempt.spec, attempt.plan), stage="counting")
        if attempt.plan.curves is not None:
            mean = release_mean(summary, attempt.plan.curves, noise=attempt.noise, name="curves")
            arrays = {"values": mean.values, "coefficients": mean.coefficients, "curves": np.array(mean.curves)}
            return NoisyStatistics(arrays)
        return _noisy_tables(attempt, summary, records=passes.report.kept if passes.report is not None else 0)

    return attempt.stored(NoisyStatistics, draw)


def measure_together(attempt: HistogramAttempt) -> NoisyStatistics:
    """Ask clients for noisy sums of the tables; they are stored. Raises RoundFailed: one cannot go on."""
    known = attempt.work.exists(NoisyStatistics.FILE)
    together = Together.begun(attempt, HistogramSession, known=known)

    def draw() -> NoisyStatistics:
        together.draw()
        sigmas = np.array([scale for _, scale in attempt.plan.noise]) * (ABOVE * together.noise["widening"])
        tables, _ = together.asking()("histograms", sums_of(attempt.plan), sigmas)
        return NoisyStatistics({f"table_{number}": table for number, table in enumerate(tables)})

    found = attempt.stored(NoisyStatistics, draw)
    together.close()
    return found


def sums_of(plan: HistogramPlan) -> list[Sum]:
    """The tables, as sums over records."""
    if plan.counts is None:
        raise SpecError("federated: clients are asked for histograms alone")
    counts = plan.counts
    return [
        Sum(query.attributes, tuple(_codes_of(counts, i, coarse=query.coarse) for i in query.attributes))
        for query in counts.queries
    ]


def _codes_of(counts: CountPlan, attribute: int, *, coarse: bool) -> Counts:
    codes = np.arange(counts.cardinalities[attribute], dtype=np.int64)
    return np.array(counts.bucket_maps[attribute], np.int64) if coarse else codes


@dataclass(frozen=True, eq=False)
class Counted:
    """A client's tables. Confidential."""

    tables: list[Counts] = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class HistogramSession(SummingSession):
    """What the coordinator of a histogram release sends with every call of a client."""

    spec: HistogramSpec

    __hash__ = SummingSession.__hash__

    def gather(self, attempt: ClientAttempt) -> Counted:
        """See `ClientSession.gather`."""
        return Counted(Passes(attempt).run(operator_of(self.spec, self.plan), stage="counting"))

    def require(self, one: Sum) -> None:
        """See `SummingSession.require`: a histogram of the plan."""
        self._place(one)

    def part(self, attempt: ClientAttempt, one: Sum) -> Counts:
        """See `SummingSession.part`."""
        return attempt.result(Counted).tables[self._place(one)]

    def _place(self, one: Sum) -> int:
        for place, own in enumerate(sums_of(self.plan)):
            same = own.attributes == one.attributes and len(own.maps) == len(one.maps)
            if same and one.groups is None and all(map(np.array_equal, own.maps, one.maps)):
                return place
        raise ValueError("a table that is no histogram of the release")


def operator_of(spec: HistogramSpec, plan: HistogramPlan) -> Operator:
    """What a pass over the table computes for a release."""
    if plan.counts is not None:
        return histogram_operator(plan.counts)
    if spec.curves is None or plan.curves is None:
        raise ValueError("a histogram release has histograms or curves")
    columns = [spec.table.names.index(name) for name in spec.curves.columns]
    return curve_operator(plan.curves.basis, clip=spec.curves.clip, columns=columns)


def _noisy_tables(attempt: HistogramAttempt, summary: Any, *, records: int) -> NoisyStatistics:
    spec, plan = attempt.spec, attempt.plan
    if plan.entropies is not None and plan.count is None and records < spec.data.minimum_records:
        raise CheckFailed(  # under replacement the number of records is public, and no policy drops any
            "data.minimum_records is more than the number of records, so nothing is published: declare less, under "
            "another release name. The charge stays spent"
        )
    noise = attempt.noise
    if plan.count is not None:
        confirm(records, plan.count, noise=noise, name="records", setting="data.minimum_records")
    arrays: dict[str, NDArray[Any]] = {}
    if plan.binning is not None:
        chosen = choose(summary, plan.binning, noise=noise)
        summary = plan.binning.merged(summary, chosen)
        arrays |= {f"bins_{number}_{axis}": bins for (number, axis), bins in chosen.items()}
    if plan.panel is not None:
        summary = [plan.panel.measured(table) for table in summary]
    for number, (table, (mechanism, scale)) in enumerate(zip(summary, plan.noise, strict=True)):
        name = f"histogram/table/{number}"
        arrays[f"table_{number}"] = (
            table if scale is None else add_noise(table, mechanism=mechanism, scale=scale, noise=noise, name=name)
        )
    if plan.entropies is not None:
        measured = [summary[number] for number, _ in spec.entropy_targets]
        arrays["entropies"] = release_entropies(measured, plan.entropies, noise=noise, name="histogram/entropy")
    return NoisyStatistics(arrays)


def write(attempt: HistogramAttempt) -> None:
    """Fit what the spec asks for to the noisy statistics, and write the parts."""
    spec, plan, arrays = attempt.spec, attempt.plan, attempt.result(NoisyStatistics).arrays
    if plan.curves is not None and spec.curves is not None:
        (low, high), values = spec.curves.domain, arrays["values"]
        times = tuple(repr(low + (high - low) * t) for t in plan.curves.basis.times.tolist())
        statistics = [results.Statistics("mean", "curves", (times,), values, values)]
    else:
        statistics = _statistics(attempt, arrays)
    write_tables(attempt, results.tables(statistics, rows=spec.output.rows_per_part))


def _statistics(attempt: HistogramAttempt, arrays: dict[str, NDArray[Any]]) -> list[results.Statistics]:
    spec, plan = attempt.spec, attempt.plan
    if plan.counts is None:
        raise ValueError("a histogram release has histograms or curves")
    noisy = [arrays[f"table_{number}"] for number in range(len(plan.noise))]
    nearer, parts = noisy, [np.ones(1)] * len(noisy)
    if plan.panel is not None:
        shrunk = [plan.panel.shrunk(table, sd) for table, sd in zip(noisy, plan.deviations, strict=True)]
        nearer, parts = [counts for counts, _ in shrunk], [part.ravel() for _, part in shrunk]
        noisy = [plan.panel.solved(table) for table in noisy]
    variances = [sd**2 for sd in plan.deviations]
    fitted, errors = results.fit(nearer, spec.counts, plan.counts, variances=variances)
    errors = [error * part for error, part in zip(errors, parts, strict=True)]
    axes = () if plan.binning is None else plan.binning.axes
    chosen = {(a.histogram, a.axis): arrays[f"bins_{a.histogram}_{a.axis}"] for a in axes}
    if chosen:
        attempt.public["chosen_bins"] = chosen_bins(chosen, spec)
    naming = results.Naming(plan.counts, spec.table, spec.output.values, chosen)
    statistics = results.count_statistics(naming, noisy, fitted, errors)
    if spec.counts.entropies:
        statistics += results.released_entropies(naming, fitted, spec.counts.entropies)
    if plan.entropies is not None:
        statistics += results.entropy_statistics(naming, arrays["entropies"], spec.entropy_targets, plan.cells)
    return statistics


def chosen_bins(chosen: Chosen, spec: HistogramSpec) -> list[dict[str, Any]]:
    """The chosen bins as the manifest states them: the first code of each."""
    return [
        {"histogram": number, "column": spec.queries[number].columns[axis], "first_codes": bins.tolist()}
        for (number, axis), bins in sorted(chosen.items())
    ]


def _stated_bins(plan: HistogramPlan, parameters: Mapping[str, Any]) -> Chosen:
    """The chosen bins that a manifest states. Raises VerificationFailed: they are not there, or no bins."""
    found: dict[tuple[int, int], Bins] = {}
    try:
        entries = parameters.get("chosen_bins", [])
        stated = {(entry["histogram"], entry["column"]): entry["first_codes"] for entry in entries}
        for number, axis, name, count in plan.spec.binned:
            bins = np.array(stated[number, name], np.int64)
            attribute = plan.spec.table.attributes[plan.spec.table.names.index(name)]
            codes = attribute.cardinality - (attribute.missing_code is not None)
            if bins.shape != (count,) or bins[0] != 0 or bins[-1] >= codes or (np.diff(bins) < 1).any():
                raise ValueError
            found[number, axis] = bins
    except (KeyError, TypeError, ValueError, OverflowError):
        raise VerificationFailed(
            "the manifest does not state the bins that were chosen: copy the release again from its publisher"
        ) from None
    return found


def truth(plan: HistogramPlan, parameters: Mapping[str, Any]) -> tuple[Operator, Callable[[Any], list[Truth]]]:
    """What a release counts with, and what turns its summary into true values in the release's order."""
    if plan.counts is None:
        return operator_of(plan.spec, plan), partial(_of_curves, plan)
    return operator_of(plan.spec, plan), partial(_of_counts, plan, chosen=_stated_bins(plan, parameters))


def _of_counts(plan: HistogramPlan, tables: list[Counts], *, chosen: Chosen) -> list[Truth]:
    spec = plan.spec
    tables = tables if plan.binning is None else plan.binning.merged(tables, chosen)
    names = [_named(query) for query in spec.queries]
    found: list[Truth] = [("count", names[i], table.ravel().astype(float)) for i, table in enumerate(tables)]
    for i, table in enumerate(tables):
        found += [
            ("entropy", names[i], np.array([renyi(np.maximum(table, int(not table.any())), order=order)]))
            for order in spec.counts.entropies
        ]
    for number, order in spec.entropy_targets:
        found.append(("entropy", names[number], np.array([renyi(tables[number], order=order)])))
    return found


def _named(query: HistogramQuerySpec) -> str:
    """What a histogram is about, for an evaluation."""
    bins = {name: f" ({count} bins)" for name, count in query.adaptive.items()}
    return " × ".join(name + bins.get(name, "") for name in query.columns) + (" (buckets)" if query.buckets else "")


def _of_curves(plan: HistogramPlan, sums: Any) -> list[Truth]:
    if plan.curves is None:
        raise SpecError("the manifest names no curves: update dpdist")
    unit = value_unit(plan.curves.basis, clip=plan.curves.clip)
    return [("mean", "curves", sums.totals * unit / max(sums.count, 1))]
