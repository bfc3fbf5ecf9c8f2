"""Picks by the exponential mechanism, and what the floors of their weights move."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy import stats

from dpdist.lifecycle.conformity import LARGEST_EPSILON
from dpdist.model.account import GaussianAccount
from dpdist.model.choices import Choices
from dpdist.model.forecast import draws_at_most
from dpdist.privacy import _thresholds
from dpdist.privacy import selection as module
from dpdist.privacy.noise import SAMPLER_DELTA, Noise
from dpdist.privacy.selection import Candidates, draws_of_pick

NOISE = Noise(bytes(range(32)))
RUNS = 8_000
IMPOSSIBLE = 1e-9


def frequencies(scores: list[int], scale: float) -> np.ndarray:
    candidates = Candidates(np.array(scores, np.int64), scale=scale)
    return np.bincount([NOISE.pick("test", candidates, start=i) for i in range(RUNS)], minlength=len(scores))


def p_value(found: np.ndarray, scores: list[int], scale: float) -> float:
    weights = np.exp((np.array(scores) - max(scores)) / scale)
    return float(stats.chisquare(found, RUNS * weights / weights.sum()).pvalue)


@pytest.mark.parametrize(("scores", "scale"), [([0, 5, 9, 9, -3], 7.0), ([1_000_000, 1_000_300, 999_900], 316.0)])
def test_picks_follow_the_exponential_mechanism(scores: list[int], scale: float) -> None:
    found = frequencies(scores, scale)
    assert p_value(found, scores, scale) > IMPOSSIBLE
    assert p_value(found, scores, 1.3 * scale) < IMPOSSIBLE
    assert p_value(found, scores, scale / 1.3) < IMPOSSIBLE


def test_picks_among_allowed_ones_follow_the_mechanism_restricted_to_them() -> None:
    """The best candidates are not allowed, some of them so far above that the weights of the others are drawn anew."""
    scores, scale = [900, 12, 5, 9, 9, -3], 7.0
    candidates = Candidates(np.array(scores, np.int64), scale=scale)
    found = np.bincount(
        [NOISE.pick("allowed", candidates, start=10 * i, allowed=lambda k: k >= 2) for i in range(RUNS)], minlength=6
    )
    assert not found[:2].any()
    assert p_value(found[2:], scores[2:], scale) > IMPOSSIBLE
    assert p_value(found[2:], scores[2:], 1.3 * scale) < IMPOSSIBLE
    with pytest.raises(ValueError, match="no candidate"):
        NOISE.pick("none", candidates, allowed=lambda k: False)


def test_candidates_that_were_taken_out_do_not_matter_and_come_back() -> None:
    """The same picks as from candidates that were never there, also where all weights are computed again."""
    scores = np.random.default_rng(0).integers(0, 400, 700)
    scores[[3, 600]] = 5000, 5010
    candidates, gone = Candidates(scores, scale=20.0), [3, 5, 257, 600]
    whole = [NOISE.pick("whole", candidates, start=i) for i in range(30)]
    for index in gone:
        candidates.remove(index)
    kept = np.delete(np.arange(700), gone)
    fewer = Candidates(scores[kept], scale=20.0)
    picks = [NOISE.pick("fewer", candidates, start=i) for i in range(200)]
    assert picks == [kept[NOISE.pick("fewer", fewer, start=i)] for i in range(200)]
    for index in gone:
        candidates.restore(index)
    assert whole == [NOISE.pick("whole", candidates, start=i) for i in range(30)]
    assert set(whole) == {3, 600}


@pytest.mark.parametrize("kept", [0, 2 * 40, 1 << 20])
def test_weights_that_are_kept_or_computed_again_give_the_same_picks(
    kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The best candidates are refused at each pick, so each goes down to another top and up again."""
    scores = np.arange(40) ** 2 * 3
    computed = []
    exact = _thresholds.exponential_weights
    monkeypatch.setattr(_thresholds, "exponential_weights", lambda *a: computed.append(1) or exact(*a))

    def picks() -> list[int]:
        candidates = Candidates(scores, scale=2.0)
        rules = [lambda k, most=20 + i % 3: k < most for i in range(30)]
        return [NOISE.pick("tops", candidates, start=100 * i, allowed=rule) for i, rule in enumerate(rules)]

    expected = picks()
    often, computed[:] = len(computed), []
    monkeypatch.setattr("dpdist.privacy.selection._KEPT", kept)
    assert picks() == expected
    assert (len(computed) > 5 * often) == (kept < 1 << 20)


def test_weights_are_certified() -> None:
    from mpmath import mp, mpf

    scale = Fraction(316) + Fraction(1, 7)
    gaps = [0, 1, 17, 17, 4000, 28_000, 10**9]
    with mp.workdps(80):
        exact = [int(mp.floor(2**128 * mp.exp(-mpf(gap) * scale.denominator / scale.numerator))) for gap in gaps]
    assert _thresholds.exponential_weights(gaps, scale) == exact


def test_a_pick_is_a_function_of_its_address() -> None:
    candidates = Candidates(np.arange(50, dtype=np.int64), scale=20.0)
    picks = [NOISE.pick("a", candidates, start=i) for i in range(40)]
    assert picks == [NOISE.pick("a", candidates, start=i) for i in range(40)]
    assert picks != [NOISE.pick("b", candidates, start=i) for i in range(40)]


def test_a_score_far_below_is_never_picked() -> None:
    candidates = Candidates(np.array([-(10**15), 0], np.int64), scale=3.0)
    assert all(NOISE.pick("far", candidates, start=i) == 1 for i in range(100))


@pytest.mark.parametrize(
    ("scores", "scale"),
    [
        (np.zeros(0, np.int64), 1.0),
        (np.zeros((2, 2), np.int64), 1.0),
        (np.zeros(3), 1.0),
        (np.zeros(3, np.int64), 0.0),
        (np.zeros(3, np.int64), math.inf),
    ],
)
def test_refuses(scores: np.ndarray, scale: float) -> None:
    with pytest.raises(ValueError, match=r"scale|scores"):
        Candidates(scores, scale=scale)


PAIRS = math.comb(300, 2)


def _moved(weights: list[int], gaps: list[int], scale: int) -> mpmath.mpf:
    """Total variation between weights and those they are floors of."""
    with mpmath.workprec(400):
        true = [mpmath.exp(-mpmath.mpf(gap) / scale) for gap in gaps]
        total, exact = sum(weights), mpmath.fsum(true)
        return mpmath.fsum(abs(mpmath.mpf(w) / total - t / exact) for w, t in zip(weights, true, strict=True)) / 2


@pytest.mark.parametrize("scale", [3, 1000])
def test_a_draw_is_as_near_as_the_proof_says(scale: int) -> None:
    """Also where what is left weighs as little as it may before the weights are computed again."""
    scores = -np.arange(0, 40 * scale, max(scale // 10, 1), dtype=np.int64)
    found = Candidates(scores, scale=float(scale))
    for index in range(len(scores) - 1):
        found.remove(index)
        found.at(0)  # computes the weights again where it must
        left = [i for i, is_left in enumerate(found._left) if is_left]
        weights, gaps = [found._weights[i] for i in left], [int(scores[index + 1] - scores[i]) for i in left]
        assert sum(weights) >= 1 << 124
        if index % 29 == 0:
            assert _moved(weights, gaps, scale) < len(left) * mpmath.mpf(2) ** -124


@pytest.mark.parametrize(
    ("candidates", "epsilon"), [(PAIRS + 1, 20), (PAIRS + 1, LARGEST_EPSILON), (11, 27), (10**6, 27)]
)
def test_the_charge_covers_the_error(candidates: int, epsilon: int) -> None:
    """One draw's charge covered neither 300 attributes at epsilon 20, nor candidates that are refused."""
    floors = Fraction(1, module._LEAST_SUM) + Fraction(1, 2**128)
    moved = candidates**2 * floors * (1 + math.ceil(math.exp(epsilon)))
    charged = draws_of_pick(candidates) * Fraction(SAMPLER_DELTA)
    assert moved <= charged
    assert charged < 2.0**-59 + 2 * moved * math.exp(LARGEST_EPSILON - epsilon) * 1.1  # not much more


def test_a_plan_counts_what_its_picks_are_charged() -> None:
    account = GaussianAccount(1.0, Noise(bytes(32)))
    scores = Candidates(np.zeros(PAIRS + 1, np.int64), scale=100.0)
    account.pick("one", scores, scale=100.0, allowed=lambda index: True)
    assert account.draws == draws_of_pick(PAIRS + 1) > 1
    few, many = (draws_at_most(Choices(mu=1.0, rounds=0, per_round=0, rake=0.0), (2,) * m) for m in (20, 300))
    assert few == 3 * 40 + 1 + 20 * (4 + 1)
    assert many == 3 * 600 + 1 + 300 * (4 + draws_of_pick(math.comb(600, 2) + 1))
