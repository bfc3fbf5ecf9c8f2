"""A private two-stage release of records that clients hold: each noisy statistic is a sum over clients.

What a client is asked for follows from its own copy of the spec and from the sums that were released before, so a
question is no more than these sums. A client answers each statistic of its plan once, with noise of the deviation that
it is charged for, and derives that noise from the question too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from dpdist.errors import RoundFailed
from dpdist.families.base.attempt import Attempt
from dpdist.families.base.graph import no_codes
from dpdist.families.base.passes import Passes
from dpdist.families.prediction.columns import columns_of
from dpdist.families.prediction.plan import FederatedPrivatePlan, PrivatePlan
from dpdist.families.prediction.private.stages import FittedInputs, Statistic, answered, asked
from dpdist.families.prediction.private.statistics import NoisyRegression, NoisySums, marginal_operator
from dpdist.families.prediction.spec import TwoStageSpec
from dpdist.federated import session as own
from dpdist.federated.client import ALL, Joined, answering, drawing_of, masks_of, message_of
from dpdist.federated.messages import WORDS, Masks, Message, check_message
from dpdist.federated.rounds import DROPPED, note
from dpdist.federated.session import ClientAttempt, ClientSession
from dpdist.federated.sums import added, require_sums
from dpdist.federated.together import Together
from dpdist.privacy.arrays import Counts
from dpdist.privacy.noise import Noise


@answering
def contribute(session: PredictionSession, known: tuple[Counts, ...], members: dict[str, Joined]) -> Message:
    """The client's masked part of the statistic that follows those that are `known`; `members` take part."""
    spec, plan = session.spec, session.plan
    for cells in known:
        require_sums(cells)
    attempt, digest = drawing_of(session, members), digest_of(known)
    record = digest.encode()
    if own.work_of(session).write_exclusive(f"asked-{len(known):03}", record) != record:
        raise RoundFailed("the client answered another question before; a round is drawn once")
    kind, work, stage = statistic_after(plan, known, public_noise(session.attempt))
    masks = masks_of(session, ALL, members) if spec.is_masked else Masks()
    noise = Noise(own.noise_of(session).words(f"prediction/together/{digest}", 4).tobytes())
    sums = attempt.result(Passes).run(work, stage=stage)
    cells = kind.draw(sums, charge=plan.own_charge, noise=noise).flat
    steps = (cells.view(np.uint64) + masks.words(f"prediction/together/{digest}", cells.size)).view(np.int64)
    return message_of(session, round_of(session.attempt, known), steps)


class PredictionSession(ClientSession):
    """What the coordinator of a private two-stage release sends with every call of a client."""

    tasks = (contribute,)

    def gather(self, attempt: ClientAttempt) -> Passes:
        """See `ClientSession.gather`: the records, checked by a first pass."""
        passes = Passes(attempt, repeated=True)
        passes.run(marginal_operator(columns_of(attempt.spec), attempt.plan.columns), stage="reading")
        return passes


def statistic_after(plan: PrivatePlan, known: Sequence[Counts], noise: Noise) -> Statistic:
    """The statistic that follows from those that are `known`, flat. Raises RoundFailed: the plan has no other."""
    steps = asked(plan, noise)
    found = next(steps)
    try:
        for cells in known:
            found = steps.send(nothing(plan, found).filled(cells))
    except (StopIteration, ValueError):
        raise RoundFailed("the coordinator asks for a statistic that the plan does not have") from None
    return found


def nothing(plan: PrivatePlan, statistic: Statistic) -> NoisySums:
    """A statistic of no records, without noise: what it looks like."""
    kind, work, _ = statistic
    return kind.of(work.chunk(no_codes(plan.spec.table)))


def digest_of(known: Sequence[Counts]) -> str:
    """Bind noise, masks and signatures to a question."""
    found = hashlib.sha256(len(known).to_bytes(8, "little"))
    for cells in known:
        found.update(hashlib.sha256(cells.tobytes()).digest())
    return found.hexdigest()


def round_of(attempt: str, known: Sequence[Counts]) -> str:
    """Public id of the messages that answer a question."""
    return f"{attempt}/{len(known)}/{digest_of(known)}"


def public_noise(attempt: str) -> Noise:
    """What gives the directions of the features, the same for all who know the attempt's id."""
    return Noise(hashlib.sha256(f"two-stage {attempt}".encode()).digest())


def measure_together(attempt: Attempt[TwoStageSpec, FederatedPrivatePlan]) -> FittedInputs:
    """Ask all clients for each statistic, and store its noisy sum. Raises RoundFailed: one cannot go on."""
    plan, known = attempt.plan, list[Counts]()
    together = Together.begun(attempt, PredictionSession, known=attempt.work.exists(NoisyRegression.FILE))
    calls, members = together.calls, together.members
    together.draw()

    def collected(statistic: Statistic) -> NoisySums:
        empty, round = nothing(plan, statistic), round_of(attempt.id, known)
        messages = calls.each(statistic[2], contribute, members, tuple(known), members, fault=DROPPED)
        for name, message in messages.items():
            key = attempt.spec.clients[name] or ""
            check_message(message, client=name, public_key=key, round=round, shape=empty.flat.shape, largest=WORDS)
            note(attempt, message, f"received-{len(known)}-{name}.sha256")
        cells = added([message.steps for message in messages.values()])
        require_sums(cells)
        return empty.filled(cells)

    def answer(statistic: Statistic) -> NoisySums:
        noisy = attempt.stored(statistic[0], partial(collected, statistic))
        known.append(noisy.flat)
        return noisy

    found = answered(asked(plan, public_noise(attempt.id)), answer)
    together.close()
    return replace(found, clients=len(members))
