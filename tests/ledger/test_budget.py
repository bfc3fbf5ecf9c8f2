"""Budgets, and the account of leakage."""

import json
import math
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from dpdist.errors import AccountingError, BudgetExceeded, GuaranteeRefused, LedgerError
from dpdist.ledger import Books, Charge, tables
from dpdist.ledger.records import Price, PriceOf, accountant_price, canonical_event, rational
from dpdist.privacy import accountant
from dpdist.privacy.events import ApproximateDP, Composed, DiscreteLaplace, Gaussian, LaplaceLeakage
from dpdist.privacy.filter import Cost, Portfolio
from dpdist.privacy.formatting import downwards, float_below, upwards
from dpdist.privacy.guarantee import DifferentialPrivacy
from dpdist.privacy.leakage import composed, leakage, noiseless_leakage


def ledger_of(tmp_path: Path, price: PriceOf, epsilon: Any = 1, delta: Any = 0) -> Books:
    ledger = Books.open(f"sqlite:///{tmp_path}/ledger.db", price=price)
    ledger.create_dataset("acs", epsilon=epsilon, delta=delta)
    return ledger


def charge(ledger: Books, release: str, event: Any = "1") -> Charge:
    return ledger.reserve(
        dataset="acs", release=release, spec_hash="s", input_fingerprint="f", event=event, guarantee="dp"
    )


def fixed(epsilon: Any) -> PriceOf:
    """Every charge costs the same epsilon; None is infinite."""
    amount = None if epsilon is None else Fraction(epsilon)
    return lambda event, portfolio: Price((Cost(amount, Fraction(0)),) * len(portfolio.filters), amount)


def test_ten_charges_of_a_tenth_fill_a_budget_of_one(tmp_path: Path) -> None:
    """As floats, 0.1 ten times is 0.9999999999999999, 0.1 three times exceeds 0.3, and so on."""
    ledger = ledger_of(tmp_path, accountant_price, epsilon=1, delta="4e-9")
    for i in range(10):
        charge(ledger, f"r{i}", ApproximateDP(epsilon=0.1, delta=1e-10))
    budget = ledger.remaining("acs")
    assert (budget.epsilon_spent, budget.epsilon_remaining, budget.charges) == (1, 0, 10)
    assert budget.used["basic"] == 1
    with pytest.raises(BudgetExceeded):
        charge(ledger, "r10", ApproximateDP(epsilon=1e-12, delta=0.0))
    ledger.verify("acs")


@pytest.mark.parametrize("epsilon", ["0.3", 0.3, Decimal("0.3"), Fraction(3, 10)])
def test_a_float_stands_for_the_decimal_it_prints_as(tmp_path: Path, epsilon: Any) -> None:
    assert ledger_of(tmp_path, fixed(0), epsilon=epsilon).remaining("acs").epsilon_cap == Fraction(3, 10)


def test_one_unit_in_the_last_place_decides_exactly(tmp_path: Path) -> None:
    below, above = math.nextafter(1.0, 0.0), math.nextafter(1.0, 2.0)
    assert charge(ledger_of(tmp_path / "1", fixed(1.0)), "r").epsilon == 1
    assert charge(ledger_of(tmp_path / "2", fixed(below)), "r").epsilon == Fraction(below)
    for spent in (above, Fraction(10**40 + 1, 10**40), None):
        with pytest.raises(BudgetExceeded):
            charge(ledger_of(tmp_path / str(spent)[-5:], fixed(spent)), "r")


def test_the_message_rounds_against_the_asker(tmp_path: Path) -> None:
    third = ledger_of(tmp_path, fixed(Fraction(2, 3)))
    charge(third, "first")
    with pytest.raises(BudgetExceeded, match=r"asks for epsilon 0.666667 .* remaining 0.333333\. "):
        charge(third, "second")


def test_an_infinite_charge_is_called_so(tmp_path: Path) -> None:
    with pytest.raises(BudgetExceeded, match="asks for an infinite epsilon at delta 0"):
        charge(ledger_of(tmp_path, fixed(None)), "r")


def test_an_accountant_that_raises_charges_nothing(tmp_path: Path) -> None:
    def fails(event: str, portfolio: Portfolio) -> Price:
        raise AccountingError("no finite epsilon")

    ledger = ledger_of(tmp_path, fails)
    with pytest.raises(AccountingError, match="no finite epsilon"):
        charge(ledger, "r")
    assert ledger.find("acs", "r") is None


def test_gaussian_charges_compose_like_a_square_root(tmp_path: Path) -> None:
    ledger = ledger_of(tmp_path, accountant_price, epsilon=2, delta="1e-9")
    one = charge(ledger, "r0", Gaussian(noise_multiplier=8.0)).epsilon
    charge(ledger, "r1", Gaussian(noise_multiplier=8.0))
    budget = ledger.verify("acs").budget
    assert budget.epsilon_spent is not None
    assert one < budget.epsilon_spent < 1.6 * one
    assert budget.account.taken[1] == Cost(Fraction(2, 64), Fraction(0))
    with pytest.raises(BudgetExceeded, match="with 2 charges before it that comes to epsilon"):
        charge(ledger, "r2", Gaussian(noise_multiplier=2.0))


def test_what_recomposition_would_admit_is_refused(tmp_path: Path) -> None:
    """The second release is chosen after the first is seen: either would compose to the cap, the choice exceeds it."""
    for second in (Gaussian(noise_multiplier=4.975), DiscreteLaplace(scale=1.963)):
        ledger = ledger_of(tmp_path / second.type.replace("/", "-"), accountant_price, epsilon=1, delta="1e-6")
        first = Gaussian(noise_multiplier=8.0)
        assert accountant.epsilon(Composed((first, second)), delta=1e-6) <= 1.0001
        charge(ledger, "first", first)
        with pytest.raises(BudgetExceeded):
            charge(ledger, "second", second)


def test_a_first_release_may_take_the_whole_cap(tmp_path: Path) -> None:
    """No filter admits it, but it was chosen before anything was seen; nothing is admitted after it."""
    ledger = ledger_of(tmp_path, accountant_price, epsilon=1, delta="1e-9")
    whole = Gaussian(noise_multiplier=5.5)
    after = ledger.remaining("acs", event=whole)
    assert after.is_kept
    attempt = charge(ledger, "whole", whole)
    assert ledger.verify("acs").budget.used == after.used
    assert after.epsilon_spent == attempt.epsilon <= 1
    with pytest.raises(BudgetExceeded, match="its first release took all of the cap"):
        charge(ledger, "more", Gaussian(noise_multiplier=1000.0))
    ledger.void(attempt)
    charge(ledger, "other", Gaussian(noise_multiplier=20.0))
    with pytest.raises(BudgetExceeded, match="with 1 charge before it"):
        charge(ledger, "whole", whole)
    with pytest.raises(BudgetExceeded):
        charge(ledger_of(tmp_path / "small", accountant_price, epsilon="0.9", delta="1e-9"), "whole", whole)


@pytest.mark.parametrize("cap", ["0.7", "0.8", "0.9", "1.1"])
def test_a_release_planned_for_the_cap_is_admitted(cap: str, tmp_path: Path) -> None:
    """As floats three of these are above their decimals; an epsilon stands for the decimal it prints as."""
    sigma = accountant.calibrate_gaussian(sensitivity=1.0, epsilon=float(cap), delta=1e-9, count=1)
    ledger = ledger_of(tmp_path, accountant_price, epsilon=cap, delta="1e-9")
    assert charge(ledger, "whole", Gaussian(noise_multiplier=sigma)).epsilon <= Fraction(cap)


@given(st.fractions(min_value=0, max_value=10**9))
def test_printed_spends_round_up_and_what_remains_down(value: Fraction) -> None:
    assert Fraction(downwards(value)) <= value <= Fraction(upwards(value))
    assert Fraction(upwards(value)) - Fraction(downwards(value)) <= value / 10**5


@given(st.floats(min_value=0, max_value=1e9), st.floats(min_value=0, max_value=1))
def test_a_guarantee_states_no_less_than_it_is(epsilon: float, delta: float) -> None:
    said = DifferentialPrivacy(epsilon=epsilon, delta=delta, adjacency="add/remove", covers="the model").sentence()
    numbers = said.removeprefix("(").partition(")")[0].split(", ")
    for number, true in zip(numbers, (epsilon, delta), strict=True):
        stands_for = Fraction(repr(true))
        assert stands_for <= Fraction(number) <= stands_for * (1 + Fraction(1, 10**5)), "at most six digits away"


@given(st.fractions(min_value=0, max_value=1))
def test_delta_becomes_the_float_below(value: Fraction) -> None:
    low = float_below(value)
    assert Fraction(low) <= value
    assert low == 1 or Fraction(math.nextafter(low, 2.0)) > value


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_rationals_survive_text(value: float) -> None:
    exact = rational(value, setting="epsilon")
    assert float(exact) == value
    assert rational(str(exact), setting="epsilon") == exact


def test_numbers_are_printed_for_people() -> None:
    shown = [upwards(Fraction(x)) for x in ("4", "100", "1/100000000", "0", "1234567", "0.1", "2/3")]
    assert shown == ["4", "100", "1e-8", "0", "1.23457e+6", "0.1", "0.666667"]


def test_events_have_one_canonical_text() -> None:
    event = Gaussian(noise_multiplier=2.0)
    text = canonical_event(event)
    assert text == canonical_event(event.to_json()) == canonical_event(json.dumps(event.to_json(), indent=1))
    assert canonical_event(None) == "null"
    with pytest.raises(LedgerError):
        canonical_event({"epsilon": math.inf})


NOISY = LaplaceLeakage(4.0, 0.05, failure=1e-15)
EXACT = LaplaceLeakage(None, 0.05)


def reserve(ledger: Books, event: Any, release: str = "first", **changes: Any) -> Charge:
    terms = {"dataset": "acs", "guarantee": "pml", "spec_hash": "s", "input_fingerprint": "i"} | changes
    return ledger.reserve(release=release, event=event, **terms)


@pytest.fixture
def with_account(ledger_url: str) -> Books:
    ledger = Books.open(ledger_url)
    ledger.create_dataset("acs", epsilon=1, delta="1e-8", guarantees=("dp", "pml"), pml="1.2")
    return ledger


@pytest.fixture
def without(ledger_url: str) -> Books:
    ledger = Books.open(ledger_url)
    ledger.create_dataset("acs", epsilon=1, delta="1e-8", guarantees=("dp", "pml"))
    return ledger


def test_leakage_is_charged_to_its_account(with_account: Books) -> None:
    attempt = reserve(with_account, NOISY)
    assert float(attempt.epsilon) == leakage(scale=4.0, alpha=0.05)
    reserve(with_account, NOISY, "second")
    budget = with_account.verify("acs").budget
    assert (budget.epsilon_spent, budget.charges, budget.pml_cap) == (0, 2, Fraction(6, 5))
    assert float(budget.pml_spent) == composed([NOISY, NOISY])
    after = with_account.remaining("acs", event=NOISY, guarantee="pml")
    assert not after.is_kept
    with pytest.raises(BudgetExceeded, match=r"'third' asks for leakage of 0.468.* nats.*the account is 1.2 nats"):
        reserve(with_account, NOISY, "third")
    reserve(with_account, DiscreteLaplace(4.0), "third", guarantee="dp")  # the budget is another account
    assert float(with_account.verify("acs").budget.epsilon_spent) == pytest.approx(0.25)
    with_account.void(attempt)
    assert float(with_account.verify("acs").budget.pml_spent) == leakage(scale=4.0, alpha=0.05)
    reserve(with_account, NOISY, "fourth")


def test_without_an_account_the_equal_privacy_is_charged(without: Books) -> None:
    attempt = reserve(without, NOISY)
    assert float(attempt.epsilon) == pytest.approx(0.5, rel=1e-6)
    budget = without.verify("acs").budget
    assert float(budget.epsilon_spent) == pytest.approx(0.5, rel=1e-6)
    assert (budget.pml_cap, budget.pml_spent) == (None, 0)
    with pytest.raises(BudgetExceeded, match=r"'second' asks for epsilon 0\.769231"):
        reserve(without, LaplaceLeakage(2.6, 0.05), "second")


def test_exact_counts_need_an_account(with_account: Books, tmp_path: Path) -> None:
    wide = Books.open(f"sqlite:///{tmp_path}/wide.db")
    wide.create_dataset("acs", epsilon=1, delta=0, guarantees=("pml",), pml=5)
    attempt = reserve(wide, EXACT)
    assert float(attempt.epsilon) == noiseless_leakage(0.05)
    with pytest.raises(BudgetExceeded, match="composes to infinite leakage"):
        reserve(wide, EXACT, "second")
    with pytest.raises(AccountingError, match="no finite leakage"):
        wide.remaining("acs", event=EXACT, guarantee="pml")
    with pytest.raises(BudgetExceeded, match=r"asks for leakage of 2\.99574 nats"):
        reserve(with_account, EXACT)


def test_exact_counts_are_refused_without_one(without: Books) -> None:
    with pytest.raises(GuaranteeRefused, match=r"no account of leakage.*exact counts have none.*created with --pml"):
        reserve(without, EXACT)
    assert without.show("acs").attempts == ()


def test_a_charge_says_what_it_leaks(with_account: Books) -> None:
    with pytest.raises(GuaranteeRefused, match="'pml' needs a privacy event"):
        reserve(with_account, None)
    with pytest.raises(AccountingError, match="takes charges of histograms with a bound on their leakage only"):
        reserve(with_account, DiscreteLaplace(4.0))
    strict = {"epsilon": 1, "delta": 0, "guarantees": ("dp",)}
    for pml, kinds in ((0, ("pml",)), (-1, ("pml",)), (1, ("dp",))):
        with pytest.raises(LedgerError, match="cap of 1e-6 to 1,000,000 nats, and its data set allows"):
            with_account.create_dataset("other", **{**strict, "guarantees": kinds}, pml=pml)
    with pytest.raises(LedgerError, match="pml must be a number"):
        with_account.create_dataset("other", **{**strict, "guarantees": ("pml",)}, pml=math.inf)


def test_the_cap_is_in_the_journal(with_account: Books) -> None:
    reserve(with_account, NOISY)
    with with_account.database.engine.begin() as connection:
        connection.execute(sa.update(tables.dataset).values(pml_cap="100"))
    with pytest.raises(LedgerError, match="caps or policy were altered"):
        with_account.verify("acs")
