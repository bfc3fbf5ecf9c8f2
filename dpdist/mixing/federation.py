"""A federated round: what each client sends, and how the coordinator assembles the averages.

Each client mixes rows of its own class; the coordinator averages the t-th mixtures of all clients. Only messages
leave a client: exact sums of rows plus noise, as integers in steps of the rows' grid. Clients hold disjoint records,
so they compose in parallel. What the noise protects is in `dpdist.mixing.correlated`.

The clients of a round are fixed before it begins. One that drops out later, or sends what does not fit, fails the
round: nothing is published, and nothing is drawn again. As every message is a pure function of its client's key, a
message that is asked for twice is the same twice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpdist.errors import AccountingError, RoundFailed
from dpdist.mixing.correlated import CorrelatedNoise, Masks, Steps
from dpdist.mixing.mixture import Mixer, Rows, sum_rows
from dpdist.privacy.noise import Noise

_LEAST_STEPS = 16.0
_LARGEST_STEP = 1 << 53


@dataclass(frozen=True, eq=False)
class Message:
    """What leaves a client: noisy sums of its mixtures, in steps of the grid.

    Attributes
    ----------
    client : str
    round : str
        Public id of attempt, class and block; a message of another round is refused.
    steps : int64[t, d]
    """

    client: str
    round: str
    steps: Steps


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
    masked = correlated.mask_sigma > 0
    if len(masks.signs) != (correlated.clients - 1 if masked else 0):
        raise RoundFailed("the masks are not those of all other clients of the round; agree on the keys again")
    steps_of = mixer.order / mixer.grid
    own = correlated.sigma * steps_of
    if masked and own < _LEAST_STEPS * math.sqrt(correlated.honest):
        raise AccountingError("correlated noise is too small for the grid; raise the noise or use the local model")
    pieces = []
    for a, b in mixer.blocks(start, stop, width=rows.shape[1]):
        sums = sum_rows(rows, mixer.sample(noise, a, b, size=len(rows)))
        first, count = a * rows.shape[1], sums.size
        steps = (sums.reshape(-1) / np.float32(mixer.grid)).astype(np.int64)
        steps += noise.gaussian_integers(f"{mixer.name}/noise", count, sigma=own, start=first)
        if masked:
            steps += masks.draw(f"{mixer.name}/mask", count, sigma=correlated.mask_sigma * steps_of, start=first)
        pieces.append(steps.reshape(sums.shape))
    return Message(client, round, np.concatenate(pieces) if pieces else np.empty((0, rows.shape[1]), np.int64))


def assemble(
    messages: Sequence[Message], mixer: Mixer, *, clients: Sequence[str], round: str, shape: tuple[int, int]
) -> Rows:
    """The averages of the clients' mixtures.

    A message that arrives twice, bit for bit, counts once.

    Parameters
    ----------
    messages : sequence of Message
    mixer : Mixer
        Of the class.
    clients : sequence of str
        The clients of the round, fixed before it began.
    round : str
    shape : (int, int)
        Mixtures and coordinates of every message.

    Returns
    -------
    float32[t, d]

    Raises
    ------
    RoundFailed
        A message is missing, foreign, malformed, or differs from another of the same client. Nothing may be published,
        and the round is not drawn again.
    """
    received: dict[str, Steps] = {}
    for message in messages:
        _check(message, clients=clients, round=round, shape=shape)
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


def _check(message: Message, *, clients: Sequence[str], round: str, shape: tuple[int, int]) -> None:
    steps = message.steps
    if message.client not in clients:
        raise RoundFailed(f"client {message.client!r} is not one of the round's; the round fails")
    if message.round != round:
        raise RoundFailed(f"client {message.client!r} sent a message of another round; the round fails")
    if not isinstance(steps, np.ndarray) or steps.dtype != np.int64 or steps.shape != shape:
        raise RoundFailed(f"client {message.client!r} sent no array of {shape[0]} x {shape[1]} int64; the round fails")
    if steps.size and not -_LARGEST_STEP < int(steps.min()) <= int(steps.max()) < _LARGEST_STEP:
        raise RoundFailed(f"client {message.client!r} sent values beyond 2**53 steps; the round fails")


def _average(received: dict[str, Steps], mixer: Mixer) -> Rows:
    total: Steps = np.sum(list(received.values()), axis=0, dtype=np.int64)
    return np.asarray(total * (mixer.grid / (mixer.order * len(received))), np.float32)
