"""PML: closed forms against exact leakage by enumeration and against numeric inversion."""

import math
from itertools import product

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize

from dpdist.errors import AccountingError, GuaranteeRefused, SpecError
from dpdist.families.histogram.entropy import plan_entropies, release_entropies, renyi, shannon
from dpdist.families.histogram.measurement import plan_leakage
from dpdist.privacy import accountant
from dpdist.privacy.arrays import round_to_grid
from dpdist.privacy.event import from_json
from dpdist.privacy.events import LaplaceLeakage, NestedLeakage
from dpdist.privacy.leakage import check_alpha, common_scale, composed, leakage, noiseless_leakage, scale_for
from dpdist.privacy.noise import Noise
from dpdist.privacy.sensitivity import Bounds, bounds


def exact_leakage(priors: np.ndarray, *, scale: float) -> float:
    """Largest ln P(y | x_i) / P(y) over outputs y, records i and their values x, by enumeration.

    priors has a row of bin probabilities for each record. Outputs below 0 and above n give what -1 and n + 1 give.
    """
    records, bins = priors.shape
    outputs = np.array(list(product(range(-1, records + 2), repeat=bins)))
    datasets = np.array(list(product(range(bins), repeat=records)))
    counts = (datasets[:, :, None] == np.arange(bins)).sum(axis=1)
    distance = np.abs(outputs[:, None, :] - counts[None]).sum(axis=-1)
    likelihood = np.exp(-distance / scale)  # the normaliser cancels
    weight = np.prod(np.take_along_axis(priors, datasets.T, axis=1), axis=0)
    average = likelihood @ weight
    worst = 0.0
    for i, x in product(range(records), range(bins)):
        given_x = datasets[:, i] == x
        worst = max(worst, (likelihood[:, given_x] @ weight[given_x] / priors[i, x] / average).max())
    return float(np.log(worst))


class TestExact:
    @pytest.mark.parametrize("scale", [0.4, 1.0, 3.0])
    @pytest.mark.parametrize(("records", "bins"), [(1, 2), (2, 2), (3, 2), (4, 2), (2, 3), (3, 3)])
    def test_never_above_and_attained(self, records: int, bins: int, scale: float) -> None:
        rng = np.random.default_rng(records * 10 + bins)
        for alpha in (0.05, 0.2, 1 / bins):
            extreme = np.full((records, bins), (1 - alpha) / (bins - 1))
            extreme[:, 0] = alpha
            bound = leakage(scale=scale, alpha=alpha)
            attained = exact_leakage(extreme, scale=scale)
            assert attained <= bound
            assert attained > 0.99 * bound
            random = alpha + (1 - bins * alpha) * rng.dirichlet(np.ones(bins), size=records)
            assert exact_leakage(random, scale=scale) <= bound

    def test_a_smaller_alpha_breaks_the_bound(self) -> None:
        priors = np.array([[0.1, 0.9]] * 3)
        assert exact_leakage(priors, scale=1.0) > leakage(scale=1.0, alpha=0.2)

    def test_without_noise_the_leakage_is_that_of_the_histogram(self) -> None:
        priors = np.array([[0.1, 0.9]] * 3)
        assert exact_leakage(priors, scale=0.05) == pytest.approx(noiseless_leakage(0.1))
        assert leakage(scale=0.01, alpha=0.1) <= noiseless_leakage(0.1) * (1 + 1e-12)


def exact_leakage_of_two(prior: np.ndarray, *, scales: tuple[float, float], records: int) -> float:
    """As `exact_leakage`, of the histograms of the rows and of the columns of a joint prior, for all records alike."""
    cells = list(product(*map(range, prior.shape)))
    datasets = np.array(list(product(range(len(cells)), repeat=records)))
    weight = np.prod(prior.ravel()[datasets], axis=1)
    likelihoods = []
    for axis, scale in enumerate(scales):
        bins = np.array([cell[axis] for cell in cells])[datasets]
        counts = (bins[:, :, None] == np.arange(prior.shape[axis])).sum(axis=1)
        outputs = np.array(list(product(range(-1, records + 2), repeat=prior.shape[axis])))
        likelihoods.append(np.exp(-np.abs(outputs[:, None] - counts[None]).sum(axis=-1) / scale))
    joint = np.einsum("ad,bd->abd", *likelihoods).reshape(-1, len(datasets))
    average = joint @ weight
    worst = 0.0
    for x in np.flatnonzero(prior.ravel()):
        given_x = datasets[:, 0] == x
        worst = max(worst, (joint[:, given_x] @ weight[given_x] / prior.ravel()[x] / average).max())
    return float(np.log(worst))


def exact_leakage_of_levels(prior: np.ndarray, *, scale: float, records: int) -> float:
    """As `exact_leakage`, of the histograms of four bins and of their two halves, for all records alike."""
    datasets = np.array(list(product(range(4), repeat=records)))
    weight = np.prod(prior[datasets], axis=1)
    joint = np.ones((1, len(datasets)))
    for bins, codes in ((4, datasets), (2, datasets // 2)):
        counts = (codes[:, :, None] == np.arange(bins)).sum(axis=1)
        outputs = np.array(list(product(range(-1, records + 2), repeat=bins)))
        likelihood = np.exp(-np.abs(outputs[:, None] - counts[None]).sum(axis=-1) / scale)
        joint = np.einsum("ad,bd->abd", joint, likelihood).reshape(-1, len(datasets))
    average = joint @ weight
    given = [datasets[:, 0] == x for x in range(4)]
    return float(np.log(max((joint[:, g] @ weight[g] / prior[x] / average).max() for x, g in enumerate(given))))


class TestLevels:
    @pytest.mark.parametrize("scale", [0.7, 2.0, 5.0])
    @pytest.mark.parametrize("records", [1, 2])
    def test_never_above_and_attained(self, records: int, scale: float) -> None:
        rng = np.random.default_rng(records)
        bound = composed([NestedLeakage(scale, (0.1, 0.2))])
        assert 0.99 * bound < exact_leakage_of_levels(np.array([0.1, 0.1, 0.4, 0.4]), scale=scale, records=records)
        for prior in ([0.1, 0.1, 0.4, 0.4], [0.1, 0.1, 0.1, 0.7], *(0.1 + 0.6 * rng.dirichlet(np.ones(4), size=4))):
            attained = exact_leakage_of_levels(np.array(prior), scale=scale, records=records)
            assert attained <= bound * (1 + 1e-9)
        assert bound < composed([LaplaceLeakage(scale, 0.1), LaplaceLeakage(scale, 0.2)])

    def test_a_chain_of_one_is_a_histogram(self) -> None:
        for scale in (0.001, 0.5, 4.0):
            one = composed([NestedLeakage(scale, (0.1,))])
            assert one == pytest.approx(leakage(scale=scale, alpha=0.1))

    def test_a_plan_knows_its_chains(self) -> None:
        apart = plan_leakage(epsilon=1, alpha=0.05, bins=[8, 4, 2])
        chain = plan_leakage(epsilon=1, alpha=0.05, bins=[8, 4, 2], chains=[((0, 1), (1, 2), (2, 4))])
        assert isinstance(chain.event, NestedLeakage)
        assert chain.event.alphas == pytest.approx((0.05, 0.1, 0.2))
        assert apart.scale is not None
        assert chain.scale is not None
        assert chain.scale < 0.95 * apart.scale
        assert chain.guarantee.dp_epsilon == pytest.approx(6 / chain.scale)
        assert accountant.epsilon(chain.event, delta=1e-12) == pytest.approx(6 / chain.scale, rel=1e-5)
        assert from_json(chain.event.to_json()) == chain.event


class TestComposition:
    @pytest.mark.parametrize("scales", [(2.0, 2.0), (0.7, 3.0), (5.0, 1.0)])
    @pytest.mark.parametrize("records", [1, 2, 3])
    def test_two_histograms_never_leak_more_and_attain_it(self, scales: tuple[float, float], records: int) -> None:
        tiny = 1e-9
        worst = np.array([[tiny, 0.2 - tiny], [0.3 - tiny, 0.5 + tiny]])  # rows share with 0.2, columns with 0.3
        rng = np.random.default_rng(records)
        for prior in (worst, np.diag([0.2, 0.8]), *rng.dirichlet(np.ones(6), size=4).reshape(-1, 2, 3)):
            alphas = [prior.sum(axis=1 - axis).min() for axis in (0, 1)]
            events = [LaplaceLeakage(scale, alpha) for scale, alpha in zip(scales, alphas, strict=True)]
            attained, bound = exact_leakage_of_two(prior, scales=scales, records=records), composed(events)
            assert attained <= bound * (1 + 1e-7)
            assert prior is not worst or attained > 0.99 * bound

    @pytest.mark.parametrize("epsilon", [0.2, 1.0, 3.0])
    def test_the_common_noise_of_two_histograms_fills_the_budget(self, epsilon: float) -> None:
        tiny = 1e-9
        worst = np.array([[tiny, 0.2 - tiny], [0.2 - tiny, 0.6 + tiny]])
        scale = common_scale(epsilon=epsilon, alphas=[(0.2,), (0.2,)])
        attained = exact_leakage_of_two(worst, scales=(scale, scale), records=2)
        assert 0.98 * epsilon < attained <= epsilon * (1 + 1e-7)
        assert composed([LaplaceLeakage(scale, 0.2)] * 2) <= epsilon
        less = exact_leakage_of_two(worst, scales=(0.9 * scale, 0.9 * scale), records=2)
        assert less > epsilon * (1 + 1e-3)  # ten per cent less noise would not do

    @given(st.lists(st.tuples(st.floats(0.01, 50), st.floats(1e-6, 0.5)), min_size=2, max_size=6))
    def test_more_than_each_and_less_than_differential_privacy(self, parts: list[tuple[float, float]]) -> None:
        events = [LaplaceLeakage(scale, alpha) for scale, alpha in parts]
        total = composed(events)
        privacy = sum(2 / scale for scale, _ in parts)
        own = [leakage(scale=scale, alpha=alpha) for scale, alpha in parts]
        assert max(own) * (1 - 1e-12) <= total <= privacy * (1 + 1e-12)
        best = min(mine + privacy - 2 / scale for mine, (scale, _) in zip(own, parts, strict=True))
        assert total <= best * (1 + 1e-9)

    def test_exact_counts(self) -> None:
        exact, noisy = LaplaceLeakage(None, 0.1), LaplaceLeakage(2.0, 0.1)
        assert composed([noisy, exact]) == pytest.approx(1 + np.log(10))
        assert composed([exact, exact]) == np.inf
        assert composed([LaplaceLeakage(0.001, 0.1)] * 2) == pytest.approx(2000 + np.log(10))


class TestClosedForms:
    @given(st.floats(1e-6, 0.999), st.floats(1e-9, 0.9))
    def test_inverse(self, share: float, alpha: float) -> None:
        epsilon = share * noiseless_leakage(alpha)
        scale = scale_for(epsilon=epsilon, alpha=alpha)
        assert leakage(scale=scale, alpha=alpha) == pytest.approx(epsilon, rel=1e-3)

    @pytest.mark.parametrize("epsilon", [1e-4, 0.01, 0.3, 1.0, 2.5])
    @pytest.mark.parametrize("alpha", [1e-6, 0.001, 0.05])
    def test_agrees_with_numeric_inversion(self, epsilon: float, alpha: float) -> None:
        with mpmath.workdps(40):
            x = mpmath.findroot(
                lambda x: x - mpmath.log1p(mpmath.mpf(alpha) * mpmath.expm1(x)) - mpmath.mpf(epsilon),
                (epsilon, epsilon * 3),
                solver="anderson",
                tol=1e-60,
            )
            exact = float(2 / x)
        assert scale_for(epsilon=epsilon, alpha=alpha) == pytest.approx(exact, rel=6e-4)
        assert scale_for(epsilon=epsilon, alpha=alpha) >= exact * (1 - 1e-15)
        double = optimize.brentq(
            lambda b: 2 / b - np.log(1 - alpha + alpha * np.exp(2 / b)) - epsilon,
            0.2 / epsilon,
            4 / epsilon,
            xtol=1e-14,
        )
        assert scale_for(epsilon=epsilon, alpha=alpha) == pytest.approx(double, rel=6e-4)

    def test_published_form(self) -> None:
        alpha, epsilon = 0.05, 0.5
        published = 2 / np.log((1 - alpha) * np.exp(epsilon) / (1 - alpha * np.exp(epsilon)))
        assert scale_for(epsilon=epsilon, alpha=alpha) == pytest.approx(published, rel=6e-4)


class TestPlan:
    def test_charges_the_equal_parameter_of_differential_privacy(self) -> None:
        plan = plan_leakage(epsilon=0.5, alpha=0.05, bins=[20])
        assert plan.scale is not None
        assert plan.guarantee.dp_epsilon == 2 / plan.scale
        assert plan.guarantee.dp_epsilon > 0.5
        dp = accountant.epsilon(plan.event, delta=1e-15)
        assert dp == pytest.approx(2 / plan.scale, rel=1e-5)
        assert "not differential privacy" in plan.guarantee.sentence()

    def test_no_noise_only_by_name(self) -> None:
        with pytest.raises(GuaranteeRefused, match="accept_no_noise"):
            plan_leakage(epsilon=3.0, alpha=0.05, bins=[20])
        plan = plan_leakage(epsilon=3.0, alpha=0.05, bins=[20], accept_no_noise=True)
        assert plan.scale is None
        with pytest.raises(AccountingError, match="no finite epsilon"):
            accountant.epsilon(plan.event, delta=0.5)
        assert plan.guarantee.dp_epsilon is None
        assert plan.guarantee.epsilon == pytest.approx(noiseless_leakage(0.05), rel=1e-5)
        assert plan_leakage(epsilon=2.9, alpha=0.05, bins=[20], accept_no_noise=True).scale is not None

    @pytest.mark.parametrize("bins", [1, 2, 3, 7, 10, 49, 1000])
    def test_alpha_may_be_one_over_k_and_no_more(self, bins: int) -> None:
        check_alpha(1 / bins, bins=bins)
        with pytest.raises(AccountingError, match=f"{bins + 1} bins cannot"):
            check_alpha(1 / bins, bins=bins + 1)

    @pytest.mark.parametrize("alpha", [0.0, -0.1, 1.1, float("nan")])
    def test_alpha_out_of_range(self, alpha: float) -> None:
        with pytest.raises(AccountingError, match="alpha must be in"):
            check_alpha(alpha, bins=1)

    @pytest.mark.parametrize("epsilon", [0.0, -1.0, float("inf"), float("nan")])
    def test_epsilon_out_of_range(self, epsilon: float) -> None:
        with pytest.raises(AccountingError, match="epsilon must be finite"):
            plan_leakage(epsilon=epsilon, alpha=0.05, bins=[20], accept_no_noise=True)

    @pytest.mark.parametrize("scale", [0.0, -1.0, float("inf"), float("nan")])
    def test_scale_out_of_range(self, scale: float) -> None:
        with pytest.raises(AccountingError, match="scale of the noise"):
            leakage(scale=scale, alpha=0.1)


# --- Entropies, their sensitivities against enumeration, and their noisy release


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
