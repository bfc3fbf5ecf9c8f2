"""The operators of a pass: any cut of the records gives the bits of NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpdist.cluster.cluster import Cluster
from dpdist.data.operators import Operator
from dpdist.data.source import TableSource
from dpdist.data.table import open_table
from dpdist.families.base.graph import table_pass
from dpdist.families.histogram.counts import CountPlan, Query, histogram_operator, histograms
from dpdist.families.histogram.curves import curve_operator, sum_curves
from dpdist.families.histogram.kernels import eigenbasis
from dpdist.families.histogram.spec import KernelSpec
from dpdist.spec.schema import Attribute, Schema

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


@pytest.fixture(scope="module")
def census(tmp_path_factory: pytest.TempPathFactory) -> tuple[TableSource, Schema, list[np.ndarray]]:
    rng = np.random.default_rng(0)
    names, sizes, rows = ("a", "b", "c"), (3, 10, 40), 10_000
    codes = [rng.integers(0, size, rows) for size in sizes]
    folder: Path = tmp_path_factory.mktemp("census")
    for part in range(3):
        cut = slice(part * 4000, (part + 1) * 4000)
        table = pa.table({name: pa.array(column[cut]) for name, column in zip(names, codes, strict=True)})
        pq.write_table(table, folder / f"part-{part}.parquet", row_group_size=700)
    attributes = tuple(
        Attribute(name=name, kind="integer", bounds=(0, size - 1)) for name, size in zip(names, sizes, strict=True)
    )
    return TableSource(paths=(str(folder),)), Schema(attributes=attributes), codes


@pytest.mark.parametrize("partitions", [1, 3, 16])
def test_the_graph_gives_the_bits_of_numpy(
    census: tuple[TableSource, Schema, list[np.ndarray]], partitions: int
) -> None:
    source, schema, codes = census
    plan = CountPlan((Query((0,)), Query((2, 1)), Query((0, 2))), schema.cardinalities)
    table = open_table(source, schema, partitions=partitions)
    graph = table_pass(Cluster(), table, histogram_operator(plan), name="count", batch_rows=997)
    [(tables, report)] = Cluster().compute([graph])
    assert report.kept == 10_000
    for made, expected in zip(tables, histograms(codes, plan), strict=True):
        np.testing.assert_array_equal(made, expected)
