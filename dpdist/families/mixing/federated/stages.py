"""The stages of a federated mixing release that are its own, at its coordinator (`dpdist.federated.rounds`).

Each client confirms its classes with noisy counts. A class is mixed by the clients that confirmed it. Each sends its
noisy sums, block by block. What the coordinator receives is stored once and read back, so a resumed attempt asks for
what is missing only.
"""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from functools import partial, reduce
from operator import add
from typing import ClassVar

import numpy as np

from dpdist.errors import CheckFailed, RoundFailed
from dpdist.families.base.attempt import Attempt
from dpdist.families.mixing.classes import MixedClass, Mixtures, Restorations, note_left_out
from dpdist.families.mixing.federated import client
from dpdist.families.mixing.federated.client import MixingSession
from dpdist.families.mixing.federated.messages import average, largest_step
from dpdist.families.mixing.mixture import Rows
from dpdist.families.mixing.plan import FederatedPlan
from dpdist.families.mixing.restore import Restoration, mixture_sums, restoration
from dpdist.families.mixing.spec import MixingSpec
from dpdist.federated.client import Joined
from dpdist.federated.mailbox import calls_of
from dpdist.federated.messages import check_message
from dpdist.federated.rounds import BEGUN_FILE, DROPPED, RESUME, ClientCalls, agree, begin, executor_here, note
from dpdist.storage.store import Store
from dpdist.storage.stored import Stored

FederatedAttempt = Attempt[MixingSpec, FederatedPlan]


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
    plan = attempt.plan
    session = partial(MixingSession, order=plan.order, sigma_over_clip=plan.sigma_over_clip)
    calls = calls_of(attempt, session)
    members = begin(calls, known=attempt.work.exists(ConfirmedClients.FILE))
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


def _confirm(calls: ClientCalls, members: dict[str, Joined]) -> ConfirmedClients:
    """The clients that confirm each class."""
    attempt = calls.attempt
    attempt.before_noise()
    attempt.work.write_exclusive(BEGUN_FILE, b"")
    outcomes = calls.each("confirming classes", client.confirm, members, fault=DROPPED)
    count = len(attempt.plan.classes)
    for name, outcome in outcomes.items():
        if not isinstance(outcome, tuple) or len(outcome) != count:
            raise RoundFailed(f"client {name!r} sent something else than the outcomes of its classes: {RESUME}")
    return ConfirmedClients(tuple(tuple(name for name in members if outcomes[name][k] is True) for k in range(count)))


def collect(attempt: FederatedAttempt) -> Mixtures:
    """The averages of the noisy mixtures, read back by block, and restorations. Raises RoundFailed: one is missing."""
    spec, plan, begun, here = attempt.spec, attempt.plan, attempt.result(Round), executor_here(attempt)
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
    attempt.before_commit = partial(agree, begun.calls, begun.members)
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
    messages = begun.calls.each(stage, client.send, members, place, block, members, fault=DROPPED)
    for name, message in messages.items():
        check_message(message, client=name, public_key=keys[name], round=round, shape=shape, largest=largest)
        note(attempt, message, f"received-{place}-{block}-{name}.sha256")
    buffer = io.BytesIO()
    np.save(buffer, average(list(messages.values()), mixer))
    return buffer.getvalue()
