"""The append-only, chained record of a data set, and its replay.

Entry i holds a canonical JSON record and ``SHA-256(digest of entry i - 1 | i | record)``. Entry 0 records the data
set's caps, filters and policy; each later one a transition of an attempt. Every entry carries the sums of the account
after it and a digest of the terms.

- `checked_account` reads the newest entries only, from the mark of an anchor on, and is part of every transition: a
  changed term, sum or end and a database older than its anchor are found before anything is written.
- `check_charge` compares a charge with the entries of its attempt: a transition never relies on the row alone.
- `check_history` looks for missing and altered rows before a charge, in a time that hardly grows with the history.
- `dpdist.ledger.replay` goes through all of it. Editing, deleting or reordering anything breaks the chain or leaves
  rows that the replay does not give.

Whoever can rewrite the *whole* chain can only be caught by a digest kept elsewhere: an anchor, or a receipt.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa

from dpdist.errors import LedgerError
from dpdist.ledger import tables
from dpdist.ledger.account import Account
from dpdist.ledger.anchor import Mark

Row = Mapping[str, Any]

CREATED: Final = "created"
IDENTITY: Final = "identity"
"""The entry of a new signing identity; the first one may stand in entry 0."""

IDENTITIES_ALTERED: Final = "the signing identities were altered"

WINDOW: Final = 128
"""Entries of the journal that a reservation checks at two places."""

AMENDED: Final = "amended"
"""An act of the custodian: other caps or another contract, with a reason."""

ADMITTED: Final = "input"
"""An act of the custodian: an input keeps the contract."""

RESERVATION: Final = ("attempt", "release", "guarantee", "event", "epsilon", "spec_hash", "input_fingerprint", "costs")
_RESERVED: Final = f'"state":"{tables.RESERVED}"'
_AT_ONCE: Final = 4096
_OPTIONAL: Final = ("pml_cap", "contract")
_TERMS: Final = ("name", "epsilon_cap", "delta_cap", "guarantees", "created", "filters")


def digest(previous: str, sequence: int, record: str) -> str:
    """Return the chained digest of an entry, 64 hexadecimal digits."""
    return hashlib.sha256(f"{previous}\n{sequence}\n{record}".encode()).hexdigest()


def first_entry(values: Mapping[str, Any], account: Account, *, public_key: str | None = None) -> tuple[str, str]:
    """Return (record, digest) of entry 0 from the data set's row values and its signing identity."""
    signing = {} if public_key is None else {IDENTITY: public_key}
    record = canonical({"state": CREATED, **terms_of(values), **_sums(values, account), **signing})
    return record, digest("", 0, record)


def append(
    connection: sa.Connection, dataset: Row, state: str, at: str, fields: Mapping[str, Any], *, account: Account
) -> Row:
    """Append a transition to the journal of a data set whose row is locked; return the row after it.

    `dataset` is the row as read under the lock, with the newest ``length`` and ``head``; `account` has the sums after
    the transition.
    """
    record = canonical({"state": state, "at": at, **fields, **_sums(dataset, account)})
    sequence = dataset["length"]
    new = digest(dataset["head"], sequence, record)
    connection.execute(
        sa.insert(tables.journal).values(dataset_id=dataset["id"], sequence=sequence, record=record, digest=new)
    )
    connection.execute(
        sa.update(tables.dataset).where(tables.dataset.c.id == dataset["id"]).values(length=sequence + 1, head=new)
    )
    return {**dataset, "length": sequence + 1, "head": new}


def checked_account(connection: sa.Connection, dataset: Row, *, mark: Mark | None = None) -> Account:
    """The sums of a data set, from the newest entry of its journal, once that is checked.

    Parameters
    ----------
    dataset : row of ``dataset``
    mark : Mark, optional
        What the anchor of the ledger holds.

    Raises
    ------
    LedgerError
        The rows do not agree with the chain, or the database is older than the mark.
    """
    length = dataset["length"]
    if mark is not None and mark.length > length:
        raise _older(dataset, f"its journal has {length} entries, the anchor has seen {mark.length}")
    first = max(min(length if mark is None else mark.length, length) - 2, 0)
    entries = _entries(connection, dataset, first)
    problem = _tail_problem(dataset, entries, first)
    if problem:
        raise damaged(dataset["name"], [problem])
    if mark is not None and entries[mark.length - 1 - first]["digest"] != mark.head:
        raise _older(dataset, f"entry {mark.length - 1} of its journal is not the one that the anchor has seen")
    return Account.from_json(json.loads(entries[-1]["record"])["account"])


def check_history(connection: sa.Connection, dataset: Row, account: Account) -> None:
    """Check what a reservation can check of the older history in milliseconds.

    That is the number of charges, of all and of those that are spent, and of the journal the `WINDOW` newest entries
    and as many more at a place that the head decides: their chain, the charges that they reserved, and the states that
    they gave. A journal of up to `WINDOW` entries is checked whole, and that of
    a data set with an account of leakage: it has no sums in the journal.

    Raises
    ------
    LedgerError
        A row was deleted, added or altered.
    """
    charge = tables.charge.c
    leaked = sa.and_(charge.guarantee == "pml", charge.event != "null", sa.literal(dataset["pml_cap"] is not None))
    kept = sa.case((sa.and_(charge.state != tables.VOID, sa.or_(charge.costs.is_not(None), leaked)), 1), else_=0)
    counted = sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(kept), 0)).where(
        charge.dataset_id == dataset["id"]
    )
    found, spent = connection.execute(counted).one()
    if found != account.rows:
        raise damaged(dataset["name"], [f"{account.rows} charges were reserved, and {found} are there"])
    if spent != account.charges:
        raise damaged(dataset["name"], [f"{account.charges} charges are spent by the journal, and {spent} by the rows"])
    for first, stop in _windows(dataset):
        problem = _window_problem(connection, dataset, first, stop)
        if problem:
            raise damaged(dataset["name"], [problem])


def _windows(dataset: Row) -> set[tuple[int, int]]:
    """The stretches of the journal that a reservation checks: all, where leakage is composed of the charges' events."""
    length = dataset["length"]
    if dataset["pml_cap"] is not None:
        return {(first, min(first + _AT_ONCE, length)) for first in range(0, length, _AT_ONCE)}
    newest = max(length - WINDOW, 0)
    older = int(dataset["head"][:12], 16) % max(newest, 1)
    return {(newest, length), (older, min(older + WINDOW, newest))}


def _window_problem(connection: sa.Connection, dataset: Row, first: int, stop: int) -> str | None:
    """What is wrong in the entries from `first` to before `stop`, and in the charges that they reserved."""
    base = max(first - 1, 0)
    entries = _entries(connection, dataset, base, stop)
    problem = _chain_problem(entries, base, stop)
    if problem:
        return problem
    records = [json.loads(entry["record"]) for entry in entries[first - base :]]
    moves = [record for record in records if record["state"] in tables.STATES]
    reserved = {record["attempt"]: record for record in moves if record["state"] == tables.RESERVED}
    states = {record["attempt"]: record["state"] for record in moves}
    columns = [tables.charge.c[name] for name in (*RESERVATION, "state")]
    rows = connection.execute(sa.select(*columns).where(tables.charge.c.attempt.in_(list(states)))).mappings()
    found = {row["attempt"]: row for row in rows}
    for attempt, state in states.items():
        if attempt not in found:
            return f"the charge of attempt {attempt} was deleted"
        record = reserved.get(attempt, {})
        if any(found[attempt][name] != record.get(name, found[attempt][name]) for name in RESERVATION):
            return f"the charge of attempt {attempt} was altered"
        is_last = stop == dataset["length"] or state not in tables.OPEN
        if is_last and found[attempt]["state"] != state:
            return f"the charge of attempt {attempt} was altered: state"
    return None


def check_charge(connection: sa.Connection, dataset: Row, charge: Row) -> None:
    """Compare a charge with all that the journal says of its attempt, whose chain is checked from there to the end.

    Raises
    ------
    LedgerError
        The row is not what the journal gives, or the journal was altered.
    """
    attempt, journal = charge["attempt"], tables.journal.c
    named = journal.record.contains(f'"attempt":"{attempt}"', autoescape=True)
    query = sa.select(journal.sequence).where(journal.dataset_id == dataset["id"], named)
    query = query.where(journal.record.contains(_RESERVED)).order_by(journal.sequence.desc()).limit(1)
    start = connection.execute(query).scalar_one_or_none()
    if start is None:
        raise damaged(dataset["name"], [f"the charge of attempt {attempt} is not in the journal"])
    expected: dict[str, Any] = {}
    for first in range(start, dataset["length"], _AT_ONCE):
        base, stop = max(first - 1, 0), min(first + _AT_ONCE, dataset["length"])
        entries = _entries(connection, dataset, base, stop)
        problem = _chain_problem(entries, base, stop)
        if problem:
            raise damaged(dataset["name"], [problem])
        for entry in entries[first - base :]:
            if attempt in entry["record"]:
                expected |= _said_of(attempt, json.loads(entry["record"]))
    altered = [name for name, value in expected.items() if charge[name] != value]
    if altered:
        raise damaged(dataset["name"], [f"the charge of attempt {attempt} was altered: {', '.join(altered)}"])


def checked_records(connection: sa.Connection, dataset: Row, first: int) -> list[str]:
    """The records of the entries from `first` to the end, once their chain is checked.

    Raises
    ------
    LedgerError
        An entry is missing or altered.
    """
    base = max(first - 1, 0)
    entries = _entries(connection, dataset, base, dataset["length"])
    problem = _chain_problem(entries, base, dataset["length"])
    if problem or entries[-1]["digest"] != dataset["head"]:
        raise damaged(dataset["name"], [problem or "the end of the journal was cut off or altered"])
    return [entry["record"] for entry in entries[first - base :]]


def entered_keys(connection: sa.Connection, dataset: Row) -> list[str]:
    """The public keys of the signing identities that the journal has, oldest first."""
    entry = tables.journal.c
    entered = sa.or_(entry.sequence == 0, entry.record.contains(f'"state":"{IDENTITY}"', autoescape=True))
    query = sa.select(entry.record).where(entry.dataset_id == dataset["id"], entered).order_by(entry.sequence)
    return public_keys_in([json.loads(record) for record in connection.execute(query).scalars()])


def public_keys_in(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """The public keys of the signing identities in records of a journal, from its first one on; oldest first."""
    first = [records[0][IDENTITY]] if records and IDENTITY in records[0] else []
    return first + [record["public_key"] for record in records if record["state"] == IDENTITY]


def _said_of(attempt: str, record: Mapping[str, Any]) -> dict[str, Any]:
    """What an entry says of the columns of a charge."""
    if record.get("attempt") != attempt:
        return {}
    return {name: record[name] for name in (*RESERVATION, "state", "manifest_sha256") if name in record}


def _entries(connection: sa.Connection, dataset: Row, first: int, stop: int | None = None) -> list[Row]:
    sequence = tables.journal.c.sequence
    query = sa.select(tables.journal).where(tables.journal.c.dataset_id == dataset["id"], sequence >= first)
    if stop is not None:
        query = query.where(sequence < stop)
    return [dict(entry) for entry in connection.execute(query.order_by(sequence)).mappings()]


def _chain_problem(entries: Sequence[Row], first: int, stop: int) -> str | None:
    """What is missing or altered among the entries from `first` on, of which the one before is taken as it is."""
    if [entry["sequence"] for entry in entries] != list(range(first, stop)):
        return "entries of the journal are missing"
    chain = "" if first == 0 else entries[0]["digest"]
    for entry in entries if first == 0 else entries[1:]:
        chain = digest(chain, entry["sequence"], entry["record"])
        if chain != entry["digest"]:
            return f"journal entry {entry['sequence']} was altered"
    return None


def _tail_problem(dataset: Row, entries: Sequence[Row], first: int) -> str | None:
    """What does not agree in the entries from `first` on: their chain, their end, the terms in the last one."""
    problem = _chain_problem(entries, first, dataset["length"])
    if problem:
        return problem
    if entries[-1]["digest"] != dataset["head"]:
        return "the end of the journal was cut off or altered"
    if json.loads(entries[-1]["record"]).get("terms") != terms_digest(dataset):
        return "the data set's caps or policy were altered"
    return None


def damaged(name: str, problems: Sequence[str]) -> LedgerError:
    """The error of a ledger whose records do not agree."""
    return LedgerError(
        f"the ledger of data set {name!r} is damaged: {'; '.join(problems[:5])}. "
        "Restore it from a backup, and charge nothing until then"
    )


def _older(dataset: Row, how: str) -> LedgerError:
    return LedgerError(
        f"the ledger of data set {dataset['name']!r} is not the one that its anchor has seen: {how}. Restore the "
        "newest backup. Where there is none, releases made since then are not charged here: release nothing more about "
        "this data set from this ledger"
    )


def terms_of(dataset: Row) -> dict[str, Any]:
    """The terms of a data set, which its custodian alone may amend."""
    terms = {column: dataset[column] for column in _TERMS}
    optional = {column: dataset[column] for column in _OPTIONAL if dataset.get(column) is not None}
    return {**terms, **optional}


def terms_digest(dataset: Row) -> str:
    """The digest of the terms that every entry carries."""
    return hashlib.sha256(canonical(terms_of(dataset)).encode()).hexdigest()


def canonical(fields: Mapping[str, Any]) -> str:
    """The text of a record."""
    return json.dumps(fields, sort_keys=True, separators=(",", ":"))


def _sums(dataset: Row, account: Account) -> dict[str, Any]:
    return {"account": account.to_json(), "terms": terms_digest(dataset)}
