"""What the releases of a month may take: the policy `period` of a contract.

All charges of a period together, and nothing else, are held against the data set's own filters at a smaller epsilon.
So the releases of a period together are (epsilon, delta)-DP, however each was chosen after those before. The first one
may also be within epsilon by itself, and then has the period for itself. A charge belongs to the period (UTC) in which
it was reserved. What is spent is read from the journal, whose chain is checked from there to the end.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from fractions import Fraction
from typing import Any, Final

import sqlalchemy as sa

from dpdist.errors import BudgetExceeded
from dpdist.ledger import journal, tables
from dpdist.ledger.account import Account, Charged, portfolio_of
from dpdist.ledger.budget import Price, composed_leakage
from dpdist.ledger.contract import Contract, PeriodSpec
from dpdist.ledger.replay import changed
from dpdist.ledger.rows import NO_EVENT, Row, is_leakage
from dpdist.privacy.formatting import downwards, number_of, upwards
from dpdist.privacy.portfolio import Portfolio

_LONGEST: Final = {"day": 1, "week": 7, "month": 31, "quarter": 92, "year": 366}
_BLOCK: Final = 512


@dataclass(frozen=True)
class Period:
    """A period of a data set, and what is charged in it."""

    policy: PeriodSpec
    begins: date
    portfolio: Portfolio  # the filters of the data set, at the epsilon of a period
    account: Account
    leakage: tuple[str, ...] = ()  # events charged to the account of leakage

    @property
    def ends(self) -> date:
        """The first day of the next one."""
        return beginning(self.policy.per, self.begins + timedelta(_LONGEST[self.policy.per]))

    @property
    def epsilon_spent(self) -> Fraction | None:
        """The least epsilon at which the filters would have admitted its charges; None where there is none."""
        return self.portfolio.epsilon_of(self.account.taken) if self.account.alone is None else self.account.alone

    @property
    def epsilon_remaining(self) -> Fraction:
        """The cap minus what is spent, at least 0."""
        spent = self.epsilon_spent
        return Fraction(0) if spent is None else max(self.policy.epsilon - spent, Fraction(0))

    def sentence(self) -> str:
        """What is left, in words."""
        left, cap = downwards(self.epsilon_remaining), downwards(self.policy.epsilon)
        words = f"this {self.policy.per}, until {self.ends}, epsilon {left} of {cap} left"
        if self.policy.pml is not None:
            spent = composed_leakage(self.leakage)
            nats = Fraction(0) if spent is None else max(self.policy.pml - spent, Fraction(0))
            words += f" and {downwards(nats)} of {downwards(self.policy.pml)} nats"
        return words

    def admits(self, price: Price) -> bool:
        """Whether one more release fits."""
        if self.portfolio.holds(self.account.charged(Charged(price.costs)).taken):
            return True
        first = not any(cost.amount != 0 or cost.failure for cost in self.account.taken)
        return first and price.epsilon is not None and price.epsilon <= self.policy.epsilon

    def admits_leakage(self, event: str) -> bool:
        """Whether one more release fits that is charged to the account of leakage."""
        total = composed_leakage([*self.leakage, event])
        return self.policy.pml is None or (total is not None and total <= self.policy.pml)


def beginning(per: str, day: date) -> date:
    """The first day of the period of a day."""
    match per:
        case "week":
            return day - timedelta(day.weekday())
        case "month":
            return day.replace(day=1)
        case "quarter":
            return day.replace(month=day.month - (day.month - 1) % 3, day=1)
        case "year":
            return day.replace(month=1, day=1)
    return day


def period_of(connection: sa.Connection, dataset: Row, at: str) -> Period | None:
    """The period of a data set at a time (ISO 8601, UTC); None where its contract has no policy for one.

    Raises
    ------
    LedgerError
        The journal was altered.
    """
    policy = None if dataset["contract"] is None else Contract.from_text(dataset["contract"]).period
    if policy is None:
        return None
    begins = beginning(policy.per, date.fromisoformat(at[:10]))
    charges = _charges(_records(connection, dataset, begins), begins)
    account = Account.empty(portfolio_of(dataset))
    for charge in charges:
        account = changed(dataset, account, charge)
    leaked = (one["event"] for one in charges if is_leakage(dataset, one["guarantee"]) and one["event"] != NO_EVENT)
    return Period(policy, begins, portfolio_of(dataset).at(policy.epsilon), account, tuple(leaked))


def admit(connection: sa.Connection, dataset: Row, request: Mapping[str, str], price: Price | None, *, at: str) -> None:
    """Refuse a charge that is beyond what a period may spend.

    Raises
    ------
    BudgetExceeded
        The message names public numbers only.
    """
    period = period_of(connection, dataset, at)
    if period is None or request["event"] == NO_EVENT:
        return
    per, release, policy = period.policy.per, request["release"], period.policy
    if is_leakage(dataset, request["guarantee"]):
        if not period.admits_leakage(request["event"]):
            _refuse(dataset, release, f"a leakage of more than the {upwards(policy.pml or 0)} nats", period)
        return
    if price is None or period.admits(price):
        return
    together = period.portfolio.epsilon_of(period.account.charged(Charged(price.costs)).taken)
    comes = "more" if together is None else f"epsilon {upwards(together)}"
    before = number_of(period.account.charges, "charge")
    _refuse(dataset, release, f"{comes} with the {before} of this {per}, above the {upwards(policy.epsilon)}", period)


def _refuse(dataset: Row, release: str, asked: str, period: Period) -> None:
    raise BudgetExceeded(
        f"data set {dataset['name']!r}: release {release!r} comes to {asked} that its contract lets a "
        f"{period.policy.per} spend. Ask for less in the spec's privacy section, or run it from {period.ends} on (UTC)"
    )


def _charges(records: Iterable[Mapping[str, Any]], begins: date) -> list[dict[str, Any]]:
    """The reservations from a day on that were not given back."""
    found: dict[str, dict[str, Any]] = {}
    for record in records:
        if record["state"] == tables.RESERVED and record["at"] >= begins.isoformat():
            found[record["attempt"]] = dict(record)
        elif record["state"] == tables.VOID:
            found.pop(record["attempt"], None)
    return list(found.values())


def _records(connection: sa.Connection, dataset: Row, begins: date) -> list[dict[str, Any]]:
    """The newest entries of a journal, back to a day before `begins`: clocks of two machines may differ."""
    before, length, size = (begins - timedelta(1)).isoformat(), dataset["length"], _BLOCK
    while True:
        first = max(length - size, 0)
        records = [json.loads(text) for text in journal.checked_records(connection, dataset, first)]
        if first == 0 or records[0]["at"] < before:
            return records
        size *= 4
