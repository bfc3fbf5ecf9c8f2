"""The least noise within a budget."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dpdist.errors import AccountingError
from dpdist.privacy.calibrate import least_scale, round_up
from dpdist.privacy.formatting import shown

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
