"""The steps of a private two-stage release before its records are drawn: measure the inputs, fit the regression."""

from __future__ import annotations

from typing import Any

import numpy as np

from dpdist.data.graph import locate, table_pass
from dpdist.data.operators import Operator
from dpdist.data.report import check
from dpdist.families.attempt import Context
from dpdist.families.prediction.columns import columns_of
from dpdist.families.prediction.plan import TwoStagePlan
from dpdist.families.prediction.private.model import (
    design,
    fitted_model,
    input_model,
    noisy_cross,
    noisy_marginals,
    noisy_products,
    noisy_ranks,
)
from dpdist.families.prediction.private.sums import marginal_operator, rank_operator, ridge_operator
from dpdist.families.prediction.spec import TwoStageSpec
from dpdist.families.prediction.stored import arrays_bytes, arrays_of_bytes


def measure_step(context: Context) -> None:
    """Noisy marginals and correlations of the private variant.

    Raises
    ------
    DataError
        The table breaks its declared policies.
    """
    spec, plan = spec_and_plan(context)
    if plan.charge is None:
        return
    columns, private, charge = columns_of(spec), plan.columns, plan.charge

    def marginals() -> bytes:
        counts = _pass(context, marginal_operator(columns, private), stage="counting")
        return arrays_bytes(noisy_marginals(counts, charge=charge, noise=context.noise))

    known = input_model(private, arrays_of_bytes(context.stored("marginals.npz", marginals)))

    def correlations() -> bytes:
        products = np.zeros(0, np.int64)
        if len(known.tables) > 1:
            products = _pass(context, rank_operator(columns, private, known.tables), stage="correlating")
        return arrays_bytes([noisy_ranks(products, charge=charge, noise=context.noise)])

    (products,) = arrays_of_bytes(context.stored("correlations.npz", correlations))
    context.results.update(known=known, target=known.target(products))


def fit_step(context: Context) -> None:
    """Noisy ridge statistics of the private variant, and the model they give."""
    spec, plan = spec_and_plan(context)
    charge = plan.charge
    if charge is None:
        return
    results, private, noise, wanted = context.results, plan.columns, context.noise, spec.prediction.features
    seen = design(private, results["known"], frequencies=wanted.frequencies, width=wanted.width, noise=noise)
    measured = charge.product > 0

    def statistics() -> bytes:
        work = ridge_operator(
            columns_of(spec), private, seen.feature, seen.response, seen.window.table(), products=measured
        )
        products, cross = _pass(context, work, stage="regressing")
        squares = [noisy_products(products, charge=charge, noise=noise)] if measured else []
        return arrays_bytes([*squares, noisy_cross(cross, charge=charge, noise=noise)])

    *products, cross = arrays_of_bytes(context.stored("regression.npz", statistics))
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


def spec_and_plan(context: Context) -> tuple[TwoStageSpec, TwoStagePlan]:
    """The spec and the plan of a context, which are those of a two-stage release."""
    spec, plan = context.spec, context.plan
    if not isinstance(spec, TwoStageSpec) or not isinstance(plan, TwoStagePlan):
        raise TypeError("expected the spec and the plan of a two-stage release")
    return spec, plan
