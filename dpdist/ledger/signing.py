"""Ed25519 signatures of manifests, identities of data sets, and the key that encrypts the private keys of a ledger.

The key-encryption key wraps the keys of attempts and of identities at rest. It is the first of these that is set:

1. ``DPDIST_KEK``: 32 bytes in base64 (from a secret);
2. ``DPDIST_KEK_FILE``: a file of mode 0600 with that text (or 0440, of root and the process's own group, as Kubernetes
   mounts a secret);
3. the default of an embedded ledger: ``<SQLite file>.kek``, made on first use.

Releases are signed with the identity of their data set in the ledger, or with a key of their own (`signing_key`). The
private key of an identity is kept as the keys of attempts are: in the ledger, wrapped with the key-encryption key. The
public key is in the journal, so that a row that was replaced is found. A new identity replaces the one before; releases
that were signed with that stay as they are, and its public key stays known.

The signature is the 64 bytes of RFC 8032 in a file beside the manifest, so that a reader without dpdist can check it::

    openssl genpkey -algorithm ed25519 -out signing.pem && chmod 600 signing.pem
    openssl pkey -in signing.pem -pubout -out public.pem
    openssl pkeyutl -verify -rawin -in _manifest.json -sigfile _manifest.sig -pubin -inkey public.pem
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidSignature, InvalidTag, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from dpdist.errors import KeyUnavailable, SpecError, VerificationFailed
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
        """Find the key-encryption key of this process.
        Raises KeyUnavailable: none is configured, or it cannot be read, has the wrong length or a file others may
        read.

        Parameters
        ----------
        default : path, optional
            The file used when neither ``DPDIST_KEK`` nor ``DPDIST_KEK_FILE`` is set.
        create : bool
            Make the default file when it is missing (exclusively, mode 0600).
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


VARIABLE: Final = "DPDIST_SIGNING_KEY"
"""Environment variable that holds the PEM text of the private key, where it does not come from a file."""

SIGNATURE_BYTES: Final = 64

_MAKE_ONE: Final = "make one with `openssl genpkey -algorithm ed25519 -out signing.pem`"


@dataclass(frozen=True)
class Identity:
    """The key pair of a data set: the public key in hexadecimal, and the wrapped private key."""

    public: str
    wrapped: bytes = field(repr=False)

    @classmethod
    def new(cls, kek: KeyEncryptionKey) -> Identity:
        """Make a key pair."""
        private = Ed25519PrivateKey.generate()
        public = private.public_key().public_bytes_raw().hex()
        return cls(public, kek.wrap(private.private_bytes_raw(), attempt=_bound(public)))

    def private_key(self, kek: KeyEncryptionKey, dataset: str) -> Ed25519PrivateKey:
        """Return the private key. Raises KeyUnavailable: it was wrapped with another key-encryption key."""
        try:
            secret = kek.unwrap(self.wrapped, attempt=_bound(self.public))
        except KeyUnavailable:
            raise KeyUnavailable(
                f"the signing identity of data set {dataset!r} does not open with the key-encryption key from "
                f"{kek.source}: give the one it was made with, or make a new identity with `dpdist ledger identity "
                f"{dataset} --new`"
            ) from None
        return Ed25519PrivateKey.from_private_bytes(secret)

    @property
    def public_key(self) -> Ed25519PublicKey:
        """The public key."""
        return Ed25519PublicKey.from_public_bytes(bytes.fromhex(self.public))


def _bound(public: str) -> str:
    return f"signing identity {public}"


def load_signing_key(path: str | Path | None = None) -> Ed25519PrivateKey | None:
    """The private key in a PEM file, or in the environment variable `VARIABLE`, or None if neither is given. Raises
    SpecError: the file cannot be read, may be read by others, or holds no unencrypted Ed25519 private key.
    """
    if path is not None:
        where = f"signing key {path}"
        content = _read(Path(path), where)
        if is_exposed(os.stat(path)):
            raise SpecError(f"the {where} may be read or written by others: run `chmod 600 {path}`")
    elif os.environ.get(VARIABLE):
        where, content = f"signing key in {VARIABLE}", os.environ[VARIABLE].encode()
    else:
        return None
    try:
        key = load_pem_private_key(content, password=None)
    except TypeError:
        raise SpecError(f"the {where} is encrypted: decrypt it with `openssl pkey`, or {_MAKE_ONE}") from None
    except (ValueError, UnsupportedAlgorithm):
        raise SpecError(f"the {where} is not a private key in PEM: {_MAKE_ONE}") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise SpecError(f"the {where} is not an Ed25519 key: {_MAKE_ONE}")
    return key


def load_public_key(path: str | Path) -> Ed25519PublicKey:
    """The public key in a PEM file. Raises SpecError: the file cannot be read or holds no Ed25519 public key."""
    where = f"public key {path}"
    advice = "make it with `openssl pkey -in signing.pem -pubout -out public.pem`"
    try:
        key = load_pem_public_key(_read(Path(path), where))
    except (ValueError, UnsupportedAlgorithm):
        raise SpecError(f"the {where} is not a public key in PEM: {advice}") from None
    if not isinstance(key, Ed25519PublicKey):
        raise SpecError(f"the {where} is not an Ed25519 key: {advice}")
    return key


def sign(manifest: bytes, key: Ed25519PrivateKey) -> bytes:
    """The signature of a manifest, 64 bytes; deterministic."""
    return key.sign(manifest)


def check_signature(manifest: bytes, signature: bytes, key: Ed25519PublicKey) -> None:
    """Check the signature of a manifest. Raises VerificationFailed: the manifest was changed, or was signed with
    another key.
    """
    try:
        key.verify(signature, manifest)
    except InvalidSignature:
        raise VerificationFailed(
            "the signature does not fit the manifest and the public key: the manifest was changed "
            "after signing, or signed with another key; get the release, or the key, again from its publisher"
        ) from None


def key_fingerprint(key: Ed25519PublicKey) -> str:
    """The name of a public key: what ``openssl pkey -pubin -in public.pem -outform DER | sha256sum`` prints."""
    content = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def public_pem(key: Ed25519PublicKey) -> str:
    """The public key as PEM text, for readers who pin it."""
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def _read(path: Path, where: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SpecError(f"the {where} cannot be read ({error.strerror}): check the path and its mode") from None
