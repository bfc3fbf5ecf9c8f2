"""Journals, and whatever row, cap, entry or order is changed at random behind the ledger's back: it is found."""

import hashlib
import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
import sqlalchemy as sa
from charges import add_up
from hypothesis import HealthCheck, assume, given, settings

from dpdist.errors import DpdistError, LedgerError
from dpdist.ledger import Books
from dpdist.ledger.book import digest
from dpdist.ledger.tables import charge, dataset, journal
from dpdist.privacy.events import LaplaceLeakage
from dpdist.spec.contract import Contract

FREE = {("dpdist_charge", "id"), ("dpdist_charge", "wrapped_key"), ("dpdist_charge", "key_uri")}
FREE |= {("dpdist_identity", column) for column in ("id", "wrapped_key", "created")}
"""What no entry of the journal says: numbers of rows, keys (a changed one does not open) and where their files are."""

TABLES = ("dpdist_dataset", "dpdist_charge", "dpdist_journal", "dpdist_identity", "dpdist_input")
SCHEMA = {"attributes": [{"name": "sex", "kind": "categorical", "values": ["f", "m"]}]}


def _contract(**changes: Any) -> Contract:
    terms = {"schema": SCHEMA, "data": {"path": "p.csv"}, "minimum_records": 1, "epsilon": 2, "delta": "1e-8"}
    return Contract.model_validate(terms | {"guarantees": ["dp", "pml"], "pml": 2} | changes)


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger with every kind of entry: two data sets, all states of attempts, leakage, acts of the custodian."""
    file = tmp_path_factory.mktemp("tampering") / "ledger.db"
    ledger = Books.open(f"sqlite:///{file}", price=add_up)
    ledger.create_from_contract("acs", _contract())
    ledger.create_dataset("other", epsilon=1, delta=0, guarantees=("dp", "lid"))
    digest = Contract.from_text(ledger.dataset("acs").contract or "").digest
    for name in ("f", "g"):
        ledger.admit_input("acs", fingerprint=name * 64, contract=digest)
    request = {"spec_hash": "s", "input_fingerprint": "f" * 64, "guarantee": "dp", "event": '"1/10"'}
    mine = request | {"dataset": "acs", "contract": digest}
    first = ledger.reserve(**mine, release="first")
    ledger.mark_drawing(first)
    ledger.commit(first, manifest_sha256="a" * 64)
    ledger.void(ledger.reserve(**mine, release="second"))
    ledger.give_up(ledger.mark_drawing(ledger.reserve(**mine, release="third")))
    leaking = {"guarantee": "pml", "event": LaplaceLeakage(8.0, 0.05, failure=1e-15)}
    ledger.reserve(**(mine | leaking), release="fourth")
    ledger.new_identity("acs")
    ledger.amend("acs", _contract(epsilon=3), reason="more is asked")
    ledger.admit_input("acs", fingerprint="f" * 64, contract=_contract(epsilon=3).located().digest)
    other = request | {"dataset": "other", "input_fingerprint": "o" * 64}
    ledger.mark_drawing(ledger.reserve(**other, release="fifth"))
    ledger.reserve(**(other | {"guarantee": "lid", "event": None}), release="sixth")
    for name in ledger.datasets():
        ledger.verify(name)
    return file


def _changed(value: Any, draw: Any) -> Any:
    """Another value of a cell."""
    if isinstance(value, int):
        return value + draw(st.integers(-3, 3).filter(bool))
    if not isinstance(value, str) or not value:
        return draw(st.sampled_from(["", "0", "1/10", "void"]))
    place, text = draw(st.integers(0, len(value) - 1)), draw(st.sampled_from('019/"az'))
    return draw(st.sampled_from([value[:place] + text + value[place + 1 :], value[:place], value + text, None]))


@st.composite
def tamperings(draw: st.DrawFn, file: Path) -> list[tuple[str, tuple[Any, ...]]]:
    """Statements that change a cell, delete or add a row, or exchange two rows or two cells."""
    table = draw(st.sampled_from(TABLES))
    found = _rows(file, table)
    one = draw(st.sampled_from(found))
    what = draw(st.sampled_from(["change", "delete", "add", "exchange", "take"]))
    column = draw(st.sampled_from([name for name in one if (table, name) not in FREE and name != "place"]))
    update = f"UPDATE {table} SET {column} = ? WHERE rowid = ?"
    if what == "delete":
        return [(f"DELETE FROM {table} WHERE rowid = ?", (one["place"],))]
    if what == "change":
        value = _changed(one[column], draw)
        assume(value != one[column])
        return [(update, (value, one["place"]))]
    if what == "add":
        new = {name: value for name, value in one.items() if name not in ("place", "id")}
        new[column] = _changed(one[column], draw)
        names, marks = ", ".join(new), ", ".join("?" * len(new))
        return [(f"INSERT INTO {table} ({names}) VALUES ({marks})", tuple(new.values()))]
    other = draw(st.sampled_from(found))
    assume(one[column] != other[column])
    if what == "take":
        return [(update, (other[column], one["place"]))]
    free = -1 if isinstance(one[column], int) else "free"  # the values of a column may have to be unique
    pairs = [(free, one), (one[column], other), (other[column], one)]
    return [(update, (value, row["place"])) for value, row in pairs]


def _rows(file: Path, table: str) -> list[dict[str, Any]]:
    with closing(sqlite3.connect(file)) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute(f"SELECT rowid AS place, * FROM {table}")]


@pytest.fixture(scope="module")
def tampered(history: Path) -> Books:
    """The ledger of a file that each example copies anew from the history."""
    file = history.with_name("tampered.db")
    shutil.copy(history, file)
    shutil.copy(f"{history}.kek", f"{file}.kek")
    return Books.open(f"sqlite:///{file}", price=add_up)


@given(data=st.data())
@settings(max_examples=120, suppress_health_check=list(HealthCheck))
def test_whatever_is_changed_is_found(history: Path, tampered: Books, data: st.DataObject) -> None:
    file = tampered.database.file
    assert file is not None
    shutil.copy(history, file)
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA foreign_keys = ON")
        try:
            for statement, values in data.draw(tamperings(history)):
                connection.execute(statement, values)
            connection.commit()
        except sqlite3.IntegrityError:
            return  # the database itself refuses it
    assume(_content(file) != _content(history))
    names = sorted({"acs", "other", *tampered.datasets()})
    assert any(all(_is_refused(work) for work in _works(tampered, name)) for name in names)


def test_what_is_as_it_was_is_not_refused(history: Path, tampered: Books) -> None:
    shutil.copy(history, str(tampered.database.file))
    assert not any(_is_refused(work) for name in ("acs", "other") for work in _works(tampered, name))


def _works(ledger: Books, name: str) -> list[Callable[[], object]]:
    """What reads the book of a data set."""
    request = {"release": "next", "spec_hash": "s", "guarantee": "dp", "event": '"0"'}
    owned = {"input_fingerprint": "f" * 64, "contract": _contract(epsilon=3).located().digest}
    request |= owned if name == "acs" else {"input_fingerprint": "o" * 64}
    reading = (ledger.verify, ledger.show, ledger.remaining, ledger.public_keys)
    return [partial(ledger.rehearse, **request, dataset=name), *(partial(work, name) for work in reading)]


def _is_refused(work: Callable[[], object]) -> bool:
    try:
        work()
    except DpdistError:
        return True
    return False


def _content(file: Path) -> list[list[str]]:
    """All that the entries of the journal say, whatever the numbers of the rows."""
    tables = ((table, row) for table in TABLES for row in _rows(file, table))
    fields = (
        [table, *(f"{name}={value!r}" for name, value in row.items() if (table, name) not in FREE and name != "place")]
        for table, row in tables
    )
    return sorted(fields)


@pytest.fixture
def used(ledger: Books) -> Books:
    """A ledger with a committed, a void, an abandoned and an open attempt."""

    def reserve(release: str, **changes: bool) -> str:
        request = {"dataset": "acs", "spec_hash": "s", "input_fingerprint": "f", "guarantee": "dp"}
        return ledger.reserve(**request, release=release, event='"1/10"', **changes).id

    first = reserve("first")
    ledger.mark_drawing(first)
    ledger.commit(first, manifest_sha256="a" * 64)
    ledger.void(reserve("second"))
    ledger.mark_drawing(reserve("third"))
    reserve("third", new_attempt=True)
    assert ledger.verify("acs").budget.charges == 3
    return ledger


def run(ledger: Books, *statements: sa.Executable) -> None:
    with ledger.database.engine.begin() as connection:
        for statement in statements:
            connection.execute(statement)


def entries(ledger: Books) -> list[sa.RowMapping]:
    with ledger.database.engine.begin() as connection:
        return list(connection.execute(sa.select(journal).order_by(journal.c.sequence)).mappings())


def rewrite(ledger: Books, records: list[str]) -> None:
    """Forge a whole chain, as whoever may write to the database can."""
    run(ledger, sa.delete(journal))
    head = ""
    for sequence, record in enumerate(records):
        head = digest(head, sequence, record)
        values = {"dataset_id": 1, "sequence": sequence, "record": record, "digest": head}
        run(ledger, sa.insert(journal).values(values))
    run(ledger, sa.update(dataset).values(length=len(records), head=head))


def test_a_whole_rewritten_chain_is_detected_by_a_receipt(used: Books) -> None:
    statement = used.verify("acs")
    records = [entry["record"] for entry in entries(used)]
    # forget the abandoned attempt and everything after it
    cut = next(i for i, record in enumerate(records) if json.loads(record).get("release") == "third")
    run(used, sa.delete(charge).where(charge.c.release == "third"))
    rewrite(used, records[:cut])
    assert used.verify("acs").budget.charges == 1
    kept, forgotten = statement.attempts[0].receipt, statement.attempts[2].receipt
    used.verify("acs", receipts=[kept])
    with pytest.raises(LedgerError, match=f"receipt {forgotten[:12]} is not in the journal"):
        used.verify("acs", receipts=[kept, forgotten])
    with pytest.raises(LedgerError, match="is not in the journal"):
        used.verify("acs", receipts=[statement.head])


def test_a_chain_with_an_impossible_transition_is_detected(used: Books) -> None:
    records = [entry["record"] for entry in entries(used)]
    position = next(i for i, record in enumerate(records) if json.loads(record)["state"] == "committed")
    rewrite(used, records[: position + 1] + records[position:])  # committed twice
    with pytest.raises(LedgerError, match=f"journal entry {position + 1} is no valid transition"):
        used.verify("acs")


def test_the_digest_is_what_the_documentation_says() -> None:
    assert digest("ab", 3, "{}") == hashlib.sha256(b"ab\n3\n{}").hexdigest()
