"""The stages of a private two-stage release: measure with noise, fit a model to the measurements, draw records, write.

`measure` alone reads the table, in up to three passes; everything after it is post-processing.

Where clients hold the records, each noisy statistic is a sum over clients. What a client is asked for follows from its
own copy of the spec and from the sums that were released before, so a question is no more than these sums. A client
answers each statistic of its plan once, with noise of the deviation that it is charged for, and derives that noise from
the question too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from dpdist.data.operators import Operator
from dpdist.errors import RoundFailed
from dpdist.families.base.attempt import Attempt, ReleasedRecords, write_records
from dpdist.families.base.family import Stage
from dpdist.families.base.graph import no_codes
from dpdist.families.base.passes import Passes
from dpdist.families.prediction.columns import Columns, columns_of
from dpdist.families.prediction.first_stage import FIRST_STAGES, Marginal, Target, generator, latin_hypercube
from dpdist.families.prediction.plan import FederatedPrivatePlan, PrivatePlan
from dpdist.families.prediction.private import mechanisms, statistics
from dpdist.families.prediction.private.mechanisms import FEATURE_STEP, PrivateColumn
from dpdist.families.prediction.private.statistics import CHUNK_ROWS, NoisyRegression, NoisySums, marginal_operator
from dpdist.families.prediction.second_stage import FREQUENCIES, WIDTH
from dpdist.families.prediction.spec import TwoStageSpec
from dpdist.federated import session as own
from dpdist.federated.client import ALL, Joined, answering, drawing_of, masks_of, message_of
from dpdist.federated.messages import WORDS, Masks, Message, check_message
from dpdist.federated.rounds import DROPPED, executor_here, note
from dpdist.federated.session import ClientAttempt, ClientSession
from dpdist.federated.sums import added, require_sums
from dpdist.federated.together import Together
from dpdist.ledger.keys import KeyRef, load_noise
from dpdist.privacy.arrays import Codes, Counts, Floats
from dpdist.privacy.noise import Noise
from dpdist.privacy.portable import inner, matmul, positive_part

_MODELLED_ROWS = 1 << 15  # drawn from the released model for the second moments of the features


@dataclass(frozen=True, eq=False)
class InputModel:
    """What noisy marginals say."""

    total: float  # number of records
    marginals: tuple[Marginal, ...]  # of the inputs, then of the response
    tables: tuple[Counts, ...]  # tuple of int64[total]: ranks of the fine cells of each input

    def target(self, noisy: statistics.NoisyCorrelations | None) -> Target:
        """Marginals and correlation of the inputs; without products of ranks there is one input."""
        inputs = self.marginals[:-1]
        products = np.zeros(0, np.int64) if noisy is None else noisy.products
        return Target(inputs, mechanisms.private_correlation(products, self.tables, inputs, total=self.total))


def input_model(columns: Sequence[PrivateColumn], noisy: statistics.NoisyMarginals) -> InputModel:
    """The marginals of noisy histograms: inputs, then the response."""
    total = mechanisms.noisy_total(noisy.counts)
    marginals = tuple(
        mechanisms.private_marginal(column, counts, total=total)
        for column, counts in zip(columns, noisy.counts, strict=True)
    )
    tables = tuple(mechanisms.rank_table(column, m) for column, m in zip(columns[:-1], marginals[:-1], strict=True))
    return InputModel(total, marginals, tables)


def design(columns: Sequence[PrivateColumn], known: InputModel, noise: Noise) -> statistics.Design:
    """How the regression sees records, from what was released."""
    rng = generator(noise, "prediction/directions", 0)
    features = statistics.feature_map(columns[:-1], known.tables, frequencies=FREQUENCIES, width=WIDTH, rng=rng)
    return statistics.Design(features, statistics.response_window(known.marginals[-1]), columns[-1].scale)


@dataclass(frozen=True, eq=False)
class PrivateModel:
    """What was released, and what follows from it."""

    columns: tuple[PrivateColumn, ...]  # the inputs
    target: Target  # marginals and correlation of the inputs
    design: statistics.Design  # how the regression sees records
    weights: Floats  # float64[p]

    def predict(self, inputs: Floats) -> Floats:
        """Responses on the unit interval, for rows of the unit cube, float64[n, d]."""
        window, features = self.design.window, self.design.features(_cells(self.columns, inputs))
        predicted = matmul(features.astype(np.float64), self.weights) * FEATURE_STEP
        return np.clip(window.centre + window.half * np.clip(predicted, -1.0, 1.0), 0.0, 1.0)


def _cells(columns: Sequence[PrivateColumn], inputs: Floats) -> list[mechanisms.Cells]:
    """The fine cells of rows of the unit cube."""
    return [
        np.clip((inputs[:, i] * column.total).astype(np.int64), 0, column.total - 1) for i, column in enumerate(columns)
    ]


PrivateAttempt = Attempt[TwoStageSpec, PrivatePlan]


@dataclass(frozen=True, eq=False)
class FittedInputs:
    """What follows from the noisy statistics of the inputs; the statistics themselves are results of their own."""

    known: InputModel  # marginals of inputs and response
    target: Target  # marginals and correlation of the inputs
    design: statistics.Design  # how the regression sees records
    clients: int = 1  # whose sums were added


Statistic = tuple[type[statistics.NoisySums], Operator, str]
"""The type of a noisy statistic, the operator that has its exact sums, and the name of its stage."""


def measure(attempt: PrivateAttempt) -> FittedInputs:
    """Draw and store each noisy statistic once. Raises DataError: the table breaks its declared policies."""
    passes = Passes(attempt, repeated=True)

    def drawn(kind: type[statistics.NoisySums], work: Operator, stage: str) -> statistics.NoisySums:
        return kind.draw(passes.run(work, stage=stage), charge=attempt.plan.charge, noise=attempt.noise)

    return answered(
        asked(attempt.plan, attempt.noise), lambda statistic: attempt.stored(statistic[0], partial(drawn, *statistic))
    )


Asked = Generator[Statistic, Any, FittedInputs]
"""Statistics in turn: sent each with its noise, it returns what follows from all."""


def answered(steps: Asked, answer: Callable[[Statistic], statistics.NoisySums]) -> FittedInputs:
    """What follows from the statistics that `answer` gives."""
    try:
        statistic = next(steps)
        while True:
            statistic = steps.send(answer(statistic))
    except StopIteration as end:
        found: FittedInputs = end.value
        return found


def asked(plan: PrivatePlan, noise: Noise) -> Asked:
    """Ask for each noisy statistic once, in an order that no record decides, and return what follows from them.

    Each is a sum over records. Those of parties with disjoint records add up to that of one table with all of them
    (`NoisySums`). `noise` gives the directions of the features, which are no secret.
    """
    columns, private = columns_of(plan.spec), plan.columns
    known = input_model(
        private, (yield statistics.NoisyMarginals, statistics.marginal_operator(columns, private), "counting")
    )
    ranks = statistics.rank_operator(columns, private, known.tables)
    correlated = plan.charge.correlation > 0
    target = known.target((yield statistics.NoisyCorrelations, ranks, "correlating") if correlated else None)
    seen = design(private, known, noise)
    ridge = statistics.ridge_operator(columns, private, seen, products=plan.measured)
    yield statistics.NoisyRegression, ridge, "regressing"
    return FittedInputs(known, target, seen)


def fit(attempt: PrivateAttempt) -> PrivateModel:
    """The model that follows from the noisy statistics."""
    plan, measured, noisy = attempt.plan, attempt.result(FittedInputs), attempt.result(statistics.NoisyRegression)
    inputs, known, seen = plan.columns[:-1], measured.known, measured.design
    charge = plan.noise_over(measured.clients)
    with attempt.stage("fitting"):
        if len(noisy.products):
            second = positive_part(np.asarray(noisy.products * FEATURE_STEP**2, np.float64))
        else:
            rng = generator(attempt.noise, "prediction/modelled", 0)
            drawn = latin_hypercube(measured.target, _MODELLED_ROWS, rng)
            second = statistics.modelled_products(seen.features(_cells(inputs, drawn)), total=known.total)
        response, window = known.marginals[-1], seen.window
        values = np.clip((response.middles - window.centre) / window.half, -1, 1)
        weights = statistics.ridge_weights(
            second,
            np.asarray(noisy.cross * FEATURE_STEP**2, np.float64),
            noise=charge.cross,
            product_noise=charge.product,
            variance=inner(response.masses, (values - inner(response.masses, values)) ** 2),
        )
        return PrivateModel(inputs, measured.target, seen, weights)


def draw(attempt: PrivateAttempt) -> ReleasedRecords:
    """Records of the model, part by part."""
    spec, executor = attempt.spec, executor_here(attempt)
    task = executor.tasks("release")
    records, rows = spec.prediction.records or 0, spec.output.rows_per_part
    how = task.constant("how", (attempt.result(PrivateModel), columns_of(spec), spec.prediction.first_stage))
    return ReleasedRecords(
        [
            task("part", _part, how, attempt.key, min(rows, records - start), number)
            for number, start in enumerate(range(0, records, rows))
        ],
        executor,
    )


def _part(how: tuple[PrivateModel, Columns, str], key: KeyRef, rows: int, number: int) -> Codes:
    """Codes of all attributes of drawn records."""
    model, columns, first_stage = how
    inputs = FIRST_STAGES[first_stage](model.target, rows, generator(load_noise(key), "prediction/records", number))
    pieces = [model.predict(inputs[start : start + CHUNK_ROWS]) for start in range(0, rows, CHUNK_ROWS)]
    return columns.codes(inputs, np.concatenate(pieces))


STAGES: Sequence[Stage[TwoStageSpec, PrivatePlan]] = (
    Stage("measure", measure),
    Stage("fit", fit),
    Stage("draw", draw),
    Stage("write", write_records),
)
"""The stages of a private release, in order."""


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
