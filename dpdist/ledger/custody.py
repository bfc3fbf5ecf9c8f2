"""Who holds the key of an attempt, and where: in its ledger row, in one file for workers, then nowhere."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import sqlalchemy as sa

from dpdist.errors import KeyUnavailable, LedgerError, ResourceError
from dpdist.ledger import key_encryption, keys, tables
from dpdist.ledger.database import Database
from dpdist.ledger.rows import charge_of, charges_of, lock_charge, lock_dataset, stale
from dpdist.privacy.noise import Noise


def default_kek(database: Database) -> Path | None:
    """Return the file of the embedded key-encryption key, ``<SQLite file>.kek``."""
    return database.file.with_name(database.file.name + ".kek") if database.file else None


def new_wrapped_key(database: Database, attempt: str) -> bytes:
    """Make the key of an attempt and wrap it."""
    kek = key_encryption.KeyEncryptionKey.find(default_kek(database), create=True)
    return kek.wrap(keys.new_key(), attempt=attempt)


def noise(database: Database, attempt: str) -> Noise:
    """Return the noise of a drawing attempt."""
    wrapped = database.read(lambda connection: _wrapped_key(connection, attempt))
    kek = key_encryption.KeyEncryptionKey.find(default_kek(database))
    return Noise(kek.unwrap(wrapped, attempt=attempt))


def share(database: Database, attempt: str, uri: str) -> keys.KeyRef:
    """Store the wrapped key of an open attempt in a file; erase the file it had elsewhere."""

    def place(connection: sa.Connection) -> tuple[bytes, str | None]:
        _, charge = lock_charge(connection, attempt)
        if charge["state"] not in tables.OPEN:
            raise stale(charge)
        wrapped = bytes(charge["wrapped_key"])
        _set_uri(connection, attempt, uri)  # before the file is written: it is always found again
        return wrapped, charge["key_uri"]

    kek = key_encryption.KeyEncryptionKey.find(default_kek(database))
    wrapped, before = database.write(place)
    if before not in (None, uri):
        keys.erase_key_file(str(before), attempt=attempt)
    ref = keys.write_key_file(uri, attempt=attempt, wrapped=wrapped, kek_file=kek.path)
    charge = database.read(lambda connection: charge_of(connection, attempt))
    if charge["state"] not in tables.OPEN:  # it ended meanwhile: leave nothing behind
        keys.erase_key_file(uri, attempt=attempt)
        raise stale(charge)
    return ref


def erase(database: Database, attempt: str, *, patient: bool = True) -> None:
    """Destroy the key file of an attempt that has ended; its row lost the key with its last transition.

    A file that is not there is looked for again by `sweep`: it may be on another machine, or about to be written.
    """
    charge = database.read(lambda connection: charge_of(connection, attempt))
    if charge["state"] in tables.OPEN:
        raise LedgerError(f"attempt {attempt} is {charge['state']}: commit or void it before its key is erased")
    keys.forget_keys(attempt)
    uri = charge["key_uri"]
    if uri is not None and keys.erase_key_file(uri, attempt=attempt, patient=patient):
        database.write(lambda connection: _set_uri(connection, attempt, None))


def left_behind(connection: sa.Connection, dataset: str) -> list[str]:
    """Attempts that ended with a key file: an interrupted run left it."""
    charge = tables.charge.c
    row = lock_dataset(connection, dataset, lock=False)
    found = charges_of(connection, row, charge.key_uri.is_not(None), charge.state.not_in(tables.OPEN))
    return [row["attempt"] for row in found]


def sweep(database: Database, attempts: Iterable[str]) -> None:
    """Erase the key files of ended attempts, as far as their storage answers, and unfinished key-encryption keys."""
    kek = default_kek(database)
    if kek is not None:
        key_encryption.sweep_key_encryption_key(kek)
    for attempt in attempts:
        with suppress(KeyUnavailable, ResourceError):
            erase(database, attempt, patient=False)


def _wrapped_key(connection: sa.Connection, attempt: str) -> bytes:
    """Return the wrapped key: none is handed out before the ledger says ``drawing``."""
    charge = charge_of(connection, attempt)
    if charge["state"] == tables.RESERVED:
        raise LedgerError(f"the key of attempt {attempt} is handed out only after mark_drawing")
    if charge["state"] != tables.DRAWING:
        raise stale(charge)
    return bytes(charge["wrapped_key"])


def _set_uri(connection: sa.Connection, attempt: str, uri: str | None) -> None:
    connection.execute(sa.update(tables.charge).where(tables.charge.c.attempt == attempt).values(key_uri=uri))
