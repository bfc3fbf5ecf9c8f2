"""Guarantees print what they are, and only together with what they are about."""

import json
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
from dpdist.privacy import guarantee
from dpdist.privacy.accountant import most_right
from dpdist.privacy.events import ApproximateDP, Composed, DiscreteLaplace, Event, Gaussian, SubsampledGaussian
from dpdist.privacy.formatting import percent, risk_sentence
from dpdist.privacy.guarantee import LID, PML, DifferentialPrivacy, Guarantee, PlausibleDeniability
from dpdist.spec.validation import change

EXAMPLES: list[Guarantee] = [
    DifferentialPrivacy(epsilon=0.79, delta=1e-9, adjacency="add/remove", covers="the whole release"),
    DifferentialPrivacy(epsilon=1.0, delta=0.0, adjacency="replacement", covers="the model"),
    PlausibleDeniability(k=50, gamma=4, epsilon0=1.0, epsilon=1.168, delta=1e-12),
    PlausibleDeniability(k=50, gamma=4),
    PML(epsilon=1.0, alpha=0.01, dp_epsilon=2.0),
    PML(epsilon=7.0, alpha=0.01),
    LID(bound=0.2),
    LID(bound=0.2, eta=0.01, columns=("age", "pay"), original=("sex",)),
    LID(bound=0.2, eta=0.01, columns=()),
]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.kind)
def test_round_trip(example: Guarantee) -> None:
    body = json.loads(json.dumps(example.to_json(), allow_nan=False))
    assert body["sentence"] == example.sentence()
    assert guarantee.from_json(body) == example


def test_differential_privacy_names_all_its_parts() -> None:
    sentence = EXAMPLES[0].sentence()
    for part in ("0.79", "1e-9", "add/remove", "the whole release", "computational", "present or absent"):
        assert part in sentence
    assert "replaced by another" in EXAMPLES[1].sentence()


def test_plausible_deniability_says_per_record_first() -> None:
    noisy, deterministic = EXAMPLES[2].sentence(), EXAMPLES[3].sentence()
    assert noisy.startswith("Per record")
    assert "not the whole release" in noisy
    assert "1e-12" in noisy
    assert "add/remove" in noisy
    assert "not differential privacy" in deterministic


def test_other_kinds_say_that_they_are_not_differential_privacy() -> None:
    assert "It is not differential privacy" in EXAMPLES[4].sentence()
    assert "assumption" in EXAMPLES[4].sentence()
    assert "no noise" in EXAMPLES[5].sentence()
    assert all(example.sentence().startswith("Not differentially private") for example in EXAMPLES[6:])


def test_local_information_disclosure_is_said_of_the_columns_that_are_looked_at() -> None:
    looked_at, nowhere = EXAMPLES[7].sentence(), EXAMPLES[8].sentence()
    assert "as measured in age, pay: for no more than that share of the released rows is any of these" in looked_at
    assert "Released as they are: sex." in looked_at
    assert "nothing about other columns" in looked_at
    assert "not bounded" in nowhere
    assert "0.2" not in nowhere
    assert "in 9 columns:" in LID(bound=0.2, columns=tuple("abcdefghi")).sentence()


@pytest.mark.parametrize(
    "make",
    [
        lambda: DifferentialPrivacy(epsilon=-1, delta=0, adjacency="add/remove", covers="the model"),
        lambda: DifferentialPrivacy(epsilon=float("inf"), delta=0, adjacency="add/remove", covers="the model"),
        lambda: DifferentialPrivacy(epsilon=float("nan"), delta=0, adjacency="add/remove", covers="the model"),
        lambda: DifferentialPrivacy(epsilon=1, delta=1.5, adjacency="add/remove", covers="the model"),
        lambda: DifferentialPrivacy(epsilon=1, delta=0, adjacency="swap", covers="the model"),
        lambda: DifferentialPrivacy(epsilon=1, delta=0, adjacency="add/remove", covers="everything"),
        lambda: PlausibleDeniability(k=0, gamma=2),
        lambda: PlausibleDeniability(k=5, gamma=0.5),
        lambda: PlausibleDeniability(k=5, gamma=2, epsilon=1.0),
        lambda: PlausibleDeniability(k=5, gamma=2, covers="the whole release"),
        lambda: PML(epsilon=-1, alpha=0.1),
        lambda: guarantee.from_json({"kind": "pointwise-maximal-leakage", "epsilon": None, "alpha": 0.1}),
        lambda: PML(epsilon=1, alpha=2),
        lambda: LID(bound=1.2),
        lambda: guarantee.from_json({"kind": "k-anonymity"}),
        lambda: guarantee.from_json({"kind": "local-information-disclosure"}),
        lambda: guarantee.from_json({"kind": "local-information-disclosure", "bound": 0.1, "epsilon": 1}),
    ],
)
def test_mixed_or_invalid_guarantees_are_refused(make) -> None:
    with pytest.raises(AccountingError):
        make()


def test_numbers_come_by_name() -> None:
    with pytest.raises(TypeError):
        DifferentialPrivacy(1.0, 0.0, "add/remove", "the model")  # type: ignore[misc]


# --- What a guess gains: an optimal guesser by enumeration is never above the bound, which the Gaussian attains


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
    written = {0.01: "1 %", 0.0160026: "1.61 %", 0.5: "50 %", 0.99999: "100 %", 1.0: "100 %", 0.0001: "0.01 %"}
    assert {value: percent(value) for value in written} == written
    assert risk_sentence(0.0160026).endswith(
        "with a chance of 1 % is right with 1.61 % at most, whatever else they know"
    )


@pytest.mark.parametrize("kind", ["synthesis", "histogram"])
def test_plan_finds_the_epsilon_of_a_risk(kind: str) -> None:
    found = solve_risk(SPECS[kind], SolveRequest(risk="1% to 2 %", source=Path("unused")))
    assert 0.0195 < found.numbers["right"] <= 0.02
    event = make_plan(change(SPECS[kind], {"privacy.epsilon": found.numbers["epsilon"] * 1.05})).event
    assert event is not None
    assert most_right(event) > 0.02
    for wrong in ("2% to 1%", "1 to 2 to 3", "0% to 1%", ""):
        with pytest.raises(SpecError, match="expected"):
            solve_risk(SPECS[kind], SolveRequest(risk=wrong, source=Path("unused")))
