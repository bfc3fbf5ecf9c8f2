"""The pair of Gaussian noise on a sample, against its closed form and against `dp_accounting`."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpdist.privacy.composition import Composition, Piece
from dpdist.privacy.sampled_gaussian import largest_loss, sampled_gaussian_pair

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
