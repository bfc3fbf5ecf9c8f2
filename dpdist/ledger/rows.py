"""Reading the ledger's tables, and locking a data set."""

from __future__ import annotations

import json
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Final

import sqlalchemy as sa

from dpdist.errors import DatasetUnknown, LedgerError, ReleaseConflict
from dpdist.ledger import tables
from dpdist.ledger.account import Charged, portfolio_of
from dpdist.ledger.records import Attempt, Dataset

Row = Mapping[str, Any]

NO_EVENT: Final = "null"
_SAME: Final = (
    *("release", "state", "guarantee", "spec_hash", "input_fingerprint"),
    *("manifest_sha256", "receipt", "created", "updated"),
)


def lock_dataset(connection: sa.Connection, name: str, *, lock: bool = True) -> Row:
    """Return the row of a data set, locked until the transaction ends unless `lock` is false."""
    query = sa.select(tables.dataset).where(tables.dataset.c.name == name)
    row = connection.execute(query.with_for_update() if lock else query).mappings().one_or_none()
    if row is None:
        raise DatasetUnknown(
            f"no data set {name!r} in the ledger: create it with dpdist ledger create {name} --epsilon … --delta …"
        )
    return dict(row)


def lock_charge(connection: sa.Connection, attempt: str) -> tuple[Row, Row]:
    """Return (data set, charge) of an attempt with the data set locked."""
    owner = sa.select(tables.dataset.c.name).where(tables.dataset.c.id == charge_of(connection, attempt)["dataset_id"])
    dataset = lock_dataset(connection, connection.execute(owner).scalar_one())
    return dataset, charge_of(connection, attempt)


def charge_of(connection: sa.Connection, attempt: str) -> Row:
    """Return the row of an attempt's charge."""
    query = sa.select(tables.charge).where(tables.charge.c.attempt == attempt)
    row = connection.execute(query).mappings().one_or_none()
    if row is None:
        raise LedgerError(f"no attempt {attempt} in the ledger: check that this is the ledger it was reserved in")
    return dict(row)


def charges_of(connection: sa.Connection, dataset: Row, *only: sa.ColumnElement[bool]) -> list[Row]:
    """Return the charges of a data set, oldest first: all, or those of which conditions are true."""
    query = sa.select(tables.charge).where(tables.charge.c.dataset_id == dataset["id"], *only)
    return [dict(row) for row in connection.execute(query.order_by(tables.charge.c.id)).mappings()]


def release_charges(connection: sa.Connection, dataset: Row, release: str) -> list[Row]:
    """Return the charges of one release, oldest first."""
    return charges_of(connection, dataset, tables.charge.c.release == release)


def leakage_events(connection: sa.Connection, dataset: Row) -> list[str]:
    """Return the events (JSON) that count against the account of leakage."""
    if dataset["pml_cap"] is None:
        return []
    charge = tables.charge.c
    rows = charges_of(
        connection, dataset, charge.guarantee == "pml", charge.state.in_(tables.SPENT), charge.event != NO_EVENT
    )
    return [row["event"] for row in rows]


def is_leakage(dataset: Row, guarantee: str) -> bool:
    """Whether a charge of this kind goes to the account of leakage."""
    return guarantee == "pml" and dataset["pml_cap"] is not None


def live_charge(charges: list[Row], release: str) -> Row | None:
    """Return the open or committed charge of a release, None when it has none."""
    return next((row for row in charges if row["release"] == release and row["state"] in tables.LIVE), None)


def read_attempt(connection: sa.Connection, attempt: str) -> Attempt:
    """Return an attempt with the name of its data set."""
    charge = charge_of(connection, attempt)
    name = sa.select(tables.dataset.c.name).where(tables.dataset.c.id == charge["dataset_id"])
    return attempt_record(charge, connection.execute(name).scalar_one())


def states_of(connection: sa.Connection, beginning: str) -> list[str]:
    """Return the states of the attempts whose ids begin with a text."""
    attempt = tables.charge.c.attempt
    found = sa.select(tables.charge.c.state).where(attempt.startswith(beginning, autoescape=True))
    return list(connection.execute(found).scalars())


def dataset_record(row: Row) -> Dataset:
    """Return the public record of a data set's row."""
    return Dataset(
        name=row["name"],
        epsilon=Fraction(row["epsilon_cap"]),
        delta=Fraction(row["delta_cap"]),
        guarantees=tuple(json.loads(row["guarantees"])),
        created=row["created"],
        portfolio=portfolio_of(row),
        pml=None if row["pml_cap"] is None else Fraction(row["pml_cap"]),
        contract=row["contract"],
    )


def attempt_record(row: Row, dataset: str) -> Attempt:
    """Return the public record of a charge's row."""
    return Attempt(
        id=row["attempt"],
        dataset=dataset,
        event=None if row["event"] == NO_EVENT else row["event"],
        epsilon=Fraction(row["epsilon"]),
        charged=None if row["costs"] is None else Charged.from_text(row["costs"]),
        **{name: row[name] for name in _SAME},
    )


def stale(charge: Row) -> ReleaseConflict:
    """Return the error for a transition of an attempt that has ended."""
    return ReleaseConflict(
        f"attempt {charge['attempt']} of release {charge['release']!r} is {charge['state']}: this run is stale and "
        "must stop; nothing it computed may be published"
    )
