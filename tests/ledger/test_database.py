"""Addresses, tables, permissions; errors that name the ledger and never its password."""

import os
import socket
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa

from dpdist.errors import LedgerError, LedgerUnavailable, OutOfDisk
from dpdist.ledger import Books, tables
from dpdist.ledger import database as database_module
from dpdist.ledger.database import Database
from dpdist.privacy.events import ApproximateDP


def test_the_tables_are_made_with_their_version(ledger_url: str) -> None:
    engine = Books.open(ledger_url).database.engine
    with engine.connect() as connection:
        names = sa.inspect(connection).get_table_names()
        assert connection.execute(sa.select(tables.version.c.version_num)).scalar_one() == tables.REVISION
    assert set(names) == set(tables.metadata.tables)
    assert all(name.startswith("dpdist_") for name in names)


def test_opening_again_changes_nothing(ledger_url: str) -> None:
    Books.open(ledger_url).create_dataset("acs", epsilon=1, delta=0)
    assert list(Books.open(ledger_url).datasets()) == ["acs"]
    assert list(Books.open(ledger_url, create=False).datasets()) == ["acs"]


def test_a_ledger_of_another_version_is_refused(ledger_url: str) -> None:
    with Books.open(ledger_url).database.engine.begin() as connection:
        connection.execute(sa.text(f"UPDATE {tables.version.name} SET version_num = '9999'"))
    with pytest.raises(LedgerError, match="use the version of dpdist that wrote it"):
        Books.open(ledger_url)
    with pytest.raises(LedgerError, match="tables are of version 9999"):
        Books.open(ledger_url, create=False)


def test_a_ledger_that_is_not_there_is_not_made_by_accident(tmp_path: Path, postgres_url: str) -> None:
    with pytest.raises(LedgerError, match="make one with dpdist ledger create"):
        Books.open(f"sqlite:///{tmp_path}/ledger.db", create=False)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(LedgerError, match="make one with dpdist ledger create"):
        Books.open(postgres_url, create=False)


def test_it_shares_a_database_with_others(postgres_url: str) -> None:
    engine = sa.create_engine(postgres_url)
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE version AS SELECT 'theirs' AS version_num"))
    Books.open(postgres_url).create_dataset("acs", epsilon=1, delta=0)
    with engine.begin() as connection:
        assert connection.execute(sa.text("SELECT version_num FROM version")).scalar_one() == "theirs"
    engine.dispose()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("sqlite://", "needs a file"),
        ("sqlite:///:memory:", "needs a file"),
        ("mysql://user:secret@host/db", "cannot be kept in 'mysql'"),
        ("secret", "URL cannot be read"),
        ("postgresql+psycopg://user:secret@host:secret/db", "URL cannot be read"),
    ],
)
def test_an_address_that_cannot_hold_a_ledger_is_refused(url: str, message: str) -> None:
    with pytest.raises(LedgerError, match=message) as refused:
        Books.open(url)
    assert "secret" not in str(refused.value)
    assert "sqlite:////path/ledger.sqlite" in str(refused.value)


def test_a_plain_postgresql_address_uses_the_same_driver(postgres_url: str) -> None:
    ledger = Books.open(postgres_url.replace("+psycopg", ""))
    assert ledger.database.engine.driver == "psycopg"


def test_credentials_are_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_module, "RECONNECT_SECONDS", 0.0)
    url = "postgresql+psycopg://user:secret@127.0.0.1:1/db?sslpassword=secret&connect_timeout=2"
    database = Database(url)
    assert database.name == "postgresql+psycopg://user:***@127.0.0.1:1/db"
    with pytest.raises(LedgerError, match=r"user:\*\*\*@127.0.0.1:1/db: the server does not answer") as refused:
        Books.open(url)
    assert "secret" not in str(refused.value)
    assert refused.value.__suppress_context__
    assert "secret" not in repr(Books(database, lambda events, delta: 0.0))


def test_a_database_that_does_not_exist_is_named(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_module, "RECONNECT_SECONDS", 0.0)
    with pytest.raises(LedgerError, match="nowhere: "):
        Books.open(postgres_url.rpartition("/")[0] + "/nowhere")


def test_the_sqlite_file_is_its_owners(tmp_path: Path) -> None:
    Books.open(f"sqlite:///{tmp_path}/new/folder/ledger.db")
    file = tmp_path / "new" / "folder" / "ledger.db"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_relative_sqlite_address_survives_a_change_of_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ledger = Books.open("sqlite:///ledger.db")
    os.mkdir("below")
    monkeypatch.chdir(tmp_path / "below")
    ledger.create_dataset("acs", epsilon=1, delta=0)
    assert not (tmp_path / "below" / "ledger.db").exists()


@pytest.mark.usefixtures("synced")
def test_sqlite_is_set_to_survive(tmp_path: Path) -> None:
    ledger = Books.open(f"sqlite:///{tmp_path}/ledger.db")
    with ledger.database.engine.connect() as connection:
        pragmas = ("journal_mode", "synchronous", "foreign_keys", "secure_delete", "busy_timeout")
        values = [connection.exec_driver_sql(f"PRAGMA {name}").scalar_one() for name in pragmas]
    assert values == ["delete", 3, 1, 1, 300_000]


def test_postgresql_is_set_to_survive(postgres_url: str) -> None:
    ledger = Books.open(postgres_url)

    def settings(connection: sa.Connection) -> list[str]:
        names = ("synchronous_commit", "transaction_isolation", "lock_timeout")
        return [connection.exec_driver_sql(f"SHOW {name}").scalar_one() for name in names]

    with ledger.database.engine.begin() as connection:
        connection.exec_driver_sql("ALTER ROLE postgres SET synchronous_commit = off")
        connection.exec_driver_sql("ALTER ROLE postgres SET default_transaction_isolation = 'serializable'")
    try:
        assert ledger.database.write(settings) == ["on", "read committed", "5min"]
        assert ledger.database.read(settings) == ["on", "repeatable read", "5min"]
    finally:
        with ledger.database.engine.begin() as connection:
            connection.exec_driver_sql("ALTER ROLE postgres RESET ALL")


def test_a_postgresql_server_that_falls_silent_is_lost_in_time(postgres_url: str) -> None:
    """What the kernel is asked for; a dead network cannot be had on one machine."""
    for url, patience in ((postgres_url, 30_000), (f"{postgres_url}?tcp_user_timeout=7000", 7_000)):
        with Database(url).engine.connect() as connection:
            driver = connection.connection.driver_connection
            assert driver is not None
            with socket.socket(fileno=os.dup(driver.pgconn.socket)) as link:
                if link.family == socket.AF_UNIX:
                    pytest.fail("the server of the tests must be reached by TCP")
                assert link.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == patience
                assert link.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
                idle = link.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
                between = link.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL)
                assert idle + between * link.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT) <= 30


@pytest.mark.timeout(60)
def test_a_server_that_accepts_and_says_nothing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_module, "RECONNECT_SECONDS", 3.0)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"postgresql+psycopg://user@127.0.0.1:{listener.getsockname()[1]}/ledger?connect_timeout=2"
        with pytest.raises(LedgerUnavailable, match="does not answer"):
            Books.open(url)


def test_a_file_that_is_no_ledger_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").write_bytes(b"not a database, but long enough to be read as one" * 100)
    with pytest.raises(LedgerError, match="the file is no SQLite database"):
        Books.open(f"sqlite:///{tmp_path}/ledger.db")
    (tmp_path / "file").write_text("")
    with pytest.raises(LedgerError, match="choose a folder that can be written"):
        Books.open(f"sqlite:///{tmp_path}/file/ledger.db")


def test_a_lock_that_is_never_released_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    Books.open(url)
    monkeypatch.setattr(database_module, "LOCK_SECONDS", 0.1)
    holder = sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    with pytest.raises(LedgerUnavailable, match="another process held the lock for too long"):
        Books.open(url).create_dataset("acs", epsilon=1, delta=0)
    holder.close()


def test_a_row_lock_that_is_never_released_is_an_error(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Books.open(postgres_url)
    ledger.create_dataset("acs", epsilon=1, delta=0)
    short = sa.select(sa.func.set_config("lock_timeout", "100ms", True))
    monkeypatch.setattr(database_module, "_POSTGRES_SETTINGS", short)
    request = {"dataset": "acs", "release": "r", "spec_hash": "s", "input_fingerprint": "f", "guarantee": "dp"}
    with ledger.database.engine.begin() as connection:
        connection.execute(sa.select(tables.dataset).with_for_update())
        with pytest.raises(LedgerUnavailable, match="held the lock for too long; see which session"):
            ledger.reserve(**request, event=ApproximateDP(0.1))


def test_a_full_disk_is_an_error_that_can_be_resumed(tmp_path: Path) -> None:
    ledger = Books.open(f"sqlite:///{tmp_path}/ledger.db")

    def fill(connection: sa.Connection) -> None:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
        for number in range(10_000):
            columns = dict.fromkeys(("epsilon_cap", "delta_cap", "guarantees", "filters", "created", "head"), "1")
            connection.execute(sa.insert(tables.dataset).values(name=f"{number}", length=1, **columns))

    with pytest.raises(OutOfDisk, match="disk full; free some space and resume"):
        ledger.database.write(fill)
    assert ledger.datasets() == ()


def test_a_read_only_ledger_is_an_error(tmp_path: Path) -> None:
    ledger = Books.open(f"sqlite:///{tmp_path}/ledger.db")
    with pytest.raises(LedgerError, match="read-only; make both writable"):
        ledger.database.write(
            lambda connection: [
                connection.exec_driver_sql("PRAGMA query_only = ON"),
                connection.exec_driver_sql("CREATE TABLE x (y int)"),
            ]
        )


def test_a_missing_privilege_is_an_error(postgres_url: str) -> None:
    ledger = Books.open(postgres_url)
    with ledger.database.engine.begin() as connection:
        connection.exec_driver_sql(
            "DO $$ BEGIN IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'reader') "
            "THEN CREATE ROLE reader LOGIN; END IF; END $$"
        )
    with pytest.raises(LedgerError, match="the user lacks a privilege; grant"):
        Books.open(postgres_url.replace("postgres@", "reader@")).datasets()


def test_importing_the_ledger_is_light() -> None:
    code = "import sys, dpdist.ledger; print(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {"psycopg", "fsspec", "dp_accounting", "dask"}.isdisjoint(loaded)


def test_a_ledger_may_be_named_by_the_path_of_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Books.open(str(tmp_path / "books.db")).create_dataset("acs", epsilon=1, delta=1e-9)
    for named in ("books.db", str(tmp_path / "books.db"), "sqlite:///books.db"):
        assert Books.open(named, create=False).show("acs").attempts == ()
    (tmp_path / "books.db").rename(tmp_path / "books")
    assert Books.open("books", create=False).show("acs").attempts == ()
    with pytest.raises(LedgerError, match="URL cannot be read"):
        Books.open("nonsense")


def test_it_says_where_a_missing_ledger_was_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second ledger knows nothing of what the first has spent: nobody is told to make one without a word of it."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LedgerError, match=f"which is {tmp_path / 'books.db'}.*knows nothing of what was spent"):
        Books.open("sqlite:///books.db", create=False)
