"""The stages of a federated release that are its own, at its coordinator.

1. Clients that are not ready are left out; the others reserve their charges. From then on who takes part is fixed.
2. All read and check their tables. If one cannot, nothing is drawn, and the charges stay: it is an answer.
3. Each confirms its classes with noisy counts. A class is mixed by the clients that confirmed it.
4. Each sends its noisy sums, block by block. A client that does not, or sends what does not fit, fails the round:
   nothing is published, and nothing is drawn again. The attempt can be resumed once all are back.
5. All clients commit to the manifest in their ledgers before it is published.

What the coordinator receives is stored once and read back, so a resumed attempt asks for what is missing only.
"""

from __future__ import annotations

import hashlib
import io
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial, reduce
from operator import add
from typing import Any, ClassVar

import numpy as np

from dpdist.cluster.cluster import Cluster
from dpdist.cluster.worker_groups import Lost, WorkerGroups
from dpdist.errors import CheckFailed, ClusterUnreachable, DpdistError, ResourceError, RoundFailed, SpecError
from dpdist.families.base.attempt import Attempt
from dpdist.families.mixing.classes import MixedClass, Mixtures, Restorations, note_left_out
from dpdist.families.mixing.federated import client
from dpdist.families.mixing.federated.client import ClientAnswer, Joined
from dpdist.families.mixing.federated.client_session import ClientSession
from dpdist.families.mixing.federated.messages import (
    Message,
    average,
    check_message,
    key_statement,
    largest_step,
    message_statement,
    require_signature,
)
from dpdist.families.mixing.federated.plan import FederatedPlan
from dpdist.families.mixing.mixture import Rows
from dpdist.families.mixing.restore import Restoration, mixture_sums, restoration
from dpdist.families.mixing.spec import MixingSpec
from dpdist.storage.store import Store
from dpdist.storage.stored import Stored

FederatedAttempt = Attempt[MixingSpec, FederatedPlan]


def session_of(attempt: FederatedAttempt, name: str) -> ClientSession:
    """What is sent to the workers of a client; without the coordinator's ledger, whose URL may hold a password."""
    spec, plan, key = attempt.spec, attempt.plan, attempt.key
    spec = spec.model_copy(update={"ledger": type(spec).model_fields["ledger"].default})
    return ClientSession(
        spec=spec,
        name=name,
        order=plan.order,
        sigma_over_clip=plan.sigma_over_clip,
        attempt=attempt.id,
        under_contract=attempt.contract is not None,
        test_key=hashlib.sha256(f"{key.uri} {name}".encode()).hexdigest() if key.is_fixed else "",
    )


@dataclass(frozen=True, eq=False)
class ClientCalls:
    """Calls of clients, each on its own workers."""

    attempt: FederatedAttempt  # the coordinator's
    groups: WorkerGroups  # the workers of each client

    def ask(
        self, task: Callable[..., ClientAnswer], names: Iterable[str], *args: Any
    ) -> dict[str, ClientAnswer | Lost]:
        """The answers of some clients."""
        told = {name: (session_of(self.attempt, name), *args) for name in names}
        answers: dict[str, ClientAnswer | Lost] = self.groups.call(f"client-{task.__name__}", task, told)
        return answers

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
_READING = (
    "cannot read its table, or may not use it; nothing was drawn, and the charges stay spent: whether a table can be "
    "used is an answer about its records"
)
_DROPPED = f"dropped out during the round: {RESUME}"


@dataclass(frozen=True)
class Roster(Stored):
    """The clients that take part, with their signed keys: fixed before the round begins."""

    FILE: ClassVar[str] = "roster.json"

    members: dict[str, Joined]


@dataclass(frozen=True)
class ConfirmedClients(Stored):
    """The clients that confirmed each class, by its place: asked once, stored, read back."""

    FILE: ClassVar[str] = "classes.json"

    by_class: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, eq=False)
class Round:
    """A round that has begun."""

    calls: ClientCalls
    members: dict[str, Joined]  # all clients of the round
    mixed: dict[int, dict[str, Joined]]  # of each class that is mixed, by its place, the clients that mix it


def begin_round(attempt: FederatedAttempt) -> Round:
    """Ask the clients, let those that are ready reserve their charges, read, and confirm their classes.

    Raises RoundFailed: too few are ready, or one cannot go on; CheckFailed: no class was confirmed.
    """
    spec, plan = attempt.spec, attempt.plan
    if not isinstance(attempt.executor, Cluster):
        raise SpecError("cluster.mode: clients need worker processes of their own; use embedded or address")
    resources = {one.name: one.resource_name for one in plan.federated.clients}
    groups = WorkerGroups(attempt.executor, resources, grace=spec.cluster.timeout, patience=PATIENCE)
    calls, begun = ClientCalls(attempt, groups), attempt.work.exists(BEGUN_FILE)
    try:
        members = attempt.stored(Roster, partial(_roster, calls)).members
        if not attempt.work.exists(ConfirmedClients.FILE):
            attempt.before_noise()
            calls.each("reading", client.read, members, fault=_DROPPED if begun else _READING)
    except DpdistError as error:
        if not begun and not isinstance(error, ResourceError):
            calls.ask(client.void, groups.present())
        raise
    confirmed = attempt.stored(ConfirmedClients, partial(_confirm, calls, members)).by_class
    honest = {"local": 1, "correlated": 1 + plan.federated.colluding}[plan.federated.trust]
    kept = [len(names) >= honest for names in confirmed]
    if not any(kept):
        raise CheckFailed(
            "no class of mixing.classes has its declared minimum confirmed by enough clients, so nothing is published: "
            "declare less, from public knowledge. The charges stay spent"
        )
    mixed = {k: {name: members[name] for name in names} for k, names in enumerate(confirmed) if kept[k]}
    attempt.public.update(
        clients=len(members),
        clip=plan.largest_norm,
        mixed=[
            {
                "value": plan.classes[place].value,
                "clients": len(names),
                "records_in_a_mixture": len(names) * plan.order,
                "noise_of_average": plan.shared(len(names)).average,
            }
            for place, names in mixed.items()
        ],
    )
    note_left_out(attempt, kept)
    return Round(calls, members, mixed)


def _roster(calls: ClientCalls) -> Roster:
    """The clients that are ready and have reserved their charges; who is left out, and why, is the operator's."""
    attempt = calls.attempt
    federated = attempt.plan.federated
    pinned = attempt.spec.clients
    with attempt.stage("asking clients"):
        present = _present(calls.groups, pinned, seconds=attempt.spec.cluster.timeout)
        left_out = {name: "it has no worker" for name in pinned if name not in present}
        willing = values_of(calls.ask(client.hello, present), left_out)
        joined = values_of(calls.ask(client.join, willing), left_out)
        for name, answer in list(joined.items()):
            try:
                _require_joined(attempt, name, answer, pinned[name])
            except RoundFailed as error:
                left_out[name] = str(error)
                del joined[name]
                calls.ask(client.void, [name])
    attempt.operator["clients_left_out"] = left_out
    if left_out and len(joined) >= federated.minimum:
        attempt.progress(f"left out: {reasons_of(left_out)}", 1, 1)
    if len(joined) < federated.minimum:
        raise RoundFailed(
            f"{len(joined)} of {len(federated.clients)} clients are ready, and federated.at_least asks for "
            f"{federated.minimum}; nothing was drawn. Not ready are {reasons_of(left_out)}. The text of an error is in "
            "error.txt below the client's own work folder"
        )
    return Roster(joined)


def _present(groups: WorkerGroups, wanted: Iterable[str], *, seconds: float) -> tuple[str, ...]:
    """The clients that have a worker, once all do or the time is over."""
    end = time.monotonic() + seconds
    while set(found := groups.present()) != set(wanted) and time.monotonic() < end:
        time.sleep(0.2)
    return found


def _require_joined(attempt: FederatedAttempt, name: str, joined: Any, pinned: str | None) -> None:
    if not (isinstance(joined, Joined) and type(joined.public) is type(joined.signature) is bytes):
        raise RoundFailed(f"client {name!r} sent something else than its key")
    if pinned is not None:
        statement = key_statement(joined.public, client=name, attempt=attempt.id, spec=attempt.spec.fingerprint)
        require_signature(joined.signature, statement, client=name, pinned=pinned)


def _confirm(calls: ClientCalls, members: dict[str, Joined]) -> ConfirmedClients:
    """The clients that confirm each class."""
    attempt = calls.attempt
    attempt.before_noise()
    attempt.work.write_exclusive(BEGUN_FILE, b"")
    outcomes = calls.each("confirming classes", client.confirm, members, fault=_DROPPED)
    count = len(attempt.plan.classes)
    for name, outcome in outcomes.items():
        if not isinstance(outcome, tuple) or len(outcome) != count:
            raise RoundFailed(f"client {name!r} sent something else than the outcomes of its classes: {RESUME}")
    return ConfirmedClients(tuple(tuple(name for name in members if outcomes[name][k] is True) for k in range(count)))


def collect(attempt: FederatedAttempt) -> Mixtures:
    """The averages of the noisy mixtures, read back by block, and restorations. Raises RoundFailed: one is missing."""
    spec, plan, begun, here = attempt.spec, attempt.plan, attempt.result(Round), Cluster()
    attempt.before_noise()
    task = here.tasks("mixtures")
    files = {place: _collected(attempt, begun, place) for place in begun.mixed}
    classes = tuple(
        MixedClass(place, [task("load", load_rows, attempt.work, name) for name in names], plan.block)
        for place, names in files.items()
    )

    def restored(place: int) -> Restoration:
        clients, sums = len(begun.mixed[place]), (mixture_sums(load_rows(attempt.work, name)) for name in files[place])
        sigma, order = plan.shared(clients).average, plan.order * clients
        return restoration(reduce(add, sums), plan.encoding, order=order, sigma=sigma)

    restorations = Restorations({})
    if spec.mixing.spread == "restored":
        restorations = attempt.stored(Restorations, lambda: Restorations({place: restored(place) for place in files}))
    attempt.before_commit = partial(_agree, begun)
    return Mixtures(classes, plan.encoding, restorations, plan.label_sigma, executor=here)


def _collected(attempt: FederatedAttempt, begun: Round, place: int) -> list[str]:
    """The files of the averages of one class, block by block; those that are missing are asked for."""
    plan, names = attempt.plan, []
    for block in range(math.ceil(plan.classes[place].mixtures.records / plan.block)):
        names.append(f"mixtures-{place}-{block}.npy")
        stage = f"mixing {attempt.spec.mixing.label} {place + 1} of {len(plan.classes)}, part {block + 1}"
        if not attempt.work.exists(names[-1]):
            attempt.work.write_exclusive(names[-1], _assembled(attempt, begun, place, block, stage))
    return names


def load_rows(store: Store, name: str) -> Rows:
    """A block of mixtures from a store."""
    rows: Rows = np.load(io.BytesIO(store.read_bytes(name)), allow_pickle=False)
    return rows


def _assembled(attempt: FederatedAttempt, begun: Round, place: int, block: int, stage: str) -> bytes:
    """The averages of one block, from a message of every client of the class."""
    plan, members = attempt.plan, begun.mixed[place]
    part = plan.classes[place]
    keys = {name: key or "" for name, key in attempt.spec.clients.items()}
    mixer, round = plan.mixer(part.code), client.round_id(attempt.id, part.code, block)
    shape = (min(plan.block, part.mixtures.records - block * plan.block), plan.encoding.width)
    largest = largest_step(mixer, plan.shared(len(members)))
    messages = begun.calls.each(stage, client.send, members, place, block, members, fault=_DROPPED)
    for name, message in messages.items():
        check_message(message, client=name, public_key=keys[name], round=round, shape=shape, largest=largest)
        _note(attempt, message, f"received-{place}-{block}-{name}.sha256")
    buffer = io.BytesIO()
    np.save(buffer, average(list(messages.values()), mixer))
    return buffer.getvalue()


def _note(attempt: FederatedAttempt, message: Message, name: str) -> None:
    """Write down what a client sent; another message of it, after a resume, fails the round."""
    statement = message_statement(message.steps, client=message.client, round=message.round)
    digest = hashlib.sha256(statement).hexdigest().encode()
    if attempt.work.write_exclusive(name, digest) != digest:
        raise RoundFailed(
            f"client {message.client!r} sent two different messages in one round; the round fails. It drew its noise "
            "again, or its records changed: begin a new attempt once that is mended"
        )


def _agree(begun: Round, digest: str) -> None:
    """Let all clients commit to the manifest, once all of them can."""
    for task in (client.ready, client.commit):
        for name, answer in begun.calls.ask(task, begun.members, digest).items():
            if isinstance(answer, Lost):
                raise ClusterUnreachable(
                    f"client {name!r} is away ({answer.reason}) and has not committed in its ledger, so nothing is "
                    "published yet; start its workers and resume the release"
                )
            if not isinstance(answer, ClientAnswer) or answer.error:
                raise RoundFailed(f"client {name!r} does not agree to the release ({error_of(answer)}): {RESUME}")
