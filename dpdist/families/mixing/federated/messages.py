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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
    """What leaves a client: noisy sums of its mixtures, in steps of the grid.

    Attributes
    ----------
    client : str
    round : str
        Public id of attempt, class and block; a message of another round is refused.
    steps : int64[t, d]
    signature : bytes
        Of `dpdist.families.mixing.federated.identity.message_statement`; empty for a client without identity.
    """

    client: str
    round: str
    steps: Counts
    signature: bytes = b""


def client_message(
    noise: Noise,
    masks: Masks,
    rows: Rows,
    mixer: Mixer,
    correlated: CorrelatedNoise,
    start: int,
    stop: int,
    *,
    client: str,
    round: str,
) -> Message:
    """A client's message for mixtures `start` to `stop` - 1 of one class.

    Parameters
    ----------
    noise : Noise
        The client's own.
    masks : Masks
        Towards all other clients of the round; none in the local model.
    rows : float32[n, d]
        The client's rows of the class, from `clip_rows` with the mixer's norm.
    mixer : Mixer
        Its ``sigma`` is what a message alone would need, tau.
    correlated : CorrelatedNoise
        What is drawn in its place.

    Raises
    ------
    DataError
        The class has fewer rows than a mixture.
    RoundFailed
        The masks do not belong to a round of so many clients.
    AccountingError
        The noise is too small for the grid.
    """
    sums = mixer.sums(noise, rows, start, stop)
    return Message(client, round, noisy_steps(noise, masks, sums, mixer, correlated, start))


def noisy_steps(
    noise: Noise, masks: Masks, sums: Rows, mixer: Mixer, correlated: CorrelatedNoise, start: int
) -> Counts:
    """The sums of mixtures `start` and following with a client's noise, in steps of the grid.

    Parameters and errors are those of `client_message`.
    """
    masked = correlated.mask_sigma > 0
    if len(masks.signs) != (correlated.clients - 1 if masked else 0):
        raise RoundFailed("the masks are not those of all other clients of the round; agree on the keys again")
    require_fine_grid(mixer, correlated)
    steps_of = mixer.order / mixer.grid
    own = correlated.sigma * steps_of
    first = start * sums.shape[1]
    steps: Counts = (sums.reshape(-1) / np.float32(mixer.grid)).astype(np.int64)
    steps += noise.gaussian_integers(f"{mixer.name}/noise", sums.size, sigma=own, start=first)
    if masked:
        steps += masks.draw(f"{mixer.name}/mask", sums.size, sigma=correlated.mask_sigma * steps_of, start=first)
    return steps.reshape(sums.shape)


def require_fine_grid(mixer: Mixer, correlated: CorrelatedNoise) -> None:
    """Refuse correlated noise of which too few steps are left to each client (see
    `dpdist.families.mixing.federated.correlated`).

    Raises
    ------
    AccountingError
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


def assemble(
    messages: Sequence[Message],
    mixer: Mixer,
    *,
    clients: Mapping[str, str] | Sequence[str],
    round: str,
    shape: tuple[int, int],
    largest: int = _LARGEST_STEP,
) -> Rows:
    """The averages of the clients' mixtures.

    A message that arrives twice, bit for bit, counts once.

    Parameters
    ----------
    messages : sequence of Message
    mixer : Mixer
        Of the class.
    clients : mapping of str to str, or sequence of str
        The clients of the round, fixed before it began; with the public keys by which they sign, if they do.
    round : str
    shape : (int, int)
        Mixtures and coordinates of every message.
    largest : int
        No message has a larger value: see `largest_step`.

    Returns
    -------
    float32[t, d]

    Raises
    ------
    RoundFailed
        A message is missing, foreign, malformed, or differs from another of the same client. Nothing may be published,
        and the round is not drawn again.
    """
    received: dict[str, Counts] = {}
    for message in messages:
        check_message(message, clients=clients, round=round, shape=shape, largest=largest)
        before = received.setdefault(message.client, message.steps)
        if before is not message.steps and not np.array_equal(before, message.steps):
            raise RoundFailed(f"client {message.client!r} sent two different messages in one round; the round fails")
    missing = [client for client in clients if client not in received]
    if missing:
        raise RoundFailed(
            f"no message from {', '.join(map(repr, missing))}: a client that drops out during a round fails it; "
            "nothing is published and nothing is drawn again"
        )
    return _average(received, mixer)


def check_message(
    message: Message,
    *,
    clients: Mapping[str, str] | Sequence[str],
    round: str,
    shape: tuple[int, int],
    largest: int = _LARGEST_STEP,
) -> None:
    """Refuse a message that is foreign, malformed or not signed by whom it names; parameters as for `assemble`.

    Raises
    ------
    RoundFailed
    """
    if not isinstance(message, Message) or not isinstance(message.client, str) or message.client not in clients:
        raise RoundFailed(f"{_named(message)} is not one of the round's; the round fails")
    steps, name = message.steps, _named(message)
    if type(message.round) is not str or message.round != round:
        raise RoundFailed(f"{name} sent a message of another round; the round fails")
    if type(steps) is not np.ndarray or steps.dtype != np.int64 or steps.shape != shape:
        raise RoundFailed(f"{name} sent no array of {shape[0]} x {shape[1]} int64; the round fails")
    if steps.size and not -largest <= int(steps.min()) <= int(steps.max()) <= largest:
        raise RoundFailed(f"{name} sent values beyond what noise reaches; the round fails")
    pinned = clients.get(message.client) if isinstance(clients, Mapping) else None
    if pinned:
        statement = message_statement(steps, client=message.client, round=round)
        require_signature(message.signature, statement, client=message.client, pinned=pinned)


def _named(message: object) -> str:
    return f"client {message.client!r}" if isinstance(message, Message) else "what sent something else than a message"


def _average(received: dict[str, Counts], mixer: Mixer) -> Rows:
    total: Counts = reduce(np.add, received.values())
    return np.asarray(total * (mixer.grid / (mixer.order * len(received))), np.float32)
