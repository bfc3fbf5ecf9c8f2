"""The tasks of a client of a mixing release: it confirms its classes, and sends the noisy sums of its mixtures.

Before its first message of a class a client stores which clients mix that class, and refuses others later.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import Any

from dpdist.errors import RoundFailed, SpecError
from dpdist.families.mixing.classes import Classes, Confirmed, class_sums, gather
from dpdist.families.mixing.classes import confirm as confirm_classes
from dpdist.families.mixing.federated.messages import noisy_steps
from dpdist.families.mixing.plan import FederatedPlan, planned
from dpdist.families.mixing.spec import MixingSpec
from dpdist.federated import session as own
from dpdist.federated.client import Joined, answering, masks_of, message_of, pin
from dpdist.federated.messages import Masks, Message
from dpdist.federated.session import ClientAttempt, ClientSession


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
