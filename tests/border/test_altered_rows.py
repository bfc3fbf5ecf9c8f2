"""Rows of the ledger that were changed outside of it: nothing is signed, handed out or deleted by what they say."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dpdist.errors import KeyUnavailable, LedgerError
from dpdist.ledger import Books, tables
from dpdist.lifecycle.run import run_release
from dpdist.privacy.events import DiscreteLaplace
from dpdist.spec.reader import load


@pytest.fixture
def ledger(ledger_url: str) -> Books:
    """A ledger with one data set, on each database."""
    opened = Books.open(ledger_url)
    opened.create_dataset("acs", epsilon=1, delta="1e-6")
    return opened


def _reserve(ledger: Books, release: str) -> Any:
    request = {"dataset": "acs", "release": release, "spec_hash": "s", "input_fingerprint": "f", "guarantee": "dp"}
    return ledger.reserve(**request, event=DiscreteLaplace(scale=10.0))


def _alter(ledger: Books, table: sa.Table, **values: Any) -> None:
    with ledger.database.engine.begin() as connection:
        connection.execute(sa.update(table).values(**values))


def test_a_replaced_public_key_is_not_handed_out(ledger: Books) -> None:
    """`dpdist ledger identity` printed the key of whoever had written it there, and readers trusted it."""
    own = ledger.public_keys("acs")
    _alter(ledger, tables.identity, public_key=Ed25519PrivateKey.generate().public_key().public_bytes_raw().hex())
    for use in (ledger.public_keys, ledger.signing_key):
        with pytest.raises(LedgerError, match="the signing identities were altered"):
            use("acs")
    assert len(own) == 1


def test_identities_that_followed_are_the_journals(ledger: Books) -> None:
    made = [ledger.new_identity("acs") for _ in range(2)]
    assert ledger.public_keys("acs")[0] == made[-1]
    assert len(ledger.public_keys("acs")) == 3


@pytest.mark.parametrize("column", ["manifest_sha256", "spec_hash", "input_fingerprint"])
def test_an_altered_attempt_is_neither_found_nor_resumed(ledger: Books, column: str) -> None:
    attempt = ledger.mark_drawing(_reserve(ledger, "a"))
    if column == "manifest_sha256":
        ledger.commit(attempt, manifest_sha256="a" * 64)
    _alter(ledger, tables.charge, **{column: "b" * 64})
    with pytest.raises(LedgerError, match=f"was altered: {column}"):
        ledger.find("acs", "a")
    with pytest.raises(LedgerError, match=f"was altered: {column}"):
        ledger.resume(dataset="acs", release="a", spec_hash="s", input_fingerprint="f")


def test_a_file_that_is_no_key_is_left_alone(ledger: Books, tmp_path: Path) -> None:
    """Whoever wrote `key_uri` had any file of the operator overwritten and deleted."""
    precious = tmp_path / "precious.txt"
    precious.write_text("text")
    attempt = ledger.mark_drawing(_reserve(ledger, "a"))
    _alter(ledger, tables.charge, key_uri=str(precious))
    with pytest.raises(KeyUnavailable, match="not the key file"):
        ledger.commit(attempt, manifest_sha256="a" * 64)
    _reserve(ledger, "b")  # which sweeps
    assert precious.read_text() == "text"


def test_a_forged_manifest_is_not_signed_by_the_next_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its digest in the ledger a scheduled run took it for the release, and signed it."""
    monkeypatch.chdir(tmp_path)
    pq.write_table(pa.table({"ill": ["yes", "no"] * 100}), "people.parquet")
    ledger = Books.open("sqlite:///ledger.db")
    ledger.create_dataset("acs", epsilon=1, delta="1e-6")
    spec = load(
        {
            "kind": "histogram",
            "name": "counts",
            "dataset": "acs",
            "schema": {"attributes": [{"name": "ill", "kind": "categorical", "values": ["yes", "no"]}]},
            "data": {"path": "people.parquet", "minimum_records": 1},
            "output": {"path": "out"},
            "ledger": "sqlite:///ledger.db",
            "privacy": {"epsilon": 0.5},
            "histograms": [{"columns": ["ill"]}],
        }
    )
    run_release(spec)
    manifest, signature = Path("out/_manifest.json"), Path("out/_manifest.sig")
    forged = json.dumps(json.loads(manifest.read_text()) | {"created": "2020-01-01"}, indent=2).encode()
    manifest.write_bytes(forged)
    _alter(ledger, tables.charge, manifest_sha256=hashlib.sha256(forged).hexdigest())
    before = signature.read_bytes()
    with pytest.raises(LedgerError, match="was altered: manifest_sha256"):
        run_release(spec, attempt="once")
    assert signature.read_bytes() == before
