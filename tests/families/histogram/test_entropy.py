"""Entropies, their sensitivities against enumeration, and their noisy release."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpdist.errors import AccountingError, SpecError
from dpdist.families.histogram.entropy import plan_entropies, release_entropies, renyi, shannon
from dpdist.privacy import accountant
from dpdist.privacy.arrays import round_to_grid
from dpdist.privacy.noise import Noise
from dpdist.privacy.sensitivity import Bounds, bounds

NOISE = Noise(bytes(range(32)))
ORDERS = [0.3, 0.5, 0.9, 1.0, 1.1, 2.0, 3.0, 10.0]


class TestEntropy:
    @given(st.lists(st.integers(0, 10**9), min_size=1, max_size=30).filter(any), st.sampled_from(ORDERS))
    def test_definition(self, counts: list[int], order: float) -> None:
        p = np.array([c for c in counts if c]) / sum(counts)
        expected = -sum(p * np.log2(p)) if order == 1 else np.log2(np.sum(p**order)) / (1 - order)
        assert renyi(counts, order=order) == pytest.approx(expected, abs=1e-11)
        assert -1e-11 <= renyi(counts, order=order) <= math.log2(len(counts)) + 1e-11

    def test_no_overflow_and_no_underflow(self) -> None:
        assert renyi(np.full(2**20, 10**6), order=64) == pytest.approx(20)
        assert renyi([10**12, 1], order=64) == pytest.approx(0, abs=1e-9)

    @pytest.mark.parametrize("cells", [30, 10_000, 1 << 20])
    def test_evaluation_error_is_far_below_what_is_charged(self, cells: int) -> None:
        counts = (np.random.default_rng(cells).pareto(1.1, cells) * 1000).astype(np.int64)
        shares = counts[counts > 0].astype(np.longdouble) / counts.sum()
        for order in (0.3, 1.001, 2.0, 64.0):
            top, a = shares.max(), np.longdouble(order)
            exact = (np.log2(np.sum((shares / top) ** a)) + a * np.log2(top)) / (1 - a)
            error = abs(float(exact - renyi(counts, order=order)))
            assert error < 0.1 * 2.0**-40 * max(1.0, order / abs(1 - order))
        assert abs(float(-np.sum(shares * np.log2(shares)) - shannon(counts))) < 0.1 * 2.0**-40

    @pytest.mark.parametrize("counts", [[], [0, 0], [-1, 3], [math.nan, 1], [math.inf]])
    def test_refused_counts(self, counts: list[float]) -> None:
        with pytest.raises(SpecError, match="finite non-negative counts"):
            shannon(counts)

    @pytest.mark.parametrize("order", [0, -1, math.inf, math.nan])
    def test_refused_orders(self, order: float) -> None:
        with pytest.raises(SpecError, match="order of a Renyi entropy"):
            renyi([1, 2], order=order)


class TestRelease:
    def test_within_the_budget_and_tight(self) -> None:
        for mechanism, delta in [("laplace", 1e-9), ("gaussian", 1e-9)]:
            plan = plan_entropies(
                [1.0, 1.0, 2.0], records=1000, epsilon=1, delta=delta, adjacency="add/remove", mechanism=mechanism
            )
            assert 0.99 < accountant.epsilon(plan.event, delta=delta) <= 1.000001

    def test_scales_by_definition(self) -> None:
        plan = plan_entropies([1.0, 2.0], records=1000, epsilon=1, delta=0, adjacency="replacement")
        assert plan.mechanism == "laplace"
        for order, scale, grid, both in zip((1.0, 2.0), plan.scales, plan.grids, plan.bounds, strict=True):
            assert isinstance(both, Bounds)
            assert scale == pytest.approx(2 * both.sensitivity, rel=1e-6)
            assert scale > 2 * both.sensitivity
            assert grid <= both.sensitivity * 2.0**-30
            assert both.sensitivity == bounds(records=1000, order=order, adjacency="replacement").sensitivity

    def test_auto_takes_the_smaller(self) -> None:
        kwargs = {"records": 1000, "epsilon": 1, "delta": 1e-9, "adjacency": "add/remove"}
        assert plan_entropies([1.0], **kwargs).mechanism == "laplace"
        assert plan_entropies([1.0] * 100, **kwargs).mechanism == "gaussian"

    def test_a_tiny_epsilon_stays_drawable(self) -> None:
        plan = plan_entropies([1.0] * 1000, records=50, epsilon=1e-6, delta=0, adjacency="add/remove")
        tables = [np.array([30, 20])] * 1000
        assert np.isfinite(release_entropies(tables, plan, noise=NOISE, name="tiny")).all()

    @pytest.mark.parametrize("mechanism", ["laplace", "gaussian"])
    def test_noise_of_the_planned_scale_from_a_stream_for_each(self, mechanism: str) -> None:
        orders, table = [1.0, 2.0, 1.0], np.array([400, 300, 300])
        plan = plan_entropies(orders, records=1000, epsilon=1, delta=1e-9, adjacency="add/remove", mechanism=mechanism)
        released = release_entropies([table] * 3, plan, noise=NOISE, name="h")
        for i, (order, scale, grid) in enumerate(zip(orders, plan.scales, plan.grids, strict=True)):
            if mechanism == "laplace":
                drawn = NOISE.grid_laplace(f"h/{i}", 1, scale=scale, grid=grid)
            else:
                drawn = NOISE.grid_gaussian(f"h/{i}", 1, sigma=scale, grid=grid)
            assert released[i] == round_to_grid(renyi(table, order=order), grid=grid) + drawn[0]
            assert plan.deviations[i] == scale * (math.sqrt(2) if mechanism == "laplace" else 1)

    @pytest.mark.parametrize(
        ("orders", "change", "error", "message"),
        [
            ([1.0], {"adjacency": "none"}, SpecError, "adjacency must be"),
            ([1.0], {"delta": 1e-19}, AccountingError, "delta must be 0, or in"),
            ([1.0], {"delta": 2.0}, AccountingError, "delta"),
            ([1.0], {"epsilon": -1.0}, AccountingError, "epsilon"),
            ([-2.0], {}, AccountingError, "order"),
            ([1.0], {"records": 0}, AccountingError, "records"),
        ],
    )
    def test_refused(
        self, orders: list[float], change: dict[str, object], error: type[Exception], message: str
    ) -> None:
        settings = {"records": 100, "epsilon": 1.0, "delta": 1e-9, "adjacency": "add/remove", **change}
        with pytest.raises(error, match=message):
            plan_entropies(orders, **settings)
