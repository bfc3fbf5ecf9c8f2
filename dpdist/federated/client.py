"""The tasks of a client in a federated release; each runs whole on a worker of the client.

A client derives the noise of its messages from its own charge, so the coordinator cannot lower it. Before its first
message of a class it stores which clients mix that class, and refuses others later. A repeated message is therefore the
same, bit for bit.

Clients report only the type of an error; its text stays in ``error.txt`` of the attempt's folder at the client.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, TypeVar

from dpdist.data.source import fingerprint
from dpdist.errors import DataError, DpdistError, LedgerError, ReleaseConflict, ResourceError, RoundFailed
from dpdist.federated import session as own
from dpdist.federated.messages import Masks, Message, key_statement, message_statement, public_key, require_signature
from dpdist.federated.session import ClientSession
from dpdist.privacy.arrays import Counts

Parameters = ParamSpec("Parameters")
SessionT = TypeVar("SessionT", bound=ClientSession)
Result = TypeVar("Result")


@dataclass(frozen=True)
class ClientAnswer:
    """What a client answers: a value, or the type of an error."""

    value: Any = None
    error: str = ""  # name of the type, and what it means in general; empty if there was no error


def answering(function: Callable[Concatenate[SessionT, Parameters], Result]) -> Callable[..., ClientAnswer]:
    """A task that answers with the value of a function, or with the type of its error; the text is stored."""

    @functools.wraps(function)
    def answer(session: SessionT, *args: Parameters.args, **kwargs: Parameters.kwargs) -> ClientAnswer:
        try:
            return ClientAnswer(function(session, *args, **kwargs))
        except Exception as error:
            with suppress(Exception):
                _make_folders(session)
                own.work_of(session).write_bytes(
                    "error.txt", f"{function.__name__}: {type(error).__name__}: {error}".encode()
                )
            return ClientAnswer(error=_kind(error))

    return answer


def _kind(error: Exception) -> str:
    """The type of an error; data errors are reported as one type."""
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
def hello(session: ClientSession) -> None:
    """Check that the client finds its files, ledger, folder and identity. Reads no record."""
    _require_ready(session)


def _require_ready(session: ClientSession) -> None:
    with closing(own.ledger_of(session)) as ledger:
        ledger.show(session.client.dataset)
        own.identity_of(session)
        fingerprint(own.source_of(session))
        if not own.looks_at_records(session, own.contract_of(session, ledger)):
            own.table_of(session, ledger)
    own.folder_of(session).make_private()
    own.folder_of(session).check_writable()


@answering
def join(session: ClientSession) -> Joined:
    """Reserve the charge and return the client's key for masks. Reads no record."""
    _require_ready(session)
    with closing(own.ledger_of(session)) as ledger:
        own.refuse_shared(session, ledger)
        attempt = ledger.reserve(
            dataset=session.client.dataset,
            release=session.spec.name,
            spec_hash=session.spec_hash,
            input_fingerprint=fingerprint(own.source_of(session)),
            event=session.plan.event,
            guarantee=session.plan.kind,
            contract=own.contract_of(session, ledger),
            attempt=session.own_attempt,
            new_attempt=True,  # the coordinator's ledger decides whether there is a new one
        )
        own.require_state(attempt, "reserved", "drawing")
    _make_folders(session)
    key = own.identity_of(session)
    if key is None:
        return Joined()
    public = public_key(own.agreement_key(session))
    statement = key_statement(public, client=session.name, attempt=session.attempt, spec=session.spec.fingerprint)
    return Joined(public, key.sign(statement))


@answering
def read(session: ClientSession) -> None:
    """Read and check the client's table; it stays in this worker's memory."""
    own.attempt_of(session)


@answering
def ready(session: ClientSession, digest: str) -> None:
    """Check that the client can commit to a manifest: its input is unchanged, its attempt open or committed to it."""
    with closing(own.ledger_of(session)) as ledger:
        attempt = own.charged(session, ledger, "drawing", "committed")
        if attempt.state == "committed" and attempt.manifest_sha256 != digest:
            raise ReleaseConflict("the attempt is committed to another manifest")
    if attempt.state == "drawing" and attempt.input_fingerprint != fingerprint(own.source_of(session)):
        raise ReleaseConflict("the input changed during the round")


@answering
def commit(session: ClientSession, digest: str) -> None:
    """Commit the client's attempt to a manifest, and destroy its key."""
    with closing(own.ledger_of(session)) as ledger:
        ledger.commit(session.own_attempt, manifest_sha256=digest)
    own.forget(session)


@answering
def void(session: ClientSession) -> None:
    """Give the client's charge back, if it has drawn no noise."""
    own.forget(session)
    with closing(own.ledger_of(session)) as ledger, suppress(LedgerError):
        ledger.void(session.own_attempt)


def _make_folders(session: ClientSession) -> None:
    """The client's folder and that of the attempt in it, before anything is written there."""
    own.folder_of(session).make_private()
    own.work_of(session).make_private()


def pin(session: ClientSession, part: int | str, members: dict[str, Joined], *, fewer: bool = False) -> None:
    """Store which clients take part in a part of the round with this one; refuse others later, and clients that the
    spec does not list. With `fewer`, some of them may be missing later.
    """
    if session.name not in members or not members.keys() <= session.spec.clients.keys():
        raise RoundFailed("the clients that take part are not those of the spec")
    now = _list_of(members)
    before = own.work_of(session).write_exclusive(f"members-{part}.json", now)
    if before != now and not (fewer and json.loads(now).items() <= json.loads(before).items()):
        raise RoundFailed("other clients took part before; a round is drawn once")


ALL = "all"  # the part of a round in which all clients take part, but those that are lost


def drawing_of(session: ClientSession, members: dict[str, Joined], *, fewer: bool = False) -> own.ClientAttempt:
    """The client's attempt, charged, in which it draws noise with these members. Raises RoundFailed: they are too few,
    or others than before.
    """
    if len(members) < session.spec.least_clients:
        raise RoundFailed("fewer clients take part than the noise of each is made for")
    pin(session, ALL, members, fewer=fewer)
    attempt = own.attempt_of(session)
    with closing(own.ledger_of(session)) as ledger:
        own.charged(session, ledger, "drawing")
    return attempt


def message_of(session: ClientSession, round: str, steps: Counts) -> Message:
    """What the client sends in a round, signed where it has an identity."""
    key = own.identity_of(session)
    statement = message_statement(steps, client=session.name, round=round)
    return Message(session.name, round, steps, b"" if key is None else key.sign(statement))


def masks_of(session: ClientSession, part: int | str, members: dict[str, Joined]) -> Masks:
    """The masks towards all other clients of a part of the round, whose keys they signed."""
    peers = []
    for name, joined in members.items():
        statement = key_statement(joined.public, client=name, attempt=session.attempt, spec=session.spec.fingerprint)
        require_signature(joined.signature, statement, client=name, pinned=session.spec.clients[name] or "")
        if name != session.name:
            peers.append(joined.public)
    listed = hashlib.sha256(_list_of(members)).hexdigest()  # other members, other masks
    return Masks.agree(own.agreement_key(session), peers, context=f"{session.attempt}/{part}/{listed}")


def _list_of(members: dict[str, Joined]) -> bytes:
    return json.dumps({name: members[name].public.hex() for name in sorted(members)}).encode()
