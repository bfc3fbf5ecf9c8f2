"""A federated round: what each client sends, and how the coordinator assembles the averages.

Each client mixes rows of its own class; the coordinator averages the t-th mixtures of all clients. Only messages
leave a client: exact sums of rows plus noise, as integers in steps of the rows' grid. Clients hold disjoint records,
so they compose in parallel. What the noise protects is in `dpdist.families.mixing.federated.correlated`.

The clients of a round are fixed before it begins. One that drops out later, or sends what does not fit, fails the
round: nothing is published, and nothing is drawn again. As every message is a pure function of its client's key, a
message that is asked for twice is the same twice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np

from dpdist.errors import AccountingError, RoundFailed
from dpdist.families.mixing.federated.correlated import CorrelatedNoise, Masks
from dpdist.families.mixing.federated.identity import message_statement, require_signature
from dpdist.families.mixing.mixture import Mixer, Rows
from dpdist.privacy.arrays import Counts
from dpdist.privacy.noise import Noise

MESSAGE_BYTES = 1 << 26
"""Largest message."""

LEAST_STEPS = 16.0
"""Least deviation of a client's own noise in steps, times the root of the number of honest clients."""

MESSAGES_HELD = 4
"""Of the size of a message: what a client holds while it makes one, and the coordinator beside those of all clients."""

_LARGEST_STEP = 1 << 53
_TAIL = 40.0  # deviations of noise: exceeded with a probability below 2**-1000


@dataclass(frozen=True, eq=False)
class Message:
    """What leaves a client: noisy sums of its mixtures, in steps of the grid."""

    client: str
    round: str  # public id of attempt, class and block; a message of another round is refused
    steps: Counts  # int64[t, d]
    # of `dpdist.families.mixing.federated.identity.message_statement`; empty for a client without identity
    signature: bytes = b""


def noisy_steps(
    noise: Noise, masks: Masks, sums: Rows, mixer: Mixer, correlated: CorrelatedNoise, start: int
) -> Counts:
    """The sums of mixtures `start` and following (float32[t, d], from `class_sums`) with a client's noise, in steps of
    the grid: int64[t, d].

    `masks` are those towards all other clients of the round, none in the local model. `correlated` is drawn in place of
    the mixer's ``sigma``, tau, which a message alone would need. Raises RoundFailed: the masks do not belong to a round
    of so many clients; AccountingError: the noise is too small for the grid.
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
    """Refuse correlated noise of which too few steps are left to each client (see
    `dpdist.families.mixing.federated.correlated`). Raises AccountingError.
    """
    steps = correlated.sigma * mixer.order / mixer.grid
    if correlated.mask_sigma > 0 and steps < LEAST_STEPS * math.sqrt(correlated.honest):
        raise AccountingError("correlated noise is too small for the grid; raise the noise or use the local model")


def block_rows(width: int, *, clients: int) -> int:
    """Mixtures in a message, of so many coordinates each: the coordinator holds those of all clients at a time."""
    return max(1, min(MESSAGE_BYTES, 8 * MESSAGE_BYTES // clients) // (8 * width))


def largest_step(mixer: Mixer, correlated: CorrelatedNoise) -> int:
    """What no honest message exceeds: the largest sum, and noise of `_TAIL` deviations."""
    steps_of = mixer.order / mixer.grid
    deviation = math.hypot(correlated.sigma, math.sqrt(correlated.clients - 1) * correlated.mask_sigma)
    return math.ceil(steps_of * (mixer.clip + _TAIL * deviation)) + correlated.clients


def check_message(
    message: Message,
    *,
    client: str,
    public_key: str,
    round: str,
    shape: tuple[int, int],
    largest: int = _LARGEST_STEP,
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
