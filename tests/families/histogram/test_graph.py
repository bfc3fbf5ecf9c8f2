"""The operators of a pass: any cut of the records gives the bits of NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dpdist.data.operators import Operator
from dpdist.families.histogram.counts import CountPlan, Query, histogram_operator, histograms
from dpdist.families.histogram.curves import curve_operator, sum_curves
from dpdist.families.histogram.kernels import eigenbasis
from dpdist.families.histogram.spec import KernelSpec

TIMES = (0.0, 0.2, 0.5, 1.0)
BASIS = eigenbasis(KernelSpec(), TIMES)


def run(operator: Operator, columns: Sequence[np.ndarray], cuts: Sequence[int]) -> object:
    """The operator over the records cut into batches, the batches cut into partitions."""
    edges = [0, *sorted(cuts), len(columns[0])]
    parts = [operator.chunk([column[a:b] for column in columns]) for a, b in pairwise(edges)]
    whole = reduce(operator.combine, parts)
    return operator.finish(whole) if operator.finish else whole


def nested(operator: Operator, columns: Sequence[np.ndarray], cuts: Sequence[int]) -> object:
    """The same with another bracketing."""
    edges = [0, *sorted(cuts), len(columns[0])]
    parts = [operator.chunk([column[a:b] for column in columns]) for a, b in pairwise(edges)]
    whole = reduce(lambda a, b: operator.combine(b, a), reversed(parts))
    return operator.finish(whole) if operator.finish else whole


def curves(count: int) -> np.ndarray:
    return np.random.default_rng(count).normal(0, 2, (count, len(TIMES)))


class TestOperators:
    @given(st.integers(0, 50), st.lists(st.integers(0, 50), max_size=4))
    def test_histograms(self, rows: int, cuts: list[int]) -> None:
        rng = np.random.default_rng(rows)
        codes = [rng.integers(0, size, rows).astype(np.uint8) for size in (3, 4)]
        plan = CountPlan((Query((0,)), Query((1, 0))), (3, 4))
        expected = histograms(codes, plan)
        for tables in (
            run(histogram_operator(plan), codes, [min(c, rows) for c in cuts]),
            nested(histogram_operator(plan), codes, [min(c, rows) for c in cuts]),
        ):
            for table, whole in zip(tables, expected, strict=True):  # type: ignore[call-overload]
                np.testing.assert_array_equal(table, whole)

    @given(st.integers(0, 20), st.lists(st.integers(0, 20), max_size=4))
    def test_wide_curves(self, count: int, cuts: list[int]) -> None:
        table = curves(count)
        columns = [np.zeros(count), *(table[:, i] for i in (2, 0, 1, 3))]
        sums = run(curve_operator(BASIS, clip=1.0, columns=(2, 3, 1, 4)), columns, [min(c, count) for c in cuts])
        expected = sum_curves(table, BASIS, clip=1.0)
        assert sums.count == count  # type: ignore[attr-defined]
        np.testing.assert_array_equal(sums.totals, expected.totals)  # type: ignore[attr-defined]
