"""The least noise within a budget."""

from __future__ import annotations

import math
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpdist.errors import AccountingError
from dpdist.privacy.calibrate import least_scale

Of = Literal["epsilon", "scale"]
BOTH: tuple[Of, ...] = ("epsilon", "scale")


@pytest.mark.parametrize("of", BOTH)
@given(
    power=st.floats(0.5, 3),
    factor=st.floats(1e-3, 1e3),
    epsilon=st.floats(0.01, 20),
    tolerance=st.sampled_from([1e-2, 1e-4, 1e-6]),
)
def test_the_answer_is_within_the_budget_and_hardly_larger_than_it_must(
    of: Of, power: float, factor: float, epsilon: float, tolerance: float
) -> None:
    def cost(scale: float) -> float:
        return factor * scale**-power * (1 + math.exp(-scale))

    found = least_scale(cost, epsilon=epsilon, delta=1e-6, tolerance=tolerance, tolerance_of=of)
    assert cost(found) <= epsilon
    if of == "epsilon":
        assert cost(found) >= epsilon * (1 - tolerance) * (1 - 1e-12)
    else:
        assert cost(found / (1 + tolerance) * (1 - 1e-12)) > epsilon


@pytest.mark.parametrize("of", BOTH)
@pytest.mark.parametrize("start", [1e-6, 0.3, 1e6])
def test_noise_that_cannot_be_accounted_for_is_too_little(of: Of, start: float) -> None:
    def cost(scale: float) -> float:
        if scale < 3:
            raise AccountingError("too little noise")
        return 1 / scale

    assert least_scale(cost, epsilon=1.0, delta=0.0, start=start, tolerance=1e-6, tolerance_of=of) == pytest.approx(3)


def test_false_position_asks_less_often_than_bisection() -> None:
    asked = dict.fromkeys(BOTH, 0)
    for of in BOTH:

        def cost(scale: float, of: Of = of) -> float:
            asked[of] += 1
            return 7 / scale + 0.1 / scale**2

        least_scale(cost, epsilon=0.9, delta=0.0, tolerance=1e-6, tolerance_of=of)
    assert 2 * asked["epsilon"] < asked["scale"]


@pytest.mark.parametrize("of", BOTH)
def test_a_budget_that_costs_never_exceed_takes_next_to_no_noise(of: Of) -> None:
    assert least_scale(lambda scale: 0.0, epsilon=1.0, delta=0.0, tolerance_of=of) < 1e-11


@pytest.mark.parametrize("of", BOTH)
def test_a_cost_one_rounding_above_the_budget_is_refused(of: Of) -> None:
    beyond = math.nextafter(1.0, 2.0)
    found = least_scale(lambda scale: 1.0 if scale >= 2 else beyond, epsilon=1.0, delta=0.0, tolerance_of=of)
    assert found >= 2


@pytest.mark.parametrize("of", BOTH)
def test_a_budget_that_no_noise_meets_is_refused(of: Of) -> None:
    with pytest.raises(AccountingError, match=r"no amount of noise meets epsilon = 0\.5"):
        least_scale(lambda scale: 0.6 + 1 / scale, epsilon=0.5, delta=1e-6, tolerance_of=of)


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
