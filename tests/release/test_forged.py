"""A release that somebody else wrote: values and guarantee changed, hashes computed again, no signature."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import Command

from dpdist.errors import VerificationFailed
from dpdist.ledger import Books
from dpdist.privacy.guarantee import from_json
from dpdist.publish.manifest import MANIFEST, Manifest
from dpdist.publish.verify import verify

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
