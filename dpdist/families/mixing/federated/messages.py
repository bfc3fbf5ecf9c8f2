"""What leaves a client: noisy sums of its mixtures, signed, with noise of its own or with masks that cancel.

Each client mixes rows of its own class; the coordinator averages the t-th mixtures of all clients. Only messages
leave a client: exact sums of rows plus noise, as integers in steps of the rows' grid. As every message is a pure
function of its client's key, a message that is asked for twice is the same twice.

*Local*: each message carries the noise that makes it private by itself, of deviation tau. *Correlated* (CAPE [1]_):
client s adds ``g_s + e_s`` with ``e_s = sum_r n_sr`` and ``n_sr = -n_rs ~ N(0, sigma_p^2)``, so the e_s cancel in the
sum of all clients. With H honest clients that costs what independent noise of deviation tau does, where ``1/tau^2 =
(1/H) / sigma_g^2 + (1 - 1/H) / (H sigma_p^2 + sigma_g^2)``; ``docs/guarantees.md`` has the proof.

Each Gaussian is rounded to the grid and the masks cancel exactly. A sum of rounded Gaussians is no rounded Gaussian,
but up to aliasing it is a post-processing of one: the characteristic functions differ only where a frequency in units
of the grid exceeds 1/4, and there the g_s leave less than ``exp(-pi^2 sigma_g^2 / 8)``, sigma_g in steps. With
``sigma_g >= 16 sqrt(H)`` steps, which is enforced, that is below ``2^-400`` for each honest client.

The seed of a pair's masks comes from X25519 and HKDF-SHA256, bound to the attempt. A client signs the key by which it
agrees on masks, and every message, with an Ed25519 key whose public half the spec pins: a coordinator, or a worker that
takes the client's resource, can neither stand between two clients nor send a message in a client's name.

References
----------
.. [1] Imtiaz, Mohammadi, Silva, Baker, Plis, Sarwate, Calhoun, *A correlated noise-assisted decentralized
   differentially private estimation protocol, and its application to fMRI source separation*, 2021.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import reduce

import numpy as np
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_der_public_key
from numpy.typing import NDArray

from dpdist.errors import AccountingError, RoundFailed, SpecError
from dpdist.families.mixing.mixture import Mixer, Rows
from dpdist.ledger.signing import load_signing_key
from dpdist.privacy.arrays import Counts
from dpdist.privacy.noise import Noise

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
    """A client's private key. Raises SpecError: its file is missing, readable by others, or not the pinned key."""
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


MASK_RATIO = 64.0  # deviation of the masks of a pair, in units of the noise that a message alone would need


@dataclass(frozen=True, kw_only=True)
class CorrelatedNoise:
    """Noise of each client whose messages together leak like messages with independent noise."""

    sigma: float  # deviation of a client's own noise, sigma_g
    mask_sigma: float  # deviation of the masks of each pair of clients, sigma_p; 0 in the local model
    clients: int  # clients in the round, S
    honest: int  # clients that keep their secrets, at least, H

    @property
    def average(self) -> float:
        """Deviation of the noise in the average of all clients."""
        return self.sigma / math.sqrt(self.clients)


def local_noise(sigma: float, *, clients: int) -> CorrelatedNoise:
    """Each message private by itself: independent noise of deviation `sigma`, no masks."""
    return CorrelatedNoise(sigma=sigma, mask_sigma=0.0, clients=clients, honest=1)


def correlated_noise(
    sigma: float, *, clients: int, colluding: int = 0, mask_ratio: float = MASK_RATIO
) -> CorrelatedNoise:
    """The noise with the guarantee of independent noise of deviation `sigma`, tau, which a message alone would need.

    Some `colluding` clients may share all they know with the coordinator. `mask_ratio` is ``sigma_p / tau``. Raises
    AccountingError: there is no honest client, or a number is out of range.
    """
    honest = clients - colluding
    if clients < 1 or colluding < 0 or honest < 1 or not sigma > 0 or not mask_ratio > 0:
        raise AccountingError(
            "correlated noise needs at least one client beyond those that collude, and positive noise; lower "
            "`colluding` or wait for more clients"
        )
    if honest == 1:  # no mask hides anything
        return local_noise(sigma, clients=clients)
    # x = sigma_g^2 solves (1/H)/x + (1 - 1/H)/(P + x) = 1/tau^2 with P = H sigma_p^2; tau = 1 here.
    masks = honest * mask_ratio**2
    root = math.sqrt((masks - 1) ** 2 + 4 * masks / honest)
    variance = 2 * masks / honest / (masks - 1 + root)
    own = sigma * math.sqrt(variance) * (1 + 2.0**-40)
    return CorrelatedNoise(sigma=own, mask_sigma=mask_ratio * sigma, clients=clients, honest=honest)


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


MESSAGE_BYTES = 1 << 26  # largest message
LEAST_STEPS = 16.0  # least deviation of a client's own noise in steps, times the root of the number of honest clients
MESSAGES_HELD = 4  # messages that a client holds while it makes one, and the coordinator beside those of all clients

_LARGEST_STEP = 1 << 53
_TAIL = 40.0  # deviations of noise: exceeded with a probability below 2**-1000


@dataclass(frozen=True, eq=False)
class Message:
    """What leaves a client: noisy sums of its mixtures, in steps of the grid."""

    client: str
    round: str  # public id of attempt, class and block; a message of another round is refused
    steps: Counts  # int64[t, d]
    signature: bytes = b""  # of `message_statement`; empty for a client without identity


def noisy_steps(
    noise: Noise, masks: Masks, sums: Rows, mixer: Mixer, correlated: CorrelatedNoise, start: int
) -> Counts:
    """The sums of mixtures from `start` on with a client's noise, in steps of the grid: int64[t, d].

    `correlated` is drawn in place of the mixer's ``sigma``, with the `masks` towards all other clients of the round.
    Raises RoundFailed: masks of another round; AccountingError: the noise is too small for the grid.
    """
    masked = correlated.mask_sigma > 0
    if len(masks.signs) != (correlated.clients - 1 if masked else 0):
        raise RoundFailed("the masks are not those of all other clients of the round; agree on the keys again")
    require_fine_grid(mixer, correlated)
    own, width = replace(mixer, sigma=correlated.sigma), sums.shape[1]
    steps = np.empty(sums.shape, np.int64)
    for a, b in mixer.blocks(0, len(sums), width=width):
        steps[a:b] = own.noisy_sums(noise, sums[a:b], start + a) / mixer.grid
        if masked:
            sigma, first = correlated.mask_sigma * (mixer.order / mixer.grid), (start + a) * width
            steps[a:b] += masks.draw(f"{mixer.name}/mask", (b - a) * width, sigma=sigma, start=first).reshape(-1, width)
    return steps


def require_fine_grid(mixer: Mixer, correlated: CorrelatedNoise) -> None:
    """Refuse correlated noise of too few steps. Raises AccountingError."""
    steps = correlated.sigma * mixer.order / mixer.grid
    if correlated.mask_sigma > 0 and steps < LEAST_STEPS * math.sqrt(correlated.honest):
        raise AccountingError("correlated noise is too small for the grid; raise the noise or use the local model")


def block_rows(width: int, *, clients: int) -> int:
    """Mixtures in a message, of this many coordinates each: the coordinator holds those of all clients at a time."""
    return max(1, min(MESSAGE_BYTES, 8 * MESSAGE_BYTES // clients) // (8 * width))


def largest_step(mixer: Mixer, correlated: CorrelatedNoise) -> int:
    """What no honest message exceeds: the largest sum, and noise of `_TAIL` deviations."""
    steps_of = mixer.order / mixer.grid
    deviation = math.hypot(correlated.sigma, math.sqrt(correlated.clients - 1) * correlated.mask_sigma)
    return math.ceil(steps_of * (mixer.clip + _TAIL * deviation)) + correlated.clients


def check_message(
    message: Message, *, client: str, public_key: str, round: str, shape: tuple[int, int], largest: int = _LARGEST_STEP
) -> None:
    """Refuse a message that is foreign, malformed or not signed by its client.

    `client` was asked, and signs by `public_key` (empty: no identity); every message of the `round` has the same
    `shape`, mixtures and coordinates, and no value above `largest` (see `largest_step`). Raises RoundFailed: nothing
    may be published, and the round is not drawn again.
    """
    if not isinstance(message, Message) or type(message.client) is not str or message.client != client:
        raise RoundFailed(f"client {client!r} sent something else than its message; the round fails")
    steps = message.steps
    if type(message.round) is not str or message.round != round:
        raise RoundFailed(f"client {client!r} sent a message of another round; the round fails")
    if type(steps) is not np.ndarray or steps.dtype != np.int64 or steps.shape != shape:
        raise RoundFailed(f"client {client!r} sent no array of {shape[0]} x {shape[1]} int64; the round fails")
    if steps.size and not -largest <= int(steps.min()) <= int(steps.max()) <= largest:
        raise RoundFailed(f"client {client!r} sent values beyond what noise reaches; the round fails")
    if public_key:
        statement = message_statement(steps, client=client, round=round)
        require_signature(message.signature, statement, client=client, pinned=public_key)


def average(messages: Sequence[Message], mixer: Mixer) -> Rows:
    """The averages of the clients' mixtures, from one message of each client of the round. Returns float32[t, d]."""
    total: Counts = reduce(np.add, (message.steps for message in messages))
    return np.asarray(total * (mixer.grid / (mixer.order * len(messages))), np.float32)
