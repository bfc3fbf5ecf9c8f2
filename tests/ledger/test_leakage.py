"""The account of pointwise maximal leakage: what is charged to it, what is charged as differential privacy."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from dpdist.errors import AccountingError, BudgetExceeded, GuaranteeRefused, LedgerError
from dpdist.ledger import Books, Charge, tables
from dpdist.privacy.events import DiscreteLaplace, LaplaceLeakage
from dpdist.privacy.leakage import composed, leakage, noiseless_leakage

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
