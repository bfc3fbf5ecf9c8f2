"""The key-encryption key, which wraps the keys of attempts at rest.

It is the first of these that is set:

1. ``DPDIST_KEK``: 32 bytes in base64 (from a secret);
2. ``DPDIST_KEK_FILE``: a file of mode 0600 with that text (or 0440, of root and the process's own group, as Kubernetes
   mounts a secret);
3. the default of an embedded ledger: ``<SQLite file>.kek``, made on first use.
"""

from __future__ import annotations

import base64
import binascii
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from dpdist.errors import KeyUnavailable
from dpdist.storage import local

KEY_BYTES: Final = 32
FORMAT: Final = "dpdist attempt key 1"
_NONCE_BYTES: Final = 12


@dataclass(frozen=True, eq=False)
class KeyEncryptionKey:
    """The secret that wraps attempt keys at rest."""

    secret: bytes = field(repr=False)  # 32 bytes; never pickled
    source: str  # where it was found, for messages
    path: str = ""  # the file it was read from, empty when it came from the environment

    def __reduce__(self) -> str:
        raise TypeError("a key-encryption key is never pickled; every process finds it by itself")

    @classmethod
    def find(cls, default: str | Path | None = None, *, create: bool = False) -> KeyEncryptionKey:
        """Find the key-encryption key of this process; the file `default` is that of a process in which neither
        ``DPDIST_KEK`` nor ``DPDIST_KEK_FILE`` is set, and is made with `create` (exclusively, mode 0600). Raises
        KeyUnavailable: none is configured, or it cannot be read, has the wrong length or a file others may read.
        """
        text = os.environ.get("DPDIST_KEK", "")
        if text:
            return cls(_decode(text, "the variable DPDIST_KEK"), "DPDIST_KEK")
        named = os.environ.get("DPDIST_KEK_FILE", "")
        if not named and not default:
            raise KeyUnavailable(
                "no key-encryption key: set DPDIST_KEK to 32 bytes in base64 (openssl rand -base64 32), "
                "or DPDIST_KEK_FILE to a file of mode 0600 that holds them"
            )
        path = Path(named or str(default)).absolute()
        if create and not named:
            _create_secret_file(path)
        return cls(_decode(_read_secret_file(path), f"the file {path}"), str(path), str(path))

    def wrap(self, key: bytes, *, attempt: str) -> bytes:
        """Return ``nonce | ciphertext | tag`` of `key` under AES-256-GCM, bound to the attempt's id."""
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + AESGCM(self.secret).encrypt(nonce, key, _context(attempt))

    def unwrap(self, wrapped: bytes, *, attempt: str) -> bytes:
        """Return the key that `wrap` was given. Raises KeyUnavailable: the bytes are damaged, belong to another attempt
        or were wrapped by another key-encryption key.
        """
        try:
            return AESGCM(self.secret).decrypt(wrapped[:_NONCE_BYTES], wrapped[_NONCE_BYTES:], _context(attempt))
        except (InvalidTag, ValueError):
            raise KeyUnavailable(
                f"the key of attempt {attempt} does not open with the key-encryption key from {self.source}: "
                "give the one the attempt was reserved with, or ask for a new attempt (a new charge)"
            ) from None


def _context(attempt: str) -> bytes:
    return f"{FORMAT} {attempt}".encode()


def _decode(text: str, where: str) -> bytes:
    try:
        secret = base64.b64decode(text.strip(), validate=True)
    except (binascii.Error, ValueError):
        secret = b""
    if len(secret) != KEY_BYTES:
        raise KeyUnavailable(f"{where} must hold 32 bytes in base64 (openssl rand -base64 32)")
    return secret


def is_exposed(found: os.stat_result) -> bool:
    """Whether others may read or write the file of a secret.

    Its group may read it if it belongs to root and this process does not: so Kubernetes mounts a secret for a pod.
    """
    mode = stat.S_IMODE(found.st_mode)
    mounted = found.st_uid == 0 != os.geteuid() and not mode & 0o037
    return bool(mode & 0o077) and not mounted


def _read_secret_file(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            found = os.fstat(file.fileno())
            if is_exposed(found):
                raise KeyUnavailable(
                    f"the key-encryption key in {path} may be read or written by others (mode "
                    f"{stat.S_IMODE(found.st_mode):04o}): run chmod 600 {path}"
                )
            return file.read(4096).decode("ascii", errors="replace")
    except OSError as error:
        raise KeyUnavailable(
            f"the key-encryption key in {path} cannot be read ({error.strerror}): restore the file, or set "
            "DPDIST_KEK or DPDIST_KEK_FILE to the key that open attempts were reserved with"
        ) from None


def _create_secret_file(path: Path) -> None:
    """Make a key-encryption key that appears complete or not at all, whoever else does the same."""
    if path.exists():
        return
    try:
        local.write(str(path), base64.b64encode(os.urandom(KEY_BYTES)) + b"\n", exclusive=True, mode=0o600)
    except OSError as error:
        raise KeyUnavailable(
            f"the key-encryption key cannot be created at {path} ({error.strerror}): make the folder writable, or "
            "set DPDIST_KEK or DPDIST_KEK_FILE"
        ) from None
