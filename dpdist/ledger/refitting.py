"""Filters for the data sets of a ledger that was made before there were any.

Their charges were admitted by composing all of them at one delta. They stay; what each takes from the filters is
entered in the journal, and from then on a filter must hold. Where none does any more, nothing is admitted.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import sqlalchemy as sa

from dpdist.errors import DpdistError
from dpdist.ledger import journal, tables
from dpdist.ledger.account import Account, Charged, portfolio_text
from dpdist.ledger.budget import Price, accountant_price
from dpdist.ledger.replay import changed
from dpdist.ledger.rows import NO_EVENT, is_leakage
from dpdist.ledger.transitions import now
from dpdist.privacy.filter import Cost
from dpdist.privacy.portfolio import Portfolio

_DATASET = ("id", "name", "epsilon_cap", "delta_cap", "guarantees", "created", "length", "head", "pml_cap")
_CHARGE = ("id", "attempt", "state", "guarantee", "event")


def give_filters(connection: sa.Connection) -> None:
    """Give every data set its filters and price its charges, in the transaction of a migration."""
    columns = [tables.dataset.c[name] for name in _DATASET]
    for row in connection.execute(sa.select(*columns)).mappings().all():
        _refit(connection, dict(row))


def _refit(connection: sa.Connection, row: dict[str, Any]) -> None:
    caps = {"epsilon": Fraction(row["epsilon_cap"]), "delta": Fraction(row["delta_cap"])}
    portfolio = Portfolio.standard(**caps)
    row["filters"] = portfolio_text(portfolio)
    columns = [tables.charge.c[name] for name in _CHARGE]
    query = sa.select(*columns).where(tables.charge.c.dataset_id == row["id"]).order_by(tables.charge.c.id)
    charges = [dict(charge) for charge in connection.execute(query).mappings()]
    priced = [charge for charge in charges if charge["event"] != NO_EVENT and not is_leakage(row, charge["guarantee"])]
    spent = [charge for charge in priced if charge["state"] in tables.SPENT]
    for charge in priced:
        price = _price(charge["event"], portfolio)
        alone = price.epsilon if spent == [charge] and not portfolio.holds(price.costs) else None
        fits = alone is not None and alone <= portfolio.epsilon
        charge["costs"] = Charged(price.costs, alone if fits else None).to_text()
        update = sa.update(tables.charge).where(tables.charge.c.id == charge["id"])
        connection.execute(update.values(costs=charge["costs"]))
    account = Account.empty(portfolio)
    for charge in charges:
        account = account.entered()
        if charge["state"] in tables.SPENT:
            account = changed(row, account, charge)
    connection.execute(sa.update(tables.dataset).where(tables.dataset.c.id == row["id"]).values(filters=row["filters"]))
    fields = {"filters": row["filters"], "costs": {charge["attempt"]: charge["costs"] for charge in priced}}
    journal.append(connection, row, journal.FILTERS, now(), fields, account=account)


def _price(event: str, portfolio: Portfolio) -> Price:
    try:
        return accountant_price(event, portfolio)
    except DpdistError:  # nothing bounds it
        return Price(tuple(Cost(None, Fraction(0)) for _ in portfolio.filters), None)
