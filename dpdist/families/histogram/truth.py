"""The true values of released statistics, for an evaluation: the same pass over the table, without noise."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from dpdist.data.operators import Operator
from dpdist.errors import SpecError
from dpdist.families.base.family import Truth
from dpdist.families.histogram.curves import value_unit
from dpdist.families.histogram.entropy import renyi
from dpdist.families.histogram.plan import HistogramPlan
from dpdist.families.histogram.spec import HistogramSpec
from dpdist.families.histogram.stages import operator_of
from dpdist.privacy.arrays import Counts


def truth(plan: HistogramPlan) -> tuple[Operator, Callable[[Any], list[Truth]]]:
    """What a release counts with, and what turns its summary into true values in the release's order."""
    of = partial(_of_counts, plan.spec) if plan.counts is not None else partial(_of_curves, plan)
    return operator_of(plan.spec, plan), of


def _of_counts(spec: HistogramSpec, tables: list[Counts]) -> list[Truth]:
    names = [" × ".join(query.columns) + (" (buckets)" if query.buckets else "") for query in spec.queries]
    found: list[Truth] = [("count", names[i], table.ravel().astype(float)) for i, table in enumerate(tables)]
    for i, table in enumerate(tables):
        found += [
            ("entropy", names[i], np.array([renyi(np.maximum(table, int(not table.any())), order=order)]))
            for order in spec.counts.entropies
        ]
    for number, order in spec.entropy_targets:
        found.append(("entropy", names[number], np.array([renyi(tables[number], order=order)])))
    return found


def _of_curves(plan: HistogramPlan, sums: Any) -> list[Truth]:
    if plan.curves is None:
        raise SpecError("the manifest names no curves: update dpdist")
    unit = value_unit(plan.curves.basis, clip=plan.curves.clip)
    return [("mean", "curves", sums.totals * unit / max(sums.count, 1))]
