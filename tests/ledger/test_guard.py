"""An account that defends itself: what was changed behind its back is found before anything is charged."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from botocore.exceptions import ClientError
from buckets import s3_server
from charges import add_up
from commands import Command
from sqlalchemy.engine import make_url

from dpdist.errors import DatasetExists, LedgerError
from dpdist.ledger import Books
from dpdist.ledger.anchor import VARIABLE, Anchor, Mark
from dpdist.ledger.tables import charge, dataset, journal


def reserve(ledger: Books, release: str, **changes: Any) -> str:
    request = {"dataset": "acs", "spec_hash": "s", "input_fingerprint": "f", "guarantee": "dp", "event": '"1/10"'}
    return ledger.reserve(**(request | changes), release=release).id


def run(ledger: Books, *statements: sa.Executable) -> None:
    with ledger.database.engine.begin() as connection:
        for statement in statements:
            connection.execute(statement)


@pytest.fixture
def used(ledger: Books) -> Books:
    """A ledger with a committed, a void and an open attempt."""
    first = reserve(ledger, "first")
    ledger.mark_drawing(first)
    ledger.commit(first, manifest_sha256="a" * 64)
    ledger.void(reserve(ledger, "second"))
    reserve(ledger, "third")
    return ledger


# one of each message; `test_tampering` changes everything else at random
CHANGES = {
    "a deleted charge": (sa.delete(charge).where(charge.c.release == "first"), "was deleted"),
    "a swapped charge": (
        sa.update(charge).where(charge.c.release == "first").values(attempt="x"),
        "was deleted; the charge of attempt x is not in the journal",
    ),
    "a smaller charge": (sa.update(charge).where(charge.c.release == "first").values(event='"0"'), "was altered"),
    "an edited entry": (sa.update(journal).where(journal.c.sequence == 1).values(record="{}"), "entry 1 was altered"),
    "a deleted entry": (sa.delete(journal).where(journal.c.sequence == 2), "journal entry 2 is missing"),
    "a raised cap": (sa.update(dataset).values(epsilon_cap="100"), "caps or policy were altered"),
    "a deleted last entry": (sa.delete(journal).where(journal.c.sequence == 6), "the end of the journal was cut off"),
    "another head": (sa.update(dataset).values(head="b" * 64), "the end of the journal was cut off or altered"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_is_found_by_whatever_opens_the_book(used: Books, what: str) -> None:
    third = used.find("acs", "third")
    assert third is not None
    statement, message = CHANGES[what]
    run(used, statement)
    transitions = (lambda: reserve(used, "next"), lambda: used.mark_drawing(third), lambda: used.void(third))
    for work in (*transitions, lambda: used.show("acs"), lambda: used.remaining("acs"), lambda: used.verify("acs")):
        with pytest.raises(LedgerError, match=f"({message}).*Restore it from a backup, and charge nothing until then"):
            work()
    states = {row.release: row.state for row in rows(used)}
    assert "next" not in states
    assert states["third"] == "reserved"


@pytest.mark.parametrize("ends", ["committed", "drawing", "void"])
def test_a_charge_whose_state_was_changed_is_not_given_back(ledger: Books, ends: str) -> None:
    """The state of an attempt is what the journal says, not what its row says."""
    attempt = reserve(ledger, "first")
    if ends == "void":
        ledger.void(attempt)
    else:
        ledger.mark_drawing(attempt)
    if ends == "committed":
        ledger.commit(attempt, manifest_sha256="a" * 64)
    run(ledger, sa.update(charge).values(state="reserved"))
    message = f"the charge of attempt {attempt} was altered: state"
    again = {"new_attempt": True}
    for work in (ledger.give_up, ledger.void, ledger.mark_drawing, lambda _: reserve(ledger, "first", **again)):
        with pytest.raises(LedgerError, match=message):
            work(attempt)
    with ledger.database.engine.begin() as connection:
        entries = connection.execute(sa.select(sa.func.count()).select_from(journal)).scalar_one()
    assert entries == {"committed": 4, "drawing": 3, "void": 3}[ends]


def rows(ledger: Books) -> list[Any]:
    with ledger.database.engine.begin() as connection:
        return list(connection.execute(sa.select(charge)))


# Anchors


@contextmanager
def anchored(tmp_path: Path, uri: str | None = None) -> Iterator[tuple[Books, Path]]:
    file = tmp_path / "ledger.db"
    ledger = Books.open(f"sqlite:///{file}", price=add_up, anchor=uri or str(tmp_path / "anchor"))
    ledger.create_dataset("acs", epsilon=1, delta="1e-8")
    yield ledger, file
    ledger.close()


class Backups:
    """Copies of a ledger's database and puts them back, on SQLite and on PostgreSQL."""

    def __init__(self, url: str) -> None:
        self.url = make_url(url)

    def take(self) -> None:
        self._copy(str(self.url.database), f"{self.url.database}_backup")

    def restore(self) -> None:
        self._copy(f"{self.url.database}_backup", str(self.url.database))

    def _copy(self, old: str, new: str) -> None:
        if self.url.drivername == "sqlite":
            shutil.copy(old, new)
            return
        server = self.url.set(drivername="postgresql", database="postgres").render_as_string(hide_password=False)
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(f'DROP DATABASE IF EXISTS "{new}"'.encode())
            connection.execute(f'CREATE DATABASE "{new}" TEMPLATE "{old}"'.encode())


def test_an_old_backup_is_refused(tmp_path: Path, ledger_url: str) -> None:
    backups = Backups(ledger_url)
    ledger = Books.open(ledger_url, price=add_up, anchor=str(tmp_path / "anchor"))
    ledger.create_dataset("acs", epsilon=1, delta="1e-8")
    reserve(ledger, "first")
    backups.take()
    attempt = reserve(ledger, "second")
    ledger.mark_drawing(attempt)
    backups.restore()
    for work in (lambda: reserve(ledger, "third"), lambda: ledger.remaining("acs")):
        with pytest.raises(LedgerError, match=r"journal has 2 entries, the anchor has seen 4.*newest backup"):
            work()


def test_an_anchor_is_not_set_back_by_a_slower_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process whose mark comes late, after that of one that charged later, looks again."""
    with anchored(tmp_path) as (ledger, _):
        write = Anchor.write

        def late(anchor: Anchor, dataset: str, mark: Mark) -> None:
            monkeypatch.setattr(Anchor, "write", write)
            reserve(ledger, "faster")
            write(anchor, dataset, mark)

        monkeypatch.setattr(Anchor, "write", late)
        reserve(ledger, "slower")
        assert Anchor(str(tmp_path / "anchor")).read("acs") == Mark(3, ledger.show("acs").head)


def test_a_history_that_was_made_anew_is_refused(tmp_path: Path) -> None:
    """As long as the old one, or longer: the anchored entry is another."""
    with anchored(tmp_path) as (ledger, file):
        shutil.copy(file, tmp_path / "empty")
        reserve(ledger, "first")
        shutil.copy(tmp_path / "empty", file)
        free = Books.open(f"sqlite:///{file}", price=add_up, anchor="")
        free.void(reserve(free, "other"))
        with pytest.raises(LedgerError, match="entry 1 of its journal is not the one that the anchor has seen"):
            reserve(ledger, "third")


def test_a_journal_may_go_on_from_its_anchor(tmp_path: Path) -> None:
    """A crash between the charge and its anchor leaves the anchor behind."""
    with anchored(tmp_path) as (ledger, file):
        before = ledger._anchor.read("acs")  # type: ignore[union-attr]
        for number in range(3):
            reserve(ledger, f"r{number}")
        Anchor(str(tmp_path / "anchor")).write("acs", before)
        reserve(ledger, "next")
        head = ledger.show("acs").head
        assert Anchor(str(tmp_path / "anchor")).read("acs") == Mark(5, head)
        with sa.create_engine(f"sqlite:///{file}").begin() as connection:
            connection.execute(sa.update(journal).where(journal.c.sequence == 3).values(record="{}"))
        Anchor(str(tmp_path / "anchor")).write("acs", before)
        with pytest.raises(LedgerError, match="journal entry 3 was altered"):
            reserve(ledger, "more")


def test_a_lost_or_damaged_anchor_is_named(tmp_path: Path) -> None:
    with anchored(tmp_path) as (ledger, _):
        (file,) = (tmp_path / "anchor").iterdir()
        file.write_text("{}")
        with pytest.raises(LedgerError, match=r"the anchor of data set 'acs' in .* is damaged"):
            reserve(ledger, "first")
        file.unlink()
        with pytest.raises(
            LedgerError, match=r"no anchor of data set 'acs' in .* set one with dpdist ledger anchor acs"
        ):
            reserve(ledger, "first")
        with pytest.raises(DatasetExists):
            ledger.create_dataset("acs", epsilon=1, delta=0)
        assert not file.exists()
        mark = ledger.anchor("acs")
        assert mark == Anchor(str(tmp_path / "anchor")).read("acs")
        reserve(ledger, "first")


def test_the_command_line_sets_an_anchor(dpdist: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert dpdist("ledger", "create", "acs", "--epsilon", "1", "--delta", "1e-8").code == 0
    refused = dpdist("ledger", "anchor", "acs")
    assert refused.code != 0
    assert f"the ledger has no anchor: set {VARIABLE}" in refused.err
    monkeypatch.setenv(VARIABLE, str(tmp_path / "anchor"))
    done = dpdist("ledger", "anchor", "acs")
    head = json.loads(dpdist("ledger", "show", "--json").out)[0]["head"]
    assert done.out == f"acs: anchored at entry 0, {head}\n"


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A client of an S3 server in this process, whose address the environment holds."""
    import boto3

    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    with s3_server() as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        yield boto3.client("s3", region_name="us-east-1")


def lengths(s3: Any, bucket: str) -> list[int]:
    """The lengths that the versions of the only anchor in a bucket hold, the newest first."""
    versions = s3.list_object_versions(Bucket=bucket)["Versions"]
    bodies = (s3.get_object(Bucket=bucket, Key=one["Key"], VersionId=one["VersionId"])["Body"] for one in versions)
    return [json.load(body)["length"] for body in bodies]


def test_an_anchor_on_s3(tmp_path: Path, s3: Any) -> None:
    """In a bucket with versions: an old mark that is put in its place is seen among them."""
    s3.create_bucket(Bucket="anchors")
    s3.put_bucket_versioning(Bucket="anchors", VersioningConfiguration={"Status": "Enabled"})
    with anchored(tmp_path, "s3://anchors/ledger") as (ledger, file):
        reserve(ledger, "first")
        shutil.copy(file, tmp_path / "backup")
        reserve(ledger, "second")
        shutil.copy(tmp_path / "backup", file)
        with pytest.raises(LedgerError, match="journal has 2 entries, the anchor has seen 3"):
            reserve(ledger, "third")
        assert lengths(s3, "anchors") == [3, 2, 1]


def test_an_anchor_in_a_locked_bucket(tmp_path: Path, s3: Any) -> None:
    """Nobody deletes a mark before its time; one that is hidden is named, with what to do."""
    s3.create_bucket(Bucket="locked", ObjectLockEnabledForBucket=True)
    retention = {"DefaultRetention": {"Mode": "COMPLIANCE", "Days": 3650}}
    s3.put_object_lock_configuration(
        Bucket="locked", ObjectLockConfiguration={"ObjectLockEnabled": "Enabled", "Rule": retention}
    )
    with anchored(tmp_path, "s3://locked/ledger") as (ledger, _):
        reserve(ledger, "first")
        newest = s3.list_object_versions(Bucket="locked")["Versions"][0]
        with pytest.raises(ClientError, match="AccessDenied"):
            s3.delete_object(Bucket="locked", Key=newest["Key"], VersionId=newest["VersionId"])
        hidden = s3.delete_object(Bucket="locked", Key=newest["Key"])
        with pytest.raises(LedgerError, match=r"no anchor of data set 'acs' in .*where nobody removed it"):
            reserve(ledger, "second")
        s3.delete_object(Bucket="locked", Key=newest["Key"], VersionId=hidden["VersionId"])
        reserve(ledger, "second")
        assert lengths(s3, "locked") == [3, 2, 1]


def test_a_damaged_data_set_does_not_hide_the_others(ledger: Books, dpdist: Command) -> None:
    ledger.create_dataset("whole", epsilon=1, delta="1e-9")
    run(ledger, sa.update(dataset).where(dataset.c.name == "acs").values(filters="no filters"))
    url = str(ledger.database.engine.url.render_as_string(hide_password=False))
    shown = dpdist("ledger", "show", "--ledger", url)
    assert (shown.code, "whole epsilon" in shown.words) == (5, True)
    assert "the ledger of data set 'acs' is damaged" in shown.err
    rows = {row["dataset"]: row for row in dpdist("ledger", "show", "--json", "--ledger", url).json}
    assert "damaged" in rows["acs"]["error"]
    assert rows["whole"]["epsilon"] == 1
    verified = dpdist("ledger", "verify", "--ledger", url)
    assert (verified.code, verified.out) == (5, "whole: consistent\n")
    assert dpdist("ledger", "show", "whole", "--ledger", url).code == 0
