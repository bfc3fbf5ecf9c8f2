"""What leaves a client: integers that are signed, and masked so that they tell nothing until all are added.

Each client sends integers: exact sums plus noise of its own, a pure function of its key, so that a message that is
asked for twice is the same twice. Pairs of clients agree on masks that cancel in the sum of all clients. The seed of a
pair's masks comes from X25519 and HKDF-SHA256, bound to the attempt. A client signs the key by which it agrees on
masks, and every message, with an Ed25519 key whose public half the spec pins: a coordinator, or a worker that takes the
client's resource, can neither stand between two clients nor send a message in a client's name.

*Uniform masks* (`Masks.words`) are 64-bit words, added modulo 2^64 to the rounded Gaussian noise of the client, of
deviation ``sigma / sqrt(H)``. Any set of messages that lacks one of the clients is uniform, so the view of a
coordinator is the sum alone. The noise of H honest clients in it is, but for aliasing below ``exp(-pi^2 sigma_s^2)``,
a post-processing of Gaussian noise of deviation sigma: with ``sigma_s >= LEAST_SIGMA`` that is less than 2^-355.
*Gaussian masks* (`Masks.draw`) stand in messages of real numbers (`dpdist.families.mixing.federated.stages`).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_der_public_key
from numpy.typing import NDArray

from dpdist.errors import RoundFailed, SpecError
from dpdist.ledger.signing import load_signing_key
from dpdist.privacy.arrays import Counts
from dpdist.privacy.noise import Noise

LEAST_SIGMA = 5.0  # least deviation of a client's own rounded noise under uniform masks

MAKE_ONE = "make one with `openssl genpkey -algorithm ed25519 -out FILE` and chmod 600"


def parse_identity(text: str) -> Ed25519PublicKey:
    """The public key that a spec pins: the one line between the dashes of a PEM file. Raises ValueError."""
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
    """A private key. Raises SpecError: its file is missing, readable by others, or not the pinned key."""
    key = load_signing_key(path)
    if key is None:
        raise SpecError(f"federated: no identity is given; {MAKE_ONE}")
    if identity_text(key) != pinned:
        raise SpecError("federated: an identity is not the one whose public_key the spec pins")
    return key


def _statement(what: str, *parts: str, content: bytes) -> bytes:
    return "\n".join((f"dpdist federated {what} 1", *parts, hashlib.sha256(content).hexdigest())).encode()


def key_statement(public: bytes, *, client: str, attempt: str, spec: str) -> bytes:
    """What a client signs of its key for masks."""
    return _statement("key", attempt, client, spec, content=public)


def message_statement(steps: NDArray[np.int64], *, client: str, round: str) -> bytes:
    """What a client signs of a message."""
    return _statement("message", round, client, str(steps.shape), content=np.ascontiguousarray(steps).tobytes())


def call_statement(call: bytes, *, attempt: str, spec: str) -> bytes:
    """What the coordinator signs of a call by mailbox."""
    return _statement("call", attempt, spec, content=call)


def reply_statement(call: bytes, reply: bytes, *, client: str, attempt: str) -> bytes:
    """What a client signs of its reply to a call by mailbox."""
    return _statement("reply", attempt, client, hashlib.sha256(call).hexdigest(), content=reply)


def is_signed(signature: bytes, statement: bytes, pinned: str) -> bool:
    """Whether a statement was signed with the key that a spec pins."""
    with suppress(InvalidSignature):
        parse_identity(pinned).verify(signature, statement)
        return True
    return False


def require_signature(signature: bytes, statement: bytes, *, client: str, pinned: str) -> None:
    """Refuse what a client did not sign. Raises RoundFailed."""
    if not is_signed(signature, statement, pinned):
        raise RoundFailed(
            f"what came in the name of client {client!r} is not signed with its public_key; the round fails. Find out "
            "who else offers its resource"
        )


def public_key(private: bytes) -> bytes:
    """The public key of 32 bytes that belongs to a private key."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


@dataclass(frozen=True, eq=False)
class Masks:
    """The masks of one client towards its peers: they cancel in the sum over all clients."""

    signs: tuple[int, ...] = ()  # +1 or -1 towards each peer
    noises: tuple[Noise, ...] = field(default=(), repr=False)  # the stream that a pair shares

    @classmethod
    def agree(cls, private: bytes, peers: Iterable[bytes], *, context: str) -> Masks:
        """Agree with every peer on a stream, by the client's private key and its peers' public keys as it pinned them.
        `context` is the public id of the attempt and its round: another one gives other masks. Raises RoundFailed: a
        public key is not valid, is the client's own or is given twice.
        """
        key, own, peers = X25519PrivateKey.from_private_bytes(private), public_key(private), list(peers)
        if own in peers or len(set(peers)) < len(peers):
            raise RoundFailed("a client's public key is given twice; every client needs a key of its own")
        signs, noises = [], []
        for peer in peers:
            try:
                shared = key.exchange(X25519PublicKey.from_public_bytes(peer))
            except ValueError:
                raise RoundFailed("a client's public key is not a valid X25519 key; exchange the keys again") from None
            info = b"dpdist/mixing/mask/1" + min(own, peer) + max(own, peer)
            salt = hashlib.sha256(context.encode()).digest()
            noises.append(Noise(HKDF(SHA256(), length=32, salt=salt, info=info).derive(shared)))
            signs.append(1 if own < peer else -1)
        return cls(tuple(signs), tuple(noises))

    def draw(self, name: str, count: int, *, sigma: float, start: int = 0) -> Counts:
        """The client's mask ``e_s``, in steps; `sigma` is the deviation of a pair's noise, in steps."""
        total = np.zeros(count, np.int64)
        for sign, noise in zip(self.signs, self.noises, strict=True):
            total += sign * noise.gaussian_integers(name, count, sigma=sigma, start=start)
        return total

    def words(self, name: str, count: int) -> NDArray[np.uint64]:
        """The client's uniform mask: the words of each pair, added by one and subtracted by the other, modulo 2^64."""
        total = np.zeros(count, np.uint64)
        for sign, noise in zip(self.signs, self.noises, strict=True):
            words = noise.words(name, count)
            total = total + words if sign > 0 else total - words
        return total


LARGEST = 1 << 53  # of what is not masked by words
WORDS = 1 << 63  # of what is


@dataclass(frozen=True, eq=False)
class Message:
    """What leaves a client: noisy sums, perhaps masked."""

    client: str
    round: str  # public id of what was asked for; a message of another round is refused
    steps: Counts  # int64
    signature: bytes = b""  # of `message_statement`; empty for a client without identity


def check_message(
    message: Message, *, client: str, public_key: str, round: str, shape: tuple[int, ...], largest: int = LARGEST
) -> None:
    """Refuse a message that is foreign, malformed or not signed by its client.

    `client` was asked, and signs by `public_key` (empty: no identity); every message of the `round` has the same
    `shape`, and no value above `largest`. Raises RoundFailed: nothing may be published, and the round is not drawn
    again.
    """
    if not isinstance(message, Message) or type(message.client) is not str or message.client != client:
        raise RoundFailed(f"client {client!r} sent something else than its message; the round fails")
    steps = message.steps
    if type(message.round) is not str or message.round != round:
        raise RoundFailed(f"client {client!r} sent a message of another round; the round fails")
    if type(steps) is not np.ndarray or steps.dtype != np.int64 or steps.shape != shape:
        raise RoundFailed(f"client {client!r} sent no array of {' x '.join(map(str, shape))} int64; the round fails")
    if steps.size and not -largest <= int(steps.min()) <= int(steps.max()) <= largest:
        raise RoundFailed(f"client {client!r} sent values beyond what noise reaches; the round fails")
    if public_key:
        statement = message_statement(steps, client=client, round=round)
        require_signature(message.signature, statement, client=client, pinned=public_key)
