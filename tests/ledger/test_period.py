"""What a contract lets a period spend: exact sums from the journal, the calendar, and who may not pass."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from charges import add_up

from dpdist.errors import BudgetExceeded, LedgerError, SpecError
from dpdist.ledger import Books, Charge
from dpdist.ledger.statement import budget_sentence, ledger_rows
from dpdist.ledger.terms import beginning
from dpdist.privacy.accountant import epsilon
from dpdist.privacy.events import DiscreteLaplace, Gaussian, LaplaceLeakage
from dpdist.spec.contract import Contract

INPUT = "f" * 64
Clock = Callable[[str], None]


def contract(folder: Path, **changes: Any) -> Contract:
    tree = {
        "schema": {"attributes": [{"name": "job", "kind": "categorical", "values": ["nurse", "cook"]}]},
        "data": {"path": str(folder / "people.parquet")},
        "minimum_records": 50,
        "epsilon": 4,
        "delta": "1e-6",
    }
    return Contract.model_validate({**tree, **changes})


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Set the time of the ledger."""
    return lambda at: monkeypatch.setattr("dpdist.ledger.book.now", lambda: f"{at}T12:00:00.000+00:00")


@pytest.fixture
def ledger(tmp_path: Path, ledger_url: str, clock: Clock) -> Books:
    """A ledger with a data set whose contract lets a month spend an epsilon of 1 of 4."""
    clock("2026-01-05")
    opened = Books.open(ledger_url, price=add_up)
    opened.create_from_contract("people", contract(tmp_path, period={"per": "month", "epsilon": 1}))
    opened.admit_input("people", fingerprint=INPUT, contract=declared(opened).digest)
    return opened


def declared(ledger: Books) -> Contract:
    return Contract.from_text(ledger.dataset("people").contract or "")


def reserve(ledger: Books, release: str, cost: Any, *, guarantee: str | None = None, **more: Any) -> Charge:
    """Charge a text as the price `add_up`, or an event, by default of leakage."""
    event = f'"{cost}"' if isinstance(cost, str) else cost
    return ledger.reserve(
        dataset="people",
        release=release,
        spec_hash="s",
        input_fingerprint=INPUT,
        event=event,
        guarantee=guarantee or ("dp" if isinstance(cost, str) else "pml"),
        contract=declared(ledger).digest,
        **more,
    )


def test_a_month_spends_its_cap_and_the_next_one_its_own(ledger: Books, clock: Clock) -> None:
    reserve(ledger, "a", "1/3")
    reserve(ledger, "b", "2/3")  # exactly the cap
    with pytest.raises(BudgetExceeded, match=r"epsilon 1\.0\d+ with the 2 charges of this month.*from 2026-02-01 on"):
        reserve(ledger, "c", "1/1000000")
    clock("2026-01-31")
    with pytest.raises(BudgetExceeded):
        reserve(ledger, "c", "1/3")
    clock("2026-02-01")
    reserve(ledger, "c", "1")
    with pytest.raises(BudgetExceeded, match="this month"):
        reserve(ledger, "d", "1/3")
    for month in ("2026-03-15", "2026-04-30"):
        clock(month)
        reserve(ledger, month, "1")
    clock("2026-05-01")
    with pytest.raises(BudgetExceeded, match="the cap is epsilon 4"):  # all of the data set's
        reserve(ledger, "e", "1/1000")
    assert ledger.verify("people").budget.epsilon_spent == 4


def test_charges_at_the_same_time_do_not_pass_together(ledger: Books) -> None:
    def charge(number: int) -> bool:
        try:
            reserve(ledger, f"r{number}", "1/3")
        except BudgetExceeded:
            return False
        return True

    with ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(charge, range(6))) == 3
    assert ledger.verify("people").budget.epsilon_spent == 1


def test_what_is_given_back_may_be_spent_again_in_its_month(ledger: Books, clock: Clock) -> None:
    open_in_january = reserve(ledger, "a", "1")
    with pytest.raises(BudgetExceeded):
        reserve(ledger, "b", "1/2")
    clock("2026-02-02")
    reserve(ledger, "b", "1")
    ledger.void(open_in_january)
    with pytest.raises(BudgetExceeded):  # that was January's
        reserve(ledger, "c", "1/2")
    clock("2026-02-03")
    renewed = reserve(ledger, "b", "1/2", new_attempt=True)  # its own charge of February is given back
    reserve(ledger, "c", "1/2")
    ledger.mark_drawing(renewed)
    with pytest.raises(BudgetExceeded):  # an attempt that drew noise stays spent
        reserve(ledger, "b", "1/2", new_attempt=True)


def test_a_month_that_was_missed_is_charged_when_it_is_made_up(ledger: Books, clock: Clock) -> None:
    reserve(ledger, "acs-2026-01", "1/2")
    clock("2026-03-01")
    reserve(ledger, "acs-2026-03", "1/2")
    clock("2026-03-20")
    reserve(ledger, "acs-2026-02", "1/2")
    with pytest.raises(BudgetExceeded):  # what February left is not March's
        reserve(ledger, "more", "1/2")


def test_a_clock_that_is_behind_spends_nothing_twice(ledger: Books, clock: Clock) -> None:
    clock("2026-02-01")
    reserve(ledger, "a", "3/4")
    clock("2026-01-31")
    with pytest.raises(BudgetExceeded):
        reserve(ledger, "b", "1/2")
    clock("2026-02-01")
    with pytest.raises(BudgetExceeded):
        reserve(ledger, "b", "1/2")


def test_all_charges_of_a_month_count(ledger: Books) -> None:
    for number in range(10):
        reserve(ledger, f"r{number}", "1/10")
    with pytest.raises(BudgetExceeded):
        reserve(ledger, "more", "1/1000")
    period = ledger.period("people")
    assert period is not None
    assert period.account.charges == 10


def test_rows_that_were_moved_to_another_month_are_found(ledger: Books) -> None:
    reserve(ledger, "a", "1")
    with ledger.database.engine.begin() as connection:
        connection.execute(sa.text("UPDATE dpdist_charge SET created = '2025-12-31T00:00:00.000+00:00'"))
    for work in (lambda: reserve(ledger, "b", "1/2"), lambda: ledger.period("people")):
        with pytest.raises(LedgerError, match="altered: created"):
            work()


def test_the_budget_says_what_the_month_has_left(ledger: Books, clock: Clock) -> None:
    reserve(ledger, "a", "1/4")
    (row,) = ledger_rows(ledger)
    assert row["period"] == {
        "per": "month",
        "begins": "2026-01-01",
        "ends": "2026-02-01",
        "epsilon": 1.0,
        "spent_epsilon": 0.25,
        "remaining_epsilon": 0.75,
        "charges": 1,
        "sentence": "this month, until 2026-02-01, epsilon 0.75 of 1 left",
    }
    clock("2026-02-01")
    (row,) = ledger_rows(ledger)
    assert row["period"]["sentence"] == "this month, until 2026-03-01, epsilon 1 of 1 left"


def test_the_custodian_changes_the_policy_and_the_journal_says_so(ledger: Books, tmp_path: Path) -> None:
    reserve(ledger, "a", "1")
    ledger.amend("people", contract(tmp_path, period={"per": "day", "epsilon": 2}), reason="two waves are agreed")
    ledger.admit_input("people", fingerprint=INPUT, contract=declared(ledger).digest)
    reserve(ledger, "b", "1")  # what the day had spent counts
    with pytest.raises(BudgetExceeded, match="this day"):
        reserve(ledger, "c", "1/2")
    ledger.amend("people", contract(tmp_path), reason="no policy")
    ledger.admit_input("people", fingerprint=INPUT, contract=declared(ledger).digest)
    assert ledger.period("people") is None
    reserve(ledger, "c", "2")
    ledger.verify("people")


def test_a_release_alone_may_take_the_whole_of_a_month(tmp_path: Path, clock: Clock) -> None:
    """The filters divide delta, so one release of exactly the cap would not fit; by itself it does."""
    clock("2026-01-05")
    opened = Books.open(f"sqlite:///{tmp_path}/ledger.db")
    release = Gaussian(4.0)
    cap = str(Fraction(epsilon(release, delta=1e-6)))
    opened.create_from_contract("people", contract(tmp_path, period={"per": "month", "epsilon": cap}))
    opened.admit_input("people", fingerprint=INPUT, contract=declared(opened).digest)
    for month in ("2026-01-05", "2026-02-05"):
        clock(month)
        reserve(opened, month, release, guarantee="dp")
        with pytest.raises(BudgetExceeded, match="this month"):
            reserve(opened, f"{month}-b", Gaussian(40.0), guarantee="dp")


def test_leakage_has_a_cap_of_its_own(tmp_path: Path, clock: Clock) -> None:
    clock("2026-01-05")
    opened = Books.open(f"sqlite:///{tmp_path}/ledger.db")
    policy = {"per": "week", "epsilon": 1, "pml": "1/2"}
    opened.create_from_contract("people", contract(tmp_path, guarantees=["dp", "pml"], pml=2, period=policy))
    opened.admit_input("people", fingerprint=INPUT, contract=declared(opened).digest)
    leaks = LaplaceLeakage(4.0, 0.05, failure=1e-15)  # 0.47 nats
    reserve(opened, "a", leaks)
    with pytest.raises(BudgetExceeded, match=r"a leakage of more than the 0\.5 nats"):
        reserve(opened, "b", leaks)
    assert "epsilon 1 of 1 left and 0.03" in budget_sentence(opened, "people")
    reserve(opened, "b", DiscreteLaplace(1.0), guarantee="dp")  # the budget is another account
    clock("2026-01-12")
    reserve(opened, "c", leaks)


@pytest.mark.parametrize(
    "wrong",
    [
        {"per": "month", "epsilon": 5},
        {"per": "moon", "epsilon": 1},
        {"per": "month"},
        {"per": "day", "epsilon": 1, "pml": 1},
    ],
)
def test_a_policy_that_says_nothing_is_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises((SpecError, ValueError), match="period"):
        contract(tmp_path, period=wrong)


@pytest.mark.parametrize(
    ("per", "day", "first"),
    [
        ("day", "2026-02-28", "2026-02-28"),
        ("week", "2026-01-01", "2025-12-29"),
        ("month", "2024-02-29", "2024-02-01"),
        ("quarter", "2026-12-31", "2026-10-01"),
        ("year", "2026-12-31", "2026-01-01"),
    ],
)
def test_periods_of_the_calendar(per: str, day: str, first: str) -> None:
    assert beginning(per, date.fromisoformat(day)) == date.fromisoformat(first)
