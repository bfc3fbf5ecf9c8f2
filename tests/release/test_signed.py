"""Releases are signed with the identity of their data set, without further settings."""

from __future__ import annotations

import base64
import os
import shutil
import sqlite3
from pathlib import Path

import pytest
from commands import Command
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from releases import KEY, project

from dpdist.errors import KeyUnavailable, LedgerError, VerificationFailed
from dpdist.ledger import Books
from dpdist.ledger.signing import key_fingerprint, load_public_key, public_pem
from dpdist.lifecycle.run import run_release
from dpdist.publish.manifest import MANIFEST, SIGNATURE
from dpdist.publish.verify import verify


@pytest.fixture
def copied(made: Path, tmp_path: Path) -> Path:
    """A copy of the folder, whose ledger may be changed."""
    return Path(shutil.copytree(made, tmp_path / "copy"))


def ledger_of(folder: Path) -> Books:
    return Books.open(f"sqlite:///{folder}/ledger.db")


def test_a_release_is_signed_without_further_settings(dpdist: Command, made: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{made}/ledger.db"
    answer = dpdist("ledger", "identity", "people", "--ledger", url)
    assert answer.code == 0, answer.err
    pinned = tmp_path / "people.pem"
    pinned.write_text(answer.out)
    key = load_public_key(pinned)
    name = key_fingerprint(key)
    assert dpdist("ledger", "show", "people", "--ledger", url, "--json").json[0]["signing_key"] == name
    checked = dpdist("verify", str(made / "release"), "--public-key", str(pinned))
    assert checked.code == 0, checked.err
    assert ": verified, 2,500 records" in checked.words
    assert f"by the key {name}" in checked.words
    assert verify(made / "release", key).signer == name
    unpinned = dpdist("verify", str(made / "release")).words
    assert ": integrity only," in unpinned
    assert "Signature not checked" in unpinned
    assert (
        ": verified by the account," in dpdist("verify", str(made / "release"), "--ledger", f"{made}/ledger.db").words
    )
    shutil.copy(made / "ledger.db", "dpdist-ledger.db")
    found = dpdist("verify", str(made / "release")).words
    assert "ledger sqlite:///dpdist-ledger.db, which knows the release" in found
    assert ": verified by the account," in found
    by_account = dpdist("verify", str(made / "release"), "--ledger", url).words
    assert ": verified by the account," in by_account
    assert f"by the key {name}" in by_account


def test_a_signature_may_be_required(dpdist: Command, made: Path, tmp_path: Path) -> None:
    copied = tmp_path / "own"
    copied.mkdir()
    run_release(project(copied))
    url, release = f"sqlite:///{copied}/ledger.db", str(copied / "release")
    pinned = tmp_path / "people.pem"
    pinned.write_text(dpdist("ledger", "identity", "people", "--ledger", url).out)
    require = ("verify", release, "--require-signature")
    assert dpdist(*require, "--public-key", str(pinned)).code == 0
    assert dpdist(*require, "--ledger", url, "--json").code == 0
    unchecked = dpdist(*require)
    assert (unchecked.code, "no signature was checked" in unchecked.err) == (1, True)
    (copied / "release" / "data" / ".hidden.parquet").write_bytes(b"secret")
    unlisted = dpdist(*require, "--public-key", str(pinned))
    assert (unlisted.code, "does not list" in unlisted.err) == (1, True)
    (copied / "release" / "data" / ".hidden.parquet").unlink()
    (copied / "release" / SIGNATURE).unlink()
    assert dpdist("verify", release).code == 0  # the default stays
    unsigned = dpdist(*require, "--json")
    assert (unsigned.code, unsigned.json["signature"]) == (1, "none")
    exposed = dpdist("verify", str(made / "release"), "--require-signature", "--ledger", f"sqlite:///{made}/ledger.db")
    assert (exposed.code, "made with a fixed test key" in exposed.err) == (1, True)


def test_a_manifest_has_nothing_of_the_signature(made: Path) -> None:
    (public,) = ledger_of(made).public_keys("people")
    content = (made / "release" / MANIFEST).read_text()
    assert "sign" not in content
    assert public.public_bytes_raw().hex() not in content
    assert key_fingerprint(public).removeprefix("sha256:") not in content


def test_the_private_key_is_in_no_file_in_clear(made: Path) -> None:
    private = ledger_of(made).signing_key("people")
    assert private is not None
    secret = private.private_bytes_raw()
    for path in (path for path in made.rglob("*") if path.is_file()):
        content = path.read_bytes()
        assert not any(form in content for form in (secret, secret.hex().encode(), base64.b64encode(secret))), path


def test_create_stores_the_public_key_beside_the_ledger(dpdist: Command, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/l.db"
    created = dpdist("ledger", "create", "acs", "--epsilon", "4", "--delta", "1e-8", "--ledger", url)
    (public,) = ledger_keys(url, "acs")
    assert f"its releases are signed by {key_fingerprint(public)}" in created.words
    assert (tmp_path / "l.db.acs.pub.pem").read_text() == public_pem(public)
    assert dpdist("ledger", "verify", "--ledger", url).code == 0


def test_a_signature_by_a_foreign_key_is_told(dpdist: Command, copied: Path) -> None:
    """The release is the one that was committed; who signed it, the ledger does not know."""
    content = (copied / "release" / MANIFEST).read_bytes()
    (copied / "release" / SIGNATURE).write_bytes(Ed25519PrivateKey.generate().sign(content))
    options = ("verify", str(copied / "release"), "--ledger", f"sqlite:///{copied}/ledger.db")
    words = dpdist(*options).words
    assert ": verified by the account, but signed by a key that is not the data set's," in words
    assert "Signature by a key that is not the data set's" in words
    assert dpdist(*options, "--json").json["signature"] == "foreign"


def ledger_keys(url: str, name: str) -> tuple[object, ...]:
    return Books.open(url).public_keys(name)


def test_a_new_identity_replaces_the_one_before(dpdist: Command, copied: Path) -> None:
    url = f"sqlite:///{copied}/ledger.db"
    ledger = ledger_of(copied)
    (first,) = ledger.public_keys("people")
    answer = dpdist("ledger", "identity", "people", "--new", "--ledger", url)
    assert answer.code == 0, answer.err
    second, still = ledger.public_keys("people")
    assert still == first != second
    assert answer.out == public_pem(second)
    ledger.verify("people")
    assert ": verified by the account," in dpdist("verify", str(copied / "release"), "--ledger", url).words
    run_release(project(copied, name="second", output__path=str(copied / "second")), fixed_key=KEY)
    assert verify(copied / "second", second).signature == "valid"
    with pytest.raises(VerificationFailed, match="does not fit"):
        verify(copied / "second", first)


def test_a_data_set_without_an_identity_goes_on_unsigned(
    dpdist: Command, copied: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Books.open(postgres_url)
    with monkeypatch.context() as without:
        without.delenv("DPDIST_KEK")
        ledger.create_dataset("people", epsilon=50, delta="1e-5", guarantees=("dp", "pd-per-record"))
    run_release(project(copied, name="second", output__path=str(copied / "second"), ledger=postgres_url), fixed_key=KEY)
    assert not (copied / "second" / SIGNATURE).exists()
    shown = dpdist("ledger", "show", "people", "--ledger", postgres_url)
    assert "releases are not signed: make one with" in shown.words
    refused = dpdist("ledger", "identity", "people", "--ledger", postgres_url)
    assert (refused.code, "has no signing identity: make one" in refused.err) == (5, True)
    assert ledger.verify("people")


@pytest.mark.parametrize("change", ["UPDATE dpdist_identity SET public_key = 'ab'", "DELETE FROM dpdist_identity"])
def test_another_key_put_in_its_place_is_found(copied: Path, change: str) -> None:
    with sqlite3.connect(copied / "ledger.db") as connection:
        connection.execute(change)
    for use in (Books.verify, Books.signing_key, Books.public_keys):
        with pytest.raises(LedgerError, match="the signing identities were altered"):
            use(ledger_of(copied), "people")


def test_another_key_encryption_key_opens_no_identity(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPDIST_KEK", base64.b64encode(os.urandom(32)).decode())
    with pytest.raises(KeyUnavailable, match="dpdist ledger identity people --new"):
        run_release(project(copied, name="second", output__path=str(copied / "second")))
    ledger = ledger_of(copied)
    assert ledger.find("people", "second") is None, "nothing was charged"
    ledger.new_identity("people")
    run_release(project(copied, name="second", output__path=str(copied / "second")))
    assert verify(copied / "second", ledger.public_keys("people")[0]).signature == "valid"
