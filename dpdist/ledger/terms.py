"""The terms of a data set: set, amended by its custodian, and held against inputs and periods.

Raising epsilon keeps the filters with their deltas and orders, so that the charges before take from them what they
took. Delta stays: each filter has its part of it.

What all releases of a period may take together (the policy `period` of a contract) is held against the data set's own
filters at a smaller epsilon. So the releases of a period together are (epsilon, delta)-DP, however each was chosen
after those before. The first one may also be within epsilon by itself, and then has the period for itself. A charge
belongs to the period (UTC) in which it was reserved.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from fractions import Fraction
from typing import Any, Final

import sqlalchemy as sa

from dpdist.errors import BudgetExceeded, ContractBroken, LedgerError
from dpdist.ledger import book as books
from dpdist.ledger import records, tables
from dpdist.ledger.book import Book
from dpdist.privacy.filter import Portfolio
from dpdist.privacy.formatting import downwards, number_of, upwards
from dpdist.spec.contract import LARGEST_CAP, LEAST_CAP, Contract, PeriodSpec

_LONGEST: Final = {"day": 1, "week": 7, "month": 31, "quarter": 92, "year": 366}


def terms_of(
    name: str,
    epsilon: records.Rational,
    delta: records.Rational,
    guarantees: Iterable[str],
    pml: records.Rational | None,
    contract: str | None,
) -> dict[str, str | None]:
    """Return the checked columns of a new data set. Raises LedgerError: a cap is out of range, a kind of guarantee is
    unknown, or the name is no name.
    """
    chosen = {guarantees} if isinstance(guarantees, str) else set(guarantees)
    if not chosen or not chosen <= set(records.GUARANTEES):
        raise LedgerError(f"guarantees must be one or more of {', '.join(records.GUARANTEES)}")
    kinds = tuple(kind for kind in records.GUARANTEES if kind in chosen)
    leakage = None if pml is None else records.rational(pml, setting="pml")
    if leakage is not None and (not LEAST_CAP <= leakage <= LARGEST_CAP or "pml" not in kinds):
        raise LedgerError(
            f"pml: an account of leakage has a cap of 1e-6 to {LARGEST_CAP:,} nats, and its data set allows the "
            "guarantee pml"
        )
    epsilon_cap, delta_cap = records.rational(epsilon, setting="epsilon"), records.rational(delta, setting="delta")
    if not LEAST_CAP <= epsilon_cap <= LARGEST_CAP or not 0 <= delta_cap < 1:
        raise LedgerError(f"a data set's caps must satisfy 1e-6 <= epsilon <= {LARGEST_CAP:,} and 0 <= delta < 1")
    return {
        "name": records.checked_name(name, setting="the data set's name"),
        "epsilon_cap": str(epsilon_cap),
        "delta_cap": str(delta_cap),
        "guarantees": json.dumps(kinds),
        "created": books.now(),
        "pml_cap": None if leakage is None else str(leakage),
        "filters": records.portfolio_text(Portfolio.standard(epsilon=epsilon_cap, delta=delta_cap)),
        "contract": contract,
    }


def terms_of_contract(name: str, contract: Contract) -> dict[str, str | None]:
    """Return the columns of a data set with a contract, which has its caps and policy."""
    return terms_of(name, contract.epsilon, contract.delta, contract.guarantees, contract.pml, contract.text)


def amend(book: Book, contract: Contract, *, reason: str) -> None:
    """Give a data set another contract, with its caps. Raises LedgerError: delta is another one, an account of leakage
    would go, charges are about another unit, or there is no reason; BudgetExceeded: more is spent than the new caps
    admit.
    """
    row, name, account = book.row, book.name, book.account
    terms = terms_of_contract(name, contract)
    if terms["delta_cap"] != row["delta_cap"]:
        raise LedgerError(f"data set {name!r}: delta stays {row['delta_cap']}, each filter has its part of it")
    if row["pml_cap"] is not None and (contract.pml is None or contract.pml < Fraction(row["pml_cap"])):
        raise LedgerError(f"data set {name!r}: its account of leakage stays, with a cap of {row['pml_cap']} or more")
    if account.charges and _ids_of(row["contract"]) != _ids_of(contract.text):
        raise LedgerError(
            f"data set {name!r}: its charges say what releases reveal of {_protects(row['contract'])}, and the unit of "
            f"this contract is {_protects(contract.text)}, and they reveal more of it: create another data set, and "
            f"admit its input with --also-charged-to {name}"
        )
    portfolio = book.dataset.portfolio.at(contract.epsilon)
    account = account if contract.data.every else book.account_of(book.spent)
    if not account.is_kept(portfolio):
        raise BudgetExceeded(f"data set {name!r}: more is spent than the new cap on epsilon admits")
    new = {**terms, "filters": records.portfolio_text(portfolio), "created": row["created"]}
    changes = {column: value for column, value in new.items() if value != row[column]}
    if not changes:
        return
    book.append(books.AMENDED, {"changes": changes, "reason": records.checked_name(reason, setting="the reason")})
    update = sa.update(tables.dataset).where(tables.dataset.c.id == row["id"])
    book.connection.execute(update.values(changes))


def _ids_of(text: str | None) -> str | None:
    """The column of the ids of the units that a contract protects; None where it protects single records."""
    unit = None if text is None else Contract.from_text(text).protected
    return None if unit is None else unit.by


def _protects(text: str | None) -> str:
    """The unit of a contract in words."""
    column = _ids_of(text)
    return "a single record" if column is None else f"all records with one value of {column!r}"


def admit_input(
    book: Book, *, fingerprint: str, contract: str, also_charged_to: Collection[str] = (), months: Collection[str] = ()
) -> None:
    """Write down that an input keeps the contract with this digest; again, it finds its work done.

    `months` are those of its files, where a record is in one alone. `also_charged_to` are data sets that charged the
    input before, or admit it: this account lacks their charges. Raises ContractBroken: the data set has another
    contract by now, or none; data sets that charge the input are not among `also_charged_to`.
    """
    row, name = book.row, book.name
    if row["contract"] is None or Contract.from_text(row["contract"]).digest != contract:
        raise ContractBroken(f"data set {name!r} has not the contract that this input was checked against")
    if (fingerprint, contract) in book.inputs:
        return
    others = others_of(book, [fingerprint])
    known = [one for one in others if one in also_charged_to]
    if unknown := [one for one in others if one not in also_charged_to]:
        options = " ".join(f"--also-charged-to {one}" for one in unknown)
        raise ContractBroken(
            f"data set {name!r}: releases of the same input are charged to {', '.join(map(repr, unknown))}, and the "
            f"caps of {name!r} do not cover them: choose its caps with them in mind, and admit the input with {options}"
        )
    fields = {"fingerprint": fingerprint, "contract": contract}
    more = ({"also_charged_to": known} if known else {}) | ({"months": sorted(months)} if months else {})
    book.append(books.ADMITTED, {**fields, **more})
    book.connection.execute(sa.insert(tables.admitted_input).values(dataset_id=row["id"], **fields))


def others_of(book: Book, fingerprints: Collection[str]) -> list[str]:
    """The other data sets that charged one of these inputs, or admit it, in order."""
    charged, admitted = tables.charge.c, tables.admitted_input.c
    spent = sa.select(charged.dataset_id).where(
        charged.input_fingerprint.in_(fingerprints), charged.state.in_(tables.SPENT)
    )
    theirs = sa.union(spent, sa.select(admitted.dataset_id).where(admitted.fingerprint.in_(fingerprints)))
    found = sa.select(tables.dataset.c.name).where(
        tables.dataset.c.id.in_(theirs), tables.dataset.c.id != book.row["id"]
    )
    return list(book.connection.execute(found.order_by(tables.dataset.c.name)).scalars())


def refuse_unadmitted(book: Book, fingerprint: str, contract: str | None) -> None:
    """Refuse a charge that was not compared with the contract of its data set, or whose input was not checked.

    `contract` is the digest of the contract that the release keeps. Raises ContractBroken.
    """
    text, name = book.row["contract"], book.name
    if text is None:
        _refuse_input_of_another(book, fingerprint)
        return
    declared = Contract.from_text(text)
    if declared.digest != contract:
        raise ContractBroken(f"data set {name!r} has a contract that this release was not compared with: run it again")
    if declared.data.clients:  # each client's own ledger admits its files
        return
    if (fingerprint, contract) not in book.inputs:
        _refuse_input_of_another(book, fingerprint)
        raise ContractBroken(
            f"data set {name!r} has a contract, and its custodian has not found that this input keeps it (or its files "
            f"changed since): dpdist contract check --dataset {name}"
        )


def _refuse_input_of_another(book: Book, fingerprint: str) -> None:
    """Refuse an input that the custodian of another data set admitted: its contract and its caps hold for it."""
    columns = tables.admitted_input.c
    query = sa.select(tables.dataset.c.name).join(tables.admitted_input, columns.dataset_id == tables.dataset.c.id)
    query = query.where(columns.fingerprint == fingerprint, columns.dataset_id != book.row["id"])
    owner = book.connection.execute(query.order_by(tables.dataset.c.name).limit(1)).scalar_one_or_none()
    if owner is not None:
        raise ContractBroken(
            f"dataset: the input is that of data set {owner!r}, which has a contract and caps for it, and the spec "
            f"names {book.name!r}: write `dataset: {owner}`"
        )


@dataclass(frozen=True)
class Period:
    """A period of a data set, and what is charged in it."""

    policy: PeriodSpec
    begins: date
    portfolio: Portfolio  # the filters of the data set, at the epsilon of a period
    account: records.Account
    leakage: tuple[str, ...] = ()  # events charged to the account of leakage

    @classmethod
    def of(cls, book: Book, months: Iterable[str] = ()) -> Period | None:
        """The period in which a book was opened, with what counts for a record of one of these months, or of any; None
        where the contract has no policy for one.
        """
        text = book.row["contract"]
        policy = None if text is None else Contract.from_text(text).period
        if policy is None:
            return None
        begins = beginning(policy.per, date.fromisoformat(book.at[:10]))
        charges = [charge for charge in book.spent if charge["created"] >= begins.isoformat()]
        leaked = tuple(charge["event"] for charge in charges if book.dataset.leaks(charge))
        portfolio = book.dataset.portfolio.at(policy.epsilon)
        return cls(policy, begins, portfolio, book.account_of_most(charges, months), leaked)

    @property
    def ends(self) -> date:
        """The first day of the next one."""
        return beginning(self.policy.per, self.begins + timedelta(_LONGEST[self.policy.per]))

    @property
    def epsilon_spent(self) -> Fraction | None:
        """The least epsilon at which the filters would have admitted its charges; None if none exists."""
        return self.account.epsilon(self.portfolio)

    @property
    def epsilon_remaining(self) -> Fraction:
        """The cap minus what is spent, at least 0."""
        return records.left_of(self.policy.epsilon, self.epsilon_spent)

    def sentence(self) -> str:
        """What is left, in words."""
        left, cap = downwards(self.epsilon_remaining), downwards(self.policy.epsilon)
        words = f"this {self.policy.per}, until {self.ends}, epsilon {left} of {cap} left"
        if self.policy.pml is not None:
            nats = records.left_of(self.policy.pml, records.composed_leakage(self.leakage))
            words += f" and {downwards(nats)} of {downwards(self.policy.pml)} nats"
        return words

    def admits(self, price: records.Price) -> bool:
        """Whether one more release fits."""
        return self.account.costs_of(self.portfolio, price) is not None

    def admits_leakage(self, event: str) -> bool:
        """Whether one more release fits that is charged to the account of leakage."""
        total = records.composed_leakage([*self.leakage, event])
        return self.policy.pml is None or (total is not None and total <= self.policy.pml)


def beginning(per: str, day: date) -> date:
    """The first day of the period of a day."""
    month = {"month": day.month, "quarter": day.month - (day.month - 1) % 3, "year": 1}.get(per)
    if month is not None:
        return day.replace(month=month, day=1)
    return day - timedelta(day.weekday()) if per == "week" else day


def refuse_beyond_period(book: Book, request: Mapping[str, Any], price: records.Price | None) -> None:
    """Refuse a charge that is beyond what a period may spend. Raises BudgetExceeded: the message names public numbers
    only.
    """
    period = Period.of(book, book.months.get(request["input_fingerprint"], ()))
    if period is None or request["event"] == records.NO_EVENT:
        return
    per, policy = period.policy.per, period.policy
    if book.dataset.leaks(request):
        if period.admits_leakage(request["event"]):
            return
        asked = f"a leakage of more than the {upwards(policy.pml or 0)} nats"
    elif price is None or period.admits(price):
        return
    else:
        together = period.portfolio.epsilon_of(period.account.charged(records.Costs(price.costs)).taken)
        comes = "more" if together is None else f"epsilon {upwards(together)}"
        before = number_of(period.account.charges, "charge")
        asked = f"{comes} with the {before} of this {per}, above the {upwards(policy.epsilon)}"
    raise BudgetExceeded(
        f"data set {book.name!r}: release {request['release']!r} comes to {asked} that its contract lets a {per} "
        f"spend. Ask for less in the spec's privacy section, or run it from {period.ends} on (UTC)"
    )
