"""The checks of declared lower bounds, with exact probabilities."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.stats import binom

from dpdist.errors import AccountingError
from dpdist.privacy import accountant, checks
from dpdist.privacy.calibrate import least_scale, round_up
from dpdist.privacy.checks import count_check, noise_tail, pass_check, pass_count_sensitivity
from dpdist.privacy.deniability import growth
from dpdist.privacy.formatting import shown


def laplace(scale: float, reach: int) -> tuple[np.ndarray, np.ndarray]:
    z = np.arange(-reach, reach + 1)
    return z, math.tanh(1 / (2 * scale)) * np.exp(-np.abs(z) / scale)


@pytest.mark.parametrize("scale", [0.3, 1.0, 20.0, 777.0])
@pytest.mark.parametrize("probability", [0.4, 1e-3, 1e-11])
def test_noise_tail_is_the_least_integer(scale: float, probability: float) -> None:
    t = noise_tail(scale, probability)
    z, mass = laplace(scale, 200 + int(60 * scale))
    assert mass[z >= t].sum() <= probability * (1 + 1e-9)
    assert t == 1 or mass[z >= t - 1].sum() > probability


@pytest.mark.parametrize("share", [1.0, 0.3])
@pytest.mark.parametrize("epsilon", [0.05, 0.5])
def test_count_check_refuses_small_tables_and_passes_honest_ones(share: float, epsilon: float) -> None:
    check = count_check(records=20_000, share=share, epsilon=epsilon, delta=1e-9, failure=1e-4)
    z, mass = laplace(check.scale, int(40 * check.scale))
    false_pass = mass[check.minimum - 1 + z >= check.threshold].sum()
    assert false_pass <= 1e-9
    assert mass[check.minimum + z >= check.threshold].sum() > 0.99e-9  # no smaller threshold would do
    n = np.arange(20_001)
    law = binom.pmf(n, 20_000, share) if share < 1 else (n == 20_000) * 1.0
    refused = sum(m * law[n + noise < check.threshold].sum() for noise, m in zip(z, mass, strict=True))
    assert refused <= 1e-4
    assert check.passes(check.threshold)
    assert not check.passes(check.threshold - 1)
    assert accountant.delta(check.event, epsilon=epsilon) == pytest.approx(1e-9, rel=1e-6)


def test_pass_count_sensitivity_is_a_quantile() -> None:
    moved = pass_count_sensitivity(candidates=100_000, seeds=300_000, growth=40.5, delta=1e-9)
    rate = 40.5 / 300_000
    assert binom.sf(moved, 100_000, rate) <= 1e-9 < binom.sf(moved - 1, 100_000, rate)
    assert pass_count_sensitivity(candidates=10, seeds=10**9, growth=0.1, delta=1e-3) == 1
    assert pass_count_sensitivity(candidates=10, seeds=3, growth=50, delta=1e-3) == 10


H = growth(k=5, gamma=2.0, epsilon0=0.5)


def noisy_passes(check: checks.PassCheck, rate: float) -> np.ndarray:
    """Law of the noisy number of passes, from -reach to M + reach."""
    _, noise = laplace(check.scale, int(40 * check.scale))
    return np.convolve(binom.pmf(np.arange(check.candidates + 1), check.candidates, rate), noise)


@pytest.mark.parametrize(("candidates", "seeds"), [(60, 300), (400, 3000)])
def test_noisy_number_of_passes_is_private(candidates: int, seeds: int) -> None:
    check = pass_check(growth=H, passing_mass=1.0, seeds=seeds, candidates=candidates, epsilon=0.5, delta=1e-3)
    up, down = H / seeds, 1 / seeds
    for rate, change in itertools.product((0.0, 0.01, 0.3, 0.5, 0.99), (up, -down, up / 3)):
        other = rate + change
        if not 0 <= other <= 1:
            continue
        p, q = noisy_passes(check, rate), noisy_passes(check, other)
        for epsilon in (0.0, 0.1, 0.3, 0.5, 0.7):
            bound = accountant.delta(check.event, epsilon=epsilon)
            for one, two in ((p, q), (q, p)):
                assert np.maximum(one - math.exp(epsilon) * two, 0).sum() <= bound + 1e-12


def test_tables_below_the_declared_mass_are_refused() -> None:
    check = pass_check(growth=H, passing_mass=1500.0, seeds=5000, candidates=4000, epsilon=0.5, delta=3e-4)
    law_start = -int(40 * check.scale)
    for mass in (1500 + check.growth - 1e-6, 1400.0, 0.0):  # of the larger of two neighbours
        for seeds in (5000, 9000):
            law = noisy_passes(check, mass / seeds)
            passes = np.array([check.passes(law_start + i) for i in range(len(law))])
            assert law[passes].sum() <= 2e-4
    law = noisy_passes(check, 0.9)
    passes = np.array([check.passes(law_start + i) for i in range(len(law))])
    assert law[passes].sum() > 0.999
    assert (np.diff(passes.astype(int)) >= 0).all()


@pytest.mark.parametrize(("mass", "candidates"), [(1500.0, 4000), (10.0, 300), (4900.0, 100_000)])
def test_a_check_passes_where_the_bound_reaches_the_declared_mass(mass: float, candidates: int) -> None:
    check = pass_check(growth=H, passing_mass=mass, seeds=5000, candidates=candidates, epsilon=0.5, delta=3e-4)
    assert check.lower_bound(check.threshold) >= mass * (1 - 1e-6)
    assert check.lower_bound(check.threshold - 1) < mass
    assert check.passes(check.threshold)
    assert not check.passes(check.threshold - 1)


def test_expected_lower_bound_is_met_by_honest_tables() -> None:
    check = pass_check(growth=H, passing_mass=1.0, seeds=5000, candidates=4000, epsilon=0.5, delta=3e-4)
    expected = checks.expected_lower_bound(check, pass_rate=0.6, failure=1e-3)
    assert 0.3 * 5000 < expected < 0.6 * 5000
    law, start = noisy_passes(check, 0.6), -int(40 * check.scale)
    bounds = np.array([check.lower_bound(start + i) for i in range(len(law))])
    assert law[bounds < expected].sum() <= 1e-3


def test_which_candidates_pass_is_independent_of_what_they_are() -> None:
    """The check may use the candidates that are released: enumerate M = 4 candidates, the first passing one shown."""
    outcomes = {"a": 0.15, "b": 0.35, None: 0.5}
    joint: dict[tuple[int, str], float] = {}
    for run in itertools.product(outcomes, repeat=4):
        shown = [y for y in run if y is not None]
        if shown:
            key = (len(shown), shown[0])
            joint[key] = joint.get(key, 0) + math.prod(outcomes[y] for y in run)
    for number in range(1, 5):
        total = joint[number, "a"] + joint[number, "b"]
        assert joint[number, "a"] / total == pytest.approx(0.3)


def test_candidates_needed_leave_no_shortage() -> None:
    needed = checks.candidates_needed(records=1000, pass_rate=0.3, failure=1e-9)
    assert binom.cdf(999, needed, 0.3) <= 1e-9
    assert binom.cdf(999, needed - 20, 0.3) > 1e-9
    assert checks.candidates_needed(records=7, pass_rate=1.0) == 7


@pytest.mark.parametrize(
    "call",
    [
        lambda: count_check(records=0, epsilon=1, delta=1e-9),
        lambda: count_check(records=100, share=0, epsilon=1, delta=1e-9),
        lambda: count_check(records=100, epsilon=0, delta=1e-9),
        lambda: count_check(records=100, epsilon=1, delta=0),
        lambda: count_check(records=100, epsilon=0.01, delta=1e-9),
        lambda: noise_tail(0, 0.5),
        lambda: noise_tail(1, 0),
        lambda: pass_count_sensitivity(candidates=0, seeds=1, growth=1, delta=0.1),
        lambda: pass_check(growth=H, passing_mass=10, seeds=1000, candidates=100, epsilon=0, delta=1e-3),
        lambda: pass_check(growth=H, passing_mass=999, seeds=1000, candidates=100, epsilon=1, delta=1e-3),
        lambda: checks.candidates_needed(records=1, pass_rate=0),
    ],
)
def test_bad_input(call) -> None:
    with pytest.raises(AccountingError):
        call()


# --- The least noise within a budget


costs = st.tuples(st.floats(0.5, 3), st.floats(1e-3, 1e3), st.floats(0.01, 20), st.floats(-1e-9, 1e-9))


@example((0.5, 544.0, 0.01171875, 0.0), 7, 0.001953125)
@given(costs, st.sampled_from([7, 12, 16]), st.floats(1e-4, 1e4))
def test_the_answer_is_the_least_on_the_grid_from_any_start(
    given: tuple[float, float, float, float], bits: int, start: float
) -> None:
    power, factor, epsilon, _ = given

    def cost(scale: float) -> float:
        return factor * scale**-power * (1 + math.exp(-scale))

    found = least_scale(cost, epsilon=epsilon, delta=1e-6, bits=bits, start=start)
    assert round_up(found, bits=bits) == found
    assert cost(found) <= epsilon
    assert cost(found * (1 - 2.0 ** -(bits - 1))) * (1 + 2e-8) > epsilon
    assert found == least_scale(cost, epsilon=epsilon, delta=1e-6, bits=bits)


def test_an_error_of_the_costs_changes_no_answer() -> None:
    """The worst case is a cost that is the budget itself at a number on the grid."""
    for error in (-1e-9, -1e-15, 0.0, 1e-15, 1e-9):
        for budget in (0.25, 0.5, 1.0, 3.0, 7.25):
            found = least_scale(lambda scale, e=error: 3 / scale * (1 + e), epsilon=budget, delta=0.0)  # type: ignore[misc]
            assert found == round_up(3 / budget * (1 + 2e-8))


def test_the_search_asks_seldom() -> None:
    asked = []

    def cost(scale: float) -> float:
        asked.append(scale)
        return 7 / scale + 0.1 / scale**2

    least_scale(cost, epsilon=0.9, delta=0.0)
    assert len(asked) <= 10


@pytest.mark.parametrize("start", [1e-6, 0.3, 1e6])
def test_noise_that_cannot_be_accounted_for_is_too_little(start: float) -> None:
    def cost(scale: float) -> float:
        if scale < 3:
            raise AccountingError("too little noise")
        return 0.9 / scale

    assert least_scale(cost, epsilon=1.0, delta=0.0, start=start) == 3


def test_a_cost_that_is_no_number_is_no_cost_within_the_budget() -> None:
    assert least_scale(lambda scale: math.nan if scale < 5 else 0.1, epsilon=1.0, delta=0.0) == 5


def test_a_budget_that_costs_never_exceed_takes_next_to_no_noise() -> None:
    assert least_scale(lambda scale: 0.0, epsilon=1.0, delta=0.0) < 1e-11


def test_a_cost_one_rounding_above_the_budget_is_refused() -> None:
    beyond = math.nextafter(1.0, 2.0)
    assert least_scale(lambda scale: 0.9 if scale >= 2 else beyond, epsilon=1.0, delta=0.0) >= 2


def test_a_budget_that_no_noise_meets_is_refused() -> None:
    with pytest.raises(AccountingError, match=r"no amount of noise meets epsilon = 0\.5"):
        least_scale(lambda scale: 0.6 + 1 / scale, epsilon=0.5, delta=1e-6)


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0.0, 0.1), (-1.0, 0.1), (math.inf, 0.1), (math.nan, 0.1), (1.0, 1.0), (1.0, -0.1)]
)
def test_a_budget_that_is_none_is_refused(epsilon: float, delta: float) -> None:
    with pytest.raises(AccountingError, match="a budget needs"):
        least_scale(lambda scale: 1 / scale, epsilon=epsilon, delta=delta)


def test_no_scale_below_the_least_is_tried() -> None:
    tried = []

    def cost(scale: float) -> float:
        tried.append(scale)
        return 1 / scale

    assert least_scale(cost, epsilon=100.0, delta=0.0, least=1 / 8) == 1 / 8
    assert min(tried) == 1 / 8
    assert least_scale(cost, epsilon=3.0, delta=0.0, least=1 / 8) == pytest.approx(1 / 3, rel=1e-3)


@given(st.floats(1e-300, 1e300))
def test_numbers_are_rounded_upwards(value: float) -> None:
    assert value <= round_up(value) <= value * (1 + 2.0**-11)
    assert round_up(round_up(value)) == round_up(value)
    assert value <= shown(value) <= value * (1 + 1.0001e-5)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_what_is_no_positive_number_has_no_place_on_the_grid(value: float) -> None:
    with pytest.raises(AccountingError, match="finite number above 0"):
        round_up(value)


@pytest.mark.parametrize("start", [1e-3, 1.0, 1e300])
def test_no_start_leads_below_the_least(start: float) -> None:
    assert least_scale(lambda scale: 1.3 / scale, epsilon=1.0, delta=0.0, start=start, least=1.75) >= 1.75
