from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from families.mixing.test_release import spec

from dpdist.errors import AccountingError
from dpdist.families.mixing.budget import best_order, common_noise, divide_budget, order_choices
from dpdist.families.mixing.selection import OrderSelection
from dpdist.privacy.mixtures import ClassMixtures
from dpdist.privacy.noise import Noise

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


def test_the_choice_is_private_by_enumeration():
    """Exact probabilities of every choice on all neighbouring scores: within exp(epsilon), and that is attained."""
    epsilon, reach = 0.8, 40
    values = np.arange(-reach, reach + 1)
    mass = np.exp(-epsilon * np.abs(values))
    mass /= mass.sum()

    def law(scores: tuple[int, ...]) -> np.ndarray:
        noisy = np.stack(np.meshgrid(*[values + s for s in scores], indexing="ij"))
        weights = np.prod(np.stack(np.meshgrid(*[mass] * len(scores), indexing="ij")), axis=0)
        return np.bincount(noisy.argmax(axis=0).ravel(), weights=weights.ravel(), minlength=len(scores))

    worst = 0.0
    for scores in [(0, 0, 0), (3, 0, 1), (0, 5, 5), (9, 2, 0)]:
        before = law(scores)
        for change in product((0, 1), repeat=3):
            after = law(tuple(s + c for s, c in zip(scores, change, strict=True)))
            worst = max(worst, float(np.abs(np.log(after / before)).max()))
    assert 0.75 * epsilon < worst <= epsilon + 1e-9
    assert OrderSelection(epsilon=epsilon).event.epsilon == epsilon


def test_the_choice_finds_a_clear_winner_and_is_keyed():
    noise = Noise(bytes(range(32)))
    selection = OrderSelection(epsilon=0.5)
    assert selection.choose(noise, [100, 900, 300]) == 1
    close = [selection.choose(noise, [100, 100, 100], name=f"order/{i}") for i in range(60)]
    assert set(close) == {0, 1, 2}
    assert close == [selection.choose(noise, [100, 100, 100], name=f"order/{i}") for i in range(60)]
