"""The steps of a two-stage release, in order: read, synthesise, regress, write; or measure, fit and draw under dp."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from dpdist.context import Context
from dpdist.data.graph import encoded_partitions, locate, partition_codes, table_pass
from dpdist.data.operators import Operator
from dpdist.data.report import RowReport, check
from dpdist.errors import CheckFailed
from dpdist.prediction import graph
from dpdist.prediction.blocks import Layout
from dpdist.prediction.columns import Columns
from dpdist.prediction.density import Marginal
from dpdist.prediction.kernels import Kernel
from dpdist.prediction.latin import Target
from dpdist.prediction.method import Method
from dpdist.prediction.plan import TwoStagePlan
from dpdist.prediction.private import Steps
from dpdist.prediction.private_model import (
    design,
    fitted_model,
    input_model,
    noisy_cross,
    noisy_marginals,
    noisy_products,
    noisy_ranks,
)
from dpdist.prediction.ridge import KernelRidge, Tuning
from dpdist.prediction.spec import TwoStageSpec
from dpdist.prediction.two_stage import alpha_of, deviations_of, marginals_of, target_of
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
    spec, plan = _of(context)
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
        graphs = graph.table_blocks(codes, layout.pieces(sizes), _columns(spec))
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
    _, plan = _of(context)
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
        return _target_bytes(marginals, target_of(method, marginals, sums))

    marginals, target = _target_of_bytes(context.stored("target.npz", densities), method)
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
    _, plan = _of(context)
    method = plan.method
    if method is None:
        return
    cluster, blocks, layout = context.cluster, context.results["blocks"], context.results["layout"]
    regression, seen = method.regression, graph.Seen(method, context.results["deviations"])
    starts = [0, *accumulate(layout.sizes)][:-1]
    size = max(regression.tuning_rows, regression.landmarks)
    tuning, landmarks = None, np.empty((0, 1))
    context.before_noise()  # from here on the attempt can no longer be given back
    if regression.hook is None:
        with context.stage("tuning the regression") as progress:
            made = graph.regression_sample(blocks, starts, seen, context.key, size=size)
            sample = cluster.persist([made], progress=progress)[0]
            work = graph.tuned(sample, regression)
            stored = context.stored("tuning.json", lambda: _tuning_bytes(cluster.compute([work])[0]))
        tuning, landmarks = _tuning_of_bytes(stored), np.empty((0, 1))
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
            context.results["model"] = graph.Tasks("model").constant("model", KernelRidge.from_bytes(content))
    context.results["seen"] = seen


def write_step(context: Context) -> None:
    """Mix, predict, shuffle and write the parts; under dp, draw them from the released model."""
    spec, plan = _of(context)
    columns, results = _columns(spec), context.results
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


# --- the private variant ---------------------------------------------------------------------------------------------


def measure_step(context: Context) -> None:
    """Noisy marginals and correlations of the private variant.

    Raises
    ------
    DataError
        The table breaks its declared policies.
    """
    spec, plan = _of(context)
    if plan.charge is None:
        return
    columns, private, charge = _columns(spec), plan.columns, plan.charge

    def marginals() -> bytes:
        counts = _pass(context, graph.marginal_operator(columns, private), stage="counting")
        return _arrays_bytes(noisy_marginals(counts, charge=charge, noise=context.noise))

    known = input_model(private, _arrays_of_bytes(context.stored("marginals.npz", marginals)))

    def correlations() -> bytes:
        products = np.zeros(0, np.int64)
        if len(known.tables) > 1:
            products = _pass(context, graph.rank_operator(columns, private, known.tables), stage="correlating")
        return _arrays_bytes([noisy_ranks(products, charge=charge, noise=context.noise)])

    (products,) = _arrays_of_bytes(context.stored("correlations.npz", correlations))
    context.results.update(known=known, target=known.target(products))


def fit_step(context: Context) -> None:
    """Noisy ridge statistics of the private variant, and the model they give."""
    spec, plan = _of(context)
    charge = plan.charge
    if charge is None:
        return
    results, private, noise, wanted = context.results, plan.columns, context.noise, spec.prediction.features
    seen = design(private, results["known"], frequencies=wanted.frequencies, width=wanted.width, noise=noise)
    measured = charge.product > 0

    def statistics() -> bytes:
        work = graph.ridge_operator(
            _columns(spec), private, seen.feature, seen.response, seen.window.table(), products=measured
        )
        products, cross = _pass(context, work, stage="regressing")
        squares = [noisy_products(products, charge=charge, noise=noise)] if measured else []
        return _arrays_bytes([*squares, noisy_cross(cross, charge=charge, noise=noise)])

    *products, cross = _arrays_of_bytes(context.stored("regression.npz", statistics))
    results["model"] = fitted_model(
        private,
        results["known"],
        results["target"],
        seen,
        products=products[0] if measured else None,
        cross=cross,
        charge=charge,
        noise=noise,
    )


def _pass(context: Context, operator: Operator, *, stage: str) -> Any:
    """The operator's sums over the table; the first pass refuses a table that breaks its policies."""
    with context.stage(stage) as progress:
        if "located" not in context.results:
            context.results["located"] = context.cluster.compute([locate(context.table)])[0]
        made = table_pass(context.results["located"], operator, name=stage)
        summary, report = context.cluster.compute([made], progress=progress)[0]
    context.operator["table"] = report.confidential(context.spec.table)
    check(report, context.spec.table)
    return summary


# --- what is stored --------------------------------------------------------------------------------------------------


def _arrays_bytes(arrays: Any) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, *arrays)
    return buffer.getvalue()


def _arrays_of_bytes(content: bytes) -> list[Steps]:
    with np.load(io.BytesIO(content), allow_pickle=False) as stored:
        return [stored[f"arr_{i}"] for i in range(len(stored.files))]


def _target_bytes(marginals: tuple[Marginal, ...], target: Target) -> bytes:
    heads = np.array([[marginal.discrete, marginal.bandwidth] for marginal in marginals], np.float64)
    return _arrays_bytes([target.correlation, heads, *(marginal.cumulative for marginal in marginals)])


def _target_of_bytes(content: bytes, method: Method) -> tuple[tuple[Marginal, ...], Target]:
    correlation, heads, *cumulative = _arrays_of_bytes(content)
    marginals = tuple(
        Marginal(np.asarray(array, np.float64), bool(discrete), float(bandwidth))
        for array, (discrete, bandwidth) in zip(cumulative, heads, strict=True)
    )
    return marginals, Target(tuple(marginals[i] for i in method.made), np.asarray(correlation, np.float64))


def _tuning_bytes(tuning: Tuning) -> bytes:
    error = None if np.isnan(tuning.error) else tuning.error
    return json.dumps(
        {"kernel": tuning.kernel.name, "width": tuning.kernel.width, "penalty": tuning.penalty, "error": error}
    ).encode()


def _tuning_of_bytes(content: bytes) -> Tuning:
    stored: Mapping[str, Any] = json.loads(content)
    error = float("nan") if stored["error"] is None else stored["error"]
    return Tuning(kernel=Kernel(name=stored["kernel"], width=stored["width"]), penalty=stored["penalty"], error=error)


def _columns(spec: TwoStageSpec) -> Columns:
    return Columns(spec.table.attributes, spec.inputs, spec.response, spec.table.names.index(spec.prediction.response))


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


def _of(context: Context) -> tuple[TwoStageSpec, TwoStagePlan]:
    spec, plan = context.spec, context.plan
    if not isinstance(spec, TwoStageSpec) or not isinstance(plan, TwoStagePlan):
        raise TypeError("expected the spec and the plan of a two-stage release")
    return spec, plan
