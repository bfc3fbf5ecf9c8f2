"""The steps of a two-stage release, in order: read, synthesise, regress, write; or measure, fit and draw under dp."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from dpdist.cluster.tasks import Tasks
from dpdist.data.graph import encoded_partitions, locate, partition_codes
from dpdist.data.report import RowReport, check
from dpdist.errors import CheckFailed
from dpdist.families.attempt import Context
from dpdist.families.prediction.blocks import Layout
from dpdist.families.prediction.columns import columns_of
from dpdist.families.prediction.lid import graph
from dpdist.families.prediction.lid.ridge import KernelRidge
from dpdist.families.prediction.lid.two_stage import alpha_of, deviations_of, marginals_of, target_of
from dpdist.families.prediction.lid.work import Seen
from dpdist.families.prediction.private.release import fit_step, measure_step, spec_and_plan
from dpdist.families.prediction.stored import target_bytes, target_of_bytes, tuning_bytes, tuning_of_bytes
from dpdist.publish.graph import written_parts
from dpdist.publish.parts import PartFormat

if TYPE_CHECKING:
    from dask.delayed import Delayed

LEAST_ROWS = 10
"""Fewest records of a release of the published method."""


# --- the published method --------------------------------------------------------------------------------------------


def read_step(context: Context) -> None:
    """Read and check the table; hold its records as blocks in the workers' memory.

    Raises
    ------
    DataError
        The table breaks its declared policies.
    CheckFailed
        It has fewer records than declared, or than a regression needs.
    """
    spec, plan = spec_and_plan(context)
    if plan.method is None:
        return
    with context.stage("reading") as progress:
        table = context.cluster.compute([locate(context.table)])[0]
        encoded = context.cluster.persist(encoded_partitions(table, name="read"), progress=progress)
        codes = partition_codes(encoded, name="read")
        reports, sizes = _split(context.cluster.compute([*map(_report, encoded), *graph.partition_rows(codes)]))
    report = sum(reports, start=RowReport.empty(spec.table))
    context.operator["table"] = report.confidential(spec.table)
    check(report, spec.table)
    layout = Layout(sum(sizes), plan.method.block_rows)
    if layout.rows < spec.data.minimum_records:
        raise CheckFailed(
            "the table has fewer records than data.minimum_records declares, so nothing is published: declare fewer"
        )
    if layout.rows < LEAST_ROWS:
        raise CheckFailed(f"a regression needs at least {LEAST_ROWS} records, so nothing is published")
    with context.stage("cutting blocks") as progress:
        graphs = graph.table_blocks(codes, layout.pieces(sizes), columns_of(spec))
        context.results["blocks"] = context.cluster.persist(graphs, progress=progress)
    context.results["layout"] = layout
    context.public["records"] = layout.rows


def _report(part: Delayed) -> Delayed:
    return part.report


def _split(values: list[Any]) -> tuple[list[RowReport], list[int]]:
    half = len(values) // 2
    return values[:half], values[half:]


def synthesise_step(context: Context) -> None:
    """Densities, correlation, matched synthetic rows, and the share of the original row.

    Raises
    ------
    CheckFailed
        The disclosure would exceed its bound.
    """
    _, plan = spec_and_plan(context)
    method = plan.method
    if method is None:
        return
    cluster, blocks, layout = context.cluster, context.results["blocks"], context.results["layout"]
    starts = [0, *accumulate(layout.sizes)][:-1]

    def densities() -> bytes:
        with context.stage("estimating densities") as progress:
            made = graph.density_counts(blocks, starts, method, context.key)
            marginals = marginals_of(method, cluster.compute([made], progress=progress)[0])
        with context.stage("estimating correlations") as progress:
            made = graph.score_products(blocks, method, marginals)
            sums = cluster.compute([made], progress=progress)[0]
        return target_bytes(marginals, target_of(method, marginals, sums))

    marginals, target = target_of_bytes(context.stored("target.npz", densities), method)
    deviations = deviations_of(marginals)
    with context.stage("synthesising") as progress:
        graphs = graph.synthetic_blocks(blocks, method, target, deviations, context.key)
        synthetic = cluster.persist(graphs, progress=progress)

    def disclosed() -> bytes:
        with context.stage("measuring disclosure") as progress:
            made = graph.disclosure_counts(blocks, synthetic, method)
            near = cluster.compute([made], progress=progress)[0]
        alpha = alpha_of(method, near, layout.rows)
        rows = int(near[method.alphas.index(alpha)]) if method.watched else None
        return json.dumps({"alpha": alpha, "near": rows}).encode()

    alpha = json.loads(context.stored("alpha.json", disclosed))
    context.operator["disclosure"] = {"rows_near": alpha["near"], "rows": layout.rows}
    context.public["alpha"] = alpha["alpha"]
    context.results.update(synthetic=synthetic, deviations=deviations, alpha=alpha["alpha"])


def regress_step(context: Context) -> None:
    """Tune and fit the regression of the original responses on the original inputs."""
    _, plan = spec_and_plan(context)
    method = plan.method
    if method is None:
        return
    cluster, blocks, layout = context.cluster, context.results["blocks"], context.results["layout"]
    regression, seen = method.regression, Seen(method, context.results["deviations"])
    starts = [0, *accumulate(layout.sizes)][:-1]
    size = max(regression.tuning_rows, regression.landmarks)
    tuning, landmarks = None, np.empty((0, 1))
    context.before_noise()  # from here on the attempt can no longer be given back
    if regression.hook is None:
        with context.stage("tuning the regression") as progress:
            made = graph.regression_sample(blocks, starts, seen, context.key, size=size)
            sample = cluster.persist([made], progress=progress)[0]
            work = graph.tuned(sample, regression)
            stored = context.stored("tuning.json", lambda: tuning_bytes(cluster.compute([work])[0]))
        tuning, landmarks = tuning_of_bytes(stored), np.empty((0, 1))
        if regression.estimator_for(layout.rows) == "nystroem":
            landmarks = cluster.compute([sample])[0][1][: regression.landmarks]
        estimator = regression.estimator_for(layout.rows)
        context.public["estimator"] = estimator
        context.operator["regression"] = json.loads(stored)
    with context.stage("fitting the regression") as progress:
        made = graph.fitted(blocks, seen, tuning, landmarks, context.key, rows=layout.rows)
        if regression.hook is not None:
            context.results["model"] = cluster.persist([made], progress=progress)[0]
        else:
            content = context.stored("model.npz", lambda: cluster.compute([made], progress=progress)[0].to_bytes())
            context.results["model"] = Tasks("model").constant("model", KernelRidge.from_bytes(content))
    context.results["seen"] = seen


def write_step(context: Context) -> None:
    """Mix, predict, shuffle and write the parts; under dp, draw them from the released model."""
    spec, plan = spec_and_plan(context)
    columns, results = columns_of(spec), context.results
    rows_per_part = spec.output.rows_per_part
    with context.stage("writing") as progress:
        if plan.method is None:
            parts = graph.private_parts(
                results["model"],
                columns,
                context.key,
                first_stage=spec.prediction.first_stage,
                records=spec.prediction.records or 0,
                rows_per_part=rows_per_part,
            )
        else:
            made = graph.released_blocks(
                results["blocks"],
                results["synthetic"],
                results["model"],
                results["seen"],
                context.key,
                alpha=results["alpha"],
            )
            held = context.cluster.persist(made) if len(made) > 1 else made
            parts = graph.released_parts(held, results["layout"].parts(rows_per_part), columns, context.key)
        graphs = written_parts(
            parts,
            schema=spec.table,
            form=PartFormat(values=spec.output.values, bins=spec.output.bins),
            store=context.output,
            attempt=context.attempt,
            key=context.key,
            rows_per_part=rows_per_part,
        )
        context.parts = tuple(context.cluster.compute(graphs, progress=progress))


STEPS: dict[str, Callable[[Context], None]] = {
    "read": read_step,
    "synthesise": synthesise_step,
    "regress": regress_step,
    "measure": measure_step,
    "fit": fit_step,
    "write": write_step,
}
"""The steps of a two-stage release, in order; the first three are the published method's, the next two the private
variant's, and each does nothing for the other."""
