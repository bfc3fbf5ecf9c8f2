"""The account of leakage is as safe as that of differential privacy: an old charge made smaller makes no room."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

from dpdist.errors import DpdistError
from dpdist.ledger import Books
from dpdist.ledger.records import canonical_event
from dpdist.ledger.tables import charge
from dpdist.privacy.events import LaplaceLeakage


def test_an_altered_old_charge_makes_no_room(tmp_path: Path) -> None:
    ledger = Books.open(f"sqlite:///{tmp_path}/ledger.db")
    ledger.create_dataset("acs", epsilon=1, delta="1e-8", guarantees=("dp", "pml"), pml="1.2")
    made = 0

    def reserve(scale: float) -> None:
        nonlocal made
        made += 1
        event = LaplaceLeakage(scale, 0.05, failure=1e-15)
        ledger.reserve(
            dataset="acs", release=f"r{made}", spec_hash="s", input_fingerprint="i", guarantee="pml", event=event
        )

    reserve(2.0)
    for _ in range(40):
        reserve(1e5)
    small = canonical_event(LaplaceLeakage(1e6, 0.05, failure=1e-15))
    with ledger.database.engine.begin() as connection:
        connection.execute(sa.update(charge).where(charge.c.release == "r1").values(event=small))
    with pytest.raises(DpdistError):
        reserve(2.0)  # either of the two takes nearly all of the cap by itself
