"""Intervals hold as often as they say, and equal what they are defined by."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from dpdist.evaluation import records
from dpdist.evaluation.attacks import intervals
from dpdist.evaluation.attacks.excess import agreeing_guesses, nearest_guesses
from dpdist.evaluation.records import Agreement, Gower, coarse, occurrences
from dpdist.privacy.arrays import Codes
from dpdist.spec.schema import Schema


@pytest.mark.parametrize(("hits", "trials"), [(0, 7), (3, 10), (10, 10), (1, 400)])
def test_a_proportion_inverts_the_binomial_test(hits: int, trials: int) -> None:
    found = intervals.proportion(hits, trials, confidence=0.9)
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
        intervals.proportion(hits, trials)


def test_differences_hold_as_often_as_stated() -> None:
    (n, p), (m, q), confidence = (20, 0.3), (30, 0.1), 0.9
    covered = 0.0
    for a, b in itertools.product(range(n + 1), range(m + 1)):
        if intervals.difference((a, n), (b, m), confidence=confidence).covers(p - q):
            covered += binom.pmf(a, n, p) * binom.pmf(b, m, q)
    assert confidence <= covered < 0.98


def test_an_area_counts_pairs_and_its_variance_is_delongs() -> None:
    rng = np.random.default_rng(0)
    positive, negative = rng.integers(0, 9, 30) + 1.0, rng.integers(0, 9, 50) + 0.0
    wins = (positive[:, None] > negative) + 0.5 * (positive[:, None] == negative)
    variance = wins.mean(axis=1).var(ddof=1) / 30 + wins.mean(axis=0).var(ddof=1) / 50
    found = intervals.area_under_curve(positive, negative)
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
    found = [intervals.area_under_curve(rng.normal(shift, 1, 200), rng.normal(0, 1, 300)) for _ in range(600)]
    covered = sum(interval.covers(truth) for interval in found)
    assert binom.cdf(covered, 600, 0.95) > 1e-6
    assert binom.sf(covered, 600, 0.90) < 1e-3


def test_separated_and_tied_scores_still_have_an_interval() -> None:
    apart = intervals.area_under_curve(np.arange(50) + 100, np.arange(80))
    assert apart.value == apart.high == 1
    assert 0.9 < apart.low < 1
    tied = intervals.area_under_curve(np.zeros(50), np.zeros(80))
    assert tied.value == 0.5
    assert tied.low < 0.4 < 0.6 < tied.high
    with pytest.raises(ValueError, match="two scores"):
        intervals.area_under_curve([1.0], [0.0, 1.0])


def test_an_operating_point_accuses_no_more_than_is_allowed() -> None:
    negative = np.repeat(np.arange(500), 4).astype(float)  # 2,000 in ties of four
    positive = np.array([1000.0] * 30 + [498.5] * 20 + [0.0] * 50)
    point = intervals.operating_point(positive, negative, allowed=0.001)
    assert point.accused.value <= 0.001
    assert point.found == intervals.proportion(30, 100)  # four at 499 would be accused together, which is too many
    assert intervals.operating_point(positive, negative, allowed=0.002).found == intervals.proportion(50, 100)
    assert point.found.value == 0.3


def test_a_curve_goes_from_nothing_to_everything() -> None:
    rng = np.random.default_rng(2)
    positive, negative = rng.normal(1, 1, 3000), rng.normal(0, 1, 3000)
    accused, found = intervals.roc_curve(positive, negative, points=100)
    assert len(accused) <= 102
    assert (accused[0], found[0]) == (0, 0)
    assert (accused[-1], found[-1]) == (1, 1)
    assert (np.diff(accused) >= 0).all()
    assert (np.diff(found) >= 0).all()
    area = np.trapezoid(found, accused)
    assert area == pytest.approx(intervals.area_under_curve(positive, negative).value, abs=0.01)
    for rate, share in zip(accused[1:-1], found[1:-1], strict=True):
        bar = np.sort(negative)[::-1][max(round(rate * 3000) - 1, 0)]
        assert share == pytest.approx((positive >= bar).mean(), abs=0.01)


# --- Agreements, profiles and nearest records equal brute force over all pairs


MIXED = Schema.model_validate(
    {
        "attributes": [
            {"name": "a", "kind": "categorical", "values": [0, 1, 2]},
            {"name": "b", "kind": "ordinal", "values": [0, 1, 2, 3]},
            {"name": "c", "kind": "integer", "bounds": [10, 15]},
            {"name": "d", "kind": "number", "bounds": [-2.0, 2.0]},
        ]
    }
)


def mixed(rows: int, seed: int) -> Codes:
    rng = np.random.default_rng(seed)
    codes: Codes = [rng.integers(0, size, rows).astype(np.uint8) for size in (3, 4, 6)]
    return [*codes, rng.choice(np.linspace(-2, 2, 9), rows)]


def differences(ours: Codes, theirs: Codes) -> np.ndarray:
    """Number of attributes in which each pair differs."""
    return np.sum([a[:, None] != b[None, :] for a, b in zip(ours, theirs, strict=True)], axis=0)


@given(st.integers(1, 40), st.integers(1, 60), st.integers(0, 10_000))
def test_agreements_are_those_of_all_pairs(rows: int, others: int, seed: int) -> None:
    ours, theirs = mixed(rows, seed), mixed(others, seed + 1)
    agreement, apart = Agreement(4, seed=seed), differences(ours, theirs)
    assert (agreement.exact(ours, theirs) == (apart == 0).sum(axis=1)).all()
    expected = np.array([(apart == number).sum(axis=1) for number in (0, 1, 2)])
    assert (agreement.profiles(ours, theirs)[0] == expected).all()
    without = agreement.without(ours, theirs)
    for place, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        rest = apart - (a[:, None] != b[None, :])
        assert (without[place] == (rest == 0).sum(axis=1)).all()


def test_many_attributes_are_estimated_from_some_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    ours, theirs = ([rng.integers(0, 2, rows).astype(np.uint8) for _ in range(8)] for rows in (50, 4000))
    exact = Agreement(8, seed=0).profiles(ours, theirs)[0]
    monkeypatch.setattr(records, "PAIRS", 14)
    estimates = np.mean([Agreement(8, seed=seed).profiles(ours, theirs)[0][2] for seed in range(60)], axis=0)
    assert estimates == pytest.approx(exact[2], rel=0.15)


def test_keys_count_repeated_values() -> None:
    keys = np.array([5, 7, 7, 9], np.uint64)
    assert occurrences(np.array([7, 5, 1], np.uint64), keys).tolist() == [2, 1, 0]
    assert Agreement(1, seed=0).exact([np.array([0.0])], [np.array([-0.0, 0.0])]).tolist() == [2]


def test_numbers_are_cut_into_cells_of_their_bounds() -> None:
    (cut,) = coarse([np.array([-2.0, -1.9, 0.0, 2.0, 3.0])], Schema(attributes=MIXED.attributes[3:]))
    assert cut.tolist() == [0, 0, 16, 31, 31]


def gower(ours: Codes, theirs: Codes) -> np.ndarray:
    parts = [np.where(ours[0][:, None] == theirs[0][None, :], 0, 1.0)]
    for a, b, width in zip(ours[1:], theirs[1:], (3, 5, 4), strict=True):
        parts.append(np.abs(a[:, None].astype(float) - b[None, :].astype(float)) / width)
    return np.array(parts)


@pytest.mark.parametrize("cells", [1, 100, 1 << 20])
def test_nearest_records_are_those_of_all_pairs(monkeypatch: pytest.MonkeyPatch, cells: int) -> None:
    monkeypatch.setattr(records, "BLOCK_CELLS", cells)
    ours, theirs = mixed(30, 5), mixed(70, 6)
    parts = gower(ours, theirs)
    for places in ([0, 1, 2, 3], [1, 3], [0]):
        expected = parts[places].sum(axis=0)
        distances, where = Gower(MIXED).nearest(ours, theirs, places)
        assert distances == pytest.approx(expected.min(axis=1), abs=1e-5)
        assert expected[np.arange(30), where] == pytest.approx(expected.min(axis=1), abs=1e-5)


def test_guesses_are_those_of_all_pairs() -> None:
    ours, theirs = mixed(40, 7), mixed(3000, 8)
    ours, theirs = coarse(ours, MIXED), coarse(theirs, MIXED)
    apart = differences(ours, theirs)
    found = 0
    for place, guesses in enumerate(agreeing_guesses(ours, theirs, Agreement(4, seed=1))):
        rest = apart - (ours[place][:, None] != theirs[place][None, :])
        for row, guess in enumerate(guesses.tolist()):
            values = theirs[place][rest[row] == 0]
            if not len(values):
                assert guess == -1
            else:
                counts = np.bincount(values)
                assert counts[guess] == counts.max()
                found += 1
    assert found > 50
    parts = gower(mixed(40, 7), mixed(100, 8))
    for place, where in enumerate(nearest_guesses(mixed(40, 7), mixed(100, 8), MIXED)):
        expected = parts.sum(axis=0) - parts[place]
        assert expected[np.arange(40), where] == pytest.approx(expected.min(axis=1), abs=1e-5)
