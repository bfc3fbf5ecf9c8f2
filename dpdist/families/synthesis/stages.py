"""The stages of a synthesis: count once, learn, draw the records, measure their accuracy, write them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from dpdist.accuracy.sketched import Sketch
from dpdist.accuracy.sketched import measure as measure_sketched
from dpdist.accuracy.tables import Tables
from dpdist.data.count import PairCounts
from dpdist.data.operators import pair_counts_operator
from dpdist.families.base.accuracy import (
    ReleaseAccuracy,
    accuracy_stage,
    count_tables,
    published_accuracy,
    released_tables,
)
from dpdist.families.base.attempt import Attempt, ReleasedRecords, write_records
from dpdist.families.base.family import Stage
from dpdist.families.base.passes import Passes
from dpdist.families.synthesis.discovery_steps import discover
from dpdist.families.synthesis.plan import SynthesisPlan
from dpdist.families.synthesis.prior import keep_public, read_evidence, read_prior
from dpdist.families.synthesis.regression_steps import MOST_VALUES, Score, scores_operator
from dpdist.families.synthesis.regressions import Regressions, measure_regressions
from dpdist.families.synthesis.spec import WholeSynthesisSpec
from dpdist.federated.rounds import executor_here
from dpdist.federated.session import ClientAttempt
from dpdist.federated.sums import SummingSession
from dpdist.federated.together import Together
from dpdist.ledger.keys import KeyRef, load_noise
from dpdist.model.account import GaussianAccount, Measurements
from dpdist.model.choices import is_wide
from dpdist.model.coding import SingleCounts, single_counts_operator
from dpdist.model.draw import WeightedPool, draw_records, weighted_pool
from dpdist.model.evidence import Evidence
from dpdist.model.files import model_files
from dpdist.model.fitted import Fitted
from dpdist.model.learn import Known, Learned, learn
from dpdist.model.sums import AskedCounts
from dpdist.privacy.arrays import Codes, Counts, Floats
from dpdist.publish.part_format import write_file
from dpdist.publish.tilts import UNIT, bin_means, tilts_in
from dpdist.spec.regression import Regression
from dpdist.spec.schema import Schema

SynthesisAttempt = Attempt[WholeSynthesisSpec, SynthesisPlan]

_COVARIANCE_OF = (
    "coefficients of the regression in the private table, with the covariance of their errors: noise, what clipping "
    "may lose, and what the steps leave; for a population add the sampling covariance"
)


def stages(plan: SynthesisPlan) -> Sequence[Stage[WholeSynthesisSpec, SynthesisPlan]]:
    """The stages of a synthesis, in order."""
    steps = {
        Stage("discover", discover): plan.discovery,
        Stage("model", learn_model if plan.spec.federated is None else learn_together): True,
        Stage("records", draw): True,
        Stage("accuracy", measure): plan.accuracy_mu or plan.discovery,  # what is found may have fewer values
        Stage("regressions", measure_declared): plan.regression_mu,
        Stage("publish model", publish_model): plan.spec.output.measurements,
        Stage("write", write_records): True,
    }
    return [stage for stage, is_wanted in steps.items() if is_wanted]


def learn_model(attempt: SynthesisAttempt) -> Learned:
    """Count all pairs in one pass, and learn the model, which is stored. Raises DataError: a policy is broken."""

    def make() -> Learned:
        prior, evidence = read_prior(attempt.spec), read_evidence(attempt.spec)  # before a read is marked in the ledger
        keep_public(prior or evidence, attempt.public_tables)
        table, cards = attempt.spec.table, attempt.spec.table.cardinalities
        counts: PairCounts | SingleCounts | Tables
        if is_wide(cards):
            passes = Passes(attempt, repeated=True)
            count = partial(passes.run, stage="counting pairs")
            counts = SingleCounts(cards, passes.run(single_counts_operator(cards), stage="counting"), count)
        elif attempt.plan.accuracy_mu or attempt.plan.choices.triple_tables or attempt.plan.choices.high:
            counts = count_tables(attempt, small=bool(attempt.plan.choices.high))
        else:
            counts = Passes(attempt).run(pair_counts_operator(cards), stage="counting")
        choices, pool = attempt.plan.choices, list[Codes]()
        known = Known(table.forbidden, table.level_maps, apart=attempt.plan.apart if prior or evidence else None)
        if prior is not None:
            named = attempt.spec.model.prior
            known = replace(known, prior=prior.counts, rows=prior.rows if named and named.records else None)
        if evidence is not None:
            known = replace(known, evidence=Evidence(evidence.related))
        account = GaussianAccount(choices.mu, attempt.noise)
        with attempt.stage("fitting") as progress:
            learned = learn(
                counts,
                account,
                choices=choices,
                drawing=load_noise(attempt.drawing_key),
                known=known,
                progress=progress,
                pooled=pool.extend,
            )
        if evidence is not None:
            learned.report["evidence"] = evidence.named
        if pool and attempt.executor.in_process:
            attempt.keep(_Pool(learned.fitted, WeightedPool.of(learned.fitted, pool)))
        return learned

    learned = attempt.stored(Learned, make)
    attempt.public["learned"] = learned.named(attempt.spec.table.names, attempt.spec.model_share)
    return learned


def learn_together(attempt: SynthesisAttempt) -> Learned:
    """Learn the model from noisy sums over clients; it is stored. Raises RoundFailed: one cannot go on."""
    together = Together.begun(attempt, SynthesisSession, known=attempt.work.exists(Learned.FILE))
    spec, choices = attempt.spec, attempt.plan.choices

    def make() -> Learned:
        together.draw()
        drawing = load_noise(attempt.drawing_key)
        account = GaussianAccount(choices.mu, drawing, ask=together.asking(), **together.noise)
        known = Known(spec.table.forbidden, spec.table.level_maps)
        return learn(AskedCounts(spec.table.cardinalities), account, choices=choices, drawing=drawing, known=known)

    learned = attempt.stored(Learned, make)
    attempt.public["learned"] = learned.named(spec.table.names, spec.model_share)
    attempt.keep(together)
    together.close()
    return learned


def measure_together(attempt: SynthesisAttempt, *, records: int) -> ReleaseAccuracy:
    """Measure the accuracy of the records by noisy sums over clients."""
    released, together = attempt.result(ReleasedRecords), attempt.result(Together)
    asked = AskedCounts(attempt.spec.table.cardinalities)

    def make() -> ReleaseAccuracy:
        drawing = load_noise(attempt.drawing_key)
        asking = together.asking(after=len(attempt.result(Learned).report["account"]))  # each step was a question
        account = GaussianAccount(attempt.plan.accuracy_mu, drawing, ask=asking, **together.noise)

        def ask(sketches: Sequence[Sketch], weights: Sequence[float]) -> tuple[list[Counts], Floats]:
            sums = [replace(asked.of(*sketch.attributes), groups=sketch.groups) for sketch in sketches]
            return account.measure("accuracy", sums, share=1.0, weights=weights)

        return ReleaseAccuracy(measure_sketched(released_tables(attempt, released), drawing, records=records, ask=ask))

    found = published_accuracy(attempt, make)
    together.close()
    return found


class SynthesisSession(SummingSession):
    """What the coordinator of a synthesis sends with every call of a client."""

    def gather(self, attempt: ClientAttempt) -> Tables:
        """See `ClientSession.gather`."""
        return count_tables(attempt)


@dataclass(frozen=True, eq=False)
class _Pool:
    """A model's pool, as learning drew it: tasks of this process need not draw them again."""

    fitted: Fitted
    rows: WeightedPool


@dataclass(frozen=True, eq=False)
class _Source:
    """What parts are drawn from."""

    fitted: Fitted
    key: KeyRef
    rounds: int
    schema: Schema


def draw(attempt: SynthesisAttempt) -> ReleasedRecords:
    """The records of each part, each a function of the model, the public drawing key and its number."""
    attempt.before_noise()
    fitted, measurements = attempt.result(Learned).fitted, attempt.result(Learned).measurements
    attempt.form = attempt.plan.form.model_copy(update={"tilts": _tilts(attempt.plan.released, measurements)})
    executor = executor_here(attempt)
    task = executor.tasks("records")
    rounds, schema, pool = attempt.plan.choices.balance, attempt.spec.table, _held_pool(attempt)
    source = task.constant("model", _Source(fitted, attempt.drawing_key, rounds, schema))
    held = task("pool", _weighted, source) if pool is None else task.constant("pool", pool)
    parts = [task("part", _part, source, held, part, rows) for part, rows in enumerate(attempt.plan.parts)]
    return ReleasedRecords(parts, executor, key=attempt.drawing_key)


def _tilts(schema: Schema, measurements: Measurements) -> dict[str, tuple[int, ...]]:
    """How numbers lie within bins, from the noisy one-way tables."""
    attributes = enumerate(schema.attributes)
    found = tilts_in((a, measurements.combined((place,), (a.cardinality,))) for place, a in attributes)
    return {name: tilts for name, tilts in found.items() if set(tilts) != {UNIT}}


def _held_pool(attempt: SynthesisAttempt) -> WeightedPool | None:
    """The pool, where tasks find it in memory; None where they draw it."""
    try:
        pool = attempt.result(_Pool)
    except LookupError:  # none exists, or an earlier process learned the model
        return None
    return pool.rows if pool.fitted.equals(attempt.result(Learned).fitted) else None  # what was stored first counts


def measure(attempt: SynthesisAttempt) -> ReleaseAccuracy | None:
    """Measure the accuracy of the records, at the scale of the noisy number of records; where values were found first,
    there may be too many of them.
    """
    if not attempt.plan.accuracy_mu:
        return None
    records = attempt.result(Learned).report["records"]
    if attempt.spec.federated is not None:
        return measure_together(attempt, records=records)
    return accuracy_stage(attempt, mu=attempt.plan.accuracy_mu, records=records)


def measure_declared(attempt: SynthesisAttempt) -> Regressions:
    """Measure the declared regressions, from the records that an earlier stage has drawn."""
    means = bin_means(attempt.spec.table.attributes, (attempt.form or attempt.plan.form).tilts)
    regressions = attempt.spec.parsed_regressions(means)

    def make() -> Regressions:
        noise = attempt.noise
        released = _first_records(attempt, max(len(r.names) for r in regressions), regressions)
        passes = Passes(attempt, repeated=True)

        def count(scores: Sequence[Score]) -> Counts:
            return np.asarray(passes.run(scores_operator(scores), stage="regressions"))

        records = float(attempt.result(Learned).report["records"])
        mu = attempt.plan.regression_mu
        return measure_regressions(regressions, released, count, records=records, mu=mu, noise=noise)

    found = attempt.stored(Regressions, make)
    attempt.public["regressions"] = {"of": _COVARIANCE_OF, "measured": [one.found() for one in found.measured]}
    return found


def _first_records(attempt: SynthesisAttempt, coefficients: int, regressions: Sequence[Regression]) -> Codes:
    """The first released records, from which Hessians are computed; attributes that no regression uses are left out."""
    most, parts, rows = MOST_VALUES // coefficients, [], 0
    for part, size in zip(attempt.result(ReleasedRecords).parts, attempt.plan.parts, strict=True):
        if rows < most:
            parts.append(part)
            rows += size
    used = {i for r in regressions for i in (*(t.attribute for t in (r.outcome, *r.terms)), *r.where.attributes)}
    task = attempt.executor.tasks("regressions")
    taken = [task("columns", _columns, part, tuple(sorted(used))) for part in parts]
    with attempt.stage("released records") as progress:
        columns = attempt.executor.compute(taken, progress=progress)
    return [np.concatenate(of_parts) for of_parts in zip(*columns, strict=True)]


def _columns(codes: Codes, used: tuple[int, ...]) -> Codes:
    """Records with some of their attributes: of the others every code is 0."""
    nothing = np.zeros(len(codes[0]), np.uint8)
    return [column if i in used else nothing for i, column in enumerate(codes)]


def publish_model(attempt: SynthesisAttempt) -> None:
    """Write the noisy tables, the model and how records are drawn from it beside the parts."""
    learned = attempt.result(Learned)
    contents = model_files(learned, key=attempt.drawing_key.public_hex, rounds=attempt.plan.choices.balance)
    if attempt.plan.regression_mu:
        contents[Regressions.FILE] = attempt.result(Regressions).to_bytes()
    attempt.files = tuple(write_file(attempt.output, attempt.id, name, content) for name, content in contents.items())


def _weighted(source: _Source) -> WeightedPool | None:
    """The pool that records are taken from, where there is one."""
    if source.fitted.adjustment is None:
        return None
    return weighted_pool(source.fitted, load_noise(source.key), source.schema.forbidden)


def _part(source: _Source, pool: WeightedPool | None, part: int, rows: int) -> Codes:
    rules, noise = source.schema.forbidden, load_noise(source.key)
    columns = draw_records(source.fitted, noise, part, rows, rounds=source.rounds, rules=rules, pool=pool)
    return [column.astype(attribute.dtype) for column, attribute in zip(columns, source.schema.attributes, strict=True)]
