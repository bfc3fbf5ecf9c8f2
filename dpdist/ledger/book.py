"""The book of a data set: its row, its charges and its journal, opened, locked and checked together.

The journal is append-only and chained: entry i holds a canonical JSON record and ``SHA-256(digest of entry i - 1 | i |
record)``. Entry 0 records the terms of the data set: caps, filters, policy, contract. Each later one is a transition of
a charge or an act of the custodian. Whoever opens a book replays all of it and compares what it gives with the rows:
editing, adding, deleting or reordering anything is found before anything is read, charged or signed.

Whoever can rewrite the *whole* chain can only be caught by a digest kept elsewhere: an anchor, or a receipt.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import sqlalchemy as sa

from dpdist.errors import DatasetUnknown, LedgerError
from dpdist.ledger import tables
from dpdist.ledger.anchor import Mark
from dpdist.ledger.records import UNREADABLE, Account, Charge, Dataset, canonical, damaged
from dpdist.spec.contract import Contract

Row = dict[str, Any]

CREATED: Final = "created"
AMENDED: Final = "amended"
"""An act of the custodian: other caps or another contract, with a reason."""

ADMITTED: Final = "input"
"""An act of the custodian: an input keeps the contract."""

IDENTITY: Final = "identity"
"""A new signing identity; the first one may stand in entry 0."""

TERMS: Final = ("name", "epsilon_cap", "delta_cap", "guarantees", "created", "filters", "pml_cap", "contract")
_REQUEST: Final = ("attempt", "release", "guarantee", "event", "epsilon", "spec_hash", "input_fingerprint", "costs")
_COMPARED: Final = (*_REQUEST, "state", "manifest_sha256", "receipt", "created", "updated")
_BEFORE: Final[Mapping[str, str | None]] = {
    tables.RESERVED: None,
    tables.DRAWING: tables.RESERVED,
    tables.COMMITTED: tables.DRAWING,
    tables.ABANDONED: tables.DRAWING,
    tables.VOID: tables.RESERVED,
}
"""State -> the one that it follows."""


def now() -> str:
    """Return the time, ISO 8601 in UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def digest(previous: str, sequence: int, record: str) -> str:
    """Return the chained digest of an entry, 64 hexadecimal digits."""
    return hashlib.sha256(f"{previous}\n{sequence}\n{record}".encode()).hexdigest()


@dataclass
class _Replay:
    """What a journal says: the terms, the charges, the admitted inputs and the identities after its last entry."""

    terms: Row = field(default_factory=dict)
    charges: dict[str, Row] = field(default_factory=dict)
    inputs: list[tuple[str, str]] = field(default_factory=list)
    months: dict[str, tuple[str, ...]] = field(default_factory=dict)
    keys: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def follow(self, position: int, record: Row, receipt: str) -> None:
        """Take one more entry."""
        state = record["state"]
        if (state == CREATED) != (position == 0):
            self.problems.append(f"journal entry {position} is no valid transition")
        elif state == CREATED:
            self.terms = {name: record[name] for name in TERMS}
            self.keys += [record[IDENTITY]] if IDENTITY in record else []
        elif state == AMENDED:
            self.terms |= record["changes"]
        elif state == ADMITTED:
            self.inputs.append((record["fingerprint"], record["contract"]))
            self.months |= {record["fingerprint"]: tuple(record["months"])} if "months" in record else {}
        elif state == IDENTITY:
            self.keys.append(record["public_key"])
        else:
            self._move(position, record, receipt)

    def _move(self, position: int, record: Row, receipt: str) -> None:
        attempt, state, at = record["attempt"], record["state"], record["at"]
        before = self.charges.get(attempt, {}).get("state")
        if state not in _BEFORE or _BEFORE[state] != before:
            self.problems.append(f"journal entry {position} is no valid transition")
        elif state == tables.RESERVED:
            charge = {name: record[name] for name in _REQUEST}
            charge |= {"state": state, "manifest_sha256": None, "receipt": receipt, "created": at, "updated": at}
            self.charges[attempt] = charge
        else:
            self.charges[attempt] |= {"state": state, "updated": at}
            self.charges[attempt]["manifest_sha256"] = record.get("manifest_sha256")


class Book:
    """The row, the charges and the journal of one data set, in one transaction."""

    def __init__(self, connection: sa.Connection, row: Row) -> None:
        # the row of the data set, and the time of the transaction, which its entries carry
        self.connection, self.row, self.at = connection, row, now()
        self.receipts: set[str] = set()  # the digests of all entries
        self.charges: dict[str, Row] = {}  # their rows by attempt, in the order in which they were reserved
        self.dataset: Dataset  # the row as a record
        self.inputs: list[tuple[str, str]] = []  # fingerprint of each admitted input, digest of the contract it keeps
        self.months: dict[str, tuple[str, ...]] = {}  # by fingerprint, where records are in one month alone
        # the rows of the signing identities, oldest first
        self.identities = self._rows(tables.identity)

    @classmethod
    def open(cls, connection: sa.Connection, name: str, *, mark: Mark | None = None, lock: bool = False) -> Book:
        """Open and check the book of a data set; with `lock` nobody else writes it until the transaction ends.
        Raises DatasetUnknown; LedgerError: a row or an entry was changed outside of dpdist, or the database is older
        than the mark.

        Parameters
        ----------
        mark : Mark, optional
            What the anchor of the ledger has seen.
        """
        book = cls(connection, dataset_row(connection, name, lock=lock))
        try:
            problems = book._check(mark)
        except UNREADABLE:
            problems = ["what is in a row, or in an entry of the journal, cannot be read"]
        if problems:
            raise damaged(name, problems)
        return book

    def _check(self, mark: Mark | None) -> list[str]:
        """Replay the journal and compare the rows with it; return what does not agree."""
        if mark is not None and mark.length > self.row["length"]:
            raise _older(self.name, f"its journal has {self.row['length']} entries, the anchor has seen {mark.length}")
        columns = tables.journal.c
        query = sa.select(columns.sequence, columns.record, columns.digest)
        query = query.where(columns.dataset_id == self.row["id"]).order_by(columns.sequence)
        replay, head, length = _Replay(), "", 0
        for length, (sequence, record, written) in enumerate(self.connection.execute(query), start=1):
            position = length - 1
            if sequence != position:
                return [f"journal entry {position} is missing"]
            head = digest(head, position, record)
            if head != written:
                return [f"journal entry {position} was altered"]
            if mark is not None and length == mark.length and head != mark.head:
                how = f"entry {position} of its journal is not the one that the anchor has seen"
                raise _older(self.name, how)
            self.receipts.add(head)
            replay.follow(position, json.loads(record), head)
        if not length or (self.row["length"], self.row["head"]) != (length, head):
            return ["the end of the journal was cut off or altered"]
        self.inputs, self.months = replay.inputs, replay.months
        problems = replay.problems + self._differences(replay)
        if not problems:
            self.dataset = Dataset.of(self.row)
            _ = self.account  # its numbers can be read
        return problems

    def _differences(self, replay: _Replay) -> list[str]:
        """Where the rows differ from what the journal says."""
        problems = []
        if replay.terms != {name: self.row[name] for name in TERMS}:
            problems.append("the data set's caps or policy were altered")
        if replay.keys != [one["public_key"] for one in self.identities]:
            problems.append("the signing identities were altered")
        admitted = {(one["fingerprint"], one["contract"]) for one in self._rows(tables.admitted_input)}
        if admitted != set(replay.inputs):
            problems.append("the admitted inputs were altered")
        rows = {row["attempt"]: row for row in self._rows(tables.charge)}
        for attempt, expected in replay.charges.items():
            row = rows.pop(attempt, None)
            if row is None:
                problems.append(f"the charge of attempt {attempt} was deleted")
                continue
            altered = [column for column in _COMPARED if row[column] != expected[column]]
            problems += [f"the charge of attempt {attempt} was altered: {column}" for column in altered]
            self.charges[attempt] = row
        return problems + [f"the charge of attempt {attempt} is not in the journal" for attempt in rows]

    def _rows(self, table: sa.Table) -> list[Row]:
        query = sa.select(table).where(table.c.dataset_id == self.row["id"]).order_by(*table.primary_key)
        found = self.connection.execute(query)
        names = tuple(found.keys())
        return [dict(zip(names, row, strict=True)) for row in found]

    @property
    def name(self) -> str:
        """The name of the data set."""
        return str(self.row["name"])

    @property
    def mark(self) -> Mark:
        """How far the journal goes."""
        return Mark(self.row["length"], self.row["head"])

    @property
    def spent(self) -> list[Row]:
        """The charges that are not void."""
        return [charge for charge in self.charges.values() if charge["state"] in tables.SPENT]

    @property
    def account(self) -> Account:
        """The sums over all charges that are spent, or those of the month that spent most."""
        return self.account_of_most(self.spent)

    def account_of_most(self, charges: list[Row], months: Iterable[str] = ()) -> Account:
        """The account of what counts for one record, of the month that spent most."""

        def spent(account: Account) -> float:
            found = account.epsilon(self.dataset.portfolio)
            return math.inf if found is None else float(found)

        accounts = [self.account_of(part) for part in self.parts(charges, months)]
        return accounts[0] if len(accounts) == 1 else max(accounts, key=spent)

    def parts(self, charges: list[Row], months: Iterable[str] = ()) -> list[list[Row]]:
        """The charges that count for one record: all of them, or those of each month, by default of every one.

        Where a record is in the files of one month, others count for it only if their months are not known.
        """
        text = self.row["contract"] if self.months else None
        known = self.months if text is not None and Contract.from_text(text).data.every is not None else {}
        of = [(charge, known.get(charge["input_fingerprint"])) for charge in charges]
        asked = set(months) or {month for _, own in of for month in own or ()}
        found = [[charge for charge, own in of if own is None or month in own] for month in sorted(asked)]
        return found if known and found else [charges]

    @property
    def leakage(self) -> list[str]:
        """The events (JSON) that count against the account of leakage."""
        return [charge["event"] for charge in self.spent if self.dataset.leaks(charge)]

    def account_of(self, charges: Iterable[Row]) -> Account:
        """The sums over some charges."""
        leaks = self.dataset.leaks
        counted = (charge["costs"] for charge in charges if charge["costs"] is not None or leaks(charge))
        return Account.of(self.dataset.portfolio, counted)

    def live(self, release: str) -> Row | None:
        """The open or committed charge of a release, None when it has none."""
        found = (row for row in self.charges.values() if row["release"] == release and row["state"] in tables.LIVE)
        return next(found, None)

    def record(self, attempt: str) -> Charge:
        """The charge of an attempt as a record."""
        return Charge.of(self.charges[attempt], self.name)

    def append(self, state: str, fields: Mapping[str, Any]) -> str:
        """Append an entry to the journal, whose data set is locked; return its digest."""
        record = canonical({"state": state, "at": self.at, **fields})
        sequence, dataset = self.row["length"], tables.dataset
        head = digest(self.row["head"], sequence, record)
        entry = {"dataset_id": self.row["id"], "sequence": sequence, "record": record, "digest": head}
        self.connection.execute(sa.insert(tables.journal).values(entry))
        self.row |= {"length": sequence + 1, "head": head}
        update = sa.update(dataset).where(dataset.c.id == self.row["id"])
        self.connection.execute(update.values(length=sequence + 1, head=head))
        return head


def create(connection: sa.Connection, terms: Mapping[str, str | None], public_key: str | None) -> Row:
    """Enter a data set and the first entry of its journal; return its row."""
    signing = {} if public_key is None else {IDENTITY: public_key}
    record = canonical({"state": CREATED, **terms, **signing})
    head = digest("", 0, record)
    insert = sa.insert(tables.dataset).values(**terms, length=1, head=head).returning(tables.dataset)
    row = dict(connection.execute(insert).mappings().one())
    entry = {"dataset_id": row["id"], "sequence": 0, "record": record, "digest": head}
    connection.execute(sa.insert(tables.journal).values(entry))
    return row


def dataset_row(connection: sa.Connection, name: str, *, lock: bool = False) -> Row:
    """Return the row of a data set, as it is; with `lock`, locked until the transaction ends."""
    query = sa.select(tables.dataset).where(tables.dataset.c.name == name)
    row = connection.execute(query.with_for_update() if lock else query).mappings().one_or_none()
    if row is None:
        raise DatasetUnknown(
            f"no data set {name!r} in the ledger: create it with dpdist ledger create {name} --epsilon … --delta …, "
            f"in Python ledger.create({name!r}, epsilon=…, delta=…)"
        )
    return dict(row)


def charge_row(connection: sa.Connection, attempt: str) -> Row:
    """Return the row of an attempt's charge, as it is, and the name of its data set as ``dataset``."""
    query = sa.select(tables.charge, tables.dataset.c.name.label("dataset")).join(tables.dataset)
    row = connection.execute(query.where(tables.charge.c.attempt == attempt)).mappings().one_or_none()
    if row is None:
        raise LedgerError(f"no attempt {attempt} in the ledger: check that this is the ledger it was reserved in")
    return dict(row)


def _older(name: str, how: str) -> LedgerError:
    return LedgerError(
        f"the ledger of data set {name!r} is not the one that its anchor has seen: {how}. Restore the "
        "newest backup. Where none exists, releases made since then are not charged here: release nothing more about "
        "this data set from this ledger"
    )
