"""The append-only, chained record of a data set, and its replay.

Entry i holds a canonical JSON record and ``SHA-256(digest of entry i - 1 | i | record)``. Entry 0 records the data
set's caps and policy; each later one a transition of an attempt. Editing, deleting or reordering anything breaks
the chain or leaves rows that the replay does not give. Whoever can rewrite the *whole* chain can only be caught by
a digest kept elsewhere (a manifest's receipt): `check_journal` looks for those too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa

from dpdist.ledger import tables

Row = Mapping[str, Any]

_CREATED: Final = "created"
_BEFORE: Final[Mapping[str, tuple[str | None, ...]]] = {
    tables.RESERVED: (None,),
    tables.DRAWING: (tables.RESERVED,),
    tables.COMMITTED: (tables.DRAWING,),
    tables.ABANDONED: (tables.DRAWING,),
    tables.VOID: (tables.RESERVED,),
}
"""State -> states it may follow."""

RESERVATION: Final = ("attempt", "release", "guarantee", "event", "epsilon", "spec_hash", "input_fingerprint")


def digest(previous: str, sequence: int, record: str) -> str:
    """Return the chained digest of an entry, 64 hexadecimal digits."""
    return hashlib.sha256(f"{previous}\n{sequence}\n{record}".encode()).hexdigest()


def first_entry(values: Mapping[str, Any]) -> tuple[str, str]:
    """Return (record, digest) of entry 0 from the data set's row values."""
    record = _record({"state": _CREATED, **_terms(values)})
    return record, digest("", 0, record)


def append(connection: sa.Connection, dataset: Row, state: str, at: str, fields: Mapping[str, Any]) -> str:
    """Append a transition to the journal of a data set whose row is locked; return its digest.

    `dataset` is the row as read under the lock, with the newest ``length`` and ``head``.
    """
    record = _record({"state": state, "at": at, **fields})
    sequence = dataset["length"]
    new = digest(dataset["head"], sequence, record)
    connection.execute(
        sa.insert(tables.journal).values(dataset_id=dataset["id"], sequence=sequence, record=record, digest=new)
    )
    connection.execute(
        sa.update(tables.dataset).where(tables.dataset.c.id == dataset["id"]).values(length=sequence + 1, head=new)
    )
    return new


def check_journal(dataset: Row, entries: Sequence[Row], charges: Iterable[Row], receipts: Iterable[str]) -> list[str]:
    """Replay a data set's journal against its rows; return what does not agree, empty if all does.

    Parameters
    ----------
    dataset : row of ``dataset``
    entries : rows of ``journal`` by sequence
    charges : rows of ``charge``
    receipts : digests noted elsewhere that must be in the journal
    """
    problems: list[str] = []
    previous, seen = "", set[str]()
    for position, entry in enumerate(entries):
        if entry["sequence"] != position:
            problems.append(f"journal entry {position} is missing")
            break
        previous = digest(previous, position, entry["record"])
        if previous != entry["digest"]:
            problems.append(f"journal entry {position} was altered")
            break
        seen.add(previous)
    if not problems and (dataset["length"], dataset["head"]) != (len(entries), previous):
        problems.append("the end of the journal was cut off or altered")
    problems += [f"receipt {receipt[:12]} is not in the journal" for receipt in receipts if receipt not in seen]
    if problems:
        return problems

    created, *transitions = [json.loads(entry["record"]) for entry in entries]
    if created != {"state": _CREATED, **_terms(dataset)}:
        problems.append("the data set's caps or policy were altered")
    replayed: dict[str, dict[str, Any]] = {}
    for position, (entry, record) in enumerate(zip(entries[1:], transitions, strict=True), start=1):
        attempt = replayed.get(record["attempt"], {"state": None})
        if attempt["state"] not in _BEFORE.get(record["state"], ()):
            problems.append(f"journal entry {position} is no valid transition")
        if record["state"] == tables.RESERVED:
            attempt = {**record, "created": record["at"], "manifest_sha256": None, "receipt": entry["digest"]}
        changed = {"state": record["state"], "updated": record["at"]}
        if record["state"] == tables.COMMITTED:
            changed["manifest_sha256"] = record["manifest_sha256"]
        replayed[record["attempt"]] = {**attempt, **changed}

    compared = (*RESERVATION, "state", "manifest_sha256", "receipt", "created", "updated")
    for row in charges:
        expected = replayed.pop(row["attempt"], None)
        if expected is None:
            problems.append(f"the charge of attempt {row['attempt']} is not in the journal")
            continue
        problems += [
            f"the charge of attempt {row['attempt']} was altered: {column}"
            for column in compared
            if row[column] != expected.get(column)
        ]
    problems += [f"the charge of attempt {attempt} was deleted" for attempt in replayed]
    return problems


def _terms(dataset: Row) -> dict[str, Any]:
    terms = {column: dataset[column] for column in ("name", "epsilon_cap", "delta_cap", "guarantees", "created")}
    return terms if dataset["pml_cap"] is None else {**terms, "pml_cap": dataset["pml_cap"]}


def _record(fields: Mapping[str, Any]) -> str:
    return json.dumps(fields, sort_keys=True, separators=(",", ":"))
