"""Releases are signed with the identity of their data set, without further settings."""

import base64
import hashlib
import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import Command
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from releases import KEY, project

from dpdist.errors import KeyUnavailable, LedgerError, VerificationFailed
from dpdist.ledger import Books
from dpdist.ledger.signing import key_fingerprint, load_public_key, public_pem
from dpdist.lifecycle.run import run_release
from dpdist.privacy.accountant import most_right
from dpdist.privacy.events import ApproximateDP
from dpdist.privacy.formatting import risk_sentence
from dpdist.privacy.guarantee import from_json
from dpdist.publish.account import Total
from dpdist.publish.manifest import MANIFEST, SIGNATURE, Manifest
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
    assert "ledger sqlite:///dpdist-ledger.db, which knows the release; if it came with the release, it proves" in found
    assert ": verified by the account," in found
    assert dpdist("verify", str(made / "release"), "--json").json["ledger"] == "sqlite:///dpdist-ledger.db"
    by_account = dpdist("verify", str(made / "release"), "--ledger", url).words
    assert ": verified by the account," in by_account
    assert f"by the key {name}" in by_account


def test_a_ledger_inside_a_release_proves_nothing(
    dpdist: Command, copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (copied / "ledger.db").rename(copied / "release" / "dpdist-ledger.db")
    monkeypatch.chdir(copied / "release")
    for place in (".", "../release", str(copied / "release")):
        assert ": integrity only," in dpdist("verify", place).words
    found = dpdist("verify", ".", "--json").json
    assert "account" not in found
    assert "ledger" not in found
    assert ": verified by the account," in dpdist("verify", ".", "--ledger", "dpdist-ledger.db").words


def test_a_custodian_publishes_what_all_releases_tell_together(dpdist: Command, made: Path, tmp_path: Path) -> None:
    url, total, pinned = f"sqlite:///{made}/ledger.db", tmp_path / "total.json", tmp_path / "people.pem"
    pinned.write_text(dpdist("ledger", "identity", "people", "--ledger", url).out)
    said = dpdist("ledger", "total", "people", "--to", str(total), "--ledger", url)
    assert said.code == 0, said.err
    read = ("verify", str(made / "release"), "--public-key", str(pinned), "--total", str(total))
    checked = dpdist(*read)
    assert checked.code == 0, checked.err
    found = dpdist(*read, "--json").json["total"]
    spent = dpdist("ledger", "show", "people", "--ledger", url, "--json").json[0]["spent_epsilon"]
    assert float(found["epsilon"]) == pytest.approx(spent, rel=1e-5)
    assert float(found["epsilon"]) >= spent
    risk = most_right(ApproximateDP(float(found["epsilon"]), float(found["delta"])))
    for words in (said.words, checked.words):
        assert f"together are ({found['epsilon']}, {found['delta']})-differentially private (add/remove" in words
        assert risk_sentence(risk) in words
    fields = json.loads(total.read_text())
    for wrong, code, message in (
        (json.dumps(fields | {"total": fields["total"] | {"epsilon": "0.1"}}), 6, "does not fit the total"),
        (json.dumps(fields | {"signature": "00" * 64}), 6, "does not fit the total"),
        ("{}", 6, "expected what `dpdist ledger total` wrote"),
    ):
        total.write_text(wrong)
        refused = dpdist(*read)
        assert (refused.code, message in refused.err) == (code, True), refused.err
    assert "--public-key" in dpdist("verify", str(made / "release"), "--total", str(total)).err
    assert "cannot be read" in dpdist(*read[:-1], str(tmp_path / "none.json")).err
    assert "cannot be written" in dpdist("ledger", "total", "people", "--to", str(tmp_path), "--ledger", url).err
    ledger = ledger_of(made)
    total.write_bytes(Total.of(ledger, "people").signed(ledger))
    ledger.close()
    key = load_public_key(pinned)
    own = found["releases"][0]
    assert found["releases"] == [dpdist(*read[:2], "--json").json["manifest_sha256"]]
    assert Total.read(total, key, dataset="people", manifest_sha256=own).unit == "record"
    for dataset, manifest, message in (
        ("others", own, "the release is of others"),
        ("people", "0" * 64, f"it is of {found['day']} and does not count this release"),
    ):
        with pytest.raises(VerificationFailed, match=message):
            Total.read(total, key, dataset=dataset, manifest_sha256=manifest)
    with total.open("ab") as file:
        file.write(b" " * (1 << 22))
    with pytest.raises(VerificationFailed, match="expected what"):
        Total.read(total, key, dataset="people", manifest_sha256=own)


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


# --- A release that somebody else wrote: values and guarantee changed, hashes computed again, no signature


Tree = dict[str, Any]


@pytest.fixture
def place(made: Path, tmp_path: Path) -> Path:
    """A copy of the release."""
    return Path(shutil.copytree(made / "release", tmp_path / "release"))


def ledger_url(made: Path) -> str:
    return f"sqlite:///{made}/ledger.db"


def rewritten(place: Path, change: Callable[[Tree], None]) -> None:
    """Change the manifest, with sentences and order as `Manifest` wants them, and take the signature away."""
    tree = json.loads((place / MANIFEST).read_text())
    change(tree)
    tree["guarantee"] = " ".join(item["sentence"] for item in tree["guarantees"])
    (place / MANIFEST).write_bytes(Manifest.model_validate(tree).to_bytes())
    (place / "_manifest.sig").unlink(missing_ok=True)


def stated(tree: Tree, index: int, **changes: Any) -> None:
    """Other numbers in a guarantee, and the sentence that fits them."""
    tree["guarantees"][index].update(changes)
    tree["guarantees"][index]["sentence"] = from_json(tree["guarantees"][index]).sentence()


def other_values(place: Path) -> Callable[[Tree], None]:
    """Put the first row of the first part in place of all its rows, and fit hashes and sizes."""

    def change(tree: Tree) -> None:
        part = tree["parts"][0]
        table = pq.read_table(place / part["name"])
        pq.write_table(table.take(pa.array([0] * table.num_rows)), place / part["name"])
        content = (place / part["name"]).read_bytes()
        part.update(bytes=len(content), sha256=hashlib.sha256(content).hexdigest())

    return change


def better(tree: Tree) -> None:
    stated(tree, 1, epsilon=0.01)


def less_risk(tree: Tree) -> None:
    stated(tree, 1, right=0.0101)


def without_events(tree: Tree) -> None:
    del tree["parameters"]["event"]


def of_all(tree: Tree) -> None:
    stated(tree, 1, covers="the whole release")


def replaced(tree: Tree) -> None:
    stated(tree, 1, adjacency="replacement")


def one_record_better(tree: Tree) -> None:
    stated(tree, 0, epsilon=0.01)


def fine_words(tree: Tree) -> None:
    tree["guarantees"][1]["sentence"] = "Perfectly private."


def no_event(tree: Tree) -> None:
    tree["parameters"]["event"] = {"type": "magic/1"}


def no_guarantee(tree: Tree) -> None:
    tree["guarantees"][1] = {"kind": "magic", "sentence": "Perfectly private."}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (better, r"its events cost epsilon 1\.99957 at delta 1e-7, and it states 0\.01"),
        (less_risk, r"a guess of 1 % right with .* and it states 0\.0101"),
        (without_events, "not the events that it follows from"),
        (of_all, "leaves out its seeds"),
        (replaced, "stated for replacement, its events are of add/remove"),
        (one_record_better, r"its events cost epsilon of one record .* states 0\.01"),
        (fine_words, "the sentence of the guarantee does not say what its numbers say"),
        (no_event, "states guarantees or events that are not valid"),
        (no_guarantee, "states guarantees or events that are not valid"),
    ],
)
def test_a_guarantee_that_its_events_do_not_give_is_refused(
    place: Path, change: Callable[[Tree], None], message: str
) -> None:
    rewritten(place, change)
    with pytest.raises(VerificationFailed, match=message):
        verify(place)


def consistent(place: Path) -> Callable[[Tree], None]:
    """A forgery that agrees with itself: other values, other events and the guarantee that follows from them."""

    def change(tree: Tree) -> None:
        other_values(place)(tree)
        tree["parameters"]["event"] = {"type": "approximate-dp/1", "epsilon": 0.01, "delta": 1e-7}
        stated(tree, 1, epsilon=0.01)

    return change


def test_a_forgery_that_agrees_with_itself_is_whole_and_nothing_more(dpdist: Command, place: Path, made: Path) -> None:
    rewritten(place, consistent(place))
    answer = dpdist("verify", str(place))
    assert answer.code == 0
    assert f"{place}: integrity only, 2,500 records" in answer.words
    assert "their author is not verified" in answer.words
    refused = dpdist("verify", str(place), "--ledger", ledger_url(made))
    assert refused.code == 6
    assert "another manifest was committed" in refused.err
    assert "another charge was made" in refused.err


def test_values_alone(dpdist: Command, place: Path, made: Path) -> None:
    rewritten(place, other_values(place))
    assert verify(place).verdict == "integrity only"
    assert "another manifest was committed" in dpdist("verify", str(place), "--ledger", ledger_url(made)).err


def test_the_release_itself_agrees_with_the_account(dpdist: Command, made: Path) -> None:
    answer = dpdist("verify", str(made / "release"), "--ledger", ledger_url(made))
    assert answer.code == 0, answer.err
    assert "release: verified by the account, 2,500 records" in answer.words
    assert "Account     the release that data set people committed" in answer.out
    assert "epsilon 1.99957, recomputed from the events in the manifest" in answer.words
    report = dpdist("verify", str(made / "release"), "--ledger", ledger_url(made), "--json").json
    assert (report["epsilon"], report["account"]["dataset"]) == (pytest.approx(2, rel=1e-3), "people")


def test_a_release_that_no_account_knows(dpdist: Command, place: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/other.db"
    Books.open(url).close()
    refused = dpdist("verify", str(place), "--ledger", url)
    assert (refused.code, "is not in the account" in refused.err) == (6, True)


def test_an_altered_ledger_confirms_nothing(dpdist: Command, place: Path, made: Path, tmp_path: Path) -> None:
    import sqlite3

    rewritten(place, other_values(place))
    database = tmp_path / "ledger.db"
    shutil.copy(made / "ledger.db", database)
    digest = hashlib.sha256((place / MANIFEST).read_bytes()).hexdigest()
    with sqlite3.connect(database) as connection:
        connection.execute("UPDATE dpdist_charge SET manifest_sha256 = ?", [digest])
    refused = dpdist("verify", str(place), "--ledger", f"sqlite:///{database}")
    assert (refused.code, "altered" in refused.err) == (5, True)


def test_files_that_the_manifest_does_not_name_are_told(dpdist: Command, place: Path) -> None:
    (place / "data" / ".hidden.parquet").write_bytes(b"secret")
    (place / ".claim").write_bytes(b"secret")
    os.symlink("/etc", place / "etc")
    os.symlink("/nowhere", place / "gone")
    (place / "x\nSignature   by the key sha256:0").write_bytes(b"")
    answer = dpdist("verify", str(place))
    assert answer.code == 0
    assert "WARNING" in answer.out
    assert answer.out.count("\nSignature") == 1, "the name of a file is no line of the answer"
    for name in (".claim", "data/.hidden.parquet", "etc", "gone"):
        assert name in answer.out
        assert name in dpdist("verify", str(place), "--json").json["unlisted"]
