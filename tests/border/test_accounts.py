"""What an account refuses: leakage that is spent, and names that begin anew."""

from fractions import Fraction
from pathlib import Path

import pytest
import sqlalchemy as sa
from charges import add_up

from dpdist.errors import BudgetExceeded, DpdistError, LedgerError
from dpdist.ledger import Books
from dpdist.ledger.anchor import VARIABLE
from dpdist.ledger.records import canonical_event
from dpdist.ledger.tables import charge
from dpdist.privacy.events import Gaussian, LaplaceLeakage
from dpdist.spec.contract import Contract


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


SCHEMA = {"attributes": [{"name": "sex", "kind": "categorical", "values": ["f", "m"]}]}


def _reserve(ledger: Books, release: str, event: object) -> None:
    ledger.reserve(dataset="acs", release=release, spec_hash="s", input_fingerprint="f", guarantee="dp", event=event)


def test_an_anchor_of_a_used_data_set_admits_no_second_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new database with a data set of the same name moved the anchor back to its own first entry."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "anchors"))
    first = Books.open(f"sqlite:///{tmp_path}/first.db", price=add_up)
    first.create_dataset("acs", epsilon=1, delta="1e-8")
    _reserve(first, "counts", '"9/10"')
    second = Books.open(f"sqlite:///{tmp_path}/second.db", price=add_up)
    with pytest.raises(LedgerError, match="anchor"):
        second.create_dataset("acs", epsilon=1, delta="1e-8")
    assert second.datasets() == ()
    _reserve(first, "more", '"1/20"')


def test_an_old_backup_gets_no_new_anchor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`dpdist ledger anchor`, run on the backup that its anchor had refused, set the anchor back to it."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "anchors"))
    ledger = Books.open(f"sqlite:///{tmp_path}/ledger.db", price=add_up)
    ledger.create_dataset("acs", epsilon=1, delta="1e-8")
    _reserve(ledger, "counts", '"1/10"')
    backup = (tmp_path / "ledger.db").read_bytes()
    _reserve(ledger, "more", '"9/10"')
    (tmp_path / "ledger.db").write_bytes(backup)
    with pytest.raises(LedgerError, match="not the one that its anchor has seen"):
        ledger.anchor("acs")
    with pytest.raises(LedgerError, match="not the one that its anchor has seen"):
        _reserve(ledger, "again", '"9/10"')


def test_an_anchor_of_an_unused_data_set_may_be_set_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A creation that was interrupted after its anchor was written can be repeated."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "anchors"))
    for name in ("first", "second"):
        Books.open(f"sqlite:///{tmp_path}/{name}.db", price=add_up).create_dataset("acs", epsilon=1, delta="1e-8")


def test_a_cap_is_not_lowered_below_a_release_that_took_all(tmp_path: Path) -> None:
    """With a cap of 1/2 the account showed 1 of 1/2 as spent."""
    ledger = Books.open(f"sqlite:///{tmp_path}/ledger.db")
    ledger.create_dataset("acs", epsilon=1, delta="1e-6")
    _reserve(ledger, "all", Gaussian(4.3))
    assert ledger.show("acs").budget.account.alone is not None
    terms = {"schema": SCHEMA, "data": {"path": "p.csv"}, "minimum_records": 1, "delta": "1e-6"}
    with pytest.raises(BudgetExceeded):
        ledger.amend("acs", Contract.model_validate({**terms, "epsilon": "1/2"}), reason="less")
    ledger.amend("acs", Contract.model_validate({**terms, "epsilon": 2}), reason="more")
    assert ledger.verify("acs").budget.epsilon_cap == Fraction(2)
