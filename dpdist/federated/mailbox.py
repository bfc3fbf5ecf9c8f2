"""Clients behind firewalls: calls and answers as files in a folder or object store that all can reach.

The coordinator writes each call once, for all clients; a client answers it with a file of its own. Files hold JSON and
arrays only, so nobody runs code of others: a client derives what it does from its own copy of the spec. Calls are
signed with the coordinator's key, whose public half that copy pins, and bound to the spec, the attempt and their
number; answers are signed together with the call that they answer. So none can be altered, replayed or written by
somebody else, and no array is read before the signature is checked.
"""

from __future__ import annotations

import io
import time
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, TypeVar

from dpdist.cluster.cluster import Cluster
from dpdist.cluster.worker_groups import Lost, WorkerGroups
from dpdist.errors import DataNotFound, DpdistError, RoundFailed, SpecError, StorageUnavailable
from dpdist.federated import client
from dpdist.federated import session as own
from dpdist.federated.client import ClientAnswer, Joined
from dpdist.federated.messages import (
    Message,
    call_statement,
    is_signed,
    load_identity,
    reply_statement,
    require_signature,
)
from dpdist.federated.rounds import PATIENCE, ClientCalls, FederatedAttempt, OneProcess
from dpdist.federated.session import ClientSession
from dpdist.federated.spec import FederatedRelease
from dpdist.federated.sums import Question
from dpdist.privacy.arrays import Counts
from dpdist.storage.store import Store
from dpdist.storage.stored import Stored

T = TypeVar("T")

TASKS: dict[str, Callable[..., ClientAnswer]] = {
    task.__name__: task for task in (client.join, client.ready, client.commit, client.void)
}
"""What a client can be called for beside the `tasks` of its session."""

_AT_ONCE = ("join", "void")  # what whoever is there answers at once
_LAST = ("commit", "void")  # after these a client has nothing more to answer
_POLL = 0.2  # seconds between two looks
_AWAY = 600.0  # seconds for which the storage may not answer
_MOST = 1 << 28  # bytes of a file, at most
_SIGNATURE = 64  # bytes that a file begins with


@dataclass(frozen=True, eq=False)
class Call(Stored):
    """What the coordinator asks some clients for."""

    FILE: ClassVar[str] = "call"
    COMPRESSED: ClassVar[bool] = True

    number: int
    task: str
    clients: tuple[str, ...]
    under_contract: bool
    digest: str = ""  # of the manifest, where the clients are to commit
    question: Question | None = None
    known: tuple[Counts, ...] | None = None  # instead of a question: the sums so far, from which it follows
    members: Mapping[str, Joined] | None = None

    @property
    def arguments(self) -> tuple[Any, ...]:
        """What the task is called with beside the session."""
        asked = self.known if self.question is None else self.question
        if asked is not None:
            return asked, dict(self.members or {})
        return (self.digest,) if self.digest else ()


@dataclass(frozen=True, eq=False)
class Reply(Stored):
    """What a client answers to a call."""

    FILE: ClassVar[str] = "answer"

    error: str
    joined: Joined | None = None
    message: Message | None = None

    @classmethod
    def of(cls, given: ClientAnswer) -> Reply:
        """The reply that holds an answer."""
        value = given.value
        message = value if isinstance(value, Message) else None
        return cls(given.error, value if isinstance(value, Joined) else None, message)

    @property
    def answer(self) -> ClientAnswer:
        """What it holds."""
        return ClientAnswer(None if self.error else self.message or self.joined, self.error)


def _small(body: bytes) -> bytes:
    """A file's content, unless it unpacks to more than a file may have. Raises RoundFailed."""
    if not body.startswith(b"{"):
        with zipfile.ZipFile(io.BytesIO(body)) as archive:
            if sum(member.file_size for member in archive.infolist()) > _MOST:
                raise RoundFailed("a message that unpacks to more than a message may have")
    return body


def mailbox_of(spec: FederatedRelease) -> Store:
    """Where the calls of a spec are."""
    federated = spec.federated
    if federated is None or federated.mailbox is None:
        raise SpecError("federated.mailbox: give the folder or s3:// prefix that the coordinator and all clients reach")
    options = federated.storage.options if federated.mailbox.startswith("s3") else None
    return Store(federated.mailbox, options) / spec.fingerprint[:32]


def _coordinator(spec: FederatedRelease) -> tuple[str, str]:
    """The file of the coordinator's identity, and its public key."""
    federated = spec.federated
    if federated is None or federated.identity is None or federated.public_key is None:
        raise SpecError("federated: calls by mailbox are signed: give `identity` and `public_key` of the coordinator")
    return federated.identity, federated.public_key


def _patiently(act: Callable[[], T]) -> T:
    """What `act` returns, which is repeated where the storage does not answer. Raises StorageUnavailable: it did not
    for `_AWAY` seconds.
    """
    end = time.monotonic() + _AWAY
    while True:
        try:
            return act()
        except StorageUnavailable:
            if time.monotonic() >= end:
                raise
            time.sleep(_POLL)


def _call_file(number: int) -> str:
    return f"{number:04}.call"


def _reply_file(number: int, name: str) -> str:
    return f"{number:04}.{name}"


@dataclass
class Mailbox:
    """Calls of clients by files."""

    sparing: ClassVar[bool] = True

    spec: FederatedRelease
    attempt: str
    under_contract: bool
    patience: float  # seconds to wait for an answer that takes work

    def __post_init__(self) -> None:
        identity, public = _coordinator(self.spec)
        self._key = load_identity(identity, pinned=public)
        self._store = mailbox_of(self.spec) / self.attempt
        self._number = sum(name.endswith(".call") for name in _patiently(self._store.names))

    def present(self) -> tuple[str, ...]:
        """See `Transport.present`: whoever answers is there."""
        return tuple(self.spec.clients)

    def call(self, what: str, function: Callable[..., Any], arguments: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
        """See `Transport.call`; all clients are asked for the same."""
        if not arguments:
            return {}
        _, *given = next(iter(arguments.values()))
        asked, members = given if len(given) == 2 else (None, None)
        question, known = (asked, None) if isinstance(asked, Question) else (None, asked)
        digest = given[0] if len(given) == 1 else ""
        task, number = function.__name__, self._number
        body = Call(number, task, tuple(arguments), self.under_contract, digest, question, known, members).to_bytes()
        statement = call_statement(body, attempt=self.attempt, spec=self.spec.fingerprint)
        content = self._key.sign(statement) + body
        self._number += 1
        end = time.monotonic() + (self.spec.cluster.timeout if task in _AT_ONCE else self.patience)
        if _patiently(lambda: self._store.write_exclusive(_call_file(number), content)) != content:
            raise RoundFailed("another coordinator runs this attempt: end one of them, and resume")
        waiting = set(arguments)
        while waiting and time.monotonic() < end:
            waiting = {
                name for name in waiting if not _patiently(partial(self._store.exists, _reply_file(number, name)))
            }
            time.sleep(_POLL if waiting else 0)
        for name in waiting if task != "commit" else ():  # from here on an answer is too late: its place is taken
            _patiently(partial(self._store.write_exclusive, _reply_file(number, name), b""))
        return {name: self._read(number, name, content) for name in arguments}

    def _read(self, number: int, name: str, call: bytes) -> ClientAnswer | Lost:
        """A client's answer to a call; Lost where it is not its own."""
        try:
            content = _patiently(lambda: self._store.read_bytes(_reply_file(number, name), most=_MOST))
        except DataNotFound:
            content = b""
        if not content:
            return Lost("it did not answer in time")
        signature, body = content[:_SIGNATURE], content[_SIGNATURE:]
        try:
            statement = reply_statement(call, body, client=name, attempt=self.attempt)
            require_signature(signature, statement, client=name, pinned=self.spec.clients[name] or "")
            return Reply.from_bytes(_small(body)).answer
        except (DpdistError, zipfile.BadZipFile) as error:
            return Lost(str(error).partition(";")[0])


class MailboxClient:
    """A client that answers the calls of its own copy of a spec, as one family's `session` says, until a round ends.

    It joins one attempt: for another one, which is charged again, its operator has to start it again.
    """

    def __init__(self, spec: FederatedRelease, name: str, session: Callable[..., ClientSession]) -> None:
        if name not in spec.clients:
            raise SpecError(f"--client {name}: the spec lists {', '.join(spec.clients)}")
        self._name, self._store, self._spec = name, mailbox_of(spec), spec
        self._told = partial(session, spec=spec, name=name)
        own_tasks = self._told(attempt="").tasks
        self._tasks = TASKS | {task.__name__: task for task in own_tasks}
        self._refused: set[str] = set()
        self._joined = ""

    def attend(self, *, patience: float, told: Callable[[str], None] = lambda line: None) -> bool:
        """Answer calls until the round is over, and return whether the client has committed. Raises RoundFailed: no
        call came for `patience` seconds, or an answer came too late.
        """
        end = time.monotonic() + patience
        while time.monotonic() < end:
            for place in _patiently(self._waiting):
                attempt, _, file = place.partition("/")
                try:
                    call, content = _patiently(partial(self._call, attempt, file))
                except StorageUnavailable:
                    raise
                except (DpdistError, zipfile.BadZipFile) as error:
                    self._refused.add(place)
                    told(f"refused     {error}")
                    continue
                asked = self._answer(attempt, call, content)
                told(f"answered    {call.task}{f' ({call.question.step})' if call.question else ''}")
                if call.task in _LAST:
                    return asked and call.task == "commit"
                end = time.monotonic() + patience
            time.sleep(_POLL)
        raise RoundFailed("no call has come: ask the coordinator, and join again; what was answered stays as it is")

    def _waiting(self) -> list[str]:
        """The calls that this client has not answered, in order."""
        names = set(self._store.names())
        calls = sorted(name for name in names if name.endswith(".call") and name.count("/") == 1)
        open_ = (name for name in calls if f"{name.removesuffix('call')}{self._name}" not in names)
        return [name for name in open_ if name not in self._refused]

    def _call(self, attempt: str, file: str) -> tuple[Call, bytes]:
        """A call and its file's content. Raises RoundFailed: it is not the coordinator's, or not for this place."""
        content = (self._store / attempt).read_bytes(file, most=_MOST)
        body, (_, pinned) = content[_SIGNATURE:], _coordinator(self._spec)
        statement = call_statement(body, attempt=attempt, spec=self._spec.fingerprint)
        if not is_signed(content[:_SIGNATURE], statement, pinned):
            raise RoundFailed("a call that is not signed with the coordinator's public_key")
        call = Call.from_bytes(_small(body))
        if file != _call_file(call.number) or call.task not in self._tasks:
            raise RoundFailed(f"a call for {call.task!r} out of turn, or for what no client does")
        if call.task == "join" and self._joined not in ("", attempt):
            raise RoundFailed("a call of another attempt, which is charged again: join again if you agree")
        return call, content

    def _answer(self, attempt: str, call: Call, content: bytes) -> bool:
        """Answer a call, and return whether this client was asked."""
        session = replace(self._told(attempt=attempt), under_contract=call.under_contract)
        asked = self._name in call.clients
        if asked and call.task == "join":
            self._joined = attempt
        body = (Reply.of(self._tasks[call.task](session, *call.arguments)) if asked else Reply("not asked")).to_bytes()
        signed = own.identity_of(session).sign(reply_statement(content, body, client=self._name, attempt=attempt))
        folder, file = self._store / attempt, _reply_file(call.number, self._name)
        if _patiently(lambda: folder.write_exclusive(file, signed + body)) != signed + body:
            raise RoundFailed("the answer comes too late: the coordinator has gone on; join again")
        return asked


def calls_of(attempt: FederatedAttempt, session: Callable[..., ClientSession]) -> ClientCalls:
    """How the coordinator of an attempt reaches its clients. Raises SpecError: it has no worker processes."""
    spec = attempt.spec
    if spec.federated.mailbox is not None:
        return ClientCalls(attempt, Mailbox(spec, attempt.id, attempt.contract is not None, PATIENCE), session)
    if attempt.executor.in_process:
        return ClientCalls(attempt, OneProcess(tuple(spec.clients)), session)
    if not isinstance(attempt.executor, Cluster):
        raise SpecError("cluster.mode: clients need worker processes of their own; use embedded or address")
    resources = {one.name: one.resource_name for one in spec.federated.clients}
    workers = WorkerGroups(attempt.executor, resources, grace=spec.cluster.timeout, patience=PATIENCE)
    return ClientCalls(attempt, workers, session)
