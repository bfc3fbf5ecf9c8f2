"""The stages of a histogram release, in order: count in one pass, check, noise, fit, write."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np

from dpdist.data.graph import locate, table_pass
from dpdist.data.operators import Operator
from dpdist.data.report import check
from dpdist.errors import CheckFailed
from dpdist.families.attempt import Context
from dpdist.families.histogram.curves import CurveMean, confirm_number, release_mean
from dpdist.families.histogram.entropy import release_entropies
from dpdist.families.histogram.graph import curve_operator, histogram_operator, long_curve_operator
from dpdist.families.histogram.measurement import add_noise
from dpdist.families.histogram.plan import HistogramPlan
from dpdist.families.histogram.results import (
    Statistics,
    count_statistics,
    curve_statistics,
    entropy_statistics,
    fit,
    released_entropies,
    tables,
)
from dpdist.families.histogram.spec import HistogramSpec
from dpdist.publish.parts import PartRecord, part_name, write_part

STATISTICS_FILE = "statistics.npz"
"""The noisy statistics of an attempt: drawn once, stored, read back."""


def measure_step(context: Context) -> None:
    """Count (or sum the curves) in one pass and draw the noise; the noisy statistics are stored.

    Raises
    ------
    DataError
        The table breaks its declared policies.
    CheckFailed
        A declared public number was not confirmed.
    ResourceError
        The cluster gave up; the attempt can be resumed.
    """
    spec, plan = _of(context)
    context.results[STATISTICS_FILE] = context.stored(STATISTICS_FILE, lambda: _draw(context, spec, plan))


def write_step(context: Context) -> None:
    """Fit what the spec asks for to the noisy statistics, and write the parts."""
    spec, plan = _of(context)
    stored = _arrays(context.results[STATISTICS_FILE])
    if plan.curves is not None and spec.curves is not None:
        mean = CurveMean(plan.curves.basis.times, stored["values"], stored["coefficients"], int(stored["curves"]))
        low, high = spec.curves.domain
        statistics = curve_statistics(mean, [low + (high - low) * t for t in mean.times.tolist()])
    else:
        statistics = _statistics(context, spec, plan, stored)
    context.parts = _written(context, statistics)


STEPS: dict[str, Callable[[Context], None]] = {"measure": measure_step, "write": write_step}
"""The steps of a histogram release, in order."""


def _of(context: Context) -> tuple[HistogramSpec, HistogramPlan]:
    spec, plan = context.spec, context.plan
    if not isinstance(spec, HistogramSpec) or not isinstance(plan, HistogramPlan):
        raise TypeError("expected the spec and the plan of a histogram release")
    return spec, plan


def _draw(context: Context, spec: HistogramSpec, plan: HistogramPlan) -> bytes:
    """One pass, then the noise: the noisy statistics as bytes."""
    summary, records = _counted(context, operator_of(spec, plan))
    if plan.curves is not None:
        confirm_number(summary, plan.curves)
        mean = release_mean(summary, plan.curves, noise=context.noise, name="curves")
        return _bytes(values=mean.values, coefficients=mean.coefficients, curves=np.array(mean.curves))
    if plan.entropies is not None and plan.count is None and records < spec.data.minimum_records:
        raise CheckFailed(  # under replacement the number of records is public
            "data.minimum_records is more than the number of records, so nothing is published and nothing is charged: "
            "declare less"
        )
    noise = context.noise
    if plan.count is not None:
        noisy = records + int(noise.discrete_laplace("checks/records", 1, scale=plan.count.scale)[0])
        if not plan.count.passes(noisy):
            raise CheckFailed(
                "a declared public lower bound was not confirmed, so nothing is published: data.minimum_records is "
                "more than the table supports; declare less, from public knowledge. The charge stays spent"
            )
    arrays: dict[str, Any] = {}
    for number, (table, (mechanism, scale)) in enumerate(zip(summary, plan.noise, strict=True)):
        name = f"histogram/table/{number}"
        arrays[f"table_{number}"] = (
            table if scale is None else add_noise(table, mechanism=mechanism, scale=scale, noise=noise, name=name)
        )
    if plan.entropies is not None:
        tables = [summary[number] for number, _ in spec.entropy_targets]
        arrays["entropies"] = release_entropies(tables, plan.entropies, noise=noise, name="histogram/entropy")
    return _bytes(**arrays)


def operator_of(spec: HistogramSpec, plan: HistogramPlan) -> Operator:
    """What a pass over the table computes for a release."""
    if plan.counts is not None:
        return histogram_operator(plan.counts)
    if spec.curves is None or plan.curves is None:
        raise ValueError("a histogram release has histograms or curves")
    names, basis, clip = spec.table.names, plan.curves.basis, spec.curves.clip
    if spec.curves.long is None:
        return curve_operator(basis, clip=clip, columns=[names.index(name) for name in spec.curves.columns or ()])
    where = tuple(names.index(name) for name in spec.curves.long)
    return long_curve_operator(basis, clip=clip, columns=where, times=spec.curves.times or ())  # type: ignore[arg-type]


def _counted(context: Context, operator: Operator) -> tuple[Any, int]:
    """The operator's summary of the whole table, and the (confidential) number of records."""
    with context.stage("reading"):
        table = context.cluster.compute([locate(context.table, name="locate")])[0]
    with context.stage("counting") as progress:
        graph = table_pass(table, operator, name="counting")
        summary, report = context.cluster.compute([graph], progress=progress)[0]
    context.operator["table"] = report.confidential(context.spec.table)
    check(report, context.spec.table)
    return summary, report.kept


def _statistics(context: Context, spec: HistogramSpec, plan: HistogramPlan, stored: dict[str, Any]) -> list[Statistics]:
    if plan.counts is None:
        raise ValueError("a histogram release has histograms or curves")
    noisy = [stored[f"table_{number}"] for number in range(len(plan.noise))]
    variances = [sd**2 for sd in plan.deviations]
    fitted = fit(noisy, spec.counts, plan.counts, variances=variances, noise=context.noise)
    statistics = count_statistics(noisy, fitted, plan.counts, spec.table, names=spec.output.values)
    if spec.counts.entropies:
        statistics += released_entropies(fitted, spec.counts.entropies, plan.counts, spec.table)
    if plan.entropies is not None:
        statistics += entropy_statistics(stored["entropies"], spec.entropy_targets, plan.counts, spec.table)
    return statistics


def _written(context: Context, statistics: list[Statistics]) -> tuple[PartRecord, ...]:
    with context.stage("writing"):
        return tuple(
            write_part(context.output, part_name(context.attempt, index), table)
            for index, table in enumerate(tables(statistics, rows=context.spec.output.rows_per_part))
        )


def _bytes(**arrays: Any) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def _arrays(content: bytes) -> dict[str, Any]:
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
        return dict(file)
