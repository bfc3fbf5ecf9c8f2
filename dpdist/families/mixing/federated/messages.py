"""What clients of a mixing release send: noisy sums of mixtures, with noise of their own or with masks that cancel.

Each client mixes rows of its own class; the coordinator averages the t-th mixtures of all clients. Only messages
leave a client: exact sums of rows plus noise, as integers in steps of the rows' grid (`dpdist.federated.messages`).

*Local*: each message carries the noise that makes it private by itself, of deviation tau. *Correlated* (CAPE [1]_):
client s adds ``g_s + e_s`` with ``e_s = sum_r n_sr`` and ``n_sr = -n_rs ~ N(0, sigma_p^2)``, so the e_s cancel in the
sum of all clients. With H honest clients that costs what independent noise of deviation tau does, where ``1/tau^2 =
(1/H) / sigma_g^2 + (1 - 1/H) / (H sigma_p^2 + sigma_g^2)``; ``docs/guarantees.md`` has the proof.

Each Gaussian is rounded to the grid and the masks cancel exactly. A sum of rounded Gaussians is no rounded Gaussian,
but up to aliasing it is a post-processing of one: the characteristic functions differ only where a frequency in units
of the grid exceeds 1/4, and there the g_s leave less than ``exp(-pi^2 sigma_g^2 / 8)``, sigma_g in steps. With
``sigma_g >= 16 sqrt(H)`` steps, which is enforced, that is below ``2^-400`` for each honest client.

References
----------
.. [1] Imtiaz, Mohammadi, Silva, Baker, Plis, Sarwate, Calhoun, *A correlated noise-assisted decentralized
   differentially private estimation protocol, and its application to fMRI source separation*, 2021.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np

from dpdist.errors import AccountingError, RoundFailed
from dpdist.families.mixing.mixture import Mixer, Rows
from dpdist.federated.messages import Masks, Message
from dpdist.privacy.arrays import Counts
from dpdist.privacy.noise import Noise

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


MESSAGE_BYTES = 1 << 26  # largest message
LEAST_STEPS = 16.0  # least deviation of a client's own noise in steps, times the root of the number of honest clients
MESSAGES_HELD = 4  # messages that a client holds while it makes one, and the coordinator beside those of all clients

_TAIL = 40.0  # deviations of noise: exceeded with a probability below 2**-1000


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


def average(messages: Sequence[Message], mixer: Mixer) -> Rows:
    """The averages of the clients' mixtures, from one message of each client of the round. Returns float32[t, d]."""
    total: Counts = reduce(np.add, (message.steps for message in messages))
    return np.asarray(total * (mixer.grid / (mixer.order * len(messages))), np.float32)
