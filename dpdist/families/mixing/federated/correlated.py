r"""Noise of several clients: private against the coordinator by itself, or with masks that cancel in the sum.

Each client mixes rows of its own class; the coordinator averages the t-th mixtures of all clients. Only messages
leave a client: exact sums of rows plus noise, as integers in steps of the rows' grid. Clients hold disjoint records,
so they compose in parallel.

*Local*: each message carries the noise that makes it private by itself, of deviation tau. The average of S clients then
has noise of deviation ``tau / sqrt(S)``, though a trusted curator would need only ``tau / S``.

*Correlated* (CAPE [1]_): client s adds ``g_s + e_s`` with ``e_s = sum_r n_sr`` and ``n_sr = -n_rs ~ N(0,
sigma_p^2)``, so the e_s cancel in the sum of all clients. Let H of the clients be honest; the others may share all
they know with the coordinator, which removes their masks from the honest messages. These then carry Gaussian noise of
covariance ``(sigma_g^2 + H sigma_p^2) I - sigma_p^2 1 1^T``, whose inverse has the diagonal ``(1/H) / sigma_g^2 + (1
- 1/H) / (H sigma_p^2 + sigma_g^2)``. A change of norm Delta in one client's mixture is thus a Gaussian mechanism of

    mu^2 = Delta^2 [ (1/H) / sigma_g^2 + (1 - 1/H) / (H sigma_p^2 + sigma_g^2) ],

the same as with independent noise of deviation ``tau = Delta / mu``: with a large sigma_p, ``sigma_g = tau /
sqrt(H)``. The average carries only ``sigma_g / sqrt(S)``, as if the clients trusted a curator (H = S).

**Integers.** Each Gaussian is rounded to the grid and the masks cancel exactly. A sum of rounded Gaussians is not a
rounded Gaussian, but up to aliasing it is distributed like a post-processing of one: the product of the characteristic
functions of the rounded variables, periodic with the grid, differs from the periodic version of the product only where
one of the frequencies in units of the grid exceeds 1/4, and there the g_s leave less than ``exp(-pi^2 sigma_g^2 / 8)``,
sigma_g in steps. The rest is ``round(x + g + A (n + w))`` with n continuous and w independent and uniform. With
``sigma_g >= 16 sqrt(H)`` steps, which is enforced, this is below ``2^-400`` for each honest client.

**Keys.** The seed of a pair's masks comes from X25519 and HKDF-SHA256, bound to the attempt. The coordinator sees
public keys only. Clients must know each other's public keys from elsewhere (pin them): a coordinator that could
replace them would read the masks.

References
----------
.. [1] Imtiaz, Mohammadi, Silva, Baker, Plis, Sarwate, Calhoun, *A correlated noise-assisted decentralized
   differentially private estimation protocol, and its application to fMRI source separation*, 2021.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from dpdist.errors import AccountingError, RoundFailed
from dpdist.privacy.arrays import Counts
from dpdist.privacy.noise import Noise

MASK_RATIO = 64.0
"""Deviation of the masks of a pair, in units of the noise that a message alone would need."""


def leakage(*, sensitivity: float, sigma: float, mask_sigma: float, honest: int) -> float:
    """mu of the Gaussian mechanism that the messages of H `honest` clients are, together (see the module), for Delta,
    sigma_g and sigma_p in the same unit.
    """
    share = 1 / honest
    return sensitivity * math.sqrt(share / sigma**2 + (1 - share) / (honest * mask_sigma**2 + sigma**2))


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

    Of the `clients` of the round, S, some `colluding` ones may share all they know with the coordinator; a client
    trusts only the others. `mask_ratio` is ``sigma_p / tau``. Raises AccountingError: there is no honest client, or a
    number is out of range.
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


# --- keys ---


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
