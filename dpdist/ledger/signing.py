"""The signing identity of a data set: an Ed25519 key pair with which its releases are signed.

The private key is kept as the keys of attempts are: in the ledger, wrapped with the key-encryption key. The public key
is in the journal, so that a row that was replaced is found by ``dpdist ledger verify``. A new identity replaces
the one before; releases that were signed with that stay as they are, and its public key stays known.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import sqlalchemy as sa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from dpdist.errors import KeyUnavailable
from dpdist.ledger import journal, tables
from dpdist.ledger.anchor import Mark
from dpdist.ledger.custody import default_kek
from dpdist.ledger.database import Database
from dpdist.ledger.key_encryption import KeyEncryptionKey
from dpdist.ledger.rows import Row, lock_dataset
from dpdist.ledger.transitions import now

IDENTITY: Final = journal.IDENTITY


@dataclass(frozen=True)
class NewIdentity:
    """A key pair that is about to be entered: the public key in hexadecimal, and the wrapped private key."""

    public: str
    wrapped: bytes = field(repr=False)


def make(database: Database) -> NewIdentity:
    """Make a key pair.

    Raises
    ------
    KeyUnavailable
        There is no key-encryption key that could protect it.
    """
    kek = KeyEncryptionKey.find(default_kek(database), create=True)
    private = Ed25519PrivateKey.generate()
    public = private.public_key().public_bytes_raw().hex()
    return NewIdentity(public, kek.wrap(private.private_bytes_raw(), attempt=_bound(public)))


def make_if_protected(database: Database) -> NewIdentity | None:
    """A key pair where a key-encryption key is configured or comes with the ledger; else None."""
    configured = any(os.environ.get(name) for name in ("DPDIST_KEK", "DPDIST_KEK_FILE"))
    return make(database) if configured or default_kek(database) else None


def enter(connection: sa.Connection, dataset: str, identity: NewIdentity, *, mark: Mark | None = None) -> None:
    """Make a key pair the identity of a data set, and write it into its journal."""
    row = lock_dataset(connection, dataset)
    account = journal.checked_account(connection, row, mark=mark)
    at = now()
    journal.append(connection, row, IDENTITY, at, {"public_key": identity.public}, account=account)
    store(connection, row, identity, at)


def store(connection: sa.Connection, dataset: Mapping[str, Any], identity: NewIdentity, at: str) -> None:
    """Store a key pair whose public key is in the journal."""
    values = {"dataset_id": dataset["id"], "public_key": identity.public, "created": at}
    connection.execute(sa.insert(tables.identity).values(**values, wrapped_key=identity.wrapped))


def identities(connection: sa.Connection, dataset: Row) -> list[Row]:
    """The identities of a data set, oldest first."""
    query = sa.select(tables.identity).where(tables.identity.c.dataset_id == dataset["id"])
    return [dict(row) for row in connection.execute(query.order_by(tables.identity.c.id)).mappings()]


def _read(database: Database, dataset: str) -> list[Row]:
    """The identities of a data set, oldest first. Raises LedgerError: they are not those of its journal."""

    def read(connection: sa.Connection) -> list[Row]:
        row = lock_dataset(connection, dataset, lock=False)
        found = identities(connection, row)
        if [one["public_key"] for one in found] != journal.entered_keys(connection, row):
            raise journal.damaged(dataset, [journal.IDENTITIES_ALTERED])
        return found

    return database.read(read)


def public_keys(database: Database, dataset: str) -> tuple[Ed25519PublicKey, ...]:
    """The public keys of a data set, the newest first; none where it has no identity."""
    keys = [Ed25519PublicKey.from_public_bytes(bytes.fromhex(row["public_key"])) for row in _read(database, dataset)]
    return tuple(reversed(keys))


def signing_key(database: Database, dataset: str) -> Ed25519PrivateKey | None:
    """The private key of the newest identity; None where there is none.

    Raises
    ------
    KeyUnavailable
        The key-encryption key is missing or another one.
    """
    rows = _read(database, dataset)
    if not rows:
        return None
    public, kek = rows[-1]["public_key"], KeyEncryptionKey.find(default_kek(database))
    try:
        secret = kek.unwrap(bytes(rows[-1]["wrapped_key"]), attempt=_bound(public))
    except KeyUnavailable:
        raise KeyUnavailable(
            f"the signing identity of data set {dataset!r} does not open with the key-encryption key from "
            f"{kek.source}: give the one it was made with, or make a new identity with `dpdist ledger identity "
            f"{dataset} --new`"
        ) from None
    return Ed25519PrivateKey.from_private_bytes(secret)


def key_fingerprint(key: Ed25519PublicKey) -> str:
    """The name of a public key: what ``openssl pkey -pubin -in public.pem -outform DER | sha256sum`` prints."""
    content = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def public_pem(key: Ed25519PublicKey) -> str:
    """The public key as PEM text, for readers who pin it."""
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def _bound(public: str) -> str:
    return f"signing identity {public}"
