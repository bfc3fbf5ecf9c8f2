"""The accountant against exact products, closed forms and `dp_accounting`."""

import json
import math

import numpy as np
import pytest
from dp_accounting.gaussian_mechanism import get_epsilon_gaussian
from dp_accounting.pld.pld_pmf import DensePLDPmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution, from_gaussian_mechanism
from hypothesis import given, settings
from hypothesis import strategies as st
from privacy.test_gdp import pair_of
from scipy.special import logsumexp, ndtr
from scipy.stats import binom

from dpdist.errors import AccountingError
from dpdist.privacy import accountant
from dpdist.privacy.composition import Tail, sum_of_draws
from dpdist.privacy.deniability import SeedRecords
from dpdist.privacy.event import Event
from dpdist.privacy.events import (
    ApproximateDP,
    Composed,
    DiscreteLaplace,
    Gaussian,
    Parallel,
    RandomSplit,
    SubsampledGaussian,
    SubsampledUnits,
)
from dpdist.privacy.formatting import shown
from dpdist.privacy.pair import DominatingPair, Side, lower_hull
from dpdist.privacy.pieces import composition, dominating_pair

EPSILONS = np.linspace(0, 4, 41)


def library(event: Event) -> PrivacyLossDistribution:
    """The pairs of an event as `dp_accounting` composes them, on the same lattice."""
    whole = composition(event)
    assert whole is not None
    total: PrivacyLossDistribution | None = None
    for first, pair, count in whole.parts:
        # it seeks the window of a sum by moments of orders 1/len to 20/len: as many zeros as the sum deviates
        zeros = np.zeros(max(int(1.2 * math.sqrt(count * pair.variance) / whole.interval) - len(pair.losses), 0))
        last = first + len(pair.losses) - 1
        one = PrivacyLossDistribution(
            DensePLDPmf(whole.interval, first, np.append(pair.upper, zeros), pair.upper_infinite, True),
            DensePLDPmf(whole.interval, -last, np.append(pair.lower[::-1], zeros), pair.lower_infinite, True),
        )
        with np.errstate(all="ignore"):
            one = one.self_compose(count, 1e-15)
        total = one if total is None else total.compose(one, 1e-15)
    assert total is not None
    return total


def hockey_stick(p: np.ndarray, q: np.ndarray, epsilon: float) -> float:
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum())


def laplace_masses(scale: float, sensitivity: int) -> tuple[np.ndarray, np.ndarray]:
    """Masses of x + Z and of Z, far into the tails."""
    z = np.arange(-60 * math.ceil(scale), 60 * math.ceil(scale) + sensitivity + 1)
    atom = math.tanh(1 / (2 * scale))
    return atom * np.exp(-np.abs(z - sensitivity) / scale), atom * np.exp(-np.abs(z) / scale)


def exact_delta_of_many(scale: float, count: int, epsilon: float) -> float:
    """delta of `count` discrete Laplace counts, each of loss +-1/scale: a binomial sum."""
    k = np.arange(count + 1)
    loss = (2 * k - count) / scale
    k, loss = k[loss > epsilon], loss[loss > epsilon]
    log_mass = binom.logpmf(k, count, 1 / (1 + math.exp(-1 / scale)))
    return float(np.exp(logsumexp(log_mass + np.log(-np.expm1(epsilon - loss))))) if len(k) else 0.0


@pytest.mark.parametrize(("scale", "sensitivity"), [(0.4, 1), (1, 1), (3, 1), (2, 3), (1.7, 8), (5, 40)])
def test_discrete_laplace_pair_is_exact(scale: float, sensitivity: int) -> None:
    pair = dominating_pair(DiscreteLaplace(scale, sensitivity))
    p, q = laplace_masses(scale, sensitivity)
    expected = [hockey_stick(p, q, epsilon) for epsilon in EPSILONS]
    for reverse in (False, True):
        np.testing.assert_allclose(pair.hockey_stick(EPSILONS, reverse=reverse), expected, atol=1e-13)


def test_noise_on_a_fine_grid_is_an_upper_bound_and_close() -> None:
    p, q = laplace_masses(5000, 10_000)
    pair = dominating_pair(DiscreteLaplace(5000, 10_000))
    expected = np.array([hockey_stick(p, q, epsilon) for epsilon in EPSILONS])
    found = pair.hockey_stick(EPSILONS)
    assert (found >= expected - 1e-12).all()
    np.testing.assert_allclose(found, expected, atol=1e-6)
    finest = accountant.epsilon(DiscreteLaplace(0.5 * 2**40, int(0.01 * 2**40) + 1, count=66), delta=1e-9)
    assert finest == pytest.approx(accountant.epsilon(DiscreteLaplace(500, 10, count=66), delta=1e-9), rel=1e-2)


@pytest.mark.parametrize("delta", [1e-4, 1e-9, 1e-12])
@pytest.mark.parametrize(("scale", "count"), [(2.0**10, 10**4), (2.0**10, 10**6), (10.0, 200)])
def test_tails_are_accurate_for_millions_of_compositions(scale: float, count: int, delta: float) -> None:
    event = DiscreteLaplace(scale, count=count)
    epsilon = accountant.epsilon(event, delta=delta)
    exact = exact_delta_of_many(scale, count, epsilon)
    assert exact <= delta
    tightness = 1e-4 if math.log2(scale) % 1 == 0 else 3e-2  # on the lattice, and rounded to it
    assert exact == pytest.approx(delta, rel=tightness)
    assert accountant.delta(event, epsilon=epsilon) == pytest.approx(delta, rel=1e-3)


def test_mixed_compositions_against_the_product_of_masses() -> None:
    event = Composed(
        (DiscreteLaplace(2.0), DiscreteLaplace(1.5, 2), ApproximateDP(0.3, 1e-3), DiscreteLaplace(4.0, count=2))
    )
    response = np.array([1 / (1 + math.exp(-0.3)), 1 / (1 + math.exp(0.3))]) * (1 - 1e-3)
    parts = [laplace_masses(2.0, 1), laplace_masses(1.5, 2), laplace_masses(4.0, 1), laplace_masses(4.0, 1)]
    p, q = np.append(response, [1e-3, 0]), np.append(response[::-1], [0, 1e-3])
    for one, other in parts:  # equal ratios are merged, which keeps every divergence
        p, q = np.multiply.outer(p, one).ravel(), np.multiply.outer(q, other).ravel()
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.round(np.log(p) - np.log(q), 9)
        _, group = np.unique(ratio, return_inverse=True)
        p, q = np.bincount(group, p), np.bincount(group, q)
    for epsilon in (0.0, 0.2, 1.0, 2.0, 2.9):
        exact = hockey_stick(p, q, epsilon)
        assert exact - 1e-9 <= accountant.delta(event, epsilon=epsilon)
        assert accountant.delta(event, epsilon=epsilon) == pytest.approx(exact, rel=2e-3)


@pytest.mark.parametrize("multiplier", [0.3, 1, 2, 10, 1000])
@pytest.mark.parametrize("delta", [1e-5, 1e-9])
def test_gaussian_against_the_closed_form(multiplier: float, delta: float) -> None:
    exact = get_epsilon_gaussian(multiplier, delta)
    for event in (
        Gaussian(multiplier),
        Gaussian(multiplier * 3, 9),
        Composed((Gaussian(multiplier * math.sqrt(2)),) * 2),
    ):
        found = accountant.epsilon(event, delta=delta)
        assert exact <= found * (1 + 1e-9)
        assert found == pytest.approx(exact, rel=1e-3)


def test_subsampled_gaussian_reference_values() -> None:
    # DP-CDA on Adult: N_k = 7841, T_k = 16280, l = 64, epsilon 10 and 20 at delta = 1e-5.
    for noise, expected in ((0.0255, 10), (0.0199, 20)):
        event = SubsampledGaussian(64 / 7841, noise * 64 / 2, 16280)
        assert accountant.epsilon(event, delta=1e-5) == pytest.approx(expected, rel=1e-2)
    one = from_gaussian_mechanism(1.0, sampling_prob=0.01, value_discretization_interval=1e-4)
    event = SubsampledGaussian(0.01, 1.0, 500)
    assert accountant.epsilon(event, delta=1e-6) == pytest.approx(
        one.self_compose(500).get_epsilon_for_delta(1e-6), rel=3e-3
    )


def test_dp_accounting_agrees_where_it_is_accurate() -> None:
    event = Composed((DiscreteLaplace(20.0, count=60), Gaussian(9.0, 3), ApproximateDP(0.1, 1e-10)))
    other = library(event)
    assert accountant.epsilon(event, delta=1e-8) == pytest.approx(other.get_epsilon_for_delta(1e-8), rel=1e-4)
    assert accountant.delta(event, epsilon=0.7) == pytest.approx(other.get_delta_for_epsilon(0.7), rel=1e-4)


def test_renyi_moments_are_never_below_the_privacy_loss_distribution() -> None:
    for event in (DiscreteLaplace(30.0, count=300), Gaussian(3.0), SeedRecords(500, 2, 0.1, 367_500, 10_000)):
        summary = accountant.summary(event, delta=1e-9)
        assert summary["epsilon_pld"] <= summary["epsilon_renyi"] <= 1.15 * summary["epsilon_pld"]
        assert summary["epsilon"] <= summary["epsilon_pld"]
        json.dumps(summary, allow_nan=False)


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (Composed(()), 0.0),
        (ApproximateDP(0.0, 1e-10), 0.0),
        (ApproximateDP(0.7, 1e-10), 0.7),
        (Composed((ApproximateDP(0.2, 1e-10), DiscreteLaplace(10.0))), 0.3),
        (Parallel((DiscreteLaplace(10.0), DiscreteLaplace(5.0), Composed(()))), 0.2),
        (Parallel(()), 0.0),
        (RandomSplit(((0.1, DiscreteLaplace(1.0)), (0.9, None))), math.log(0.9 + 0.1 * math.e)),
        (RandomSplit(((1.0, DiscreteLaplace(1.0)),)), 1.0),
    ],
)
def test_pure_losses_are_exact(event: Event, expected: float) -> None:
    assert accountant.epsilon(event, delta=1e-9) == pytest.approx(expected, rel=1e-5, abs=1e-300)
    assert accountant.epsilon(event, delta=1e-9) >= expected


def test_losses_beyond_the_exponent_of_a_double() -> None:
    assert accountant.epsilon(DiscreteLaplace(1e-3, 3, 10), delta=1e-9) == pytest.approx(30_000, rel=1e-3)
    assert accountant.epsilon(DiscreteLaplace(1.0, 5000), delta=1e-9) == pytest.approx(5000, rel=1e-2)
    assert accountant.epsilon(ApproximateDP(900.0, 1e-12), delta=1e-9) == 900
    both = Composed((ApproximateDP(900.0, 1e-12), Gaussian(1.0)))
    assert 900 < accountant.epsilon(both, delta=1e-9) < 910
    assert accountant.delta(Gaussian(1.0), epsilon=800.0) < 1e-20


def test_delta_zero() -> None:
    assert accountant.epsilon(DiscreteLaplace(4.0, count=3), delta=0) == 0.75
    for event in (Gaussian(1.0), ApproximateDP(1.0, 1e-9), SubsampledGaussian(0.1, 1.0)):
        with pytest.raises(AccountingError, match="raise delta"):
            accountant.epsilon(event, delta=0)


def test_failures_add_to_delta() -> None:
    with pytest.raises(AccountingError, match="raise delta"):
        accountant.epsilon(ApproximateDP(1.0, 1e-8), delta=1e-9)
    base = Gaussian(4.0)
    both = Composed((base, ApproximateDP(0.0, 3e-7)))
    expected = accountant.delta(base, epsilon=1.0) * (1 - 3e-7) + 3e-7
    assert accountant.delta(both, epsilon=1.0) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("delta", [-0.1, 1.0, float("nan")])
def test_delta_out_of_range(delta: float) -> None:
    with pytest.raises(AccountingError, match="delta must be"):
        accountant.epsilon(Gaussian(1.0), delta=delta)


@pytest.mark.parametrize("epsilon", [-0.1, math.inf, float("nan")])
def test_epsilon_out_of_range(epsilon: float) -> None:
    with pytest.raises(AccountingError, match="epsilon must be"):
        accountant.delta(Gaussian(1.0), epsilon=epsilon)


def test_hardly_any_noise_is_refused() -> None:
    with pytest.raises(AccountingError, match="protects nothing"):
        accountant.epsilon(Gaussian(1e-3), delta=1e-9)


@pytest.mark.parametrize(
    ("event", "delta"),
    [
        (Composed((Gaussian(0.02), DiscreteLaplace(1.0))), 1.0),
        (RandomSplit(((0.5, Gaussian(0.02)), (0.5, None))), 0.5),
        (SubsampledGaussian(0.1, 0.02, count=3), 0.271),
        (SubsampledUnits(0.1, 0.02, 3), 0.271),
        (Composed((Parallel((Composed((ApproximateDP(0, 1.0),)), Gaussian(1.0))),)), 1.0),
        (RandomSplit(((0.25, Composed((ApproximateDP(0, 1.0), DiscreteLaplace(3.0)))), (0.75, Gaussian(9.0)))), 0.25),
    ],
)
def test_losses_that_are_no_floats_count_as_failures(event: Event, delta: float) -> None:
    assert accountant.delta(event, epsilon=600.0) == pytest.approx(delta, rel=1e-5)
    with pytest.raises(AccountingError, match=r"no finite epsilon at delta = 1e-09: .*; raise delta or the noise"):
        accountant.epsilon(event, delta=1e-9)


def test_tilts_that_few_losses_choose_wrongly() -> None:
    """Losses of more than a thousand that are rarer than a millionth: nothing but the record's absence is seen."""
    units, single = SubsampledUnits(1e-6, 0.02, 3), SubsampledGaussian(1e-6, 0.5)
    assert accountant.delta(units, epsilon=0.0) == pytest.approx(1 - (1 - 1e-6) ** 3, rel=0.05)
    assert accountant.epsilon(units, delta=1e-3) == 0
    exact = 1e-6 * (2 * ndtr(1.0) - 1)  # total variation of normals two deviations apart, times the rate
    assert exact <= accountant.delta(single, epsilon=0.0) <= 1.01 * exact


@pytest.mark.parametrize("count", [1_000, 100_000])
def test_certain_samples_with_little_noise(count: int) -> None:
    assert accountant.delta(SubsampledGaussian(1.0, 0.014, count=count), epsilon=0.0) == 1


def test_values_are_rounded_upwards() -> None:
    assert shown(0.12345678901) == 0.123457
    assert shown(1e-9) >= 1e-9
    assert math.isinf(shown(math.inf))
    assert shown(0.0) == 0.0


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-9), (1.0, 1e-9), (5.0, 1e-6)])
@pytest.mark.parametrize("count", [1, 20])
def test_calibrated_gaussian_noise_is_within_the_budget_and_no_larger_than_it_must(
    epsilon: float, delta: float, count: int
) -> None:
    sigma = accountant.calibrate_gaussian(sensitivity=3.0, epsilon=epsilon, delta=delta, count=count)
    assert get_epsilon_gaussian(sigma / (3 * math.sqrt(count)), delta) <= epsilon
    assert accountant.epsilon(Gaussian(sigma / 3, count), delta=delta) <= epsilon
    assert get_epsilon_gaussian(sigma / (3 * math.sqrt(count)) * (1 - 2e-7), delta) > epsilon


@pytest.mark.parametrize("delta", [1e-12, 1e-6])
def test_gaussians_are_accounted_exactly(delta: float) -> None:
    """Beside the lattice of privacy losses, which errs upwards, and the closed form in floating point."""
    event = Composed((Gaussian(3.0, 2), Gaussian(1.5), ApproximateDP(0.0, 1e-13)))
    multiplier = 1 / math.sqrt(2 / 9 + 1 / 2.25)
    exact = accountant.epsilon(event, delta=delta)
    assert exact == pytest.approx(get_epsilon_gaussian(multiplier, delta - 1e-13), rel=1e-5)
    assert exact >= get_epsilon_gaussian(multiplier, delta - 1e-13) * (1 - 1e-9)
    lattice = library(event).get_epsilon_for_delta(delta)
    assert exact <= lattice <= exact * 1.001
    assert accountant.delta(event, epsilon=exact) == pytest.approx(delta, rel=1e-4)
    assert accountant.delta(event, epsilon=exact) <= delta
    with pytest.raises(AccountingError, match="no finite epsilon"):
        accountant.epsilon(event, delta=5e-14)


@pytest.mark.parametrize("count", [1, 20])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-9), (1.0, 1e-9), (5.0, 1e-6)])
def test_calibrated_laplace_noise_is_no_larger_than_it_must(epsilon: float, delta: float, count: int) -> None:
    scale = accountant.calibrate_discrete_laplace(epsilon=epsilon, delta=delta, count=count)
    assert accountant.epsilon(DiscreteLaplace(scale, count=count), delta=delta) <= epsilon
    assert accountant.epsilon(DiscreteLaplace(scale * 0.99, count=count), delta=delta) > epsilon


def test_pure_budgets_are_met_exactly() -> None:
    scale = accountant.calibrate_discrete_laplace(epsilon=0.5, delta=0, sensitivity=2, count=3)
    assert scale == pytest.approx(12)
    assert accountant.choose_noise(count=100, epsilon=1.0, delta=0).kind == "laplace"


def test_composite_events_are_calibrated_by_one_scale() -> None:
    def event(scale: float) -> Composed:
        return Composed((DiscreteLaplace(20.0), Gaussian(scale, 11)))

    scale = accountant.calibrate(event, epsilon=1.0, delta=1e-9)
    assert accountant.epsilon(event(scale), delta=1e-9) <= 1.0
    assert accountant.epsilon(event(scale * 0.999), delta=1e-9) > 1.0
    with pytest.raises(AccountingError, match="no amount of noise"):
        accountant.calibrate(lambda s: Composed((DiscreteLaplace(0.5), Gaussian(s))), epsilon=1.0, delta=1e-9)


def test_the_noise_with_less_deviation_is_chosen() -> None:
    chosen = {}
    for count in (1, 5, 20, 30, 60):
        choice = accountant.choose_noise(count=count, epsilon=1.0, delta=1e-9, label="tables")
        chosen[count] = choice.kind
        assert accountant.epsilon(choice.event, delta=1e-9) <= 1.0
        assert choice.event.label == "tables"
        sigma = accountant.calibrate_gaussian(sensitivity=1, epsilon=1.0, delta=1e-9, count=count)
        scale = accountant.calibrate_discrete_laplace(epsilon=1.0, delta=1e-9, count=count)
        laplace = math.sqrt(2 * math.exp(-1 / scale)) / -math.expm1(-1 / scale)
        assert choice.standard_deviation == pytest.approx(min(laplace, math.hypot(sigma, 1 / math.sqrt(12))), rel=1e-3)
    assert chosen[1] == "laplace"
    assert chosen[60] == "gaussian"


def test_noise_on_a_grid_charges_the_rounding() -> None:
    choice = accountant.choose_noise(count=66, epsilon=0.1, delta=1e-9, sensitivity=0.0015, grid=2.0**-40)
    assert isinstance(choice.event, Gaussian)
    steps = math.floor(0.0015 * 2**40) + 1
    assert choice.event.noise_multiplier == pytest.approx(choice.scale / (steps * 2.0**-40))
    coarse = accountant.choose_noise(count=1, epsilon=1.0, delta=0, sensitivity=0.0015, grid=0.001)
    assert coarse.scale == pytest.approx(0.002, rel=1e-6)


@pytest.mark.parametrize(
    "call",
    [
        lambda: accountant.calibrate_gaussian(sensitivity=1, epsilon=0, delta=1e-9),
        lambda: accountant.calibrate_gaussian(sensitivity=1, epsilon=1, delta=0),
        lambda: accountant.calibrate_discrete_laplace(epsilon=math.inf, delta=0),
        lambda: accountant.calibrate(Gaussian, epsilon=-1, delta=1e-9),
        lambda: accountant.choose_noise(count=0, epsilon=1, delta=1e-9),
        lambda: accountant.choose_noise(count=1, epsilon=1, delta=1e-9, grid=0),
        lambda: accountant.choose_noise(count=1, epsilon=1, delta=2),
    ],
)
def test_bad_budgets_are_refused(call) -> None:
    with pytest.raises(AccountingError):
        call()


# --- pairs -----------------------------------------------------------------------------------------------------------

masses = st.lists(st.floats(0.01, 1), min_size=5, max_size=5).map(lambda m: np.array(m) / sum(m))


@settings(max_examples=40, deadline=None)
@given(masses, masses, st.floats(1e-3, 1.5), st.floats(0.5, 3))
def test_rounding_to_a_lattice_only_raises_the_profile(
    p: np.ndarray, q: np.ndarray, interval: float, reach: float
) -> None:
    p, q = p.copy(), q.copy()
    p[0], q[4] = 0, 0
    pair = pair_of(p / p.sum(), q / q.sum())
    _, rounded = pair.on_lattice(interval, reach=reach)
    coarse = pair.onto(np.array([-1.0, 0.1, 1.0]))
    for reverse in (False, True):
        exact = pair.hockey_stick(EPSILONS, reverse=reverse)
        assert (rounded.hockey_stick(EPSILONS, reverse=reverse) >= exact - 1e-14).all()
        assert (coarse.hockey_stick(EPSILONS, reverse=reverse) >= exact - 1e-14).all()
    for found in (rounded, coarse):
        assert found.upper.sum() + found.upper_infinite == pytest.approx(1)
        assert found.lower.sum() + found.lower_infinite == pytest.approx(1)


@settings(max_examples=40, deadline=None)
@given(masses, masses)
def test_pairs_survive_profiles(p: np.ndarray, q: np.ndarray) -> None:
    p, q = p.copy(), q.copy()
    p[1] = q[3] = 0
    pair = pair_of(p / p.sum(), q / q.sum())
    nodes = np.unique(np.append(np.abs(pair.losses), 0.0))
    sides = [Side.from_profile(nodes, pair.hockey_stick(nodes, reverse=reverse)) for reverse in (False, True)]
    joined = DominatingPair.from_sides(*sides)
    for reverse in (False, True):
        values = pair.hockey_stick(EPSILONS, reverse=reverse)
        np.testing.assert_allclose(joined.hockey_stick(EPSILONS, reverse=reverse), values, atol=1e-12)


@pytest.mark.parametrize(
    ("event", "directions"),
    [
        (Gaussian(3.0), 1),
        (Composed((DiscreteLaplace(5.3, 7, count=3), ApproximateDP(0.1, 1e-9), Gaussian(8.0))), 1),
        (Composed((Gaussian(3.0), SubsampledGaussian(0.1, 2.0, count=20))), 2),
        (RandomSplit(((0.5, Gaussian(3.0)), (0.5, None))), 2),
    ],
)
def test_one_direction_is_asked_only_where_both_are_alike(event: Event, directions: int) -> None:
    whole = composition(event)
    assert whole is not None
    assert len(whole.directions) == directions
    both = [whole.epsilon(1e-6, reverse)[0] for reverse in (False, True)]
    if directions == 1:
        assert both[0] == pytest.approx(both[1], rel=1e-9)


@pytest.mark.parametrize(
    ("event", "most"),
    [
        (Composed((Gaussian(1.0), DiscreteLaplace(20.0, count=30), ApproximateDP(0.1, 1e-9))), 2),
        (Composed((Gaussian(0.5), DiscreteLaplace(1.0, 3, count=3))), 2),
        (DiscreteLaplace(3000.0, count=1_000_000), 6),
        (SubsampledGaussian(0.001, 0.8, count=10_000), 3),
        (Composed((SeedRecords(695, 1.01, 0.0328, 80_000.0, 1_000_000), ApproximateDP(0.01, 0.0))), 7),
        (SubsampledGaussian(1e-4, 0.7, count=3), 3),
    ],
)
def test_a_profile_by_few_tails_is_that_of_the_best_of_many(
    event: Event, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every delta is at most a part in 10^6 above what the nearest of many tails gives, over 22 orders of magnitude."""
    whole = composition(event)
    assert whole is not None
    tail, asked = whole.tail, list[float]()
    monkeypatch.setattr(whole, "tail", lambda tilt, reverse: asked.append(tilt) or tail(tilt, reverse))
    for reverse in whole.directions:
        asked.clear()
        epsilons, deltas = whole.profile(200, reverse)
        assert len(asked) <= most
        tilts = np.append(0.0, [whole.renyi(10.0**-k + whole.infinite(reverse), reverse)[1] for k in range(1, 21, 2)])
        best = np.min([tail(tilt, reverse).delta(epsilons) for tilt in tilts], axis=0)
        assert (deltas <= best * (1 + 3e-6) + 1e-22).all()
        assert (deltas[:-1] >= best[:-1] * (1 - 3e-6)).all()


def test_profiles_end_where_floats_do() -> None:
    """Losses beyond are infinite: never less than they are, and no error."""
    pair = dominating_pair(Composed((DiscreteLaplace(1 / 900), DiscreteLaplace(1.0))))
    assert np.isfinite(pair.upper).all()
    assert pair.upper_infinite == pytest.approx(1)
    for reverse in (False, True):
        assert pair.hockey_stick([699.0, 5_000.0], reverse=reverse) == pytest.approx(1)


def test_hockey_sticks_and_moments_of_a_small_pair() -> None:
    p, q = np.array([0.5, 0.3, 0.2, 0.0]), np.array([0.1, 0.3, 0.4, 0.2])
    pair = pair_of(p, q)
    for epsilon in (-1.5, -0.5, 0.0, 0.3, 1.0, 3.0):
        assert pair.hockey_stick(epsilon)[0] == pytest.approx(hockey_stick(p, q, epsilon))
        assert pair.hockey_stick(epsilon, reverse=True)[0] == pytest.approx(hockey_stick(q, p, epsilon))
    expected = math.log(sum(a**3 / b**2 for a, b in zip(p, q, strict=True)))
    assert pair.log_moment([3.0])[0] == pytest.approx(expected)


def test_lower_hull_keeps_only_corners() -> None:
    x = np.linspace(0, 1, 200)
    y = (x - 0.4) ** 2 + np.where(np.arange(200) % 3, 0.1, 0.0)
    kept = lower_hull(x, y)
    assert (np.diff(np.diff(y[kept]) / np.diff(x[kept])) > 0).all()
    assert (np.interp(x, x[kept], y[kept]) <= y + 1e-15).all()
    assert list(lower_hull(np.array([0.0, 1.0]), np.array([1.0, 0.0]))) == [0, 1]


def test_sampled_pair_of_a_composition_is_a_close_upper_bound() -> None:
    event = Composed((DiscreteLaplace(20.0), Gaussian(12.0, 5), SeedRecords(500, 2, 0.1, 367_500, 1000)))
    pair, whole = dominating_pair(event), composition(event)
    assert whole is not None
    for reverse in (False, True):
        for epsilon in (0.0, 0.2, 0.8, 1.5):
            exact = whole.delta(epsilon, reverse)
            found = float(pair.hockey_stick(epsilon, reverse=reverse)[0])
            assert exact * (1 - 1e-6) <= found <= exact * 1.02 + 1e-20


def test_a_tail_with_next_to_no_weight_ends_at_its_loss():
    nothing = {"infinite": 0.0, "cumulant": -1000.0, "tilt": 1.0, "error": 0.0}
    tail = Tail(np.array([800.0]), np.array([0.5, 0.0]), np.array([1e-310, 0.0]), **nothing)
    assert tail.epsilon(0.1) == 800.0


@pytest.mark.parametrize("mass", [[0.5, 0.5], [0.0, 0.0, 1.0], [0.9, 0.0, 0.0, 0.0, 0.1], [0.2, 0.3, 0.1, 0.4]])
@pytest.mark.parametrize("count", [1, 2, 3, 40, 1000])
def test_sums_of_draws_are_those_of_convolutions(mass: list[float], count: int) -> None:
    """What Bernstein's inequality leaves out is folded into the rest, and less than 1e-14."""
    expected = np.ones(1)
    for _ in range(count):
        expected = np.convolve(expected, mass)
    low, found = sum_of_draws([(np.array(mass), count)])
    assert 0 <= low <= low + len(found) <= len(expected)
    assert np.abs(found - expected[low : low + len(found)]).max() < 1e-12
    assert expected.sum() - expected[low : low + len(found)].sum() < 1e-14 * count
    assert len(found) < len(expected) or count < 1000 or mass[2:] == [1.0]


@pytest.mark.parametrize("count", [1, 7, 2000])
def test_sums_of_several_distributions_are_those_of_convolutions(count: int) -> None:
    first, second, failing = np.array([0.2, 0.5, 0.3]), np.array([0.6, 0.0, 0.0, 0.1, 0.3]), np.array([0.25])
    expected = np.convolve(second, [1.0])
    for _ in range(count):
        expected = np.convolve(expected, first)
    low, found = sum_of_draws([(first, count), (failing, 2), (second, 1)])
    assert np.abs(found - expected[low : low + len(found)] / 16).max() < 1e-13
    assert expected.sum() - expected[low : low + len(found)].sum() < 1e-13
    assert len(found) < len(expected) or count < 1000
    low, found = sum_of_draws([(failing, 2), (failing, 1)])
    assert (low, found.tolist()) == (0, [0.25**3])
