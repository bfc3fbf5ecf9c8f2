"""The data sets of a ledger: entering one, reading one, checking one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

import sqlalchemy as sa

from dpdist.errors import LedgerError
from dpdist.ledger import journal, tables
from dpdist.ledger.account import Account, portfolio_of, portfolio_text
from dpdist.ledger.anchor import Mark
from dpdist.ledger.records import (
    LARGEST_CAP,
    LEAST_CAP,
    Dataset,
    Rational,
    checked_guarantees,
    checked_name,
    rational,
)
from dpdist.ledger.replay import check_journal
from dpdist.ledger.rows import Row, charges_of, dataset_record, leakage_events, lock_dataset
from dpdist.ledger.signing import NewIdentity, identities, store
from dpdist.ledger.transitions import now
from dpdist.privacy.portfolio import Portfolio


def terms_of(
    name: str,
    epsilon: Rational,
    delta: Rational,
    guarantees: Iterable[str],
    pml: Rational | None,
    contract: str | None = None,
) -> dict[str, str | None]:
    """Return the checked columns of a new data set."""
    kinds = checked_guarantees(guarantees)
    leakage = None if pml is None else rational(pml, setting="pml")
    if leakage is not None and (not LEAST_CAP <= leakage <= LARGEST_CAP or "pml" not in kinds):
        raise LedgerError(
            f"pml: an account of leakage has a cap of 1e-6 to {LARGEST_CAP:,} nats, and its data set allows the "
            "guarantee pml"
        )
    epsilon_cap, delta_cap = rational(epsilon, setting="epsilon"), rational(delta, setting="delta")
    if not LEAST_CAP <= epsilon_cap <= LARGEST_CAP or not 0 <= delta_cap < 1:
        raise LedgerError(f"a data set's caps must satisfy 1e-6 <= epsilon <= {LARGEST_CAP:,} and 0 <= delta < 1")
    return {
        "name": checked_name(name, setting="the data set's name"),
        "epsilon_cap": str(epsilon_cap),
        "delta_cap": str(delta_cap),
        "guarantees": json.dumps(kinds),
        "created": now(),
        "pml_cap": None if leakage is None else str(leakage),
        "filters": portfolio_text(Portfolio.standard(epsilon=epsilon_cap, delta=delta_cap)),
        "contract": contract,
    }


def create(connection: sa.Connection, terms: Mapping[str, str | None], signing: NewIdentity | None = None) -> Dataset:
    """Enter a data set, its signing identity and the first entry of its journal."""
    public = None if signing is None else signing.public
    record, head = journal.first_entry(terms, Account.empty(portfolio_of(terms)), public_key=public)
    insert = sa.insert(tables.dataset).values(**terms, length=1, head=head).returning(tables.dataset)
    row = connection.execute(insert).mappings().one()
    entry = {"dataset_id": row["id"], "sequence": 0, "record": record, "digest": head}
    connection.execute(sa.insert(tables.journal).values(entry))
    if signing is not None:
        store(connection, dict(row), signing, row["created"])
    return dataset_record(dict(row))


def datasets(connection: sa.Connection) -> tuple[str, ...]:
    """Return the names of all data sets, in order."""
    return tuple(connection.execute(sa.select(tables.dataset.c.name).order_by(tables.dataset.c.name)).scalars())


def read(
    connection: sa.Connection, name: str, mark: Mark | None = None, *, history: bool = False
) -> tuple[Row, Account, list[str]]:
    """Return the row of a data set, the sums of its charges, and the events of its account of leakage.

    With `history`, the older history is checked as a reservation checks it.
    """
    row = lock_dataset(connection, name, lock=False)
    account = journal.checked_account(connection, row, mark=mark)
    if history:
        journal.check_history(connection, row, account)
    return row, account, leakage_events(connection, row)


def head(connection: sa.Connection, name: str) -> Mark:
    """Return how far the journal of a data set goes."""
    row = lock_dataset(connection, name, lock=False)
    return Mark(row["length"], row["head"])


def problems_of(connection: sa.Connection, name: str, receipts: Iterable[str]) -> list[str]:
    """Return what in the records of a data set does not agree with its journal."""
    row = lock_dataset(connection, name, lock=False)
    charges = charges_of(connection, row)
    entries = connection.execute(
        sa.select(tables.journal).where(tables.journal.c.dataset_id == row["id"]).order_by(tables.journal.c.sequence)
    )
    listed = [one["public_key"] for one in identities(connection, row)]
    try:
        return check_journal(row, [dict(entry) for entry in entries.mappings()], charges, receipts, listed)
    except (ArithmeticError, KeyError, TypeError, ValueError):
        return ["what is in a row, or in an entry of the journal, cannot be read"]
