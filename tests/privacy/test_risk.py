"""What a guess gains: an optimal guesser by enumeration is never above the bound or a sentence; all kinds attain it."""

from __future__ import annotations

import math
import re
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from cases import DISCOVERY, HISTOGRAM, PATIENTS, PRIVATE, RELATIONAL, SYNTHESIS, Case
from scipy import stats

from dpdist.errors import AccountingError, SpecError
from dpdist.families.base.family import SolveRequest
from dpdist.families.base.registry import make_plan, solve_risk
from dpdist.privacy.accountant import most_right
from dpdist.privacy.events import ApproximateDP, Composed, DiscreteLaplace, Event, Gaussian, SubsampledGaussian
from dpdist.privacy.formatting import percent, risk_sentence
from dpdist.spec.validation import change

SPECS = {case.name: case.spec(Path("unused")) for case in (SYNTHESIS, HISTOGRAM)}
GUESSES = (0.001, 0.01, 0.1, 0.3)


def optimal(present: np.ndarray, absent: np.ndarray, guess: float) -> float:
    """The largest probability under `present` of a set that `absent` gives `guess`: by likelihood ratios."""
    with np.errstate(divide="ignore", invalid="ignore"):
        order = np.argsort(-np.where(absent > 0, present / absent, np.inf))
    p, q = present[order], absent[order]
    before = np.concatenate([[0.0], np.cumsum(q)[:-1]])
    part = np.clip((guess - before) / np.where(q > 0, q, 1.0), 0.0, 1.0)
    return float((p * np.where(q > 0, part, 1.0)).sum())


def laplace(scale: float, at: np.ndarray) -> np.ndarray:
    q = math.exp(-1 / scale)
    return (1 - q) / (1 + q) * q ** np.abs(at)


@pytest.mark.parametrize("guess", GUESSES)
@pytest.mark.parametrize(("scale", "count"), [(1.0, 1), (3.0, 2), (0.7, 2)])
def test_counts_with_laplace_noise(scale: float, count: int, guess: float) -> None:
    """All outputs of one or two counts."""
    far = np.arange(-60, 61)
    one, other = laplace(scale, far - 1), laplace(scale, far)
    present, absent = one, other
    for _ in range(count - 1):
        present, absent = np.outer(present, one).ravel(), np.outer(absent, other).ravel()
    bound = most_right(DiscreteLaplace(scale, count=count), guess=guess)
    found = max(optimal(present, absent, guess), optimal(absent, present, guess))
    assert found <= bound <= 1.02 * found + 1e-6


@pytest.mark.parametrize("guess", GUESSES)
@pytest.mark.parametrize("sigma", [0.8, 2.0, 5.5])
def test_the_gaussian_attains_it(sigma: float, guess: float) -> None:
    """A threshold on the noisy statistic is right as often as the bound says."""
    threshold = stats.norm.isf(guess, scale=sigma)
    found = stats.norm.sf(threshold, loc=1, scale=sigma)
    assert found <= most_right(Gaussian(sigma), guess=guess) <= found * (1 + 1e-5)


def test_it_is_the_number_of_the_theory() -> None:
    assert 0.0159 < most_right(Gaussian(1 / 0.182)) < 0.0161


@pytest.mark.parametrize("guess", GUESSES)
def test_samples_with_gaussian_noise(guess: float) -> None:
    """A statistic of a record that is in the sample with probability q, on a fine grid of outputs."""
    rate, sigma = 0.2, 0.7
    ends = np.linspace(-9, 10, 40_001)
    without = np.diff(stats.norm.cdf(ends, scale=sigma))
    with_it = (1 - rate) * without + rate * np.diff(stats.norm.cdf(ends, loc=1, scale=sigma))
    found = max(optimal(with_it, without, guess), optimal(without, with_it, guess))
    assert found <= most_right(SubsampledGaussian(rate, sigma), guess=guess) <= 1.02 * found + 1e-6


@pytest.mark.parametrize("scale", [0.6, 1.5])
def test_a_value_is_reconstructed_from_a_histogram_no_more_often(scale: float) -> None:
    """Of a record with one of three values, alike before, the best guess after each noisy histogram of three cells."""
    far = np.arange(-14, 16)
    hit, miss = laplace(scale, far - 1), laplace(scale, far)
    right = 0.0
    for cells in product(range(len(far)), repeat=3):
        chances = [math.prod((hit if k == v else miss)[c] for k, c in enumerate(cells)) for v in range(3)]
        right += max(chances) / 3
    assert 1 / 3 < right <= most_right(DiscreteLaplace(scale), guess=1 / 3)


def factors(event: Event) -> list[tuple[np.ndarray, np.ndarray]]:
    """What is seen, with its chances if a record is present and if it is absent, for each part of a release."""
    match event:
        case Composed(events=events):
            return [factor for one in events for factor in factors(one)]
        case Gaussian(noise_multiplier=sigma, count=count):
            ends = np.linspace(-9 * sigma, 9 * sigma + 1, 4_001)
            return [(np.diff(stats.norm.cdf(ends, 1, sigma)), np.diff(stats.norm.cdf(ends, 0, sigma)))] * count
        case DiscreteLaplace(scale=scale, sensitivity=far, count=count):  # outcomes of one likelihood ratio are one
            inner = laplace(scale, np.arange(1, far))
            near, beyond = 1 / (1 + math.exp(-1 / scale)), math.exp(-far / scale) / (1 + math.exp(-1 / scale))
            return [(np.array([beyond, *inner[::-1], near]), np.array([near, *inner, beyond]))] * count
        case ApproximateDP(epsilon=0.0, delta=delta):  # nothing, or the presence itself
            return [(np.array([1 - delta, delta]), np.array([1.0, 0.0]))]
    raise AssertionError(event)


def right_by_enumeration(event: Event, guess: float = 0.01) -> float:
    """How often the optimal guesser is right who sees all of a release."""
    present = absent = np.ones(1)
    wide = [one for one in factors(event) if len(one[0]) > 1_000]
    if len(wide) > 1:  # of several normal statistics the likelihood ratio depends on one weighted sum alone
        mu = math.sqrt(sum((1 / one.noise_multiplier) ** 2 for one in event.events if isinstance(one, Gaussian)))
        wide = factors(Gaussian(1 / mu))
    for one, other in [*wide, *(one for one in factors(event) if len(one[0]) <= 1_000)]:
        present, absent = np.outer(present, one).ravel(), np.outer(absent, other).ravel()
    return max(optimal(present, absent, guess), optimal(absent, present, guess))


@pytest.mark.parametrize("case", [SYNTHESIS, RELATIONAL, PRIVATE, DISCOVERY, PATIENTS], ids=lambda case: case.name)
def test_the_sentence_of_a_kind_is_never_below_the_optimal_guesser(case: Case) -> None:
    """The sentence of the manifest, of five kinds: their own noise, attained, and too low where epsilon is smaller."""
    spec = case.spec(Path("unused"))

    def stated(factor: float) -> tuple[float, Event]:
        plan = make_plan(change(spec, {"privacy.epsilon": spec.privacy.epsilon * factor}))
        (said,) = re.findall(r"a chance of 1 % is right with ([\d.]+) % at most", plan.guarantees[0].sentence())
        assert plan.event is not None
        return float(said) / 100, plan.event

    bound, event = stated(1)
    found = right_by_enumeration(event)
    assert found <= bound <= 1.01 * found
    assert stated(0.97)[0] < found


def test_it_grows_with_the_guess_and_knows_no_event_and_all() -> None:
    events: list[Event] = [DiscreteLaplace(2.0), Gaussian(3.0), ApproximateDP(0.5, 1e-6)]
    for event in (*events, Composed(tuple(events))):
        found = [most_right(event, guess=guess) for guess in (0.001, 0.01, 0.2, 0.9)]
        assert found == sorted(found)
        assert all(guess <= right <= 1 for guess, right in zip((0.001, 0.01, 0.2, 0.9), found, strict=True))
    assert most_right(ApproximateDP(0.0, 1.0)) == 1
    assert most_right(ApproximateDP(0.0, 0.0)) == pytest.approx(0.01, rel=1e-4)
    for guess in (0.0, 1.0, math.nan):
        with pytest.raises(AccountingError):
            most_right(events[0], guess=guess)


def test_sentences_round_upwards() -> None:
    assert [percent(value) for value in (0.01, 0.0160026, 0.5, 0.99999, 0.0001)] == [
        "1 %",
        "1.61 %",
        "50 %",
        "100 %",
        "0.01 %",
    ]
    assert risk_sentence(0.0160026).endswith(
        "with a chance of 1 % is right with 1.61 % at most, whatever else they know"
    )


@pytest.mark.parametrize("kind", ["synthesis", "histogram"])
def test_plan_finds_the_epsilon_of_a_risk(kind: str) -> None:
    found = solve_risk(SPECS[kind], SolveRequest(risk="1% to 2 %", source=Path("unused")))
    assert 0.0195 < found.right <= 0.02
    event = make_plan(change(SPECS[kind], {"privacy.epsilon": found.epsilon * 1.05})).event
    assert event is not None
    assert most_right(event) > 0.02
    for wrong in ("2% to 1%", "1 to 2 to 3", "0% to 1%", ""):
        with pytest.raises(SpecError, match="expected"):
            solve_risk(SPECS[kind], SolveRequest(risk=wrong, source=Path("unused")))
