"""What may happen to a charge, each inside one transaction that holds the lock of its data set.

::

    reserve ──► reserved ── mark_drawing ──► drawing ── commit ──► committed
                   │                            │
                   └─► void (not spent)         └─► abandoned (spent), given up or by a new attempt at the release

`void` is possible only before the first noise is drawn. Every transition may be repeated: the second time it finds
its work done.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any, Final

import sqlalchemy as sa

from dpdist.errors import GuaranteeRefused, LedgerError, ReleaseConflict
from dpdist.ledger import journal, period, tables
from dpdist.ledger.account import Account, Charged
from dpdist.ledger.anchor import Mark
from dpdist.ledger.budget import Price, admit, admit_leakage
from dpdist.ledger.records import BUDGETED, Attempt
from dpdist.ledger.replay import changed
from dpdist.ledger.rows import (
    NO_EVENT,
    Row,
    attempt_record,
    dataset_record,
    is_leakage,
    leakage_events,
    live_charge,
    lock_charge,
    lock_dataset,
    release_charges,
    stale,
)


def now() -> str:
    """Return the time, ISO 8601 in UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def reserve(
    connection: sa.Connection,
    *,
    request: Mapping[str, str],
    dataset: str,
    price: Price | None,
    filters: str,
    wrapped_key: bytes,
    new_attempt: bool,
    mark: Mark | None,
    admits: Callable[[sa.Connection, Row], None],
) -> None:
    """Reserve a charge.

    `request` holds the attempt, release, guarantee, event, spec hash and input fingerprint; `price` what the event
    costs under the data set's `filters`; `admits` refuses what the data set's contract does not admit.
    """
    row = lock_dataset(connection, dataset)
    account = journal.checked_account(connection, row, mark=mark)
    journal.check_history(connection, row, account)
    if _is_repeated(connection, row, request):
        return
    refuse_guarantee(row, request)
    admits(connection, row)
    mine = release_charges(connection, row, request["release"])
    for charge in mine:
        journal.check_charge(connection, row, charge)
    replaced = _replaceable(mine, request, new_attempt=new_attempt)
    if replaced is not None:
        row, account = move(connection, row, account, replaced, _ENDS[replaced["state"]])
    if row["filters"] != filters:
        raise LedgerError(f"data set {dataset!r} got other filters while this release was priced: run it again")
    at = now()
    epsilon, charged, account = _admitted(connection, row, account, request, price)
    period.admit(connection, row, request, price, at=at)
    fields = {**request, "epsilon": str(epsilon), "costs": None if charged is None else charged.to_text()}
    receipt = journal.append(connection, row, tables.RESERVED, at, fields, account=account.entered())["head"]
    connection.execute(
        sa.insert(tables.charge).values(
            dataset_id=row["id"],
            state=tables.RESERVED,
            receipt=receipt,
            created=at,
            updated=at,
            wrapped_key=wrapped_key,
            **fields,
        )
    )


def _is_repeated(connection: sa.Connection, dataset: Row, request: Mapping[str, str]) -> bool:
    """Whether this attempt is reserved already; refuse another request of its id."""
    same = sa.select(tables.charge).where(tables.charge.c.attempt == request["attempt"])
    charge = connection.execute(same).mappings().one_or_none()
    if charge is None:
        return False
    if charge["dataset_id"] != dataset["id"] or any(charge[name] != value for name, value in request.items()):
        raise taken(request["attempt"])
    return True


def taken(attempt: str) -> ReleaseConflict:
    """The error for an attempt id that something else has."""
    return ReleaseConflict(f"attempt {attempt} is reserved with another data set, spec, input or charge")


def _admitted(
    connection: sa.Connection, row: Row, account: Account, request: Mapping[str, str], price: Price | None
) -> tuple[Fraction, Charged | None, Account]:
    """What is charged, by itself and from each filter, and the account after it."""
    terms, release = dataset_record(row), request["release"]
    if request["event"] == NO_EVENT:
        return Fraction(0), None, account
    if is_leakage(row, request["guarantee"]):
        leaked = admit_leakage(terms, leakage_events(connection, row), request["event"], release=release)
        return leaked, None, account.charged(None)
    if price is None:
        raise LedgerError(f"release {release!r} has a charge without a price")
    charged = admit(terms, account, price, release=release)
    return price.epsilon or Fraction(0), charged, account.charged(charged)


_ENDS: Final = {tables.RESERVED: tables.VOID, tables.DRAWING: tables.ABANDONED}


def move(
    connection: sa.Connection, dataset: Row, account: Account, charge: Row, state: str, **fields: str
) -> tuple[Row, Account]:
    """Write a transition; return the data set's row and its account after it. The key is erased with the last state."""
    at = now()
    if state == tables.VOID:
        account = changed(dataset, account, charge, sign=-1)
    body = {"attempt": charge["attempt"], **fields}
    after = journal.append(connection, dataset, state, at, body, account=account)
    values: dict[str, Any] = {"state": state, "updated": at, **fields}
    if state not in tables.OPEN:
        values["wrapped_key"] = None
    connection.execute(sa.update(tables.charge).where(tables.charge.c.id == charge["id"]).values(values))
    return after, account


def _locked(connection: sa.Connection, attempt: str, mark: Mark | None) -> tuple[Row, Row, Account]:
    """The data set of an attempt, locked, its charge and its account, all checked with the journal."""
    dataset, charge = lock_charge(connection, attempt)
    account = journal.checked_account(connection, dataset, mark=mark)
    journal.check_charge(connection, dataset, charge)
    return dataset, charge, account


def mark_drawing(connection: sa.Connection, attempt: str, *, mark: Mark | None = None) -> None:
    """Write down that noise is about to be drawn."""
    dataset, charge, account = _locked(connection, attempt, mark)
    if charge["state"] == tables.RESERVED:
        move(connection, dataset, account, charge, tables.DRAWING)
    elif charge["state"] != tables.DRAWING:
        raise stale(charge)


def commit(connection: sa.Connection, attempt: str, manifest_sha256: str, *, mark: Mark | None = None) -> None:
    """Commit an attempt to the manifest with this digest."""
    dataset, charge, account = _locked(connection, attempt, mark)
    if charge["state"] == tables.DRAWING:
        move(connection, dataset, account, charge, tables.COMMITTED, manifest_sha256=manifest_sha256)
    elif charge["state"] == tables.RESERVED:
        raise LedgerError(f"attempt {attempt} cannot be committed: mark_drawing comes first, before any noise")
    elif charge["state"] != tables.COMMITTED:
        raise stale(charge)
    elif charge["manifest_sha256"] != manifest_sha256:
        raise ReleaseConflict(
            f"release {charge['release']!r} of data set {dataset['name']!r} is committed with another manifest: "
            "choose another release name"
        )


def void(connection: sa.Connection, attempt: str, *, mark: Mark | None = None) -> None:
    """Give a charge back; only before noise was drawn."""
    dataset, charge, account = _locked(connection, attempt, mark)
    if charge["state"] == tables.RESERVED:
        move(connection, dataset, account, charge, tables.VOID)
    elif charge["state"] != tables.VOID:
        raise LedgerError(
            f"attempt {attempt} is {charge['state']}: noise was drawn, so its charge stays; resume the release or "
            "let it be"
        )


def give_up(connection: sa.Connection, attempt: str, *, mark: Mark | None = None) -> None:
    """End an open attempt: its charge is given back, or stays spent where noise may have been drawn."""
    dataset, charge, account = _locked(connection, attempt, mark)
    if charge["state"] == tables.COMMITTED:
        raise ReleaseConflict(f"attempt {attempt} is committed: it is the release, and its charge stays")
    if charge["state"] in tables.OPEN:
        move(connection, dataset, account, charge, _ENDS[charge["state"]])


def live(connection: sa.Connection, dataset: str, release: str) -> Row | None:
    """The open or committed charge of a release, None when it has none."""
    row = lock_dataset(connection, dataset, lock=False)
    charge = live_charge(release_charges(connection, row, release), release)
    if charge is not None:  # what it committed to is signed
        journal.checked_account(connection, row)
        journal.check_charge(connection, row, charge)
    return charge


def resume(connection: sa.Connection, dataset: str, release: str, spec_hash: str, input_fingerprint: str) -> Attempt:
    """Return the open attempt of a release if spec and input are the same."""
    charge = live(connection, dataset, release)
    if charge is None:
        raise LedgerError(f"release {release!r} of data set {dataset!r} has no open attempt: run it without resuming")
    if charge["state"] == tables.COMMITTED:
        raise _committed(charge)
    if charge["spec_hash"] != spec_hash:
        raise _other_spec(charge)
    if charge["input_fingerprint"] != input_fingerprint:
        raise ReleaseConflict(
            f"release {release!r}: the input changed since attempt {charge['attempt']} began, and the same noise on "
            "changed data would show the change; restore the input, or ask for a new attempt (new key, new charge)"
        )
    return attempt_record(charge, dataset)


def refuse_guarantee(dataset: Row, request: Mapping[str, str]) -> None:
    """Refuse a kind of guarantee that the policy of the data set does not allow, or that lacks its event."""
    kind, allowed = request["guarantee"], json.loads(dataset["guarantees"])
    if kind not in allowed:
        raise GuaranteeRefused(
            f"data set {dataset['name']!r} allows the guarantees {', '.join(allowed)}, not {kind!r}: choose another "
            f"kind of release, or a data set made with `dpdist ledger create --allow {kind}`"
        )
    if kind in BUDGETED and request["event"] == NO_EVENT:
        raise GuaranteeRefused(f"a release with the guarantee {kind!r} needs a privacy event to charge")
    event = json.loads(request["event"])
    exact = isinstance(event, dict) and event.get("scale", 1) is None
    if kind == "pml" and exact and not is_leakage(dataset, kind):
        raise GuaranteeRefused(
            f"data set {dataset['name']!r} has no account of leakage, so a release is charged its differential "
            "privacy, and exact counts have none: add noise (a smaller privacy.epsilon), or use a data set that was "
            "created with --pml"
        )


def _replaceable(mine: list[Row], request: Mapping[str, str], *, new_attempt: bool) -> Row | None:
    """Return the open charge that the request replaces, None when there is none; refuse a taken release name."""
    live = live_charge(mine, request["release"])
    if live is not None and live["state"] == tables.COMMITTED:
        raise _committed(live)
    if live is not None and not new_attempt:
        if live["spec_hash"] != request["spec_hash"]:
            raise _other_spec(live)
        raise ReleaseConflict(
            f"release {request['release']!r} has the open attempt {live['attempt']}: wait for its run, or "
            "resume it (no new charge), or ask for a new attempt (new key, new charge)"
        )
    for row in mine:
        if row["state"] in (tables.DRAWING, tables.ABANDONED) and row["spec_hash"] != request["spec_hash"]:
            raise _other_spec(row)
    return live


def _committed(charge: Row) -> ReleaseConflict:
    return ReleaseConflict(f"release {charge['release']!r} is committed already: choose another release name")


def _other_spec(charge: Row) -> ReleaseConflict:
    return ReleaseConflict(
        f"release {charge['release']!r} was begun with another spec, another public table under its "
        f"model.prior, or another data.storage (attempt {charge['attempt']}): run it with that one, or choose another "
        "release name"
    )
