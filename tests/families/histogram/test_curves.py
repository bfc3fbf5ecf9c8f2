"""Function-valued means: kernels, sensitivity by random search, exact sums, noise, and what is refused."""

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from dpdist.errors import AccountingError, CheckFailed, ColumnMismatch, OutOfDomain, SpecError
from dpdist.families.histogram import curves as curves_module
from dpdist.families.histogram.curves import (
    CurvePlan,
    CurveSums,
    coefficient_steps,
    curve_operator,
    plan_mean,
    release_mean,
    sum_curves,
    value_unit,
)
from dpdist.families.histogram.kernels import Basis, covariance, eigenbasis, quadrature
from dpdist.families.histogram.spec import KernelSpec
from dpdist.privacy import accountant
from dpdist.privacy.noise import Noise

NOISE = Noise(bytes(range(32)))
TIMES = np.linspace(0, 1, 80)
KERNELS = [KernelSpec(), KernelSpec(name="gaussian", length=0.2), KernelSpec(name="matern", length=0.3)]
BUDGET: dict[str, Any] = {"budget": (1.0, 1e-5)}
RNG = np.random.default_rng(5)


def paths(count: int) -> np.ndarray:
    """Squared Wiener paths: chi-square at every time."""
    steps = np.random.default_rng(2).normal(0, 1 / math.sqrt(79), (count, 79))
    return np.concatenate([np.zeros((count, 1)), np.cumsum(steps, axis=1)], axis=1) ** 2


def norm(curve: np.ndarray, basis: Basis) -> float:
    return math.sqrt(float(np.sum(basis.weights * curve**2)))


def coefficients(sums: CurveSums, plan: CurvePlan) -> np.ndarray:
    return np.array(coefficient_steps(sums, plan), np.float64) * plan.grid


class TestKernels:
    @pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
    def test_eigenpairs(self, kernel: KernelSpec) -> None:
        basis = eigenbasis(kernel, TIMES)
        gram = basis.functions * basis.weights @ basis.functions.T
        np.testing.assert_allclose(gram, np.eye(len(gram)), atol=1e-9)
        assert (np.diff(basis.eigenvalues) < 0).all()
        fine = np.linspace(0, 1, 401)
        many = eigenbasis(kernel, fine, terms=5)
        applied = covariance(kernel, fine, fine) * quadrature(fine) @ many.functions.T
        np.testing.assert_allclose(applied.T, many.eigenvalues[:, None] * many.functions, atol=3e-3)

    @pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
    def test_the_expansion_is_the_kernel(self, kernel: KernelSpec) -> None:
        times = np.linspace(0, 1, 200)
        basis = eigenbasis(kernel, times)
        expansion = (basis.eigenvalues[:, None] * basis.functions).T @ basis.functions
        np.testing.assert_allclose(expansion, covariance(kernel, times, times), atol=3e-3)

    def test_uneven_times(self) -> None:
        """The closed form is not orthonormal there; Nystrom's functions are, and reproduce a curve without noise."""
        times = np.array([0.0, 0.2, 0.5, 1.0])
        basis = eigenbasis(KernelSpec(), times)
        np.testing.assert_allclose(basis.functions * basis.weights @ basis.functions.T, np.eye(3), atol=1e-12)
        curve = np.array([0.0, 1.0, -2.0, 3.0])
        np.testing.assert_allclose((basis.functions * basis.weights @ curve) @ basis.functions, curve, atol=1e-12)

    def test_quadrature(self) -> None:
        assert quadrature(TIMES).sum() == pytest.approx(1)
        uneven = np.sort(np.random.default_rng(0).random(30))
        assert quadrature(uneven).sum() == pytest.approx(1)
        np.testing.assert_allclose(quadrature(TIMES)[1:-1], 1 / 79)
        np.testing.assert_allclose(quadrature(TIMES)[[0, -1]], 1 / 158)

    def test_terms(self) -> None:
        basis = eigenbasis(KernelSpec(), TIMES, terms=10)
        assert basis.eigenvalues.size == 10
        assert basis.remainder == pytest.approx(1 / (10.5 * math.pi) ** 2)
        smooth = eigenbasis(KernelSpec(name="gaussian", length=0.5), TIMES)
        assert smooth.eigenvalues.size < 25
        assert smooth.remainder == 0
        assert eigenbasis(KernelSpec(name="gaussian", length=0.5), TIMES, terms=3).remainder > 0

    @pytest.mark.parametrize(
        "times", [[0.5], [0.0, 0.0, 1.0], [1.0, 0.0], [-0.1, 1.0], [0.0, 1.1], [0.0, math.nan], [[0.0, 1.0]]]
    )
    def test_refused_times(self, times: list[float]) -> None:
        with pytest.raises(SpecError, match="times"):
            eigenbasis(KernelSpec(), times)

    @pytest.mark.parametrize("terms", [0, 80])
    def test_refused_terms(self, terms: int) -> None:
        with pytest.raises(SpecError, match="from 1 to 79"):
            eigenbasis(KernelSpec(), TIMES, terms=terms)


class TestSensitivity:
    @pytest.mark.parametrize("penalty", [1e-6, 1e-3, 0.1])
    @pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
    @pytest.mark.parametrize("times", [TIMES, np.sort(np.random.default_rng(3).random(30))], ids=["even", "uneven"])
    def test_closed_form(self, kernel: KernelSpec, penalty: float, times: np.ndarray) -> None:
        basis = eigenbasis(kernel, times)
        plan = plan_mean(basis, penalty=penalty, clip=3.0, curves=50, adjacency="replacement", **BUDGET)
        closed = 2 * 3.0 / 50 * np.max(np.sqrt(basis.eigenvalues) / (basis.eigenvalues + penalty))
        assert plan.sensitivity / plan.curves == pytest.approx(closed, rel=1e-6)
        assert plan.sensitivity / plan.curves <= 3.0 / (50 * math.sqrt(penalty)) * (1 + 1e-8)

    @pytest.mark.parametrize("adjacency", ["add/remove", "replacement"])
    @pytest.mark.parametrize("times", [TIMES, np.sort(np.random.default_rng(3).random(30))], ids=["even", "uneven"])
    @pytest.mark.parametrize("kernel", KERNELS[:3], ids=lambda k: k.name)
    def test_random_search(self, kernel: KernelSpec, times: np.ndarray, adjacency: str) -> None:
        """Never exceeded by random, extreme and optimised curves; attained by the worst of them."""
        basis = eigenbasis(kernel, times)
        plan = plan_mean(basis, penalty=1e-3, clip=0.7, curves=9, adjacency=adjacency, **BUDGET)  # type: ignore[arg-type]
        rounding = plan.grid * math.sqrt(basis.eigenvalues.size)
        linear = plan.matrix * plan.matrix_unit / np.sqrt(basis.weights)
        worst_direction = np.linalg.svd(linear)[2][0] / np.sqrt(basis.weights)
        candidates = [
            *RNG.normal(0, 5, (60, times.size)),
            *(1e3 * RNG.standard_cauchy((60, times.size))),
            *(100 * basis.functions),
            *(1e6 * np.eye(times.size)),
            1e4 * worst_direction,
        ]
        others = sum_curves(RNG.normal(0, 1, (8, times.size)), basis, clip=0.7)
        moves = []
        for curve in candidates:
            one = others + sum_curves(curve[None], basis, clip=0.7)
            other = others if adjacency == "add/remove" else others + sum_curves(-curve[None], basis, clip=0.7)
            moves.append(float(np.linalg.norm(coefficients(one, plan) - coefficients(other, plan))))
        assert max(moves) <= plan.sensitivity + rounding
        assert max(moves) > 0.99 * plan.sensitivity

    def test_budget_is_met_and_tight(self) -> None:
        for adjacency in ("add/remove", "replacement"):
            plan = plan_mean(
                eigenbasis(KernelSpec(), TIMES), penalty=0.01, clip=1, curves=50, adjacency=adjacency, **BUDGET
            )  # type: ignore[arg-type]
            assert 0.99 < accountant.epsilon(plan.event, delta=1e-5) <= 1.000001
            multiplier = plan.event.events[0].noise_multiplier  # type: ignore[attr-defined]
            rounding = plan.grid * math.sqrt(79)
            assert plan.sigma == pytest.approx(multiplier * (plan.sensitivity + rounding), rel=1e-12)
            assert plan.grid <= plan.sigma * 2.0**-20
            classical = math.sqrt(2 * math.log(1.25 / 1e-5))
            assert multiplier < 0.8 * classical


class TestSums:
    def test_clipping_and_partitioning(self) -> None:
        basis = eigenbasis(KernelSpec(), TIMES)
        curves = np.concatenate(
            [paths(40), 1e6 * RNG.normal(size=(20, 80)), np.zeros((2, 80)), 1e300 * np.ones((1, 80))]
        )
        whole = sum_curves(curves, basis, clip=0.5)
        assert whole.count == 63
        for cuts in ([0, 1, 2, 63], [0, 0, 31, 62, 63], list(range(64))):
            parts = [sum_curves(curves[a:b], basis, clip=0.5) for a, b in pairwise(cuts)]
            np.testing.assert_array_equal(sum(parts[1:], start=parts[0]).totals, whole.totals)
        np.testing.assert_array_equal(sum_curves(np.asfortranarray(curves), basis, clip=0.5).totals, whole.totals)
        unit = value_unit(basis, clip=0.5)
        for curve in curves:
            clipped = sum_curves(curve[None], basis, clip=0.5).totals * unit
            assert norm(clipped, basis) <= 0.5
            size = np.abs(curve).max() or 1.0
            expected = curve * min(1.0, 0.5 / max(norm(curve / size, basis), 1e-9) / size)
            np.testing.assert_allclose(clipped, expected, atol=2 * unit)

    def test_columns_are_taken_in_the_order_of_the_times(self) -> None:
        basis, table = eigenbasis(KernelSpec(), TIMES[:4]), paths(20)[:, :4]
        found = curve_operator(basis, clip=1.0, columns=(2, 3, 1, 4)).chunk([table[:, 0], *table.T[[2, 0, 1, 3]]])
        np.testing.assert_array_equal(found.totals, sum_curves(table, basis, clip=1.0).totals)

    def test_small_chunks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        basis = eigenbasis(KernelSpec(), TIMES)
        whole = sum_curves(paths(100), basis, clip=0.5)
        monkeypatch.setattr(curves_module, "_ROWS", 7)
        np.testing.assert_array_equal(sum_curves(paths(100), basis, clip=0.5).totals, whole.totals)
        assert repr(whole) == object.__repr__(whole)  # which shows no sums

    @pytest.mark.parametrize(
        ("curves", "error", "message"),
        [
            (np.full((2, 80), np.nan), OutOfDomain, "missing, NaN or infinite"),
            (np.full((2, 80), np.inf), OutOfDomain, "missing, NaN or infinite"),
            (np.full((2, 80), "x"), ColumnMismatch, "not numbers"),
            (np.zeros((2, 79)), ColumnMismatch, "80 values each"),
            (np.zeros(80), ColumnMismatch, "80 values each"),
        ],
    )
    def test_refused(self, curves: np.ndarray, error: type[Exception], message: str) -> None:
        with pytest.raises(error, match=message):
            sum_curves(curves, eigenbasis(KernelSpec(), TIMES), clip=1)


class TestRelease:
    def test_without_noise_it_is_the_penalised_mean(self) -> None:
        basis = eigenbasis(KernelSpec(), TIMES)
        curves = paths(50)
        plan = plan_mean(basis, penalty=1e-3, clip=100, curves=50, adjacency="replacement", **BUDGET)
        factors = basis.eigenvalues / (basis.eigenvalues + 1e-3)
        expected = (factors * (basis.functions * basis.weights @ curves.mean(axis=0))) @ basis.functions
        exact = coefficients(sum_curves(curves, basis, clip=100), plan) / 50
        np.testing.assert_allclose(np.sqrt(basis.eigenvalues) * exact @ basis.functions, expected, atol=2e-4)

    def test_the_coefficients_have_the_planned_noise(self) -> None:
        basis = eigenbasis(KernelSpec(), TIMES)
        plan = plan_mean(basis, penalty=1e-3, clip=1, curves=1, adjacency="replacement", **BUDGET)
        zero = sum_curves(np.zeros((1, 80)), basis, clip=1)
        drawn = NOISE.gaussian_integers("m/coefficients", basis.eigenvalues.size, sigma=plan.sigma / plan.grid)
        found = release_mean(zero, plan, noise=NOISE, name="m").coefficients
        np.testing.assert_array_equal(found, drawn * plan.grid)

    def test_private_count(self) -> None:
        basis = eigenbasis(KernelSpec(), TIMES)
        plan = plan_mean(basis, penalty=1e-3, clip=1, curves=10, adjacency="add/remove", **BUDGET)
        sums = sum_curves(paths(1000), basis, clip=1)
        counts = np.array([release_mean(sums, plan, noise=NOISE, name=f"c/{i}").curves for i in range(300)])
        assert plan.count_sigma is not None
        assert counts.mean() == pytest.approx(1000, abs=10 * plan.count_sigma / math.sqrt(300))
        assert counts.std() == pytest.approx(plan.count_sigma, rel=0.3)
        nothing = sum_curves(np.zeros((0, 80)), basis, clip=1)
        assert release_mean(nothing, plan, noise=NOISE, name="n").curves >= 10

    def test_public_count_is_checked(self) -> None:
        basis = eigenbasis(KernelSpec(), TIMES)
        plan = plan_mean(basis, penalty=1e-3, clip=1, curves=51, adjacency="replacement", **BUDGET)
        with pytest.raises(CheckFailed, match="declared as 51 and public"):
            release_mean(sum_curves(paths(50), basis, clip=1), plan, noise=NOISE, name="m")
        many = CurveSums(2**31 + 1, np.zeros(80, np.int64))
        with pytest.raises(OutOfDomain, match="release them in groups"):
            release_mean(many, plan, noise=NOISE, name="m")

    @pytest.mark.parametrize(
        ("change", "error", "message"),
        [
            ({"penalty": 0.0}, SpecError, "penalty and clip"),
            ({"penalty": math.nan}, SpecError, "penalty and clip"),
            ({"clip": -1.0}, SpecError, "penalty and clip"),
            ({"clip": math.inf}, SpecError, "penalty and clip"),
            ({"curves": 0}, SpecError, "public number of curves"),
            ({"budget": (1.0, 0.0)}, AccountingError, "delta > 0"),
            ({"budget": (0.0, 1e-5)}, AccountingError, "epsilon"),
        ],
    )
    def test_refused(self, change: dict[str, object], error: type[Exception], message: str) -> None:
        settings = {"penalty": 0.01, "clip": 1.0, "curves": 50, "adjacency": "add/remove", **BUDGET, **change}
        with pytest.raises(error, match=message):
            plan_mean(eigenbasis(KernelSpec(), TIMES), **settings)
