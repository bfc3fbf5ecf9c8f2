"""What a client of a federated release does, on its own workers: each function is one task, whole.

The noise of a message is not the coordinator's to choose: the client derives it from what it was charged. For one
charge it sends the mixtures of a class once: who masks whom is written down before the first message, and nobody else
is accepted later. So a message that is asked for again is the same again.

What goes wrong is answered by the kind of error alone. Its text stays with the client, in ``trouble.txt`` of the
attempt's folder below its own.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from dpdist.data.source import fingerprint
from dpdist.errors import DataError, DpdistError, LedgerError, ReleaseConflict, ResourceError, RoundFailed
from dpdist.families.mixing.federated.client_session import (
    Seat,
    agreement_key,
    charged,
    codes_of,
    folder_of,
    forget,
    identity_of,
    ledger_of,
    noise_of,
    refuse_shared,
    require_state,
    source_of,
    table_of,
    work_of,
)
from dpdist.families.mixing.federated.correlated import Masks, public_key
from dpdist.families.mixing.federated.identity import key_statement, message_statement, require_signature
from dpdist.families.mixing.federated.messages import Message, noisy_steps
from dpdist.families.mixing.sums import SHARD_BYTES, class_sums
from dpdist.storage.store import Store

CONFIRMED_FILE = "confirmed.json"
"""Outcomes of the noisy counts of a client, drawn once."""

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Answer:
    """What a client answers: a value, or the kind of trouble it has.

    Attributes
    ----------
    value : object
    trouble : str
        Name of the kind of error, and what it means in general; empty if all went well.
    """

    value: Any = None
    trouble: str = ""


def answering(
    function: Callable[Concatenate[Seat, Parameters], Result],
) -> Callable[..., Answer]:
    """Let a function answer: its errors become the name of their kind, their text stays at the client."""

    @functools.wraps(function)
    def answer(seat: Seat, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Answer:
        try:
            return Answer(function(seat, *args, **kwargs))
        except Exception as error:
            with suppress(Exception):
                _make_folders(seat)
                work_of(seat).write_bytes(
                    "trouble.txt", f"{function.__name__}: {type(error).__name__}: {error}".encode()
                )
            return Answer(trouble=_kind(error))

    return answer


def _kind(error: Exception) -> str:
    """The kind of an error, in words that are the same for all of them; which data error it is stays at the client."""
    if not isinstance(error, DpdistError):
        return f"an unforeseen {type(error).__name__}"
    kind: type[DpdistError] = next((k for k in (DataError, ResourceError) if isinstance(error, k)), type(error))
    return f"{kind.__name__}: {(kind.__doc__ or '').splitlines()[0].rstrip('.')}"


@dataclass(frozen=True)
class Joined:
    """The key by which a client agrees on masks, and its signature; empty in the local model."""

    public: bytes = b""
    signature: bytes = b""


@answering
def hello(seat: Seat) -> None:
    """Whether the client can take part: it finds its files, ledger, folder and identity. Reads no record."""
    with closing(ledger_of(seat)) as ledger:
        ledger.show(seat.client.dataset)
    identity_of(seat)
    table_of(seat)
    _make_folder(folder_of(seat))
    folder_of(seat).check_writable()


@answering
def join(seat: Seat) -> Joined:
    """Reserve the charge, and tell the key for masks. Reads no record."""
    with closing(ledger_of(seat)) as ledger:
        refuse_shared(seat, ledger)
        attempt = ledger.reserve(
            dataset=seat.client.dataset,
            release=seat.spec.name,
            spec_hash=seat.spec_hash,
            input_fingerprint=fingerprint(source_of(seat)),
            event=seat.plan.event,
            guarantee=seat.plan.kind,
            attempt=seat.own_attempt,
            new_attempt=True,  # the coordinator's ledger decides whether there is a new one
        )
        require_state(attempt, "reserved", "drawing")
    _make_folders(seat)
    key = identity_of(seat)
    if key is None:
        return Joined()
    public = public_key(agreement_key(seat))
    statement = key_statement(public, client=seat.name, attempt=seat.attempt, spec=seat.spec.fingerprint)
    return Joined(public, key.sign(statement))


@answering
def read(seat: Seat) -> None:
    """Read and check the client's table; it stays in this worker's memory."""
    codes_of(seat)


@answering
def confirm(seat: Seat) -> tuple[bool, ...]:
    """Whether each class has its declared minimum here, by a noisy count."""
    codes = codes_of(seat)
    with closing(ledger_of(seat)) as ledger:
        charged(seat, ledger, "reserved", "drawing")
        ledger.mark_drawing(seat.own_attempt)
    noise, plan = noise_of(seat), seat.plan
    outcomes = []
    for part, columns in zip(plan.classes, codes, strict=True):
        size = len(columns[0])
        noisy = size + int(noise.discrete_laplace(f"checks/class/{part.code}", 1, scale=part.check.scale)[0])
        outcomes.append(part.check.passes(noisy) and size >= plan.order)
    stored = work_of(seat).write_exclusive(CONFIRMED_FILE, json.dumps(outcomes).encode())
    return tuple(map(bool, json.loads(stored)))


@answering
def send(seat: Seat, place: int, block: int, members: dict[str, Joined]) -> Message:
    """The message of the client for one block of mixtures of one class.

    Parameters
    ----------
    place : int
        Which of the classes.
    block : int
    members : dict of str to Joined
        All clients that mix this class, this one included.
    """
    plan, part = seat.plan, seat.plan.classes[place]
    _pin(seat, part.code, members)
    with closing(ledger_of(seat)) as ledger:
        charged(seat, ledger, "drawing")
    if not json.loads(work_of(seat).read_bytes(CONFIRMED_FILE))[place]:
        raise RoundFailed("a class whose declared minimum was not confirmed is not mixed")
    shared, mixer, noise = plan.shared(len(members)), plan.mixer(part.code), noise_of(seat)
    start = block * plan.block
    stop = min(start + plan.block, part.mixtures.records)
    if not 0 <= start < stop:
        raise RoundFailed("a block of mixtures that the plan does not have")
    masks = _masks(seat, part.code, members) if shared.mask_sigma > 0 else Masks()
    sums = class_sums(codes_of(seat)[place], plan.encoding, mixer, noise, start, stop, shard_bytes=SHARD_BYTES)
    steps = noisy_steps(noise, masks, sums, mixer, shared, start)
    round, key = round_id(seat.attempt, part.code, block), identity_of(seat)
    statement = message_statement(steps, client=seat.name, round=round)
    return Message(seat.name, round, steps, b"" if key is None else key.sign(statement))


@answering
def ready(seat: Seat, digest: str) -> None:
    """Whether the client can commit to a manifest: its input is what it was, its attempt open or committed to it."""
    with closing(ledger_of(seat)) as ledger:
        attempt = charged(seat, ledger, "drawing", "committed")
        if attempt.state == "committed" and attempt.manifest_sha256 != digest:
            raise ReleaseConflict("the attempt is committed to another manifest")
    if attempt.state == "drawing" and attempt.input_fingerprint != fingerprint(source_of(seat)):
        raise ReleaseConflict("the input changed during the round")


@answering
def commit(seat: Seat, digest: str) -> None:
    """Commit the client's attempt to a manifest, and destroy its key."""
    with closing(ledger_of(seat)) as ledger:
        ledger.commit(seat.own_attempt, manifest_sha256=digest)
    forget(seat)


@answering
def void(seat: Seat) -> None:
    """Give the client's charge back, if it has drawn no noise."""
    forget(seat)
    with closing(ledger_of(seat)) as ledger, suppress(LedgerError):
        ledger.void(seat.own_attempt)


def round_id(attempt: str, code: int, block: int) -> str:
    """Public id of the messages of one block of one class."""
    return f"{attempt}/{code}/{block}"


def _make_folder(store: Store) -> None:
    """Make a folder that only its owner may read; what lies above it must be there."""
    if store.is_local:
        Path(store.uri).mkdir(mode=0o700, exist_ok=True)


def _make_folders(seat: Seat) -> None:
    """The client's folder and that of the attempt in it, before anything is written there."""
    _make_folder(folder_of(seat))
    _make_folder(work_of(seat))


def _pin(seat: Seat, code: int, members: dict[str, Joined]) -> None:
    """Write down who mixes a class with this client; refuse any others later, and whoever is not in the spec."""
    federated = seat.spec.federated
    listed = {client.name for client in federated.clients} if federated is not None else set()
    if seat.name not in members or not set(members) <= listed:
        raise RoundFailed("the clients of a class are not those of the spec")
    now = _list_of(members)
    if work_of(seat).write_exclusive(f"members-{code}.json", now) != now:
        raise RoundFailed("the class was mixed with other clients before; a round is drawn once")


def _masks(seat: Seat, code: int, members: dict[str, Joined]) -> Masks:
    """The masks towards all other clients of the class, whose keys they signed."""
    federated = seat.spec.federated
    pinned = {client.name: client.public_key or "" for client in federated.clients} if federated is not None else {}
    peers = []
    for name, joined in members.items():
        statement = key_statement(joined.public, client=name, attempt=seat.attempt, spec=seat.spec.fingerprint)
        require_signature(joined.signature, statement, client=name, pinned=pinned[name])
        if name != seat.name:
            peers.append(joined.public)
    listed = hashlib.sha256(_list_of(members)).hexdigest()  # other members, other masks
    return Masks.agree(agreement_key(seat), peers, context=f"{seat.attempt}/{code}/{listed}")


def _list_of(members: dict[str, Joined]) -> bytes:
    return json.dumps({name: members[name].public.hex() for name in sorted(members)}).encode()
