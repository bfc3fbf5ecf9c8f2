"""The database under the ledger: SQLite or PostgreSQL, the same tables, transactions that survive.

- One connection per transaction (`NullPool`): nothing is shared over a fork, and a restarted server is not noticed.
- SQLite: ``BEGIN IMMEDIATE`` takes the write lock first. The rollback journal (the default, not WAL) with
  ``synchronous=EXTRA`` (FULL, and the folder is synced too) makes a commit survive ``kill -9`` and power loss, and
  leaves a single file. SQLite's locks do not hold on NFS: a ledger shared by hosts belongs in PostgreSQL.
- PostgreSQL: READ COMMITTED and a row lock per data set; ``synchronous_commit`` is never off.
- A connection lost on the way is opened again for up to `RECONNECT_SECONDS`, and the transaction repeated: every
  transition is idempotent. A server or a network that falls silent counts as lost (`PATIENCE`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, OperationalError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from dpdist.errors import DpdistError, LedgerError, LedgerUnavailable, OutOfDisk
from dpdist.ledger import tables

LOCK_SECONDS: Final = 300
RECONNECT_SECONDS: Final = 30.0
PATIENCE: Final = {
    "connect_timeout": 10,
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
"""How long libpq waits for a PostgreSQL server that says nothing, in seconds (the last: milliseconds). The URL may
change each: ``?connect_timeout=30``."""
_CREATION_LOCK: Final = 0x6470646973740001  # "dpdist", 1
_BEGIN: Final = "dpdist_begin"
_EXAMPLE: Final = "sqlite:////path/ledger.sqlite or postgresql+psycopg://user@host/database"

T = TypeVar("T")


class Database:
    """Transactions on one ledger database, at ``sqlite:///path`` or ``postgresql+psycopg://…``."""

    def __init__(self, url: str) -> None:
        parsed = _parse(url)
        self.name = masked(parsed)  # without credentials, for messages
        # the SQLite file
        self.file = Path(str(parsed.database)).absolute() if parsed.drivername.startswith("sqlite") else None
        if self.file:
            parsed = parsed.set(database=str(self.file))  # whatever folder the process changes to
        try:
            self.engine = _engine(parsed, LOCK_SECONDS)
        except (ImportError, SQLAlchemyError) as error:
            raise LedgerError(f"ledger {self.name}: no usable driver ({type(error).__name__})") from None

    def read(self, work: Callable[[sa.Connection], T]) -> T:
        """Run `work` in a transaction that only reads, on one snapshot."""
        options = {_BEGIN: "BEGIN"} if self.file else {"isolation_level": "REPEATABLE READ"}
        return self._run(work, options)

    def write(self, work: Callable[[sa.Connection], T]) -> T:
        """Run `work` in a transaction that writes; repeat it when the connection was lost."""
        return self._run(work, {_BEGIN: "BEGIN IMMEDIATE"} if self.file else {})

    def create(self) -> None:
        """Make the tables, under a lock; that they are there is the common and fast case. Raises LedgerError: they are
        those of another version.
        """
        self.require(self.revision() or self.write(self._created))

    def require(self, revision: str) -> None:
        """Refuse tables of another version. Raises LedgerError."""
        if revision != tables.REVISION:
            raise LedgerError(
                f"ledger {self.name}: its tables are of version {revision}, this dpdist needs {tables.REVISION}: use "
                "the version of dpdist that wrote it"
            )

    def revision(self) -> str | None:
        """Return the version of the tables, None when none exist."""
        return self.read(_revision)

    def _created(self, connection: sa.Connection) -> str:
        if not self.file:
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_CREATION_LOCK)))
        found = _revision(connection)
        if found is None:  # no other process was faster
            tables.complete().create_all(connection)
            connection.execute(sa.insert(tables.version).values(version_num=tables.REVISION))
        return found or tables.REVISION

    def _run(self, work: Callable[[sa.Connection], T], options: Mapping[str, Any]) -> T:
        deadline, pause = time.monotonic() + RECONNECT_SECONDS, 0.05
        while True:
            try:
                with self.engine.connect() as connection:
                    connection.execution_options(**options)
                    with connection.begin():
                        if not self.file:
                            connection.execute(_POSTGRES_SETTINGS)
                        return work(connection)
            except IntegrityError:
                raise
            except DBAPIError as error:
                # a new connection may help where PostgreSQL went away, restarts, or starts
                lost = error.connection_invalidated or _postgres_state(error).startswith(_LOST_STATES)
                if not lost or time.monotonic() + pause > deadline:
                    kind, reason, advice = _reason(error)
                    raise kind(f"ledger {self.name}: {reason}; {advice}") from None
            time.sleep(pause)
            pause = min(2 * pause, 2.0)


_POSTGRES_SETTINGS: Final = sa.select(
    sa.func.set_config("lock_timeout", f"{LOCK_SECONDS}s", True),
    sa.func.set_config(
        "synchronous_commit",
        sa.case(
            (sa.func.current_setting("synchronous_commit") == "off", "on"),
            else_=sa.func.current_setting("synchronous_commit"),
        ),
        True,
    ),
)


def create_file(path: Path) -> None:
    """Make an empty SQLite file that only its owner may read, unless it is there. Raises LedgerError: the folder cannot
    be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except OSError as error:
        raise LedgerError(
            f"the ledger {path} cannot be created ({error.strerror}): choose a folder that can be written"
        ) from None


def masked(url: URL) -> str:
    """Return the address without password and parameters."""
    return url.set(query={}).render_as_string(hide_password=True)


def _parse(url: str) -> URL:
    if url and "://" not in url and (Path(url).suffix or Path(url).is_file()):  # the path of a file
        return URL.create("sqlite", database=url)  # as it is: ? and % are no marks of a URL here
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise LedgerError(f"the ledger's URL cannot be read; write it like {_EXAMPLE}") from None
    if parsed.drivername in ("postgresql", "postgres"):
        parsed = parsed.set(drivername="postgresql+psycopg")
    if parsed.drivername not in ("sqlite", "sqlite+pysqlite", "postgresql+psycopg"):
        raise LedgerError(f"a ledger cannot be kept in {parsed.drivername!r}; write its URL like {_EXAMPLE}")
    if parsed.drivername.startswith("sqlite") and parsed.database in (None, "", ":memory:"):
        raise LedgerError(f"a ledger outlives the process and needs a file; write its URL like {_EXAMPLE}")
    return parsed


@lru_cache(maxsize=16)  # an engine remembers the statements that it has compiled, and holds no connection
def _engine(url: URL, patience: float) -> sa.Engine:
    options: dict[str, Any] = {"poolclass": NullPool, "hide_parameters": True}
    if url.drivername.startswith("sqlite"):
        engine = sa.create_engine(url, connect_args={"timeout": patience}, **options)
        sa.event.listen(engine, "connect", _prepare_sqlite)
        sa.event.listen(engine, "begin", _begin_sqlite)
        return engine
    limits = {name: value for name, value in PATIENCE.items() if name not in url.query}
    return sa.create_engine(url, isolation_level="READ COMMITTED", connect_args=limits, **options)


def _prepare_sqlite(connection: Any, record: object) -> None:
    connection.isolation_level = None  # no implicit BEGIN: `_begin_sqlite` says which one
    for pragma in ("foreign_keys=ON", "synchronous=EXTRA", "secure_delete=ON"):
        connection.execute(f"PRAGMA {pragma}").close()


def _begin_sqlite(connection: sa.Connection) -> None:
    connection.exec_driver_sql(connection.get_execution_options().get(_BEGIN, "BEGIN"))


def _revision(connection: sa.Connection) -> str | None:
    if not sa.inspect(connection).has_table(tables.version.name):
        return None
    return connection.execute(sa.select(tables.version.c.version_num)).scalar()


_LOST_STATES: Final = ("08", "57P01", "57P02", "57P03", "40001", "40P01")
_BUSY: Final = "another process held the lock for too long"


def _postgres_state(error: DBAPIError) -> str:
    """Return the SQLSTATE; 08000 when there was no server to give one, empty when it is not PostgreSQL's error."""
    if not hasattr(error.orig, "sqlstate"):
        return ""
    return str(getattr(error.orig, "sqlstate", None) or ("08000" if isinstance(error, OperationalError) else "XX000"))


_Reason = tuple[type[DpdistError], str, str]


def _reason(error: DBAPIError) -> _Reason:
    """Return (kind, what happened, what to do) without the driver's own words, which may quote values."""
    code = getattr(error.orig, "sqlite_errorcode", None)
    if code is not None:
        return _SQLITE_REASONS.get(code & 0xFF, _SQLITE_OTHER)
    state = _postgres_state(error)
    for prefix, reason in _POSTGRES_REASONS.items():
        if state.startswith(prefix):
            return reason
    return LedgerError, f"database error {state}", "see the server's log"


_SQLITE_REASONS: Final[dict[int, _Reason]] = {
    5: (LedgerUnavailable, _BUSY, "see which process holds the file, and run again"),
    6: (LedgerUnavailable, _BUSY, "see which process holds the file, and run again"),
    8: (LedgerError, "the file or its folder is read-only", "make both writable"),
    10: (LedgerError, "the disk failed to read or write", "keep the file on a local disk, not on NFS"),
    11: (LedgerError, "the file is damaged", "restore it from a backup"),
    13: (OutOfDisk, "disk full", "free some space and resume"),
    14: (LedgerError, "the file cannot be opened", "check the path and its permissions"),
    26: (LedgerError, "the file is no SQLite database", "check the path"),
}
_SQLITE_OTHER: Final[_Reason] = (LedgerError, "the database failed", "check the file with PRAGMA integrity_check")
_POSTGRES_REASONS: Final[dict[str, _Reason]] = {
    "08": (
        LedgerUnavailable,
        "the server does not answer or refuses the connection",
        "check host, port, user, password and sslmode (in a pod also networkPolicy.ledger), and resume",
    ),
    "28": (LedgerError, "the server refuses the login", "check user and password"),
    "3D": (LedgerError, "the database does not exist", "create it or correct the URL"),
    "42501": (
        LedgerError,
        "the user lacks a privilege",
        "grant CREATE on the schema, and SELECT, INSERT, UPDATE on the tables",
    ),
    "53100": (OutOfDisk, "disk full", "free some space on the server and resume"),
    "53": (LedgerUnavailable, "the server is out of resources", "wait or raise its limits, and resume"),
    "55P03": (LedgerUnavailable, _BUSY, "see which session holds the data set's row, and run again"),
    "57": (LedgerUnavailable, "the server is shutting down or starting", "wait, and resume"),
}
