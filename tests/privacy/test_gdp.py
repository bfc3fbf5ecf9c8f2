"""The Gaussian pair that a mechanism is no worse than, and that of noise on a sample."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy.special import ndtr

from dpdist.errors import AccountingError
from dpdist.privacy import accountant
from dpdist.privacy.composition import Composition, Piece
from dpdist.privacy.deniability import SeedRecords
from dpdist.privacy.event import Event
from dpdist.privacy.events import ApproximateDP, DiscreteLaplace, Gaussian
from dpdist.privacy.formatting import rounded_down, rounded_up
from dpdist.privacy.gdp import largest_mu_squared, least_epsilon, least_mu
from dpdist.privacy.pair import DominatingPair
from dpdist.privacy.pieces import dominating_pair, largest_loss, sampled_gaussian_pair


def gaussian_profile(mu: float, epsilons: np.ndarray) -> np.ndarray:
    return ndtr(mu / 2 - epsilons / mu) - np.exp(epsilons) * ndtr(-mu / 2 - epsilons / mu)


def pair_of(p: np.ndarray, q: np.ndarray) -> DominatingPair:
    """The pair of two distributions by their masses."""
    both = (p > 0) & (q > 0)
    return DominatingPair(
        np.log(p[both] / q[both]), p[both], q[both], float(p[q == 0].sum()), float(q[p == 0].sum())
    ).ascending()


def random_pair(rng: np.random.Generator) -> DominatingPair:
    """Any two distributions on a few points, some of them on one side only."""
    size = int(rng.integers(2, 7))
    p, q = rng.dirichlet(np.ones(size)), rng.dirichlet(np.ones(size))
    if rng.random() < 0.5:
        p[0], q[-1] = 0.0, 0.0
        p[-1], q[0] = p[-1] * 1e-3, q[0] * 1e-3
        p, q = p / p.sum(), q / q.sum()
    return pair_of(p, q)


def exceeds(pair: DominatingPair, mu: float, failure: float) -> float:
    """The largest excess of the pair's divergences over those of the Gaussian pair that fails."""
    top = float(np.abs(pair.losses).max()) + 1
    epsilons = np.linspace(-top, top, 40001)
    bound = failure + (1 - failure) * gaussian_profile(mu, epsilons)
    # in units of the smaller of the divergence and what it lacks to its largest value, so that both tails count
    small = np.minimum(bound, bound - np.maximum(1 - np.exp(epsilons), 0)) + 1e-300
    return float(max(((pair.hockey_stick(epsilons, reverse=r) - bound) / small).max() for r in (False, True)))


@pytest.mark.parametrize("seed", range(40))
def test_the_closed_form_is_the_least_mu(seed: int) -> None:
    rng = np.random.default_rng(seed)
    pair = random_pair(rng)
    infinite = max(pair.upper_infinite, pair.lower_infinite)
    failure = infinite + (1 - infinite) * float(rng.choice([1e-6, 1e-3, 0.1]))
    mu = float(least_mu(pair, failure))
    if infinite == 1.0:  # nothing but infinite losses
        assert math.isinf(mu)
        return
    if mu == 0.0:
        assert exceeds(pair, 1e-6, failure) < 1e-3
        return
    assert exceeds(pair, mu, failure) < 1e-6
    assert exceeds(pair, mu * 0.999, failure) > 0


@pytest.mark.parametrize(
    "event",
    [
        DiscreteLaplace(1.0),
        DiscreteLaplace(3.0, sensitivity=4),
        DiscreteLaplace(9.0, count=20),
        ApproximateDP(0.7, 1e-7),
    ],
)
def test_events_lie_below_their_gaussian_and_touch_it(event: Event) -> None:
    pair = dominating_pair(event)
    mu = float(least_mu(pair, 1e-6))
    assert exceeds(pair, mu, 1e-6) < 1e-4
    assert exceeds(pair, mu * 0.995, 1e-6) > 0


def test_one_pure_statistic_needs_a_larger_mu() -> None:
    assert float(least_mu(dominating_pair(DiscreteLaplace(1.0)), 0.0)) == pytest.approx(1.232035, abs=1e-6)


def test_long_compositions_are_nearly_gaussian() -> None:
    """A thousand Laplace statistics cost what a Gaussian of the same variance of losses does, within 2 %."""
    event = DiscreteLaplace(scale=100.0, count=1000)
    mu = float(least_mu(dominating_pair(event), 1e-12))
    epsilon = accountant.epsilon(event, delta=1e-9)
    assert least_epsilon(mu_squared=Fraction(mu) ** 2, delta=Fraction("1e-9")) == pytest.approx(epsilon, rel=0.02)
    seeds = SeedRecords(k=2000, gamma=2.0, epsilon0=0.02, passing_mass=367_500.0, records=100)
    small = float(least_mu(dominating_pair(seeds), 1e-11))
    assert 0 < small < 0.05


def test_infinite_losses_are_no_gaussian() -> None:
    pair = dominating_pair(ApproximateDP(0.5, 1e-5))
    assert np.isinf(least_mu(pair, [0.0, 1e-6])).all()
    assert np.isfinite(least_mu(pair, [1.0001e-5, 1e-4])).all()


@pytest.mark.parametrize(("epsilon", "delta"), [("1", "1e-9"), ("4", "1e-8"), ("1/100", "1e-12"), ("50", "1e-200")])
def test_the_largest_mu_is_certified(epsilon: str, delta: str) -> None:
    """Against 400 digits: within the bound, and not within it 1e-9 further."""
    e, squared = Fraction(epsilon), largest_mu_squared(epsilon=Fraction(epsilon), delta=Fraction(delta))
    with mpmath.workdps(400):

        def profile(square: Fraction) -> mpmath.mpf:
            m, x = (
                mpmath.sqrt(mpmath.mpf(square.numerator) / square.denominator),
                mpmath.mpf(e.numerator) / e.denominator,
            )
            return mpmath.ncdf(m / 2 - x / m) - mpmath.exp(x) * mpmath.ncdf(-m / 2 - x / m)

        cap = mpmath.mpf(Fraction(delta).numerator) / Fraction(delta).denominator
        assert profile(squared) <= cap < profile(squared * (1 + Fraction(1, 10**9)))
    back = least_epsilon(mu_squared=squared, delta=Fraction(delta))
    assert back == pytest.approx(float(e), rel=1e-9)


def test_the_accountant_agrees() -> None:
    squared = largest_mu_squared(epsilon=Fraction(1), delta=Fraction("1e-9"))
    found = accountant.epsilon(Gaussian(noise_multiplier=float(squared) ** -0.5), delta=1e-9)
    assert found == pytest.approx(1.0, rel=2e-4)
    assert least_epsilon(mu_squared=Fraction(0), delta=Fraction("1e-9")) == 0.0
    assert math.isinf(least_epsilon(mu_squared=Fraction(10**9), delta=Fraction("1e-9")))


@pytest.mark.parametrize(("epsilon", "delta"), [("0", "1e-9"), ("-1", "1e-9"), ("1", "0"), ("1", "1"), ("1e7", "1e-9")])
def test_no_mu_for_what_is_no_budget(epsilon: str, delta: str) -> None:
    with pytest.raises(AccountingError, match="0 < epsilon"):
        largest_mu_squared(epsilon=Fraction(epsilon), delta=Fraction(delta))


def test_rounding_to_twelve_digits() -> None:
    assert rounded_up(Fraction(1, 3)) == Fraction(333333333334, 10**12)
    assert rounded_down(Fraction(1, 3)) == Fraction(333333333333, 10**12)
    assert rounded_up(Fraction(1, 10)) == rounded_down(Fraction(1, 10)) == Fraction(1, 10)


SETTINGS = [(1.0, 1.0), (4.0, 1.0), (2.0, 0.1), (0.8, 0.001), (10.0, 0.5), (1.3, 1 - 1e-9), (0.3, 0.2)]


def exact(multiplier: float, rate: float, epsilon: float, *, reverse: bool) -> float:
    """The hockey-stick divergence, from the one x at which the loss is epsilon."""

    def beyond(x: float) -> float:
        return math.erfc(x / math.sqrt(2)) / 2

    ratio = math.exp(-epsilon if reverse else epsilon) - 1 + rate
    if ratio <= 0:
        return 0.0
    x = multiplier**2 * math.log(ratio / rate) + 0.5
    side = -1 if reverse else 1
    without, shifted = beyond(side * x / multiplier), beyond(side * (x - 1) / multiplier)
    with_record = (1 - rate) * without + rate * shifted
    first, second = (without, with_record) if reverse else (with_record, without)
    return first - math.exp(epsilon) * second


@pytest.mark.parametrize(("multiplier", "rate"), SETTINGS)
@pytest.mark.parametrize("reverse", [False, True])
def test_the_profile_is_exact_at_the_lattice_and_above_between(multiplier: float, rate: float, reverse: bool) -> None:
    interval = 2.0 ** math.floor(math.log2(largest_loss(multiplier, rate) / 500))
    pair = sampled_gaussian_pair(multiplier, rate, interval)
    nodes = np.arange(0, 200) * interval
    at, between = pair.hockey_stick(nodes, reverse=reverse), pair.hockey_stick(nodes + interval / 2, reverse=reverse)
    true = np.array([exact(multiplier, rate, float(node), reverse=reverse) for node in nodes])
    above = np.array([exact(multiplier, rate, float(node + interval / 2), reverse=reverse) for node in nodes])
    assert np.allclose(at, true, rtol=1e-9, atol=1e-14)
    assert np.all(between >= above - 1e-14)


@pytest.mark.parametrize(("multiplier", "rate"), SETTINGS)
def test_both_masses_are_kept(multiplier: float, rate: float) -> None:
    pair = sampled_gaussian_pair(multiplier, rate, largest_loss(multiplier, rate) / 300)
    assert pair.upper.sum() + pair.upper_infinite == pytest.approx(1, abs=1e-12)
    assert pair.lower.sum() + pair.lower_infinite == pytest.approx(1, abs=1e-12)
    assert max(pair.upper_infinite, pair.lower_infinite) < 1e-21
    kept = (pair.lower > 1e-280) & (pair.upper > 1e-280)
    assert np.allclose(np.log(pair.upper[kept] / pair.lower[kept]), pair.losses[kept], atol=1e-6)


@pytest.mark.parametrize(("multiplier", "rate", "count"), [(2.0, 0.01, 1000), (20.0, 0.1, 4000), (1.0, 1.0, 3)])
def test_agrees_with_dp_accounting(multiplier: float, rate: float, count: int) -> None:
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

    pair = sampled_gaussian_pair(multiplier, rate, 1e-4)
    ours = Composition(
        [
            Piece(
                lambda h: sampled_gaussian_pair(multiplier, rate, h),
                count,
                pair.variance,
                largest_loss(multiplier, rate),
                exact=False,
            )
        ]
    )
    theirs = from_gaussian_mechanism(multiplier, value_discretization_interval=1e-4, sampling_prob=rate).self_compose(
        count
    )
    epsilon = max(ours.epsilon(1e-6, reverse)[0] for reverse in (False, True))
    assert epsilon == pytest.approx(theirs.get_epsilon_for_delta(1e-6), rel=2e-3)
