from __future__ import annotations

import math

import pytest
from families.mixing.test_release import spec

from dpdist.errors import AccountingError
from dpdist.families.mixing.budget import best_order, common_noise, divide_budget, order_choices
from dpdist.privacy.mixtures import ClassMixtures

DIVIDED = divide_budget(
    spec(classes={"low": {"minimum": 2100, "records": 500}, "high": {"minimum": 600, "records": 500}})
)


def test_orders_are_compared_without_a_record():
    orders = (64, 2, 8, 400, 1000)
    choices = list(order_choices(DIVIDED, orders))
    assert [choice.order for choice in choices] == [400, 64, 8, 2]
    noise = [choice.sigma_over_clip for choice in choices]
    assert noise == sorted(noise)
    for choice in choices:
        assert choice.noise_to_mean == pytest.approx(math.sqrt(DIVIDED.encoding.width) * choice.sigma_over_clip)
        assert choice.noise_to_spread == pytest.approx(choice.noise_to_mean * math.sqrt(choice.order))
    best = best_order(DIVIDED, orders)
    assert best == min(choices, key=lambda choice: choice.noise_to_spread).order
    assert best not in (2, 400)  # much noise at one end, no spread left at the other


def test_all_classes_have_the_noise_of_the_dearest():
    sigma = common_noise(DIVIDED, 8)
    costs = [
        ClassMixtures(minimum=minimum, order=8, records=count).epsilon(sigma, delta=DIVIDED.delta)
        for minimum, count in DIVIDED.sizes.values()
    ]
    assert DIVIDED.epsilon * (1 - 1e-3) <= max(costs) <= DIVIDED.epsilon


def test_orders_that_no_class_can_fill_are_refused():
    with pytest.raises(AccountingError, match="lower it"):
        next(order_choices(DIVIDED, (600,)))
