"""The coordinator's side of a round with clients: who takes part, what they answer, and that all commit.

1. Clients that are not ready are left out; the others reserve their charges. From then on who takes part is fixed.
2. All read and check their tables. If one cannot, nothing is drawn, and the charges stay: it is an answer.
3. The family asks for what it needs. A client that does not answer, or sends what does not fit, is left out of sums
   where enough are left (`dpdist.federated.sums`). Else it fails the round: nothing is published, and nothing is drawn
   again. The attempt can be resumed once all are back.
4. All clients that are left commit to the manifest in their ledgers before it is published.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Protocol

from dpdist.cluster.cluster import Cluster
from dpdist.cluster.executor import Executor
from dpdist.cluster.worker_groups import Lost
from dpdist.errors import ClusterUnreachable, DpdistError, ResourceError, RoundFailed
from dpdist.families.base.attempt import Attempt
from dpdist.federated import client
from dpdist.federated.client import ClientAnswer, Joined
from dpdist.federated.messages import Message, key_statement, message_statement, require_signature
from dpdist.federated.session import ClientSession
from dpdist.storage.stored import Stored

FederatedAttempt = Attempt[Any, Any]


class Transport(Protocol):
    """How calls reach clients."""

    sparing: ClassVar[bool]  # whether each call costs a message: then joining checks, and the first question reads

    def present(self) -> tuple[str, ...]:
        """Return the clients that can be reached."""

    def call(self, what: str, function: Callable[..., Any], arguments: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
        """Call a function at each client with its `arguments`, and return every answer; `Lost` where none came."""


@dataclass(frozen=True)
class OneProcess:
    """Clients in this process, one after another: to try a federation on one machine."""

    sparing: ClassVar[bool] = False

    clients: tuple[str, ...]

    def present(self) -> tuple[str, ...]:
        """See `Transport.present`."""
        return self.clients

    def call(self, what: str, function: Callable[..., Any], arguments: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
        """See `Transport.call`."""
        return {name: function(*given) for name, given in arguments.items()}


def executor_here(attempt: FederatedAttempt) -> Executor:
    """Where the coordinator itself computes: not at the clients' workers."""
    return attempt.executor if attempt.executor.in_process or attempt.spec.federated is None else Cluster()


@dataclass(frozen=True, eq=False)
class ClientCalls:
    """Calls of clients, each where its records are."""

    attempt: FederatedAttempt  # the coordinator's
    transport: Transport
    session: Callable[..., ClientSession]  # of the family; sent with each call

    def told(self, name: str) -> ClientSession:
        """What is sent to a client; without the coordinator's ledger, whose URL may hold a password."""
        spec, key = self.attempt.spec, self.attempt.key
        return self.session(
            spec=spec.model_copy(update={"ledger": type(spec).model_fields["ledger"].default}),
            name=name,
            attempt=self.attempt.id,
            under_contract=self.attempt.contract is not None,
            test_key=hashlib.sha256(f"{key.uri} {name}".encode()).hexdigest() if key.is_fixed else "",
        )

    def ask(
        self, task: Callable[..., ClientAnswer], names: Iterable[str], *args: Any
    ) -> dict[str, ClientAnswer | Lost]:
        """The answers of some clients."""
        told = {name: (self.told(name), *args) for name in names}
        return self.transport.call(f"client-{task.__name__}", task, told)

    def each(
        self, stage: str, task: Callable[..., ClientAnswer], names: Iterable[str], *args: Any, fault: str
    ) -> dict[str, Any]:
        """The values of all clients. Raises RoundFailed: one gave none; the message ends with `fault`."""
        with self.attempt.stage(stage):
            answers = self.ask(task, names, *args)
        left_out: dict[str, str] = {}
        values = values_of(answers, left_out)
        if left_out:
            raise RoundFailed(f"client {reasons_of(left_out)} {fault}")
        return values


def values_of(answers: Mapping[str, ClientAnswer | Lost], left_out: dict[str, str]) -> dict[str, Any]:
    """The values that clients answered; `left_out` gets the reason of every other client."""
    values = {}
    for name, answer in answers.items():
        if isinstance(answer, ClientAnswer) and not answer.error:
            values[name] = answer.value
        else:
            left_out[name] = error_of(answer)
    return values


def reasons_of(left_out: Mapping[str, str]) -> str:
    """The clients that were left out, by reason."""
    whose: dict[str, list[str]] = {}
    for name, reason in left_out.items():
        whose.setdefault(reason, []).append(repr(name))
    return "; ".join(f"{', '.join(names)} ({reason})" for reason, names in whose.items())


def error_of(answer: Any) -> str:
    """Why an answer has no value, in printable characters."""
    if isinstance(answer, Lost):
        return answer.reason
    if not isinstance(answer, ClientAnswer) or not isinstance(answer.error, str):
        return "it sent something else than an answer"
    return "".join(letter if letter.isprintable() else "?" for letter in answer.error[:200])


PATIENCE = 3600.0  # seconds to wait for a client in each stage
BEGUN_FILE = "begun"  # written before the first noise: from then on the round goes on, or is lost
RESUME = "nothing is published and nothing is drawn again; resume once all clients of the round are back"
READING = (
    "cannot read its table, or may not use it; nothing was drawn, and the charges stay spent: whether a table can be "
    "used is an answer about its records"
)
DROPPED = f"dropped out during the round: {RESUME}"


@dataclass(frozen=True)
class Roster(Stored):
    """The clients that take part, with their signed keys: fixed before the round begins."""

    FILE: ClassVar[str] = "roster.json"

    members: dict[str, Joined]


def begin(calls: ClientCalls, *, known: bool) -> dict[str, Joined]:
    """Ask the clients, let those that are ready reserve their charges, and let them read, unless all they will say is
    `known`; return who takes part. Raises RoundFailed: too few are ready, or one cannot go on.
    """
    attempt = calls.attempt
    begun = attempt.work.exists(BEGUN_FILE)
    try:
        members = attempt.stored(Roster, partial(_roster, calls)).members
        if not known and not calls.transport.sparing:
            attempt.before_noise()
            calls.each("reading", client.read, members, fault=DROPPED if begun else READING)
    except DpdistError as error:
        if not begun and not isinstance(error, ResourceError):
            calls.ask(client.void, calls.transport.present())
        raise
    return members


def _roster(calls: ClientCalls) -> Roster:
    """The clients that are ready and have reserved their charges; who is left out, and why, is the operator's."""
    attempt = calls.attempt
    pinned, least = attempt.spec.clients, attempt.spec.least_clients
    with attempt.stage("asking clients"):
        present = _present(calls.transport, pinned, seconds=attempt.spec.cluster.timeout)
        left_out = {name: "it has no worker" for name in pinned if name not in present}
        asked = () if calls.transport.sparing else present
        willing = values_of(calls.ask(client.hello, asked), left_out) if asked else present
        joined = values_of(calls.ask(client.join, willing), left_out)
        for name, answer in list(joined.items()):
            try:
                _require_joined(attempt, name, answer, pinned[name])
            except RoundFailed as error:
                left_out[name] = str(error)
                del joined[name]
                calls.ask(client.void, [name])
    attempt.operator["clients_left_out"] = left_out
    if left_out and len(joined) >= least:
        attempt.progress(f"left out: {reasons_of(left_out)}", 1, 1)
    if len(joined) < least:
        raise RoundFailed(
            f"{len(joined)} of {len(pinned)} clients are ready, and federated.at_least asks for "
            f"{least}; nothing was drawn. Not ready are {reasons_of(left_out)}. The text of an error is in "
            "error.txt below the client's own work folder"
        )
    return Roster(joined)


def _present(transport: Transport, wanted: Iterable[str], *, seconds: float) -> tuple[str, ...]:
    """The clients that have a worker, once all do or the time is over."""
    end = time.monotonic() + seconds
    while set(found := transport.present()) != set(wanted) and time.monotonic() < end:
        time.sleep(0.2)
    return found


def _require_joined(attempt: FederatedAttempt, name: str, joined: Any, pinned: str | None) -> None:
    if not (isinstance(joined, Joined) and type(joined.public) is type(joined.signature) is bytes):
        raise RoundFailed(f"client {name!r} sent something else than its key")
    if pinned is not None:
        statement = key_statement(joined.public, client=name, attempt=attempt.id, spec=attempt.spec.fingerprint)
        require_signature(joined.signature, statement, client=name, pinned=pinned)


def note(attempt: FederatedAttempt, message: Message, name: str) -> None:
    """Write down what a client sent; another message of it, after a resume, fails the round."""
    statement = message_statement(message.steps, client=message.client, round=message.round)
    digest = hashlib.sha256(statement).hexdigest().encode()
    if attempt.work.write_exclusive(name, digest) != digest:
        raise RoundFailed(
            f"client {message.client!r} sent two different messages in one round; the round fails. It drew its noise "
            "again, or its records changed: begin a new attempt once that is mended"
        )


def agree(calls: ClientCalls, members: Iterable[str], digest: str, *, least: int | None = None) -> None:
    """Let all clients commit to the manifest, once all of them can; or `least` of them, where others are away."""
    for task in (client.ready, client.commit):
        answers = calls.ask(task, members, digest)
        there = [name for name, answer in answers.items() if not isinstance(answer, Lost)]
        for name, answer in answers.items():
            if isinstance(answer, Lost):
                if least is not None and len(there) >= least:
                    continue
                raise ClusterUnreachable(
                    f"client {name!r} is away ({answer.reason}) and has not committed in its ledger, so nothing is "
                    "published yet; start its workers and resume the release"
                )
            if not isinstance(answer, ClientAnswer) or answer.error:
                raise RoundFailed(f"client {name!r} does not agree to the release ({error_of(answer)}): {RESUME}")
        members = there
