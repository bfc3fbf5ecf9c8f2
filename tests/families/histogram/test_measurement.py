"""The noise on histograms: what it costs, how it is shared, and its distribution."""

import math
from fractions import Fraction
from functools import reduce
from itertools import combinations, pairwise
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

from dpdist.data import count as data_count
from dpdist.errors import AccountingError, SpecError
from dpdist.families.base.calibration import Mechanism, add_noise, deviation
from dpdist.families.histogram import counts as counts_module
from dpdist.families.histogram import measurement
from dpdist.families.histogram.counts import CountPlan, Query, histogram_operator, histograms
from dpdist.families.histogram.measurement import Measurement, plan_measurement, resolve_shares, sampler_delta
from dpdist.privacy import accountant
from dpdist.privacy.events import Composed
from dpdist.privacy.guarantee import Adjacency
from dpdist.privacy.noise import Noise

NOISE = Noise(bytes(range(32)))
ADJACENCIES = ["add/remove", "replacement"]


def without_sampler(event: Composed) -> Composed:
    return Composed(event.events[:-1])


class TestCost:
    def test_laplace_scales_by_definition(self) -> None:
        for adjacency, changed in [("add/remove", 1), ("replacement", 2)]:
            plan = plan_measurement([30], mechanism="laplace", epsilon=0.5, delta=0, adjacency=adjacency)
            assert plan.scales[0] == pytest.approx(changed / 0.5, rel=1e-11)
            assert accountant.epsilon(without_sampler(plan.event), delta=0) <= 0.5 * (1 + 1e-6)

    def test_gaussian_multiplier_is_of_the_l2_sensitivity(self) -> None:
        one, two = (
            plan_measurement([30], mechanism="gaussian", epsilon=1, delta=1e-9, adjacency=adjacency)
            for adjacency in ADJACENCIES
        )
        assert two.scales[0] == pytest.approx(one.scales[0] * math.sqrt(2), rel=1e-9)
        assert one.event == two.event

    @pytest.mark.parametrize("adjacency", ADJACENCIES)
    @pytest.mark.parametrize("mechanism", ["laplace", "gaussian"])
    @pytest.mark.parametrize("shares", ["equal", "optimal", (Fraction(1, 2), Fraction(1, 3), Fraction(1, 6))])
    def test_within_the_budget_and_tight(
        self, adjacency: measurement.Adjacency, mechanism: Mechanism, shares: measurement.Shares
    ) -> None:
        plan = plan_measurement(
            [2, 30, 4000], mechanism=mechanism, epsilon=1, delta=1e-6, adjacency=adjacency, shares=shares
        )
        epsilon = accountant.epsilon(plan.event, delta=1e-6)
        assert 0.99 < epsilon <= 1.000001
        assert plan.event.events[-1].delta == 4032 * 2.0**-60

    def test_shares_divide_what_composes(self) -> None:
        shares = (Fraction(1, 2), Fraction(1, 3), Fraction(1, 6))
        laplace = plan_measurement(
            [9] * 3, mechanism="laplace", epsilon=1, delta=0, adjacency="add/remove", shares=shares
        )
        gaussian = plan_measurement(
            [9] * 3, mechanism="gaussian", epsilon=1, delta=1e-9, adjacency="add/remove", shares=shares
        )
        assert [1 / s for s in laplace.scales] == pytest.approx([float(s) for s in shares])
        inverse = np.array([1 / s**2 for s in gaussian.scales])
        assert inverse / inverse.sum() == pytest.approx([float(s) for s in shares])

    def test_many_laplace_tables_cost_less_than_basic_composition_where_delta_allows(self) -> None:
        kwargs = {"mechanism": "laplace", "epsilon": 1, "adjacency": "add/remove"}
        few = [plan_measurement([10] * 2, delta=delta, **kwargs).scales[0] for delta in (0, 1e-9)]
        many = [plan_measurement([10] * 100, delta=delta, **kwargs).scales[0] for delta in (0, 1e-9)]
        assert few[1] <= few[0]
        assert many[1] < 0.7 * many[0]

    @pytest.mark.parametrize("cells", [[2], [10] * 7, [10] * 12, [10] * 20, [2, 500, 30]])
    @pytest.mark.parametrize("adjacency", ["add/remove", "replacement"])
    def test_auto_is_the_better_of_both(self, cells: list[int], adjacency: Adjacency) -> None:
        def made(mechanism: Any) -> Measurement:
            return plan_measurement(
                cells, mechanism=mechanism, epsilon=1, delta=1e-9, adjacency=adjacency, shares="optimal"
            )

        both = [made("laplace"), made("gaussian")]
        best = min(both, key=lambda m: sum(c * d**2 for c, d in zip(cells, m.deviations, strict=True)))
        assert made("auto") == best


class TestShares:
    @pytest.mark.parametrize(("mechanism", "power"), [("laplace", 2), ("gaussian", 1)])
    def test_optimal_shares_minimise_the_error(self, mechanism: Mechanism, power: int) -> None:
        cells = np.array([2, 30, 400, 1000])

        def error(shares: np.ndarray) -> float:
            return float(np.sum(cells / shares**power))

        free = optimize.minimize(lambda z: error(np.exp(z) / np.exp(z).sum()), np.zeros(4), options={"gtol": 1e-9})
        shares = resolve_shares("optimal", cells.tolist(), mechanism=mechanism)
        assert sum(shares) == 1
        assert error(np.array([float(s) for s in shares])) == pytest.approx(free.fun, rel=1e-6)

    def test_equal_and_stated_shares_are_exact(self) -> None:
        assert resolve_shares("equal", [5, 6, 7], mechanism="laplace") == (Fraction(1, 3),) * 3
        tenths = [Fraction("0.1"), Fraction("0.2"), Fraction("0.7")]
        assert resolve_shares(tenths, [5, 6, 7], mechanism="laplace") == tuple(tenths)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epsilon": 0.0}, "epsilon"),
        ({"epsilon": math.inf}, "epsilon"),
        ({"epsilon": 1e-18, "delta": 0.0}, "raise privacy.epsilon or its share"),
        ({"delta": 1.0}, "delta"),
        ({"delta": 1e-18}, "delta must be 0, or in"),
        ({"delta": -1e-9}, "delta"),
        ({"delta": 0.0, "mechanism": "gaussian"}, "Gaussian noise needs delta > 0"),
    ],
)
def test_a_plan_refuses(change: dict[str, object], message: str) -> None:
    settings = {"mechanism": "laplace", "epsilon": 1.0, "delta": 1e-9, "adjacency": "add/remove", **change}
    with pytest.raises(AccountingError, match=message):
        plan_measurement([30], **settings)


@pytest.mark.parametrize("mechanism", ["laplace", "gaussian"])
def test_every_cell_takes_its_draw_of_the_stream(mechanism: Mechanism) -> None:
    table = np.arange(300).reshape(100, 3)
    noisy = add_noise(table, mechanism=mechanism, scale=2.0, noise=NOISE, name="t")
    if mechanism == "laplace":
        drawn = NOISE.discrete_laplace("t", 300, scale=2.0)
    else:
        drawn = NOISE.gaussian_integers("t", 300, sigma=2.0)
    np.testing.assert_array_equal(noisy - table, drawn.reshape(100, 3))
    many = add_noise(np.zeros(100_000, np.int64), mechanism=mechanism, scale=3.7, noise=NOISE, name="power")
    assert many.std() == pytest.approx(deviation(mechanism, 3.7), rel=0.03)


def test_likelihood_ratio_of_neighbours_is_the_stated_epsilon() -> None:
    """Exact output probabilities of two neighbouring tables: never above epsilon, and attained."""
    outputs = np.stack(np.meshgrid(np.arange(-20, 25), np.arange(-20, 25)), axis=-1)
    for adjacency, neighbours in [("add/remove", [(2, 1), (3, 1)]), ("replacement", [(4, 0), (3, 1)])]:
        plan = plan_measurement([2], mechanism="laplace", epsilon=0.8, delta=0, adjacency=adjacency)
        losses = [np.abs(outputs - np.array(table)).sum(axis=-1) / plan.scales[0] for table in neighbours]
        worst = np.abs(losses[0] - losses[1]).max()
        assert worst <= 0.8 * (1 + 1e-12)
        assert worst > 0.8 * 0.99


def test_sampler_delta() -> None:
    assert sampler_delta(2**20) == 2.0**-40


# --- Histograms in one pass: against brute force, for any chunking, and what a plan refuses


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
        patch.setattr(data_count, "CHUNK_ROWS", chunk)
        operator = histogram_operator(plan)
        parts = [operator.chunk([c[a:b] for c in codes]) for a, b in pairwise(edges)]
        pieces = operator.finish(reduce(operator.combine, parts))
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
