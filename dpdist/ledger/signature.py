"""Ed25519 signature of a manifest, and through it of every part.

Releases are signed with the identity of their data set in the ledger, or with a key of their own (`signing_key`).

The signature is the 64 bytes of RFC 8032 in a file beside the manifest, so that a reader without dpdist can check it::

    openssl genpkey -algorithm ed25519 -out signing.pem && chmod 600 signing.pem
    openssl pkey -in signing.pem -pubout -out public.pem
    openssl pkeyutl -verify -rawin -in _manifest.json -sigfile _manifest.sig -pubin -inkey public.pem
"""

from __future__ import annotations

import os
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key

from dpdist.errors import SpecError, VerificationFailed
from dpdist.ledger.key_encryption import is_exposed

VARIABLE = "DPDIST_SIGNING_KEY"
"""Environment variable that holds the PEM text of the private key, where it does not come from a file."""

_MAKE_ONE = "make one with `openssl genpkey -algorithm ed25519 -out signing.pem`"


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


def _read(path: Path, where: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SpecError(f"the {where} cannot be read ({error.strerror}): check the path and its mode") from None
