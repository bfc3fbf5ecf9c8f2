"""All of a data set's journal, replayed against its rows: what `dpdist ledger verify` does."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from dpdist.ledger import tables
from dpdist.ledger.account import Account, Charged, portfolio_of
from dpdist.ledger.journal import (
    ADMITTED,
    AMENDED,
    CREATED,
    IDENTITIES_ALTERED,
    IDENTITY,
    RESERVATION,
    Row,
    digest,
    public_keys_in,
    terms_digest,
    terms_of,
)

_BEFORE: Final[Mapping[str, tuple[str | None, ...]]] = {
    tables.RESERVED: (None,),
    tables.DRAWING: (tables.RESERVED,),
    tables.COMMITTED: (tables.DRAWING,),
    tables.ABANDONED: (tables.DRAWING,),
    tables.VOID: (tables.RESERVED,),
}
"""State -> states it may follow."""

_COMPARED: Final = (*RESERVATION, "state", "manifest_sha256", "receipt", "created", "updated")


def check_journal(
    dataset: Row, entries: Sequence[Row], charges: Iterable[Row], receipts: Iterable[str], keys: Sequence[str] = ()
) -> list[str]:
    """Replay a data set's journal against its rows; return what does not agree, empty if all does.

    Parameters
    ----------
    dataset : row of ``dataset``
    entries : rows of ``journal`` by sequence
    charges : rows of ``charge``
    receipts : digests noted elsewhere that must be in the journal
    keys : public keys of the signing identities, oldest first
    """
    problems, seen = _chain(dataset, entries)
    problems += [f"receipt {receipt[:12]} is not in the journal" for receipt in receipts if receipt not in seen]
    if problems:
        return problems
    attempts, account, problems = _replayed(dataset, entries)
    problems += _differences(attempts, charges)
    records = [json.loads(entry["record"]) for entry in entries]
    if public_keys_in(records) != list(keys):
        problems.append(IDENTITIES_ALTERED)
    last = json.loads(entries[-1]["record"])
    if last.get("terms") != terms_digest(dataset) or last.get("account") != account.to_json():
        problems.append("the sums of the account were altered")
    return problems


def _chain(dataset: Row, entries: Sequence[Row]) -> tuple[list[str], set[str]]:
    """What breaks the chain, and the digests in it."""
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
    return problems, seen


def _replayed(dataset: Row, entries: Sequence[Row]) -> tuple[dict[str, dict[str, Any]], Account, list[str]]:
    """The attempts and the sums that the journal gives, and what is wrong in it."""
    created, *records = [json.loads(entry["record"]) for entry in entries]
    account, problems = Account.empty(portfolio_of(dataset)), list[str]()
    if created["state"] != CREATED or _last_terms(created, records) != terms_of(dataset):
        problems.append("the data set's caps or policy were altered")
    attempts: dict[str, dict[str, Any]] = {}
    for position, (entry, record) in enumerate(zip(entries[1:], records, strict=True), start=1):
        if record["state"] not in (ADMITTED, AMENDED, IDENTITY):
            account = _moved(dataset, attempts, account, entry, record, problems, position)
        if "account" in record and record["account"] != account.to_json():
            problems.append(f"the sums in journal entry {position} are not those of the charges before it")
    return attempts, account, problems


def _last_terms(created: Mapping[str, Any], records: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The terms after the first entry and all that amend them."""
    terms = {name: value for name, value in created.items() if name not in ("state", "account", "terms", IDENTITY)}
    for record in records:
        if record["state"] == AMENDED:
            terms |= record["changes"]
    return {name: value for name, value in terms.items() if value is not None}


def _moved(
    dataset: Row,
    attempts: dict[str, dict[str, Any]],
    account: Account,
    entry: Row,
    record: dict[str, Any],
    problems: list[str],
    position: int,
) -> Account:
    """One transition of an attempt."""
    attempt = attempts.get(record["attempt"], {"state": None})
    if attempt["state"] not in _BEFORE.get(record["state"], ()):
        problems.append(f"journal entry {position} is no valid transition")
    if record["state"] == tables.RESERVED:
        attempt = {**record, "created": record["at"], "manifest_sha256": None, "receipt": entry["digest"]}
        account = changed(dataset, account.entered(), attempt)
    elif record["state"] == tables.VOID:
        account = changed(dataset, account, attempt, sign=-1)
    now = {"state": record["state"], "updated": record["at"]}
    if record["state"] == tables.COMMITTED:
        now["manifest_sha256"] = record["manifest_sha256"]
    attempts[record["attempt"]] = {**attempt, **now}
    return account


def changed(dataset: Row, account: Account, charge: Mapping[str, Any], *, sign: int = 1) -> Account:
    """The account with the charge of an attempt, or without it."""
    if charge.get("costs") is not None:
        return account.charged(Charged.from_text(charge["costs"]), sign=sign)
    leaked = charge.get("guarantee") == "pml" and dataset["pml_cap"] is not None and charge.get("event") != "null"
    return account.charged(None, sign=sign) if leaked else account


def _differences(attempts: dict[str, dict[str, Any]], charges: Iterable[Row]) -> list[str]:
    """Where the rows of the charges differ from the replay."""
    problems, expected = [], dict(attempts)
    for row in charges:
        attempt = expected.pop(row["attempt"], None)
        if attempt is None:
            problems.append(f"the charge of attempt {row['attempt']} is not in the journal")
            continue
        problems += [
            f"the charge of attempt {row['attempt']} was altered: {column}"
            for column in _COMPARED
            if row[column] != attempt.get(column)
        ]
    return problems + [f"the charge of attempt {name} was deleted" for name in expected]
