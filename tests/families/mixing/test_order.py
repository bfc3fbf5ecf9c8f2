from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest

from dpdist.errors import AccountingError
from dpdist.families.mixing.budget import best_order, common_noise, compare_orders
from dpdist.families.mixing.selection import OrderSelection
from dpdist.privacy.mixtures import ClassMixtures
from dpdist.privacy.noise import Noise

CLASSES = {"a": (2000, 500), "b": (500, 500)}


def test_orders_are_compared_without_a_record():
    choices = compare_orders(CLASSES, width=100, epsilon=5, delta=1e-5, orders=(64, 2, 8, 400, 500, 1000))
    assert [choice.order for choice in choices] == [2, 8, 64, 400]
    noise = [choice.sigma_over_clip for choice in choices]
    assert noise == sorted(noise, reverse=True)
    for choice in choices:
        assert choice.noise_to_mean == pytest.approx(10 * choice.sigma_over_clip)
        assert choice.noise_to_spread == pytest.approx(choice.noise_to_mean * math.sqrt(choice.order))
        assert set(choice.to_json()) == {"order", "sigma_over_clip", "noise_to_mean", "noise_to_spread"}
    best = best_order(CLASSES, width=100, epsilon=5, delta=1e-5, orders=(64, 2, 8, 400, 500, 1000))
    assert best == min(choices, key=lambda choice: choice.noise_to_spread)
    assert best.order not in (2, 400)  # much noise at one end, no spread left at the other


def test_all_classes_have_the_noise_of_the_dearest():
    sigma = common_noise(CLASSES, order=8, epsilon=5, delta=1e-5)
    costs = [
        ClassMixtures(minimum=minimum, order=8, records=count).epsilon(sigma, delta=1e-5)
        for minimum, count in CLASSES.values()
    ]
    assert max(costs) == pytest.approx(5, rel=1e-3)
    assert max(costs) <= 5


def test_orders_that_no_class_can_fill_are_refused():
    with pytest.raises(AccountingError, match="lower it"):
        compare_orders(CLASSES, width=10, epsilon=1, delta=1e-5, orders=(500,))


def test_the_choice_is_private_by_enumeration():
    """Exact probabilities of every choice on all neighbouring scores: within exp(epsilon), and that is attained."""
    epsilon, reach = 0.8, 60
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
