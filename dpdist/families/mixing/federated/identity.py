"""Who speaks: the Ed25519 identity of a client, whose public half the spec pins.

A client signs the key by which it agrees on masks, and every message. So a coordinator, or another worker that takes
the client's resource, can neither stand between two clients nor send a message in a client's name.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from contextlib import suppress

import numpy as np
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_der_public_key
from numpy.typing import NDArray

from dpdist.errors import RoundFailed, SpecError
from dpdist.ledger.signing import load_signing_key

MAKE_ONE = "make one with `openssl genpkey -algorithm ed25519 -out FILE` and chmod 600"


def parse_identity(text: str) -> Ed25519PublicKey:
    """The public key that a spec pins: the one line between the dashes of a PEM file. Raises ValueError: it is none."""
    with suppress(ValueError, binascii.Error, UnsupportedAlgorithm):
        key = load_der_public_key(base64.b64decode(text, validate=True))
        if isinstance(key, Ed25519PublicKey):
            return key
    raise ValueError(
        "`public_key` is the line between the dashes of `openssl pkey -in FILE -pubout`, of an Ed25519 key"
    )


def identity_text(key: Ed25519PrivateKey) -> str:
    """What a spec pins of a private key."""
    der = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return base64.b64encode(der).decode()


def load_identity(path: str, *, pinned: str) -> Ed25519PrivateKey:
    """The private key of a client, from a file on its own machine. Raises SpecError: the file is missing, may be read
    by others, is no key, or not the one whose public half is pinned.
    """
    key = load_signing_key(path)
    if key is None:
        raise SpecError(f"federated: a client without identity; {MAKE_ONE}")
    if identity_text(key) != pinned:
        raise SpecError("federated: the identity of a client is not the one whose public_key the spec pins")
    return key


def _statement(what: str, *parts: str, content: bytes) -> bytes:
    return "\n".join((f"dpdist federated {what} 1", *parts, hashlib.sha256(content).hexdigest())).encode()


def key_statement(public: bytes, *, client: str, attempt: str, spec: str) -> bytes:
    """What a client signs of its key for masks."""
    return _statement("key", attempt, client, spec, content=public)


def message_statement(steps: NDArray[np.int64], *, client: str, round: str) -> bytes:
    """What a client signs of a message."""
    return _statement("message", round, client, str(steps.shape), content=np.ascontiguousarray(steps).tobytes())


def require_signature(signature: bytes, statement: bytes, *, client: str, pinned: str) -> None:
    """Refuse what a client did not sign. Raises RoundFailed."""
    try:
        parse_identity(pinned).verify(signature, statement)
    except InvalidSignature:
        raise RoundFailed(
            f"what came in the name of client {client!r} is not signed with its public_key; the round fails. Find out "
            "who else offers its resource"
        ) from None
