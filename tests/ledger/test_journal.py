"""What a chain that was written anew cannot hide. What is changed in part, `test_tampering` finds."""

from __future__ import annotations

import hashlib
import json

import pytest
import sqlalchemy as sa

from dpdist.errors import LedgerError
from dpdist.ledger import Books
from dpdist.ledger.book import digest
from dpdist.ledger.tables import charge, dataset, journal


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
