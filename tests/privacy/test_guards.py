"""Guards of accounts and filters: what is no number, or none that is finite, is never admitted."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import HISTOGRAM

from dpdist.errors import AccountingError, GuaranteeRefused, SpecError
from dpdist.families.base.calibration import GaussianPlan
from dpdist.families.base.registry import make_plan
from dpdist.ledger.records import Account as Sums
from dpdist.ledger.records import Price
from dpdist.lifecycle.conformity import refuse
from dpdist.model.account import GaussianAccount
from dpdist.privacy.filter import Cost, Filter, Portfolio
from dpdist.privacy.noise import Noise
from dpdist.privacy.selection import Candidates

ODD: list[Any] = [math.nan, math.inf, -math.inf]


def account(mu: float = 1.0) -> GaussianAccount:
    return GaussianAccount(mu, Noise(bytes(32)))


@pytest.mark.parametrize("odd", ODD)
def test_the_account_of_a_synthesis(odd: float) -> None:
    """A total that was NaN was not above the limit, nor was any that came after it."""
    with pytest.raises(AccountingError, match="an account is of a finite mu"):
        account(odd)
    one = account()
    for name, act in (
        ("spent", lambda: one._spend("step", odd, 1)),
        ("negative", lambda: one._spend("step", -0.1, 1)),
        ("scale", lambda: one.pick("p", Candidates(np.zeros(2, np.int64), scale=1.0), scale=odd, allowed=bool)),
    ):
        with pytest.raises(AccountingError):
            act()
        assert (one.lines, one.draws) == ([], 0), name
    one._spend("all", 1.0, 1)
    with pytest.raises(AccountingError, match="over its account"):
        one._spend("more", 1e-9, 1)


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("kind", ["basic", "gaussian"])
def test_a_filter(kind: Any, odd: float) -> None:
    found = Filter.at(kind, epsilon=Fraction(1), delta=Fraction("1e-6"))
    assert found.holds(Cost(Fraction(0), Fraction(0)))
    if odd > 0 or math.isnan(odd):  # a cost below 0 is a matter of Fraction and of the events
        assert not found.holds(Cost(odd, Fraction(0)))
        assert not found.holds(Cost(Fraction(0), odd))
    assert not dataclasses.replace(found, limit=math.nan).holds(Cost(Fraction(0), Fraction(0)))
    if not odd < 0:
        with pytest.raises(AccountingError):
            Portfolio(Fraction(1), Fraction("1e-6"), (dataclasses.replace(found, delta=odd),))
    for make in (Cost.from_json, Fraction):  # what the ledger stores is exact
        with pytest.raises((ValueError, OverflowError)):
            make([str(odd), "0"] if make == Cost.from_json else odd)


@pytest.mark.parametrize("odd", [math.nan, math.inf])
def test_the_ledger(odd: Any) -> None:
    portfolio = Portfolio.standard(epsilon=Fraction(1), delta=Fraction("1e-6"))
    price = Price(tuple(Cost(odd, Fraction(0)) for _ in portfolio.filters), odd)
    assert Sums.of(portfolio, ()).costs_of(portfolio, price) is None


@pytest.mark.parametrize("odd", [math.nan, math.inf])
def test_a_plan(odd: float, tmp_path: Path) -> None:
    plan = make_plan(HISTOGRAM.spec(tmp_path, privacy__limit=5))
    refuse(plan)
    plan.__dict__["epsilon"] = odd
    with pytest.raises(GuaranteeRefused, match="above 27"):
        refuse(plan)
    plan.__dict__["kind"] = "lid"  # not about epsilon; the limit of the spec is
    with pytest.raises(GuaranteeRefused):
        refuse(plan)
    for lost in (10**30, math.inf, math.nan):
        with pytest.raises((SpecError, AccountingError)):
            GaussianPlan.of(epsilon=1.0, delta=1e-6, draws=lost)  # type: ignore[arg-type]
