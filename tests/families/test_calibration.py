"""The one Gaussian calibration of families, against the accountant."""

from __future__ import annotations

import math

import pytest

from dpdist.errors import SpecError
from dpdist.families.base.calibration import GaussianPlan
from dpdist.privacy import accountant
from dpdist.privacy.events import Composed, Gaussian


@pytest.mark.parametrize(("count", "sensitivity", "draws"), [(1, 1.0, 0), (3, 2.5, 10**6)])
def test_it_fills_the_budget_with_its_draws(count: int, sensitivity: float, draws: int) -> None:
    plan = GaussianPlan.of(epsilon=1.5, delta=1e-9, sensitivity=sensitivity, count=count, draws=draws, label="all")
    assert 1.4999 < accountant.epsilon(plan.event, delta=1e-9) <= 1.5
    assert plan.sigma == pytest.approx(sensitivity / plan.mu)
    assert (plan.event == Gaussian(plan.multiplier, count=count)) == (draws == 0)


def test_parts_compose_to_no_more_than_the_whole() -> None:
    plan, shares = GaussianPlan.of(epsilon=1.5, delta=1e-9), (0.2, 0.3, 0.5)
    parts = Composed(tuple(Gaussian(1 / plan.part(share)) for share in shares))
    assert math.fsum(plan.part(share) ** 2 for share in shares) < plan.mu**2
    assert accountant.epsilon(parts, delta=1e-9) <= 1.5


def test_draws_that_take_all_of_delta_are_refused() -> None:
    with pytest.raises(SpecError, match=r"privacy\.delta: .* set a delta of 9e-12 or more"):
        GaussianPlan.of(epsilon=1.0, delta=1e-13, draws=10**6)
