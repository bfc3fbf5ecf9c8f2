"""Histograms in one pass: against brute force, for any chunking, and what a plan refuses."""

from __future__ import annotations

from itertools import combinations, pairwise
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpdist.data import count as data_count
from dpdist.errors import SpecError
from dpdist.families.histogram import counts as counts_module
from dpdist.families.histogram.counts import CountPlan, Query, block_counts, histograms, tables_of_blocks


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[np.ndarray], CountPlan]:
    sizes = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=5)))
    rows = draw(st.integers(0, 60))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    codes = [rng.integers(0, size, rows).astype(np.min_scalar_type(size - 1)) for size in sizes]
    attributes = st.permutations(range(len(sizes))).flatmap(
        lambda order: st.integers(1, len(sizes)).map(lambda k: tuple(order[:k]))
    )
    queries = draw(st.lists(st.builds(Query, attributes, coarse=st.booleans()), min_size=1, max_size=6))
    maps = tuple(tuple(code // 2 for code in range(size)) for size in sizes)
    return codes, CountPlan(tuple(queries), sizes, maps)


def brute_force(codes: list[np.ndarray], plan: CountPlan, query: Query) -> np.ndarray:
    table = np.zeros(plan.shape(query), np.int64)
    for row in zip(*(codes[i].tolist() for i in query.attributes), strict=True):
        if query.coarse:
            row = tuple(plan.bucket_maps[i][code] for i, code in zip(query.attributes, row, strict=True))
        table[row] += 1
    return table


@given(tables())
def test_equals_brute_force(case: tuple[list[np.ndarray], CountPlan]) -> None:
    codes, plan = case
    for query, cells, table in zip(plan.queries, plan.table_cells, histograms(codes, plan), strict=True):
        assert table.dtype == np.int64
        assert table.size == cells
        np.testing.assert_array_equal(table, brute_force(codes, plan, query))


@settings(max_examples=30)
@given(tables(), st.lists(st.integers(0, 60), max_size=4), st.sampled_from([1, 4, 30, 1 << 15]), st.integers(1, 17))
def test_any_chunking_gives_the_same_bits(
    case: tuple[list[np.ndarray], CountPlan], cuts: list[int], block_cells: int, chunk: int
) -> None:
    codes, plan = case
    whole = histograms(codes, plan)
    edges = [0, *sorted(cuts), len(codes[0])]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counts_module, "BLOCK_CELLS", block_cells)
        patch.setattr(counts_module, "CHUNK_ROWS", chunk)
        counts_module._cover.cache_clear()
        parts = [block_counts([c[a:b] for c in codes], plan) for a, b in pairwise(edges)]
        pieces = tables_of_blocks(sum(parts[1:], start=parts[0]), plan)
    counts_module._cover.cache_clear()
    for one, other in zip(whole, pieces, strict=True):
        np.testing.assert_array_equal(one, other)


def test_blocks_are_shared_and_stay_in_the_cache() -> None:
    queries = tuple(Query((i,)) for i in range(40)) + tuple(Query(p) for p in list(combinations(range(40), 2))[:100])
    plan = CountPlan(queries, (10,) * 40)
    assert all(any(set(q.attributes) <= set(block) for block in plan.blocks) for q in queries)
    assert max(prod(plan.cardinalities[i] for i in block) for block in plan.blocks) <= data_count.BLOCK_CELLS
    assert len(CountPlan(queries[:40], (10,) * 40).blocks) == 10
    assert len(plan.blocks) < 80


def test_a_plan_with_too_many_cells_is_refused() -> None:
    with pytest.raises(SpecError, match=r"more than the limit .* leave out a column"):
        CountPlan((Query((0, 1, 2)),), (60_000, 60_000, 2))
