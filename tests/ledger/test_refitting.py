"""Ledgers that were made before there were filters get them, and go on."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.config import Config

from dpdist.errors import BudgetExceeded
from dpdist.ledger import Ledger, journal, tables
from dpdist.ledger.database import Database
from dpdist.ledger.records import canonical_event
from dpdist.privacy.events import ApproximateDP, Event, Gaussian
from dpdist.privacy.filter import Cost

AT = "2026-01-01T00:00:00.000+00:00"
TERMS = {
    "name": "acs",
    "epsilon_cap": "1",
    "delta_cap": "1/1000000000",
    "guarantees": '["dp", "lid"]',
    "created": "2026",
}


class OldLedger:
    """Writes what the second version of the tables held."""

    def __init__(self, url: str) -> None:
        self.url, self.database = url, Database(url)
        if self.database.file:
            self.database.file.touch(mode=0o600)
        self.records = [{"state": "created", **TERMS}]
        self.charges: list[dict[str, Any]] = []

    def charge(self, release: str, event: Event | None, *states: str) -> str:
        """A charge that went through the given states; its attempt."""
        attempt = f"{len(self.charges):08d}-0000-4000-8000-000000000000"
        fields = {
            "attempt": attempt,
            "release": release,
            "guarantee": "lid" if event is None else "dp",
            "event": canonical_event(event),
            "epsilon": "0",
            "spec_hash": "s",
            "input_fingerprint": "f",
        }
        place = len(self.records)
        self.records.append({"state": "reserved", "at": AT, **fields})
        for state in states:
            manifest = {"manifest_sha256": "a" * 64} if state == "committed" else {}
            self.records.append({"state": state, "at": AT, "attempt": attempt, **manifest})
        manifest = {"manifest_sha256": "a" * 64} if "committed" in states else {}
        state = states[-1] if states else "reserved"
        self.charges.append({**fields, "state": state, "created": AT, "updated": AT, "place": place, **manifest})
        return attempt

    def opened(self) -> Ledger:
        """The ledger of today, its tables migrated."""
        self.database.write(self._write)
        return Ledger.open(self.url)

    def _write(self, connection: sa.Connection) -> None:
        config = Config()
        config.set_main_option("script_location", "dpdist.ledger:migrations")
        config.attributes["connection"] = connection
        command.upgrade(config, "0002")
        texts, digests, head = [journal.canonical(record) for record in self.records], [], ""
        for sequence, text in enumerate(texts):
            head = journal.digest(head, sequence, text)
            digests.append(head)
        connection.execute(sa.insert(tables.dataset).values(id=1, length=len(texts), head=head, **TERMS))
        for sequence, (text, digest) in enumerate(zip(texts, digests, strict=True)):
            entry = {"dataset_id": 1, "sequence": sequence, "record": text, "digest": digest}
            connection.execute(sa.insert(tables.journal).values(entry))
        for charge in self.charges:
            place = charge.pop("place")
            connection.execute(sa.insert(tables.charge).values(dataset_id=1, receipt=digests[place], **charge))


@pytest.fixture
def old(ledger_url: str) -> OldLedger:
    return OldLedger(ledger_url)


def reserve(ledger: Ledger, release: str, event: Event) -> str:
    request = {"dataset": "acs", "spec_hash": "s", "input_fingerprint": "f", "guarantee": "dp"}
    return ledger.reserve(**request, release=release, event=event).id


def test_charges_of_an_old_ledger_are_priced(old: OldLedger) -> None:
    old.charge("first", Gaussian(20.0), "drawing", "committed")
    old.charge("second", Gaussian(10.0), "void")
    waiting = old.charge("third", Gaussian(40.0))
    old.charge("free", None, "drawing", "committed")
    ledger = old.opened()
    statement = ledger.verify("acs")
    assert statement.budget.account.taken[1] == Cost(Fraction(1, 400) + Fraction(1, 1600), Fraction(0))
    assert (statement.budget.charges, statement.budget.is_kept) == (2, True)
    assert [attempt.charged is None for attempt in statement.attempts] == [False, False, False, True]
    ledger.give_up(waiting)
    reserve(ledger, "fourth", Gaussian(30.0))
    budget = ledger.verify("acs").budget
    assert float(budget.account.taken[1].amount or 0) == pytest.approx(1 / 400 + 1 / 900, rel=1e-11)
    with pytest.raises(BudgetExceeded):
        reserve(ledger, "fifth", Gaussian(6.0))


def test_an_old_release_that_took_the_whole_cap_stays(old: OldLedger) -> None:
    old.charge("given back", Gaussian(5.5), "void")
    old.charge("whole", Gaussian(5.5), "drawing", "committed")
    ledger = old.opened()
    budget = ledger.verify("acs").budget
    assert budget.is_kept
    assert budget.epsilon_spent is not None
    assert 0.99 < budget.epsilon_spent <= 1
    with pytest.raises(BudgetExceeded, match="its first release took all of the cap"):
        reserve(ledger, "next", Gaussian(1000.0))


def test_an_old_ledger_that_no_filter_admits_admits_nothing_more(old: OldLedger) -> None:
    """Recomposition did, release by release."""
    for number in range(2):
        old.charge(f"r{number}", Gaussian(7.7), "drawing", "committed")
    old.charge("large", ApproximateDP(0.01, 5e-10), "drawing", "committed")
    ledger = old.opened()
    budget = ledger.verify("acs").budget
    assert not budget.is_kept
    assert budget.epsilon_remaining == 0
    with pytest.raises(BudgetExceeded, match="remaining 0"):
        reserve(ledger, "next", Gaussian(1000.0))
    last = json.loads(_records(ledger)[-1])
    assert last["state"] == "filters"


def _records(ledger: Ledger) -> list[str]:
    with ledger.database.engine.begin() as connection:
        return list(
            connection.execute(sa.select(tables.journal.c.record).order_by(tables.journal.c.sequence)).scalars()
        )
