"""Whatever is edited, added, deleted or reordered behind the ledger's back is detected."""

from __future__ import annotations

import hashlib
import json

import pytest
import sqlalchemy as sa

from dpdist.errors import LedgerError
from dpdist.ledger import Ledger
from dpdist.ledger.journal import canonical, digest
from dpdist.ledger.tables import charge, dataset, journal


@pytest.fixture
def used(ledger: Ledger) -> Ledger:
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


def run(ledger: Ledger, *statements: sa.Executable) -> None:
    with ledger.database.engine.begin() as connection:
        for statement in statements:
            connection.execute(statement)


COLUMNS = {
    "release": "other",
    "guarantee": "lid",
    "event": '"1/100"',
    "epsilon": "0",
    "spec_hash": "other",
    "input_fingerprint": "other",
    "state": "void",
    "manifest_sha256": "b" * 64,
    "receipt": "b" * 64,
    "created": "2000-01-01",
    "updated": "2000-01-01",
}


@pytest.mark.parametrize("column", COLUMNS)
def test_an_edited_charge_is_detected(used: Ledger, column: str) -> None:
    first = used.find("acs", "first")
    assert first is not None
    run(used, sa.update(charge).where(charge.c.attempt == first.id).values({column: COLUMNS[column]}))
    with pytest.raises(LedgerError, match=f"the charge of attempt {first.id} was altered: {column}"):
        used.verify("acs")


def test_a_deleted_charge_is_detected(used: Ledger) -> None:
    run(used, sa.delete(charge).where(charge.c.state == "abandoned"))
    with pytest.raises(LedgerError, match=r"the charge of attempt .* was deleted.*Restore it from a backup"):
        used.verify("acs")


def test_an_added_charge_is_detected(used: Ledger) -> None:
    with used.database.engine.begin() as connection:
        row = dict(connection.execute(sa.select(charge).where(charge.c.state == "void")).mappings().one())
    run(used, sa.insert(charge).values({**row, "id": 99, "attempt": "forged"}))
    with pytest.raises(LedgerError, match="the charge of attempt forged is not in the journal"):
        used.verify("acs")


@pytest.mark.parametrize(
    "values", [{"epsilon_cap": "100"}, {"delta_cap": "1/10"}, {"guarantees": '["dp"]'}, {"created": "2000-01-01"}]
)
def test_an_edited_cap_or_policy_is_detected(used: Ledger, values: dict[str, str]) -> None:
    run(used, sa.update(dataset).values(values))
    with pytest.raises(LedgerError, match="the data set's caps or policy were altered"):
        used.verify("acs")


@pytest.mark.parametrize("position", [0, 1, 3])
def test_a_deleted_entry_is_detected(used: Ledger, position: int) -> None:
    run(used, sa.delete(journal).where(journal.c.sequence == position))
    with pytest.raises(LedgerError, match=f"journal entry {position} is missing"):
        used.verify("acs")


@pytest.mark.parametrize("position", [0, 1, 3])
def test_an_edited_entry_is_detected(used: Ledger, position: int) -> None:
    run(used, sa.update(journal).where(journal.c.sequence == position).values(record="{}"))
    with pytest.raises(LedgerError, match=f"journal entry {position} was altered"):
        used.verify("acs")


def test_a_cut_end_is_detected(used: Ledger) -> None:
    last = len(entries(used)) - 1
    run(used, sa.delete(journal).where(journal.c.sequence == last))
    with pytest.raises(LedgerError, match="the end of the journal was cut off"):
        used.verify("acs")


def entries(ledger: Ledger) -> list[sa.RowMapping]:
    with ledger.database.engine.begin() as connection:
        return list(connection.execute(sa.select(journal).order_by(journal.c.sequence)).mappings())


def rewrite(ledger: Ledger, records: list[str]) -> None:
    """Forge a whole chain, as whoever may write to the database can."""
    run(ledger, sa.delete(journal))
    head = ""
    for sequence, record in enumerate(records):
        head = digest(head, sequence, record)
        values = {"dataset_id": 1, "sequence": sequence, "record": record, "digest": head}
        run(ledger, sa.insert(journal).values(values))
    run(ledger, sa.update(dataset).values(length=len(records), head=head))


def test_a_whole_rewritten_chain_is_detected_by_a_receipt(used: Ledger) -> None:
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


def test_a_chain_with_an_impossible_transition_is_detected(used: Ledger) -> None:
    records = [entry["record"] for entry in entries(used)]
    position = next(i for i, record in enumerate(records) if json.loads(record)["state"] == "committed")
    rewrite(used, records[: position + 1] + records[position:])  # committed twice
    with pytest.raises(LedgerError, match=f"journal entry {position + 1} is no valid transition"):
        used.verify("acs")


def test_altered_sums_are_detected(used: Ledger) -> None:
    """The sums of a forged chain are compared with the charges."""
    records = [json.loads(entry["record"]) for entry in entries(used)]
    records[-1]["account"]["taken"][0][0] = "0"
    rewrite(used, [canonical(record) for record in records])
    with pytest.raises(LedgerError, match=f"the sums in journal entry {len(records) - 1} are not those of the charges"):
        used.verify("acs")


def test_the_digest_is_what_the_documentation_says() -> None:
    assert digest("ab", 3, "{}") == hashlib.sha256(b"ab\n3\n{}").hexdigest()
