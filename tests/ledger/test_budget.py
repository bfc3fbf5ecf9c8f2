"""Budgets are exact: no charge is admitted or refused by one unit in the last place."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpdist.errors import AccountingError, BudgetExceeded, LedgerError
from dpdist.formatting import downwards, upwards
from dpdist.ledger import Attempt, Compose, Ledger, accountant_epsilon
from dpdist.ledger.budget import exact_sum, float_below
from dpdist.ledger.records import canonical_event, rational
from dpdist.privacy.events import ApproximateDP, Composed, Gaussian
from dpdist.privacy.guarantee import DifferentialPrivacy


def ledger_of(tmp_path: Path, compose: Compose, epsilon: Any = 1, delta: Any = 0) -> Ledger:
    ledger = Ledger.open(f"sqlite:///{tmp_path}/ledger.db", compose=compose)
    ledger.create_dataset("acs", epsilon=epsilon, delta=delta)
    return ledger


def charge(ledger: Ledger, release: str, event: Any = "1") -> Attempt:
    return ledger.reserve(
        dataset="acs", release=release, spec_hash="s", input_fingerprint="f", event=event, guarantee="dp"
    )


def fixed(epsilon: Any) -> Compose:
    return lambda events, delta: epsilon


def test_ten_charges_of_a_tenth_fill_a_budget_of_one(tmp_path: Path) -> None:
    """As floats, 0.1 ten times is 0.9999999999999999, 0.1 three times exceeds 0.3, and so on."""
    ledger = ledger_of(tmp_path, accountant_epsilon, epsilon=1, delta="1e-9")
    for i in range(10):
        charge(ledger, f"r{i}", ApproximateDP(epsilon=0.1, delta=1e-10))
    budget = ledger.remaining("acs")
    assert (budget.epsilon_spent, budget.epsilon_remaining, budget.charges) == (1, 0, 10)
    with pytest.raises(BudgetExceeded):
        charge(ledger, "r10", ApproximateDP(epsilon=1e-12, delta=0.0))
    ledger.verify("acs")


@pytest.mark.parametrize("epsilon", ["0.3", 0.3, Decimal("0.3"), Fraction(3, 10)])
def test_a_float_stands_for_the_decimal_it_prints_as(tmp_path: Path, epsilon: Any) -> None:
    assert ledger_of(tmp_path, fixed(0.0), epsilon=epsilon).remaining("acs").epsilon_cap == Fraction(3, 10)


def test_one_unit_in_the_last_place_decides_exactly(tmp_path: Path) -> None:
    below, above = math.nextafter(1.0, 0.0), math.nextafter(1.0, 2.0)
    assert charge(ledger_of(tmp_path / "1", fixed(1.0)), "r").epsilon == 1
    assert charge(ledger_of(tmp_path / "2", fixed(below)), "r").epsilon == Fraction(below)
    for spent in (above, Fraction(10**40 + 1, 10**40), math.inf):
        with pytest.raises(BudgetExceeded):
            charge(ledger_of(tmp_path / str(spent)[-5:], fixed(spent)), "r")


def test_the_message_rounds_against_the_asker(tmp_path: Path) -> None:
    third = ledger_of(tmp_path, lambda events, delta: Fraction(2, 3) * len(events))
    charge(third, "first")
    with pytest.raises(BudgetExceeded, match=r"asks for epsilon 0.666667 .* remaining 0.333333\. "):
        charge(third, "second")


def test_an_infinite_charge_is_called_so(tmp_path: Path) -> None:
    ledger = ledger_of(tmp_path, lambda events, delta: math.inf if events else 0.0)
    with pytest.raises(BudgetExceeded, match="asks for an infinite epsilon at delta 0"):
        charge(ledger, "r")


@pytest.mark.parametrize("wrong", [math.nan, -1.0, -math.inf])
def test_an_accountant_that_fails_charges_nothing(tmp_path: Path, wrong: float) -> None:
    ledger = ledger_of(tmp_path, fixed(wrong))
    with pytest.raises(AccountingError):
        charge(ledger, "r")
    assert ledger.find("acs", "r") is None


def test_an_accountant_that_raises_charges_nothing(tmp_path: Path) -> None:
    def fails(events: Sequence[str], delta: Fraction) -> float:
        raise AccountingError("no finite epsilon")

    ledger = ledger_of(tmp_path, fails)
    with pytest.raises(AccountingError, match="no finite epsilon"):
        charge(ledger, "r")
    assert ledger.find("acs", "r") is None


def test_charges_that_no_longer_compose_are_named(tmp_path: Path) -> None:
    charge(ledger_of(tmp_path, fixed(0.5)), "r")
    later = Ledger.open(f"sqlite:///{tmp_path}/ledger.db", compose=fixed(math.inf))
    with pytest.raises(AccountingError, match="'acs': its charges compose to no finite epsilon"):
        later.remaining("acs")


def test_the_composer_sees_the_events_that_count_in_order(tmp_path: Path) -> None:
    seen: list[tuple[list[str], Fraction]] = []

    def compose(events: Sequence[str], delta: Fraction) -> float:
        seen.append((list(events), delta))
        return 0.5

    ledger = ledger_of(tmp_path, compose, delta="1e-9")
    charge(ledger, "a", '"a"')
    ledger.void(charge(ledger, "b", '"b"'))
    charge(ledger, "c", '"c"')
    seen.clear()
    charge(ledger, "d", {"y": 1, "x": [2]})
    assert (['"a"', '"c"', '{"x":[2],"y":1}'], Fraction(1, 10**9)) in seen


def test_the_accountant_composes_by_default(tmp_path: Path) -> None:
    ledger = Ledger.open(f"sqlite:///{tmp_path}/ledger.db")
    ledger.create_dataset("acs", epsilon=2, delta="1e-9")
    one = charge(ledger, "r0", Gaussian(noise_multiplier=8.0)).epsilon
    charge(ledger, "r1", Gaussian(noise_multiplier=8.0))
    spent = ledger.remaining("acs").epsilon_spent
    assert one < spent < 1.6 * one  # Gaussian charges compose like a square root, not like a sum
    with pytest.raises(BudgetExceeded):
        charge(ledger, "r2", Gaussian(noise_multiplier=2.0))
    ledger.verify("acs")


def test_exact_sums_are_for_approximate_dp_alone() -> None:
    tenth = canonical_event(ApproximateDP(epsilon=0.1, delta=1e-10))
    nested = canonical_event(Composed((ApproximateDP(epsilon=0.2), Composed((ApproximateDP(epsilon=0.3),)))))
    assert exact_sum([tenth, tenth, nested], Fraction(1, 10**9)) == Fraction(7, 10)
    assert exact_sum([tenth, tenth], Fraction(1, 10**10)) is None
    assert exact_sum([tenth, canonical_event(Gaussian(noise_multiplier=1.0))], Fraction(1, 2)) is None
    assert exact_sum([canonical_event(Composed((Gaussian(noise_multiplier=1.0),)))], Fraction(1, 2)) is None


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
