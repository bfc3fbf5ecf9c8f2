"""Intervals hold as often as they say, and equal what they are defined by."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.stats import binom

from dpdist.evaluation.attacks.intervals import (
    area_under_curve,
    difference,
    operating_point,
    proportion,
    roc_curve,
)


@pytest.mark.parametrize(("hits", "trials"), [(0, 7), (3, 10), (10, 10), (1, 400)])
def test_a_proportion_inverts_the_binomial_test(hits: int, trials: int) -> None:
    found = proportion(hits, trials, confidence=0.9)
    assert found.value == hits / trials
    if hits:
        assert binom.sf(hits - 1, trials, found.low) == pytest.approx(0.05)
    else:
        assert found.low == 0
    if hits < trials:
        assert binom.cdf(hits, trials, found.high) == pytest.approx(0.05)
    else:
        assert found.high == 1


@pytest.mark.parametrize(("hits", "trials"), [(-1, 3), (4, 3), (0, 0)])
def test_a_proportion_out_of_range_is_refused(hits: int, trials: int) -> None:
    with pytest.raises(ValueError, match="a proportion needs"):
        proportion(hits, trials)


def test_differences_hold_as_often_as_stated() -> None:
    (n, p), (m, q), confidence = (20, 0.3), (30, 0.1), 0.9
    covered = 0.0
    for a, b in itertools.product(range(n + 1), range(m + 1)):
        if difference((a, n), (b, m), confidence=confidence).covers(p - q):
            covered += binom.pmf(a, n, p) * binom.pmf(b, m, q)
    assert confidence <= covered < 0.98


def test_an_area_counts_pairs_and_its_variance_is_delongs() -> None:
    rng = np.random.default_rng(0)
    positive, negative = rng.integers(0, 9, 30) + 1.0, rng.integers(0, 9, 50) + 0.0
    wins = (positive[:, None] > negative) + 0.5 * (positive[:, None] == negative)
    variance = wins.mean(axis=1).var(ddof=1) / 30 + wins.mean(axis=0).var(ddof=1) / 50
    found = area_under_curve(positive, negative)
    area = wins.mean()
    assert found.value == pytest.approx(area)
    reach = 1.959964 * np.sqrt(variance) / (area * (1 - area))
    logit = np.log(area / (1 - area))
    assert np.log(found.high / (1 - found.high)) == pytest.approx(logit + reach, rel=1e-5)
    assert np.log(found.low / (1 - found.low)) == pytest.approx(logit - reach, rel=1e-5)


@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_areas_hold_as_often_as_stated(shift: float) -> None:
    from scipy.stats import norm

    rng, truth = np.random.default_rng(1), norm.cdf(shift / np.sqrt(2))
    found = [area_under_curve(rng.normal(shift, 1, 200), rng.normal(0, 1, 300)) for _ in range(600)]
    covered = sum(interval.covers(truth) for interval in found)
    assert binom.cdf(covered, 600, 0.95) > 1e-6
    assert binom.sf(covered, 600, 0.90) < 1e-3


def test_separated_and_tied_scores_still_have_an_interval() -> None:
    apart = area_under_curve(np.arange(50) + 100, np.arange(80))
    assert apart.value == apart.high == 1
    assert 0.9 < apart.low < 1
    tied = area_under_curve(np.zeros(50), np.zeros(80))
    assert tied.value == 0.5
    assert tied.low < 0.4 < 0.6 < tied.high
    with pytest.raises(ValueError, match="two scores"):
        area_under_curve([1.0], [0.0, 1.0])


def test_an_operating_point_accuses_no_more_than_is_allowed() -> None:
    negative = np.repeat(np.arange(500), 4).astype(float)  # 2,000 in ties of four
    positive = np.array([1000.0] * 30 + [498.5] * 20 + [0.0] * 50)
    point = operating_point(positive, negative, allowed=0.001)
    assert point.accused.value <= 0.001
    assert point.found == proportion(30, 100)  # four at 499 would be accused together, which is too many
    assert operating_point(positive, negative, allowed=0.002).found == proportion(50, 100)
    assert point.found.value == 0.3


def test_a_curve_goes_from_nothing_to_everything() -> None:
    rng = np.random.default_rng(2)
    positive, negative = rng.normal(1, 1, 3000), rng.normal(0, 1, 3000)
    accused, found = roc_curve(positive, negative, points=100)
    assert len(accused) <= 102
    assert (accused[0], found[0]) == (0, 0)
    assert (accused[-1], found[-1]) == (1, 1)
    assert (np.diff(accused) >= 0).all()
    assert (np.diff(found) >= 0).all()
    area = np.trapezoid(found, accused)
    assert area == pytest.approx(area_under_curve(positive, negative).value, abs=0.01)
    for rate, share in zip(accused[1:-1], found[1:-1], strict=True):
        bar = np.sort(negative)[::-1][max(round(rate * 3000) - 1, 0)]
        assert share == pytest.approx((positive >= bar).mean(), abs=0.01)
