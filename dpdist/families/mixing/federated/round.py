"""The coordinator's part of a federated release: who takes part, who has which class, their messages, their agreement.

1. Clients that are not ready are left out; the others reserve their charges. From then on who takes part is fixed.
2. All read and check their tables. If one cannot, nothing is drawn and every charge is given back.
3. Each confirms its classes with noisy counts. A class is mixed by the clients that confirmed it.
4. Each sends its noisy sums, block by block. A client that does not, or sends what does not fit, fails the round:
   nothing is published, and nothing is drawn again. The attempt can be resumed once all are back.
5. All clients commit to the manifest in their ledgers before it is published.

What the coordinator receives is stored once and read back, so a resumed attempt asks for what is missing only.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import time
from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np

from dpdist.cluster.worker_groups import Lost, Places
from dpdist.errors import CheckFailed, ClusterUnreachable, DpdistError, ResourceError, RoundFailed
from dpdist.families.attempt import Context
from dpdist.families.mixing.federated import client as tasks
from dpdist.families.mixing.federated.client import Answer, Joined
from dpdist.families.mixing.federated.client_calls import ask, each, federated_of, reasons_of, trouble_of, well
from dpdist.families.mixing.federated.identity import key_statement, message_statement, require_signature
from dpdist.families.mixing.federated.messages import Message, assemble, check_message, largest_step
from dpdist.families.mixing.graph import load_rows, stored_blocks
from dpdist.families.mixing.restore import Restoration, mixture_sums, restoration

ROSTER_FILE = "roster.json"
"""The clients that take part, with their signed keys."""

CONFIRMED_FILE = "classes.json"
"""The clients that mix each class."""

BEGUN_FILE = "begun"
"""Written before the first noise: from then on no charge is given back."""

RESUME = "nothing is published and nothing is drawn again; resume once all clients of the round are back"


def join_step(context: Context) -> None:
    """Ask the clients, let those that are ready reserve their charges, read, and confirm their classes.

    Raises
    ------
    RoundFailed
        Too few clients are ready, or one of those that joined cannot go on.
    CheckFailed
        No class was confirmed by enough clients.
    """
    spec, plan = federated_of(context)
    resources = {client.name: client.place for client in plan.federated.clients}
    patience, begun = plan.federated.patience, context.work.exists(BEGUN_FILE)
    context.results["places"] = Places(context.cluster, resources, grace=spec.cluster.timeout, patience=patience)
    try:
        roster = json.loads(context.stored(ROSTER_FILE, partial(_roster, context)))
        members = {name: Joined(*map(bytes.fromhex, pair)) for name, pair in roster.items()}
        context.results["members"] = members
        if not context.work.exists(CONFIRMED_FILE):
            each(context, "reading", tasks.read, members, fault=_DROPPED if begun else _READING)
    except DpdistError as error:
        if not begun and not isinstance(error, ResourceError):
            ask(context, "void", tasks.void, context.results["places"].present())
        raise
    mixed = json.loads(context.stored(CONFIRMED_FILE, partial(_confirmed, context)))
    honest = {"local": 1, "correlated": 1 + plan.federated.colluding}[plan.federated.trust]
    kept = [len(names) >= honest for names in mixed]
    if not any(kept):
        raise CheckFailed(
            "no class of mixing.classes has its declared minimum confirmed by enough clients, so nothing is published: "
            "declare less, from public knowledge. The charges stay spent"
        )
    context.results.update(confirmed=kept, mixed=mixed, encoding=plan.encoding, clip=plan.largest_norm)
    context.public.update(
        clients=len(members),
        clip=plan.largest_norm,
        mixed=[
            {
                "value": part.value,
                "clients": len(names),
                "records_in_a_mixture": len(names) * plan.order,
                "noise_of_average": plan.shared(len(names)).average,
            }
            for part, names, keep in zip(plan.classes, mixed, kept, strict=True)
            if keep
        ],
    )


_READING = "cannot read its table, or may not use it; nothing was drawn, and all charges are given back"
_DROPPED = f"dropped out during the round: {RESUME}"


def _roster(context: Context) -> bytes:
    """The clients that are ready and have reserved their charges; who is left out, and why, is the operator's."""
    _, plan = federated_of(context)
    federated, places = plan.federated, context.results["places"]
    pinned = {client.name: client.public_key for client in federated.clients}
    with context.stage("asking clients"):
        present = _present(places, pinned, seconds=context.spec.cluster.timeout)
        left_out = {name: "it has no worker" for name in pinned if name not in present}
        willing = well(ask(context, "hello", tasks.hello, present), left_out)
        joined = well(ask(context, "join", tasks.join, willing), left_out)
        for name, answer in list(joined.items()):
            try:
                _require_joined(context, name, answer, pinned[name])
            except RoundFailed as error:
                left_out[name] = str(error)
                del joined[name]
                ask(context, "void", tasks.void, [name])
    context.operator["clients_left_out"] = left_out
    if left_out and len(joined) >= federated.minimum:
        context.progress(f"left out: {reasons_of(left_out)}", 1, 1)
    if len(joined) < federated.minimum:
        raise RoundFailed(
            f"{len(joined)} of {len(federated.clients)} clients are ready, and federated.at_least asks for "
            f"{federated.minimum}; nothing was drawn. Not ready are {reasons_of(left_out)}. The text of an error is in "
            "trouble.txt below the client's own work folder"
        )
    roster = {name: (answer.public.hex(), answer.signature.hex()) for name, answer in joined.items()}
    return json.dumps(roster).encode()


def _present(places: Places, wanted: Iterable[str], *, seconds: float) -> tuple[str, ...]:
    """The clients that have a worker, once all do or the time is over."""
    end = time.monotonic() + seconds
    while set(found := places.present()) != set(wanted) and time.monotonic() < end:
        time.sleep(0.2)
    return found


def _require_joined(context: Context, name: str, joined: Any, pinned: str | None) -> None:
    if not (isinstance(joined, Joined) and type(joined.public) is type(joined.signature) is bytes):
        raise RoundFailed(f"client {name!r} sent something else than its key")
    if pinned is not None:
        statement = key_statement(joined.public, client=name, attempt=context.attempt, spec=context.spec.fingerprint)
        require_signature(joined.signature, statement, client=name, pinned=pinned)


def _confirmed(context: Context) -> bytes:
    """The clients that confirmed each class."""
    context.before_noise()
    context.work.write_exclusive(BEGUN_FILE, b"")
    members = context.results["members"]
    outcomes = each(context, "confirming classes", tasks.confirm, members, fault=_DROPPED)
    count = len(federated_of(context)[1].classes)
    for name, outcome in outcomes.items():
        if not isinstance(outcome, tuple) or len(outcome) != count:
            raise RoundFailed(f"client {name!r} sent something else than the outcomes of its classes: {RESUME}")
    return json.dumps([[name for name in members if outcomes[name][place] is True] for place in range(count)]).encode()


def round_step(context: Context) -> None:
    """The averages of the clients' noisy mixtures, and how to restore their spread.

    Raises
    ------
    RoundFailed
        A client sent nothing, or what does not fit.
    """
    spec, plan = federated_of(context)
    context.before_noise()
    blocks: dict[int, Any] = {}
    restorations: dict[int, Restoration] = {}
    for place, part in enumerate(plan.classes):
        if not context.results["confirmed"][place]:
            continue
        names = []
        for block in range(math.ceil(part.mixtures.records / plan.block)):
            names.append(f"mixtures-{place}-{block}.npy")
            stage = f"mixing {spec.mixing.label} {place + 1} of {len(plan.classes)}, part {block + 1}"
            if not context.work.exists(names[-1]):
                context.stored(names[-1], partial(_assembled, context, place, block, stage))
        clients = len(context.results["mixed"][place])
        if spec.mixing.spread == "restored":
            made = sum((mixture_sums(load_rows(context.work, name)) for name in names[1:]), _first(context, names))
            sigma, order = plan.shared(clients).average, plan.order * clients
            restored = restoration(made, plan.encoding, order=order, sigma=sigma)
            stored = context.stored(f"restoration-{place}.npz", restored.to_bytes)
            restorations[place] = Restoration.from_bytes(stored)
        blocks[place] = stored_blocks(context.work, names)
    context.results.update(
        blocks=blocks, restorations=restorations, block=[plan.block] * len(plan.classes), label_sigma=plan.label_sigma
    )
    context.before_commit = partial(_agree, context)


def _first(context: Context, names: list[str]) -> Any:
    return mixture_sums(load_rows(context.work, names[0]))


def _assembled(context: Context, place: int, block: int, stage: str) -> bytes:
    """The averages of one block, from a message of every client of the class."""
    _, plan = federated_of(context)
    part = plan.classes[place]
    members = {name: context.results["members"][name] for name in context.results["mixed"][place]}
    pinned = {client.name: client.public_key or "" for client in plan.federated.clients}
    clients = {name: pinned[name] for name in members}
    mixer, round = plan.mixer(part.code), tasks.round_id(context.attempt, part.code, block)
    rows = min(plan.block, part.mixtures.records - block * plan.block)
    form: dict[str, Any] = {
        "round": round,
        "shape": (rows, plan.encoding.width),
        "largest": largest_step(mixer, plan.shared(len(members))),
    }
    messages = each(context, stage, tasks.send, members, place, block, members, fault=_DROPPED)
    for name, message in messages.items():
        check_message(message, clients={name: clients[name]}, **form)
        _note(context, message, f"received-{place}-{block}-{name}.sha256")
    mixtures = assemble(list(messages.values()), mixer, clients=clients, **form)
    buffer = io.BytesIO()
    np.save(buffer, mixtures)
    return buffer.getvalue()


def _note(context: Context, message: Message, name: str) -> None:
    """Write down what a client sent; another message of it, after a resume, fails the round."""
    digest = hashlib.sha256(message_statement(message.steps, client=message.client, round=message.round)).hexdigest()
    if context.stored(name, digest.encode) != digest.encode():
        raise RoundFailed(
            f"client {message.client!r} sent two different messages in one round; the round fails. It drew its noise "
            "again, or its records changed: begin a new attempt once that is mended"
        )


def _agree(context: Context, digest: str) -> None:
    """Let all clients commit to the manifest, once all of them can."""
    for what, task in (("ready", tasks.ready), ("commit", tasks.commit)):
        for name, answer in ask(context, what, task, context.results["members"], digest).items():
            if isinstance(answer, Lost):
                raise ClusterUnreachable(
                    f"client {name!r} is away ({answer.reason}) and has not committed in its ledger, so nothing is "
                    "published yet; start its workers and resume the release"
                )
            if not isinstance(answer, Answer) or answer.trouble:
                raise RoundFailed(f"client {name!r} does not agree to the release ({trouble_of(answer)}): {RESUME}")
