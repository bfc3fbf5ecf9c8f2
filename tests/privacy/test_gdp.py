"""Gaussian differential privacy: the closed form against the inequality that it solves."""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy.special import ndtr

from dpdist.errors import AccountingError
from dpdist.privacy import accountant
from dpdist.privacy.event import Event
from dpdist.privacy.events import ApproximateDP, DiscreteLaplace, Gaussian, SeedRecords
from dpdist.privacy.formatting import rounded_down, rounded_up
from dpdist.privacy.gdp import largest_mu_squared, least_epsilon, least_mu
from dpdist.privacy.pair import DominatingPair
from dpdist.privacy.pieces import dominating_pair


def gaussian_profile(mu: float, epsilons: np.ndarray) -> np.ndarray:
    return ndtr(mu / 2 - epsilons / mu) - np.exp(epsilons) * ndtr(-mu / 2 - epsilons / mu)


def random_pair(rng: np.random.Generator) -> DominatingPair:
    """Any two distributions on a few points, some of them on one side only."""
    size = int(rng.integers(2, 7))
    p, q = rng.dirichlet(np.ones(size)), rng.dirichlet(np.ones(size))
    if rng.random() < 0.5:
        p[0], q[-1] = 0.0, 0.0
        p[-1], q[0] = p[-1] * 1e-3, q[0] * 1e-3
        p, q = p / p.sum(), q / q.sum()
    both = (p > 0) & (q > 0)
    return DominatingPair(
        np.log(p[both] / q[both]), p[both], q[both], float(p[q == 0].sum()), float(q[p == 0].sum())
    ).ascending()


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
