"""What is own to a federated mixing release: the tasks of its clients, and its stages at the coordinator.

Before its first message of a class a client stores which clients mix that class, and refuses others later. Each client
confirms its classes with noisy counts. A class is mixed by the clients that confirmed it. Each sends its noisy sums,
block by block. What the coordinator receives is stored once and read back, so a resumed attempt asks for what is
missing only.
"""

from __future__ import annotations

import io
import math
from contextlib import closing
from dataclasses import dataclass
from functools import partial, reduce
from operator import add
from typing import Any, ClassVar

import numpy as np

from dpdist.errors import CheckFailed, RoundFailed, SpecError
from dpdist.families.base.attempt import Attempt
from dpdist.families.mixing.classes import (
    Classes,
    Confirmed,
    MixedClass,
    Mixtures,
    Restorations,
    class_sums,
    gather,
    note_left_out,
)
from dpdist.families.mixing.classes import confirm as confirm_classes
from dpdist.families.mixing.federated.messages import average, largest_step, noisy_steps
from dpdist.families.mixing.mixture import Rows
from dpdist.families.mixing.plan import FederatedPlan, planned
from dpdist.families.mixing.restore import Restoration, mixture_sums, restoration
from dpdist.families.mixing.spec import MixingSpec
from dpdist.federated import session as own
from dpdist.federated.client import Joined, answering, masks_of, message_of, pin
from dpdist.federated.mailbox import calls_of
from dpdist.federated.messages import Masks, Message, check_message
from dpdist.federated.rounds import BEGUN_FILE, DROPPED, RESUME, ClientCalls, agree, begin, executor_here, note
from dpdist.federated.session import ClientAttempt, ClientSession
from dpdist.storage.store import Store
from dpdist.storage.stored import Stored


@dataclass(frozen=True, kw_only=True)
class MixingSession(ClientSession):
    """What the coordinator of a mixing release sends with every call of a client."""

    spec: MixingSpec
    order: int  # order, sigma_over_clip: of the plan; the client derives the charge from them
    sigma_over_clip: float

    __hash__ = ClientSession.__hash__

    def planned(self) -> FederatedPlan:
        """See `ClientSession.planned`."""
        made = planned(self.spec, order=self.order, sigma_over_clip=self.sigma_over_clip)
        if not isinstance(made, FederatedPlan):
            raise SpecError("federated: the spec has no clients")
        return made

    def gather(self, attempt: ClientAttempt) -> Classes:
        """See `ClientSession.gather`: the records of each class."""
        return gather(attempt)

    @property
    def noise_settings(self) -> list[Any]:
        """See `ClientSession.noise_settings`."""
        return [self.order, float(self.sigma_over_clip).hex()]


@answering
def confirm(session: MixingSession) -> tuple[bool, ...]:
    """Whether each class has its declared minimum here, by a noisy count."""
    attempt = own.attempt_of(session)
    attempt.before_noise()
    return confirm_classes(attempt, attempt.result(Classes).sizes).outcomes


@answering
def send(session: MixingSession, place: int, block: int, members: dict[str, Joined]) -> Message:
    """The message for one block of mixtures of the class at `place`; `members` mix it, this client included."""
    plan, part = session.plan, session.plan.classes[place]
    pin(session, part.code, members)
    with closing(own.ledger_of(session)) as ledger:
        own.charged(session, ledger, "drawing")
    if not Confirmed.from_bytes(own.work_of(session).read_bytes(Confirmed.FILE)).outcomes[place]:
        raise RoundFailed("a class whose declared minimum was not confirmed is not mixed")
    shared, mixer = plan.shared(len(members)), plan.mixer(part.code)
    start = block * plan.block
    stop = min(start + plan.block, part.mixtures.records)
    if not 0 <= start < stop:
        raise RoundFailed("a block of mixtures that the plan does not have")
    masks = masks_of(session, part.code, members) if shared.mask_sigma > 0 else Masks()
    codes, noise = own.attempt_of(session).result(Classes).codes[place], own.noise_of(session)
    sums = class_sums(codes, plan.encoding, mixer, noise, start, stop)
    steps = noisy_steps(noise, masks, sums, mixer, shared, start)
    return message_of(session, round_id(session.attempt, part.code, block), steps)


def round_id(attempt: str, code: int, block: int) -> str:
    """Public id of the messages of one block of one class."""
    return f"{attempt}/{code}/{block}"


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
    outcomes = calls.each("confirming classes", confirm, members, fault=DROPPED)
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
    mixer, round = plan.mixer(part.code), round_id(attempt.id, part.code, block)
    shape = (min(plan.block, part.mixtures.records - block * plan.block), plan.encoding.width)
    largest = largest_step(mixer, plan.shared(len(members)))
    messages = begun.calls.each(stage, send, members, place, block, members, fault=DROPPED)
    for name, message in messages.items():
        check_message(message, client=name, public_key=keys[name], round=round, shape=shape, largest=largest)
        note(attempt, message, f"received-{place}-{block}-{name}.sha256")
    buffer = io.BytesIO()
    np.save(buffer, average(list(messages.values()), mixer))
    return buffer.getvalue()
