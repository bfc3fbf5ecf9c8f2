"""Acts of the custodian of a data set: other caps or another contract, with a reason, and inputs that keep it.

Each is an entry of the journal. Raising epsilon keeps the filters with their deltas and orders, so that the charges
before take from them what they took. Delta stays: each filter has its part of it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from fractions import Fraction
from typing import Any

import sqlalchemy as sa

from dpdist.errors import BudgetExceeded, ContractBroken, LedgerError
from dpdist.ledger import journal, tables
from dpdist.ledger.account import portfolio_of, portfolio_text
from dpdist.ledger.anchor import Mark
from dpdist.ledger.catalogue import terms_of
from dpdist.ledger.contract import Contract
from dpdist.ledger.records import checked_name
from dpdist.ledger.rows import Row, lock_dataset
from dpdist.ledger.transitions import now


def amend(connection: sa.Connection, name: str, *, contract: Contract, reason: str, mark: Mark | None = None) -> None:
    """Give a data set another contract, with its caps.

    Raises
    ------
    LedgerError
        Delta is another one, an account of leakage would go, charges are about another unit, or there is no reason.
    BudgetExceeded
        More is spent than the new caps admit.
    """
    row = lock_dataset(connection, name)
    account = journal.checked_account(connection, row, mark=mark)
    journal.check_history(connection, row, account)
    caps = {"epsilon": str(contract.epsilon), "delta": str(contract.delta)}
    pml = None if contract.pml is None else str(contract.pml)
    terms = terms_of(name, caps["epsilon"], caps["delta"], contract.guarantees, pml, contract.text)
    if terms["delta_cap"] != row["delta_cap"]:
        raise LedgerError(f"data set {name!r}: delta stays {row['delta_cap']}, each filter has its part of it")
    if row["pml_cap"] is not None and (pml is None or Fraction(pml) < Fraction(row["pml_cap"])):
        raise LedgerError(f"data set {name!r}: its account of leakage stays, with a cap of {row['pml_cap']} or more")
    if account.charges and _ids_of(row["contract"]) != _ids_of(contract.text):
        raise LedgerError(
            f"data set {name!r}: its charges say what releases reveal of {_protects(row['contract'])}, and the unit of "
            f"this contract is {_protects(contract.text)}, of which they reveal more: create another data set, and "
            f"admit its input with --besides {name}"
        )
    portfolio = portfolio_of(row).at(contract.epsilon)
    if not account.is_kept(portfolio):
        raise BudgetExceeded(f"data set {name!r}: more is spent than the new cap on epsilon admits")
    new = {**terms, "filters": portfolio_text(portfolio), "created": row["created"]}
    changes = {column: value for column, value in new.items() if value != row[column]}
    if not changes:
        return
    fields = {"changes": changes, "reason": checked_name(reason, setting="the reason")}
    connection.execute(sa.update(tables.dataset).where(tables.dataset.c.id == row["id"]).values(changes))
    journal.append(connection, {**row, **changes}, journal.AMENDED, now(), fields, account=account)


def _ids_of(text: str | None) -> str | None:
    """The column of the ids of the units that a contract protects; None where it protects single records."""
    unit = None if text is None else Contract.from_text(text).protected
    return None if unit is None else unit.by


def _protects(text: str | None) -> str:
    """The unit of a contract in words."""
    column = _ids_of(text)
    return "a single record" if column is None else f"all records with one value of {column!r}"


def admit_input(
    connection: sa.Connection,
    name: str,
    *,
    fingerprint: str,
    contract: str,
    besides: Collection[str] = (),
    mark: Mark | None = None,
) -> None:
    """Write down that an input keeps the contract with this digest; again, it finds its work done.

    `besides` are the data sets that charged the input before, or admit it: their charges are not in this account.

    Raises
    ------
    ContractBroken
        The data set has another contract by now, or none; data sets that charge the input are not among `besides`.
    """
    row = lock_dataset(connection, name)
    account = journal.checked_account(connection, row, mark=mark)
    if row["contract"] is None or Contract.from_text(row["contract"]).digest != contract:
        raise ContractBroken(f"data set {name!r} has not the contract that this input was checked against")
    if _admission(connection, row, fingerprint, contract) is not None:
        return
    known = [one for one in others_of(connection, row, [fingerprint]) if one in besides]
    if unknown := [one for one in others_of(connection, row, [fingerprint]) if one not in besides]:
        options = " ".join(f"--besides {one}" for one in unknown)
        raise ContractBroken(
            f"data set {name!r}: releases of the same input are charged to {', '.join(map(repr, unknown))}, and the "
            f"caps of {name!r} do not cover them: choose its caps with them in mind, and admit the input with {options}"
        )
    fields = {"fingerprint": fingerprint, "contract": contract}
    insert = sa.insert(tables.admitted_input).values(dataset_id=row["id"], sequence=row["length"], **fields)
    connection.execute(insert)
    said = {**fields, "besides": known} if known else fields
    journal.append(connection, row, journal.ADMITTED, now(), said, account=account)


def others_of(connection: sa.Connection, row: Row, fingerprints: Collection[str]) -> list[str]:
    """The other data sets that charged one of these inputs, or admit it, in order."""
    charged, admitted = tables.charge.c, tables.admitted_input.c
    spent = sa.select(charged.dataset_id).where(
        charged.input_fingerprint.in_(fingerprints), charged.state.in_(tables.SPENT)
    )
    theirs = sa.union(spent, sa.select(admitted.dataset_id).where(admitted.fingerprint.in_(fingerprints)))
    found = sa.select(tables.dataset.c.name).where(tables.dataset.c.id.in_(theirs), tables.dataset.c.id != row["id"])
    return list(connection.execute(found.order_by(tables.dataset.c.name)).scalars())


def besides(connection: sa.Connection, row: Row) -> list[str]:
    """The other data sets that charge an input which this one admits, in order."""
    columns = tables.admitted_input.c
    own = connection.execute(sa.select(columns.fingerprint).where(columns.dataset_id == row["id"]).distinct())
    return others_of(connection, row, list(own.scalars()))


def refuse_unadmitted(connection: sa.Connection, row: Row, request: Mapping[str, str], contract: str | None) -> None:
    """Refuse a charge that was not compared with the contract of its data set, or whose input was not checked.

    `contract` is the digest of the contract that the release keeps.

    Raises
    ------
    ContractBroken
    """
    if row["contract"] is None:
        _refuse_input_of_another(connection, row, request["input_fingerprint"])
        return
    name = row["name"]
    declared = Contract.from_text(row["contract"])
    if declared.digest != contract:
        raise ContractBroken(f"data set {name!r} has a contract that this release was not compared with: run it again")
    if declared.data.clients:  # each client's own ledger admits its files
        return
    sequence = _admission(connection, row, request["input_fingerprint"], contract)
    if sequence is None:
        _refuse_input_of_another(connection, row, request["input_fingerprint"])
        raise ContractBroken(
            f"data set {name!r} has a contract, and its custodian has not found that this input keeps it (or its files "
            f"changed since): dpdist contract check --dataset {name}"
        )
    query = sa.select(tables.journal.c.record).where(
        tables.journal.c.dataset_id == row["id"], tables.journal.c.sequence == sequence
    )
    record: dict[str, Any] = json.loads(connection.execute(query).scalar_one())
    said = {"state": journal.ADMITTED, "fingerprint": request["input_fingerprint"], "contract": contract}
    if any(record.get(field) != value for field, value in said.items()):
        raise journal.damaged(name, ["an admitted input is not in the journal"])


def _refuse_input_of_another(connection: sa.Connection, row: Row, fingerprint: str) -> None:
    """Refuse an input that the custodian of another data set admitted: its contract and its caps hold for it."""
    columns = tables.admitted_input.c
    query = sa.select(tables.dataset.c.name).join(tables.admitted_input, columns.dataset_id == tables.dataset.c.id)
    query = query.where(columns.fingerprint == fingerprint, columns.dataset_id != row["id"])
    owner = connection.execute(query.order_by(tables.dataset.c.name).limit(1)).scalar_one_or_none()
    if owner is not None:
        raise ContractBroken(
            f"dataset: the input is that of data set {owner!r}, which has a contract and caps for it, and the spec "
            f"names {row['name']!r}: write `dataset: {owner}`"
        )


def _admission(connection: sa.Connection, row: Row, fingerprint: str, contract: str) -> int | None:
    """The journal entry that admits an input; None where there is none."""
    columns = tables.admitted_input.c
    query = sa.select(columns.sequence).where(
        columns.dataset_id == row["id"], columns.fingerprint == fingerprint, columns.contract == contract
    )
    sequence: int | None = connection.execute(query).scalar_one_or_none()
    return sequence
